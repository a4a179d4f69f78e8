"""What repeats in a sequence of launches: the step of a program that names none.

For `tracker`, which follows a step once it is found; the cues of kernels' names also for
`operations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import spread
from gputui.attribute.arrays import run_starts
from gputui.attribute.distributions import sorted_pairs

# --- What the names of kernels say of the steps that they are in.


class Cue(IntFlag):
    """What a launch says of the level that it belongs to."""

    OPTIMIZER = 1
    HEAD = 2
    """A loss, or the choice of a token."""


_OPTIMIZER = re.compile(
    r"multi_tensor_apply|fused_?adam|fused_?sgd|fusedoptimizer|(?<![a-z])lamb(?![a-z])", re.I
)
_HEAD = re.compile(
    r"nll_loss|cross_entropy|argmax|multinomial|topk_topp|sampl|softmax_warp.*log|mse_loss|bce",
    re.I,
)
_PRODUCT = re.compile(
    r"gemm|nvjet|xmma|cutlass|gemv|splitk|cijk|wgmma|s(884|1688|16816)", re.IGNORECASE
)
_DETAILS = re.compile(r"[<(].*|\d+")


def cue_of(name: str) -> Cue:
    """The cue of a kernel's name."""
    return (Cue.OPTIMIZER if _OPTIMIZER.search(name) else Cue(0)) | (
        Cue.HEAD if _HEAD.search(name) else Cue(0)
    )


def family(name: str) -> str:
    """A coarser name: cuBLAS picks other kernels for other shapes, which is no other program."""
    return "gemm" if _PRODUCT.search(name) else _DETAILS.sub("", name)


# --- How many micro-batches a training step has, by the kernels of its losses.

MOST_LOSSES = 8
"""Kernels of losses that are looked at: names are the program's."""

STEADY_COUNT = 0.9
"""Share of the steps that have as many losses as the usual one has micro-batches."""

APART = 0.25
"""Of a step by its losses, the least distance of two that are of two micro-batches: several losses
of one pass follow each other, and an optimizer may launch more than all passes."""


def micro_batches(
    tokens: npt.NDArray[np.uint32],
    cues: npt.NDArray[np.uint8],
    marks: npt.NDArray[np.intp],
    period: float,
) -> int | None:
    """How many losses, far from one another, the steps have that begin at `marks`, `period`
    launches apart; None where they have one, or not always as many."""
    places = np.flatnonzero(cues & int(Cue.HEAD))
    losses, times = np.unique(tokens[places], return_counts=True)
    repeats: list[int] = []
    for token in losses[times >= len(marks) - 1][:MOST_LOSSES].tolist():
        its = places[tokens[places] == token]
        per_step = np.diff(np.searchsorted(its, marks))
        count = int(np.median(per_step))
        if count and (per_step == count).mean() >= STEADY_COUNT:
            near = np.diff(its) < APART * period / count
            repeats.append(1 if near.mean() > 1 - STEADY_COUNT else count)
    return min(repeats) if repeats and min(repeats) > 1 else None


# --- What repeats in a sequence of launches: layers, micro-batches, steps, requests.
#
# A token is the number of a kernel's name, of a copy's direction, of a graph. A context (a token,
# or a hash of four in a row) that recurs at even distances is periodic; contexts with one period
# make a level. The step is the level that the most contexts have to themselves: in a step of a
# thousand launches hundreds of contexts recur once a step, a layer has ten to forty.
#
# All is NumPy over a window of the newest launches: some ten milliseconds for 32,768 of them.

Tokens = npt.NDArray[np.uint32]
Cues = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

LEAST = 4
"""Occurrences without which nothing is called periodic."""

EVEN = 0.34
"""Most that distances may spread, (p90 − p10) / median."""

COVER = 0.4
"""Least share of the window in which a context recurs."""

# The thresholds of this section are chosen, not measured one by one: what they have to tell apart
# is in tests/attribute/accounting/test_steps.py.
ALIKE = 0.8
SEGMENT_ALIKE = 0.7
"""Least likeness of the median segment, and of four segments out of five, to the typical one."""

MORE = 1.5
"""How many times as many contexts families have to show."""

# Chosen, not measured.
GRAM = 4
MOST_ANCHORS = 8
# Periods within 5 % are looked at together.
_BUCKET = np.log(1.05)
_MOST_CELLS = 40_000_000


class Anchor(NamedTuple):
    """A context that recurs once a period, `offset` launches after the first anchor."""

    tokens: tuple[int, ...]
    offset: float

    def places(self, tokens: Tokens, before: Tokens) -> Places:
        """The rows at which this anchor ends in `tokens`; `before` are the GRAM - 1 tokens
        before."""
        *others, last = self.tokens
        ends = np.flatnonzero(tokens == np.uint32(last))
        if others:
            joined = np.concatenate((before, tokens))
            ends = ends[ends + len(before) >= len(others)]
            for back, token in enumerate(reversed(others), 1):
                ends = ends[joined.take(ends + (len(before) - back)) == np.uint32(token)]
        return ends


