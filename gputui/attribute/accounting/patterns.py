"""What kernels in a row are together: a chain that one kernel could do, attention by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import Rows
from gputui.attribute.arrays import Bools, Int64s
from gputui.model.leaves import Leaf

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
        of = leaves.copy()
        _mark_attention(of, streams, codes)
        _mark_chains(of, starts, ends, streams, widths)
        return of
    order = np.argsort(streams, kind="stable")
    of, streams = leaves[order], streams[order]
    _mark_attention(of, streams, codes[order])
    _mark_chains(of, starts[order], ends[order], streams, lambda rows: widths(order[rows]))
    out = np.empty_like(leaves)
    out[order] = of
    return out


def _mark_attention(
    of: npt.NDArray[np.uint8], stream: npt.NDArray[np.uint32], codes: npt.NDArray[np.uint32]
) -> None:
    softmax = np.flatnonzero(of == _SOFTMAX)
    if not len(softmax):
        return
    products = np.isin(of, _PRODUCTS)
    inside = np.isin(of, _INSIDE)
    # The number of the last product, and of the last kernel that breaks a run, before each.
    rows = np.arange(len(of))
    last_product = np.maximum.accumulate(np.where(products, rows, -1))
    last_break = np.maximum.accumulate(np.where(~products & ~inside, rows, -1))
    following = np.where(products, rows, len(of))
    next_product = np.minimum.accumulate(following[::-1])[::-1]
    next_break = np.minimum.accumulate(np.where(~products & ~inside, rows, len(of))[::-1])[::-1]
    for at in softmax.tolist():
        first, last = int(last_product[at]), int(next_product[at])
        if (
            first >= 0
            and last < len(of)
            and _different(codes[first + 1 : last]) <= BETWEEN
            and last_break[at] < first
            and next_break[at] > last
            and stream[first] == stream[last]
        ):
            of[first + 1 : last] = Leaf.ATTENTION_UNFUSED


def _different(codes: npt.NDArray[np.uint32]) -> int:
    """How many kernels, each as often in a row as it may be."""
    if len(codes) <= BETWEEN or len(codes) > PIECES * BETWEEN:
        return len(codes)
    return 1 + int(np.count_nonzero(codes[1:] != codes[:-1]))


def _mark_chains(
    of: npt.NDArray[np.uint8],
    starts: Int64s,
    ends: Int64s,
    streams: npt.NDArray[np.uint32],
    widths: Callable[[Rows], Int64s],
) -> None:
    rows = np.flatnonzero(of == _ELEMENTWISE)
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
    of[rows[long]] = Leaf.ELEMENTWISE_CHAIN


def _as_many(one: Int64s, other: Int64s) -> Bools:
    """Whether two kernels go over as many elements: a thread of one takes as many as a thread of
    the other, or twice or four times as many where theirs are smaller (a cast of FP32 to BF16)."""
    most, least = np.maximum(one, other), np.minimum(one, other)
    alike: Bools = most == least
    for times in (2, 4):
        alike |= np.abs(most - times * least) <= times * BLOCK
    return alike
