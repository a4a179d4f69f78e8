"""What a GGUF file of llama.cpp's holds: the bytes of its weights by type, and what its KV cache
takes. It is read here; `gguf_run` has llama.cpp run it.

The format: ggml/docs/gguf.md. The file is untrusted: sizes are checked before anything is read.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import CannotRun

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 100_000
_MOST_TEXT = 1 << 20
_MOST_DIMENSIONS = 4
_MOST_DEPTH = 4

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9

_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 28: ("F64", 1, 8), 30: ("BF16", 1, 2),
}  # fmt: skip
"""By ggml's number of a type: its name, values in a block, bytes of a block (ggml-common.h)."""


@dataclass(frozen=True)
class GgufFile:
    """What is in the file. `bytes_by_type` is of the weights, by the names of ggml's types."""

    architecture: str
    tensors: int
    parameter_count: int
    bytes_by_type: Counter[str]
    multiplied_bytes: int
    """Of the weights that each token multiplies with: all but a table that is only looked up."""
    context: int | None
    kv_bytes_per_token: int | None
    """Of all layers, in fp16; None where the file does not say its heads."""

    @property
    def words(self) -> str:
        """In one line, for people."""
        sizes = ", ".join(f"{name} {_mib(size)}" for name, size in self.bytes_by_type.most_common())
        cache = ""
        if self.kv_bytes_per_token and self.context:
            whole = self.kv_bytes_per_token * self.context
            cache = f"; KV cache {_mib(whole)} at {self.context:,} tokens in fp16"
        return (
            f"{self.architecture}, {self.tensors} tensors, "
            f"{_mib(self.bytes_by_type.total())} ({sizes}){cache}"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def is_gguf(path: Path) -> bool:
    """Whether a file begins as one. Raises nothing."""
    try:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufFile:
    """Raises CannotRun, in one line, for a file that is none or is damaged."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, ValueError, OverflowError, UnicodeDecodeError) as error:
        line = " ".join(str(error).split())[:120]
        raise CannotRun(f"model: {path.name[:100]!r} is no whole GGUF file: {line}") from None


def _read(file: BinaryIO) -> GgufFile:
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    (version,) = _values(file, "<I")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}, {_VERSIONS} are known")
    tensors, entries = (_count(file) for _ in range(2))
    facts: dict[str, object] = {}
    for _ in range(entries):
        name = _text(file)
        (kind,) = _values(file, "<I")
        value = _value(file, int(kind), 0)
        if isinstance(value, int | str):
            facts[name] = value
    sizes, by_tensor, parameter_count = Counter[str](), Counter[str](), 0
    for _ in range(tensors):
        tensor = _text(file)
        (dimensions,) = _values(file, "<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        count = 1
        for length in _values(file, f"<{dimensions}Q"):
            count *= int(length)
        kind, _offset = _values(file, "<IQ")
        name, block, size = _TYPES.get(int(kind), (f"type {kind}", 1, 0))
        sizes[name] += -(-count // block) * size
        by_tensor[tensor] = -(-count // block) * size
        parameter_count += count
    architecture = str(facts.get("general.architecture", "unknown"))[:40]

    def fact(name: str) -> int | None:
        value = facts.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    heads, width = fact("attention.head_count"), fact("embedding_length")
    layers, kv_heads = fact("block_count"), fact("attention.head_count_kv") or heads
    each = fact("attention.key_length") or (width // heads if width and heads else None)
    return GgufFile(
        architecture=architecture,
        tensors=tensors,
        parameter_count=parameter_count,
        bytes_by_type=sizes,
        # A head of its own is `output.weight`; without one the words' table is it.
        multiplied_bytes=sizes.total()
        - (by_tensor["token_embd.weight"] if by_tensor["output.weight"] else 0)
        - by_tensor["position_embd.weight"],
        context=fact("context_length"),
        kv_bytes_per_token=2 * 2 * layers * kv_heads * each
        if layers and kv_heads and each
        else None,
    )


def _values(file: BinaryIO, form: str) -> tuple[int | float, ...]:
    size = struct.calcsize(form)
    data = file.read(size)
    return struct.unpack(form, data)


def _count(file: BinaryIO) -> int:
    (count,) = _values(file, "<Q")
    if count > _MOST_ENTRIES:
        raise ValueError(f"it names {count} entries")
    return int(count)


def _text(file: BinaryIO) -> str:
    (length,) = _values(file, "<Q")
    if length > _MOST_TEXT:
        raise ValueError(f"a text has {length} bytes")
    data = file.read(int(length))
    if len(data) < length:
        raise ValueError("it ends in a text")
    return data.decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int, depth: int) -> object:
    """A value of the metadata; of arrays nothing is kept."""
    if kind in _SCALARS:
        return _values(file, _SCALARS[kind])[0]
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY or depth >= _MOST_DEPTH:
        raise ValueError(f"a value has the type {kind}")
    inner, count = _values(file, "<IQ")
    if inner in _SCALARS:
        file.seek(int(count) * struct.calcsize(_SCALARS[int(inner)]), 1)
        return None
    if count > 100 * _MOST_ENTRIES:
        raise ValueError(f"an array has {count} values")
    for _ in range(int(count)):
        _value(file, int(inner), depth + 1)
    return None