@dataclass(slots=True)
class Level:
    """One period of repetition. `marks` are where its first anchor stands in the window."""

    period: float
    marks: Places
    likeness: npt.NDArray[np.float64]
    own: int
    cues: Cue
    by_family: bool = False
    anchors: list[Anchor] = field(default_factory=list)
    micro_batches: int | None = None
    readings: int = 1
    """Periods that could be the step, this one among them."""

    @property
    def is_good(self) -> bool:
        """Whether the level's segments are alike enough to be repetitions of the same thing."""
        return bool(
            len(self.likeness)
            and np.median(self.likeness) >= ALIKE
            and (self.likeness >= SEGMENT_ALIKE).mean() >= 0.8
        )


class _Context(NamedTuple):
    spread: float
    gram: int
    places: Places
    period: float


_Buckets = dict[int, list[_Context]]


def grams(tokens: Tokens, length: int) -> Hashes:
    """A 64-bit hash of each token and the `length` − 1 before it."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    out = mixed.copy()
    for back in range(1, length):
        out *= np.uint64(0xC2B2_AE3D_27D4_EB4F)
        out[back:] ^= mixed[:-back] >> np.uint64(7 * back)
    return out


def find_step(tokens: Tokens, families: Tokens, cues: Cues) -> Level | None:
    """The level to call a step, by names or, where these show more of it, by families."""
    step = _find_step(tokens, families, cues)
    if step is not None and step.cues & Cue.OPTIMIZER:
        step.micro_batches = micro_batches(tokens, cues, step.marks, step.period)
    return step


def _find_step(tokens: Tokens, families: Tokens, cues: Cues) -> Level | None:
    by_name = _choose(_levels(tokens, cues, _buckets(tokens)))
    # Families are looked at only where they could show more than names do.
    least = 0.0 if by_name is None else MORE * by_name.own
    buckets = _buckets(families)
    if max((len(_near(buckets, bucket)) for bucket in buckets), default=0) > least:
        by_family = _choose(_levels(families, cues, buckets))
        ends = by_name is not None and by_name.cues & Cue.OPTIMIZER
        if by_family is None or (ends and not by_family.cues & Cue.OPTIMIZER):
            return by_name
        if by_family.own > least:
            by_family.by_family = True
            return by_family
    return by_name


def _buckets(tokens: Tokens) -> _Buckets:
    """What is periodic, by the logarithm of its period."""
    buckets: _Buckets = {}
    for gram in (1, GRAM):
        for bucket, context in _periodic(grams(tokens, gram), gram):
            buckets.setdefault(bucket, []).append(context)
    return buckets


def _near(buckets: _Buckets, bucket: int) -> list[_Context]:
    """All with about this period."""
    return [c for b in (bucket - 1, bucket, bucket + 1) for c in buckets.get(b, ())]


def _levels(tokens: Tokens, cues: Cues, buckets: _Buckets) -> list[Level]:
    # Segments are counted without looking each launch up: half the time of looking for what
    # repeats.
    different, numbers = np.unique(tokens, return_inverse=True)
    levels: list[Level] = []
    for bucket in sorted(buckets):
        near = _near(buckets, bucket)
        first = min(buckets[bucket], key=lambda c: (c.spread, c.gram))
        repeats = levels and abs(levels[-1].period - first.period) / first.period < 0.1
        if repeats and len(near) <= levels[-1].own:
            continue
        level = Level(
            first.period,
            first.places,
            _likeness(numbers, len(different), first.places),
            len(near),
            _cues_of_all(cues, first.places),
        )
        level.anchors = _anchors(tokens, first, near)
        if repeats:
            levels[-1] = level
        else:
            levels.append(level)
    return levels


def _periodic(keys: Hashes, gram: int) -> Iterator[tuple[int, _Context]]:
    """The contexts that are, and the bucket of the period of each."""
    order, starts = _groups(keys)
    counts = np.diff(np.append(starts, len(keys)))
    covered = (order[starts + counts - 1] - order[starts]) / len(keys)
    often = np.flatnonzero((counts >= LEAST) & (covered >= COVER))
    starts, counts = starts[often], counts[often]
    low, middle, high = _quantiles(np.diff(order), starts, counts - 1)
    spreads = (high - low) / middle
    even = np.flatnonzero(spreads <= EVEN)
    starts, periods = starts[even], middle[even]
    buckets = np.rint(np.log(periods) / _BUCKET)
    table = np.stack((buckets, spreads[even], starts, starts + counts[even], periods), axis=1)
    for bucket, evenness, first, beyond, period in table.tolist():
        yield int(bucket), _Context(evenness, gram, order[int(first) : int(beyond)], period)


def _groups(keys: Hashes) -> tuple[Places, Places]:
    """The places of equal keys next to each other, each key's in order, and where each begins.

    A place stands in the lowest bits of its key: numbers are sorted in a fifth of the time in which
    they are ranked. What is left of a hash tells the contexts of a window apart, too.
    """
    bits = np.uint64(len(keys).bit_length())
    mask = (np.uint64(1) << bits) - np.uint64(1)
    ranked = np.sort(keys & ~mask | np.arange(len(keys), dtype=np.uint64))
    return (ranked & mask).astype(np.intp), run_starts(ranked >> bits)


def _quantiles(values: Places, starts: Places, counts: Places) -> list[npt.NDArray[np.float64]]:
    """The tenth, the fiftieth and the ninetieth percentile of each run of values."""
    groups, rows = spread(starts, starts + counts)
    begins = np.cumsum(counts) - counts
    _, runs = sorted_pairs(groups, values[rows]) if len(groups) else (groups, rows)
    quantiles = []
    for share in (0.1, 0.5, 0.9):
        # Not interpolated to the last bit as NumPy does: it only has to be compared.
        place = (counts - 1) * share
        below = place.astype(np.intp)
        lower = runs[begins + below]
        other = runs[begins + np.minimum(below + 1, counts - 1)]
        quantiles.append(lower + (other - lower) * (place - below))
    return quantiles


def _likeness(numbers: Places, different: int, marks: Places) -> npt.NDArray[np.float64]:
    """What each segment shares with the typical one, as multisets of tokens, which are numbered
    without gaps: 0 to 1."""
    segments = len(marks) - 1
    if segments * different > _MOST_CELLS:
        return np.ones(segments)
    cells = np.repeat(np.arange(segments) * different, np.diff(marks))
    cells += numbers[marks[0] : marks[-1]]
    counts = np.bincount(cells, minlength=segments * different).reshape(segments, different)
    typical = np.median(counts, axis=0)
    if not typical.any():
        typical = counts.mean(axis=0)
    shared: npt.NDArray[np.float64] = np.minimum(counts, typical).sum(axis=1) / np.maximum(
        1, np.maximum(counts, typical).sum(axis=1)
    )
    return shared


def _cues_of_all(cues: Cues, marks: Places) -> Cue:
    present = Cue(0)
    for cue in Cue:
        speak = cues & int(cue)  # NumPy compares with an enum three times as slowly
        if not speak.any():
            continue
        spoken = np.bitwise_or.reduceat(speak, marks)[:-1]
        if len(spoken) and (spoken > 0).mean() >= 0.9:
            present |= cue
    return present


def _anchors(tokens: Tokens, first: _Context, near: list[_Context]) -> list[Anchor]:
    """The first context and up to seven others: single tokens before hashes of four, which a lost
    record spoils, and spread over the step."""
    chosen = [_anchor(tokens, first, 0.0)]
    for context in sorted(near, key=lambda c: (c.gram, c.spread)):
        after = np.searchsorted(first.places, context.places, side="right") - 1
        anchors = after >= 0
        if np.count_nonzero(anchors) < 2:
            continue
        offset = float(np.median(context.places[anchors] - first.places[after[anchors]]))
        if any(abs(offset - anchor.offset) < first.period / 16 for anchor in chosen):
            continue
        chosen.append(_anchor(tokens, context, offset))
        if len(chosen) == MOST_ANCHORS:
            break
    return chosen


def _anchor(tokens: Tokens, context: _Context, offset: float) -> Anchor:
    end = int(context.places[-1]) + 1
    return Anchor(tuple(tokens[end - context.gram : end].tolist()), offset)


def _choose(levels: list[Level]) -> Level | None:
    good = [level for level in levels if level.is_good]
    if not good:
        return None
    step = _most_of(good)
    for level in good:
        level.readings = len(good)
    if step.cues & Cue.OPTIMIZER:
        return step
    # An optimizer of a single kernel has few contexts to itself beside micro-batches or layers.
    longer = [x for x in good if x.period > 1.5 * step.period and x.own >= LEAST]
    return next((level for level in longer if level.cues & Cue.OPTIMIZER), step)


def _most_of(good: list[Level]) -> Level:
    """The choice for which most speaks."""
    fair = [level for level in good if level.own >= 0.15 * max(x.own for x in good)]
    # An optimizer marks a training step, a loss or the choice of a token the pass that ends in it.
    if marked := [level for level in fair if level.cues & Cue.OPTIMIZER]:
        return max(marked, key=lambda level: level.own)
    if marked := [level for level in fair if level.cues & Cue.HEAD]:
        return marked[0]
    best = max(good, key=lambda level: (level.own, level.period))
    # A layer can have more contexts than the head and the tail of a step. Where it breaks off
    # regularly and a longer level never does, the longer one is the step.
    worst = float(best.likeness.min())
    if worst < SEGMENT_ALIKE:
        for level in good:
            if (
                level.period > 1.5 * best.period
                and level.own >= LEAST
                and np.quantile(level.likeness, 0.05) >= max(0.6, worst + 0.2)
            ):
                return level
    return best
