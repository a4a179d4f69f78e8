"""Sending gputui to a host that has Python but not gputui: an archive, unpacked into its cache.

`far_loader` is the program that unpacks it there. It is sent as text, so it is a file of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import platform
import re
import secrets
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

import gputui
from gputui.base.errors import GputuiError
from gputui.base.sanitize import clean_output
from gputui.collect.hosts import failures, far_loader
from gputui.collect.hosts.pipe import HostTarget, Pipe, SilentError, read_line

# gputui as an archive for a host that has Python, and nothing else of it.

STARTER = "gputui-far.py"
"""The file in the archive that starts it: its folder is then the first that is searched."""

_STARTER_TEXT = "import sys\n\nfrom gputui.__main__ import main\n\nsys.exit(main())\n"

# Distributions that reading a machine needs; NumPy, as large as all the rest 20 times, is not.
_NEEDED = ("msgspec", "psutil", "nvidia-ml-py")

_LEFT_OUT = ("tui", "docs", "__pycache__")

_KINDS = (".py", ".json")

_LIBRARY = ".so"

# The same files give the same archive, and with it the same sum.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def bundle(*, libraries: bool) -> bytes:
    """The archive; with the capture libraries if they can be loaded there."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_files(libraries)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def misfit(python: tuple[int, int], machine: str, system: str) -> str:
    """Why the archive of this machine does not run there, "" if it does: its packages have parts
    that are made for one version of Python on one kind of machine.
    """
    here = sys.version_info[:2], platform.machine(), sys.platform
    if (python, machine, system) == here:
        return ""
    return (
        f"Python {python[0]}.{python[1]} on {machine} there, "
        f"{here[0][0]}.{here[0][1]} on {here[1]} here: the packages of one do not run on the other"
    )


def _files(libraries: bool) -> Iterator[tuple[str, bytes]]:
    yield STARTER, _STARTER_TEXT.encode()
    root = Path(gputui.__file__).parent
    for path in root.rglob("*"):
        part = path.relative_to(root)
        kinds = (*_KINDS, _LIBRARY) if libraries else _KINDS
        if path.suffix in kinds and path.is_file() and not set(part.parts) & set(_LEFT_OUT):
            yield f"gputui/{part}", path.read_bytes()
    for name in _NEEDED:
        for file in metadata.files(name) or ():
            part = Path(str(file))
            is_code = part.suffix in (".py", _LIBRARY) and "tests" not in part.parts
            # Scripts of a package are listed above its folder (../../../bin/…).
            if is_code and ".." not in part.parts:
                yield str(part), Path(str(file.locate())).read_bytes()


# Sending gputui to a host that lacks it, into a private folder of its cache.

FOLDER = "~/.cache/gputui/remote"

# For Python to start there, and for the archive on a slow line. Chosen, not measured.
PATIENCE_S = 60.0

# What pyproject.toml requires.
_LEAST_PYTHON = (3, 11)

T = TypeVar("T")


class ShipError(GputuiError):
    """gputui was not sent. One line."""


class _Facts(msgspec.Struct, frozen=True):
    python: tuple[int, int]
    machine: str
    system: str
    glibc: str = ""


class _Place(msgspec.Struct, frozen=True):
    folder: str
    executable: str
    has: bool


class _Done(msgspec.Struct, frozen=True):
    done: bool = False
    error: str = ""


class _EndedError(GputuiError):
    """The other end closed its output."""


def ship(target: HostTarget) -> HostTarget:
    """The target with a gputui of its own, sent unless it is there from an earlier time.

    Raises ShipError.
    """
    token = secrets.token_hex(8)
    source = Path(far_loader.__file__).read_text(encoding="utf-8")
    try:
        pipe = Pipe(target.argv(["python3", "-c", source, token]), PATIENCE_S)
    except OSError as error:
        raise ShipError(str(error)) from None
    with contextlib.closing(pipe):
        try:
            return _sent(target, token, pipe)
        except SilentError:
            raise ShipError(f"no answer within {PATIENCE_S:g} s") from None
        except (_EndedError, OSError):
            ended = failures.ended(target, *pipe.status(), was_up=False)
            raise ShipError(ended.line) from None


def _sent(target: HostTarget, token: str, pipe: Pipe) -> HostTarget:
    stream: BinaryIO = io.BufferedReader(pipe)
    facts = _answer(stream, token, _Facts)
    if facts.python < _LEAST_PYTHON:
        there, least = (".".join(map(str, version)) for version in (facts.python, _LEAST_PYTHON))
        raise ShipError(f"Python there is {there}, and it takes {least}")
    if wrong := misfit(facts.python, facts.machine, facts.system):
        raise ShipError(clean_output(wrong, 200))
    archive = bundle(libraries=_version(facts.glibc) >= _version(platform.libc_ver()[1]))
    pipe.send(f"{hashlib.sha256(archive).hexdigest()} {len(archive)}\n".encode())
    place = _answer(stream, token, _Place)
    if not place.has:
        pipe.send(archive)
        done = _answer(stream, token, _Done)
        if not done.done:
            raise ShipError(clean_output(done.error, 200) or "it was not unpacked")
    return msgspec.structs.replace(target, there=(place.executable, f"{place.folder}/{STARTER}"))


def _answer(stream: BinaryIO, token: str, kind: type[T]) -> T:
    answer = read_line(stream, token, kind, PATIENCE_S)
    if answer is None:
        raise _EndedError
    return answer


def _version(text: str) -> tuple[int, ...]:
    """Of the C library; the lowest where there is none, as on musl."""
    return tuple(map(int, re.findall(r"\d{1,6}", text)))
