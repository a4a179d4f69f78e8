"""Decoders of typed documents, each made by one thread while the others wait.

msgspec learns a Struct's fields at its first `Decoder(kind)`, `decode(type=kind)` or
`convert(value, kind)`: it hangs an unfilled StructInfo on the class, then runs Python code, which
lets other threads go on, and fills it last. A second thread that comes for the same class meanwhile
takes the unfilled one and reads a null pointer: the process ends with SIGSEGV (45 of 50 starts
with four threads, msgspec 0.22). Neither functools.cache nor making a decoder while a module is
imported prevents it, for two modules may share a Struct. So every typed decoding begins here, and
ruff refuses msgspec's own functions elsewhere (`banned-api` in pyproject.toml).

Lazy imports need no such care: Python locks modules one by one, and this package has no import
cycles, in which alone a thread can meet a half-imported module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

import msgspec

T = TypeVar("T")
P = ParamSpec("P")

_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...


@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON documents of a type, the same at each call."""
    decoder = _json.get(kind)
    if decoder is None:
        with _lock:
            decoder = _json.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...


@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of MessagePack documents of a type, the same at each call."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _lock:
            decoder = _msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder


def decode_msgpack(data: bytes, kind: type[T], decode_hook: Callable[[type, Any], Any]) -> T:
    """A MessagePack document of a type; `decode_hook(type, value)` makes what msgspec cannot.
    Raises msgspec.MsgspecError.
    """
    msgpack_decoder(kind)
    return msgspec.msgpack.decode(data, type=kind, dec_hook=decode_hook)


@overload
def convert(value: Any, kind: type[T], *, str_keys: bool = False) -> T: ...


@overload
def convert(value: Any, kind: Any, *, str_keys: bool = False) -> Any: ...


def convert(value: Any, kind: Any, *, str_keys: bool = False) -> Any:
    """A decoded document, of dicts and lists, as a type. With `str_keys` keys are strings, as in
    JSON. Raises msgspec.ValidationError.
    """
    json_decoder(kind)
    return msgspec.convert(value, kind, str_keys=str_keys)


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """functools.cache for what must exist once, such as a class: there, threads that come together
    each make one.
    """
    made = cast("Callable[P, T]", functools.cache(make))
    lock = threading.RLock()

    @functools.wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            return made(*args, **kwargs)

    return get
