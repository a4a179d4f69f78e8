"""Operations as the accounting sees them: columns with a leaf each, refined by the patterns around
them.

For `device` and `tracker`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import Rows
from gputui.attribute.accounting.repetition import cue_of, family
from gputui.attribute.records import NO_KERNEL, Bools, Int64s, Slots, TimedOperations, pick
from gputui.model.leaves import CHANGES_LAYOUT, Leaf, leaf_of_kernel
from gputui.ring.layout import RecordKind

# --- Operations of a device as the accounting sees them: when, from which call, under which leaf.

_MEMCPY = int(RecordKind.MEMCPY)  # NumPy compares with an enum three times as slowly
FIRST_KERNEL = 64
"""Codes of kernels, and of their families, begin here; below are directions of copies."""

# Above all directions of copies (CUpti_ActivityMemcpyKind ends at 13).
_MEMSET = 32
_PAGEABLE = 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class Columns(NamedTuple):
    """Operations, a column a fact. `called_ns` is 0 where the launch is not known; `codes` are
    kernels' numbers, from FIRST_KERNEL on, and below them those of copies; `shapes` are in which
    shape a kernel was launched; `nodes` are the ranges around the calls; `goes_on` marks the rest
    of an operation whose beginning is accounted for."""

    starts: Int64s
    ends: Int64s
    called_ns: Int64s
    returned_ns: Int64s
    threads: npt.NDArray[np.uint32]
    streams: npt.NDArray[np.uint32]
    codes: npt.NDArray[np.uint32]
    shapes: npt.NDArray[np.uint32]
    nodes: Int64s
    leaves: npt.NDArray[np.uint8]
    goes_on: Bools

    @property
    def are_apart(self) -> bool:
        """Whether each begins after the one before has ended."""
        return bool((self.starts[1:] >= self.ends[:-1]).all())

    def pick(self, rows: npt.NDArray[Any]) -> Columns:
        """The operations of these row numbers."""
        return Columns._make(column.take(rows) for column in self)

    @classmethod
    def join(cls, columns: list[Columns]) -> Columns:
        """All of them, one after the other."""
        if len(columns) == 1:
            return columns[0]
        return cls._make(np.concatenate(column) for column in zip(*columns, strict=True))


class Kernels:
    """What names say, by kernel number: leaf, family, cue, whether it is no link of a chain; and by
    the number of a shape, how many threads it has."""

    def __init__(self) -> None:
        self.leaves = np.full(256, Leaf.OTHER, np.uint8)
        self.families = np.zeros(256, np.uint32)
        self.cues = np.zeros(256, np.uint8)
        self.unlinked = np.zeros(256, np.bool_)
        self._numbers: dict[str, int] = {}
        self._threads = np.zeros(1, np.int64)

    def define(self, number: int, name: str) -> None:
        """Note a kernel's demangled name, from which its leaf and its family follow."""
        while number >= len(self.leaves):
            self.leaves = np.concatenate((self.leaves, np.full_like(self.leaves, Leaf.OTHER)))
            self.families = np.concatenate((self.families, np.zeros_like(self.families)))
            self.cues = np.concatenate((self.cues, np.zeros_like(self.cues)))
            self.unlinked = np.concatenate((self.unlinked, np.zeros_like(self.unlinked)))
        self.leaves[number] = leaf_of_kernel(name)
        families = self._numbers.setdefault(family(name), len(self._numbers))
        self.families[number] = FIRST_KERNEL + families
        self.cues[number] = cue_of(name)
        # In no chain: layout changes are a finding of their own, and Triton's kernels are fused.
        self.unlinked[number] = name.startswith("triton_") or bool(CHANGES_LAYOUT.search(name))

    def define_shape(self, number: int, threads: int) -> None:
        """With how many threads a kernel of this shape is launched."""
        if number >= len(self._threads):
            more = np.zeros(number + 1 - len(self._threads), np.int64)
            self._threads = np.append(self._threads, more)
        self._threads[number] = threads

    def widths(self, codes: npt.NDArray[np.uint32], shapes: npt.NDArray[np.uint32]) -> Int64s:
        """With how many threads these kernels were launched; 0 where it is not known, where a
        compiler has fused all that it could, and of changes of layout, which have a cure of their
        own."""
        widths = self._threads.take(np.where(shapes < len(self._threads), shapes, 0))
        widths[self.unlinked.take(codes.astype(np.int64) - FIRST_KERNEL, mode="clip")] = 0
        return widths


def columns(
    records: Slots,
    timed: TimedOperations,
    defined: Kernels,
) -> Columns:
    """Operations as the accounting sees them."""
    kernels = timed.kernels
    leaves = defined.leaves.take(kernels, mode="clip")
    codes = kernels.astype(np.uint32)
    codes += FIRST_KERNEL
    others = np.flatnonzero(kernels == NO_KERNEL)
    if len(others):
        copied = pick(records, others)
        directions = _COPY_CODES.take(copied["sub"])
        directions[copied["kind"] != _MEMCPY] = _MEMSET
        codes[others] = directions
        pageable = copied["source_kind"] == _PAGEABLE
        pageable |= copied["destination_kind"] == _PAGEABLE
        leaves[others] = _COPY_LEAVES[pageable.view(np.uint8), directions]
    return Columns(
        timed.starts,
        timed.ends,
        timed.called_ns,
        timed.returned_ns,
        timed.threads,
        timed.streams,
        codes,
        records["d"].copy(),
        timed.nodes,
        leaves,
        np.zeros(len(records), np.bool_),
    )


_COPY_LEAVES = np.full((2, _MEMSET + 1), Leaf.COPY_DEVICE, np.uint8)
_COPY_LEAVES[0, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PINNED
_COPY_LEAVES[1, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PAGEABLE
"""By whether pageable memory is involved, and by the code."""

# The leaf of a copy, by CUPTI's number of its direction.
_COPY_CODES = np.minimum(np.arange(256), _MEMSET - 1).astype(np.uint8)


# --- What kernels in a row are together: a chain that one kernel could do, attention by hand.

CHAIN = 3
"""Elementwise kernels in a row over as many threads that are called a chain."""

CHAIN_NS = 20_000
"""Least time of each: shorter ones are bound by their launch, not by memory."""

BLOCK = 128
"""Threads of a block of PyTorch's elementwise kernels, up to which a width is rounded."""

BETWEEN = 12
"""Most kernels between the two matrix products of attention written out. One that is launched
several times in a row counts once: PyTorch divides what 32 bits cannot index, such as scores of
4 GiB."""

PIECES = 16
"""Most launches of each then."""

# NumPy compares with an enum three times as slowly.
_SOFTMAX, _ELEMENTWISE = int(Leaf.SOFTMAX), int(Leaf.ELEMENTWISE)

_PRODUCTS = np.array([Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED], np.uint8)
_INSIDE = np.array([Leaf.ELEMENTWISE, Leaf.SOFTMAX, Leaf.OTHER, Leaf.COPY_DEVICE], np.uint8)


def refine(
    leaves: npt.NDArray[np.uint8],
    starts: Int64s,
    ends: Int64s,
    streams: npt.NDArray[np.uint32],
    codes: npt.NDArray[np.uint32],
    widths: Callable[[Rows], Int64s],
) -> npt.NDArray[np.uint8]:
    """Leaves of operations in order of start, where their neighbours on the stream say more.

    `codes` number the kernels by name. `widths` gives how many GPU threads the kernels at some rows
    were launched with, 0 where one is no link of a chain: alike, for elementwise kernels, where
    they go over as many elements of one size.
    """
    if (streams == streams[0]).all():
        refined = leaves.copy()
        _mark_attention(refined, streams, codes)
        _mark_chains(refined, starts, ends, streams, widths)
        return refined
    order = np.argsort(streams, kind="stable")
    refined, streams = leaves[order], streams[order]
    _mark_attention(refined, streams, codes[order])
    _mark_chains(refined, starts[order], ends[order], streams, lambda rows: widths(order[rows]))
    out = np.empty_like(leaves)
    out[order] = refined
    return out


def _mark_attention(
    leaves: npt.NDArray[np.uint8], stream: npt.NDArray[np.uint32], codes: npt.NDArray[np.uint32]
) -> None:
    softmax = np.flatnonzero(leaves == _SOFTMAX)
    if not len(softmax):
        return
    products = np.isin(leaves, _PRODUCTS)
    inside = np.isin(leaves, _INSIDE)
    # The number of the last product, and of the last kernel that breaks a run, before each.
    rows = np.arange(len(leaves))
    last_product = np.maximum.accumulate(np.where(products, rows, -1))
    last_break = np.maximum.accumulate(np.where(~products & ~inside, rows, -1))
    following = np.where(products, rows, len(leaves))
    next_product = np.minimum.accumulate(following[::-1])[::-1]
    next_break = np.minimum.accumulate(np.where(~products & ~inside, rows, len(leaves))[::-1])[::-1]
    for row in softmax.tolist():
        first, last = int(last_product[row]), int(next_product[row])
        if (
            first >= 0
            and last < len(leaves)
            and _different(codes[first + 1 : last]) <= BETWEEN
            and last_break[row] < first
            and next_break[row] > last
            and stream[first] == stream[last]
        ):
            leaves[first + 1 : last] = Leaf.ATTENTION_UNFUSED


def _different(codes: npt.NDArray[np.uint32]) -> int:
    """How many kernels, each as often in a row as it may be."""
    if len(codes) <= BETWEEN or len(codes) > PIECES * BETWEEN:
        return len(codes)
    return 1 + int(np.count_nonzero(codes[1:] != codes[:-1]))


def _mark_chains(
    leaves: npt.NDArray[np.uint8],
    starts: Int64s,
    ends: Int64s,
    streams: npt.NDArray[np.uint32],
    widths: Callable[[Rows], Int64s],
) -> None:
    rows = np.flatnonzero(leaves == _ELEMENTWISE)
    rows = rows[ends.take(rows) - starts.take(rows) >= CHAIN_NS]
    if len(rows) < CHAIN:
        return
    width, stream = widths(rows), streams.take(rows)
    follows = (
        (rows[1:] == rows[:-1] + 1)
        & (width[1:] > 0)
        & (width[:-1] > 0)
        & (stream[1:] == stream[:-1])
        & _as_many(width[1:], width[:-1])
    )
    begins = np.flatnonzero(np.concatenate(([True], ~follows)))
    lengths = np.diff(np.append(begins, len(rows)))
    long = np.repeat(lengths >= CHAIN, lengths)
    leaves[rows[long]] = Leaf.ELEMENTWISE_CHAIN


def _as_many(first: Int64s, other: Int64s) -> Bools:
    """Whether two kernels go over as many elements: a thread of one takes as many as a thread of
    the other, or twice or four times as many where theirs are smaller (a cast of FP32 to BF16)."""
    most, least = np.maximum(first, other), np.minimum(first, other)
    alike: Bools = most == least
    for times in (2, 4):
        alike |= np.abs(most - times * least) <= times * BLOCK
    return alike
