"""Which of the sites at which a program marks its steps these go by: the site of a source, the loop
whose turns are the steps, and what turns hold.

For `program_steps`, which keeps the marks: pure functions of the moments of marks, by site.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.model.events import StepSource
from gputui.model.steps import BELIEVED, HELD_NS

_NO_MOMENTS = np.empty(0, np.int64)


class Site(NamedTuple):
    """Where a program marks its steps: a thread, a source and the name of the site."""

    thread: int
    source: StepSource
    name: str


RANKS = {source: rank for rank, equals in enumerate(BELIEVED) for source in equals}
"""Of each source: those with lower ones are believed first."""

SETTLED_MARKS = 8
"""Marks after which it is clear what the steps go by."""

SPEAKS_FOR = 0.1
"""Share of a source's time that a site has at least: as often as it was marked, what usually passes
until the next mark of any. The optimizer of a generator that runs once in five has a sixth."""

JITTED_SHARE = 0.5
"""The same of a jitted function: in a program of single operators none is the step. Compiling takes
seconds between the first marks, hence what usually passes."""


def shares_of_time(moments: dict[Site, Int64s]) -> dict[Site, float]:
    """How much of the time lies after the marks of each site: as often as it was marked, what
    usually passes until the next mark of any."""
    every = np.sort(np.concatenate(list(moments.values())))
    gaps = np.diff(np.append(every, every[-1]))
    return {
        # The heaviest of the jitted functions that recur: JAX's set-up has some that recur, too.
        site: len(its) * float(np.median(gaps[np.searchsorted(every, its)]))
        for site, its in moments.items()
    }


def site_of_source(source: StepSource, moments: dict[Site, Int64s]) -> Site | None:
    """The site of a source by which the steps go, None where no one does: the least frequent of
    those that much of the time lies after, of progress bars the one that most lies after."""
    shares = shares_of_time(moments)
    whole = sum(shares.values()) or 1.0
    if source == "jax":  # what runs a few times before the loop says nothing
        shares = {
            site: share for site, share in shares.items() if len(moments[site]) >= SETTLED_MARKS
        }
        if not shares:
            return None
        whole = sum(shares.values()) or 1.0
    heaviest = max(shares, key=lambda site: shares[site])
    if source == "jax":
        return heaviest if shares[heaviest] >= JITTED_SHARE * whole else None
    if source in ("tqdm", "token"):
        return heaviest
    heavy = [site for site in moments if shares[site] >= SPEAKS_FOR * whole]
    # Of a dozen optimizers that take as long each none has a tenth.
    return min(heavy or [heaviest], key=lambda site: (len(moments[site]), site != heaviest))


SILENT_NS = 500_000_000
SILENT_STEPS = 100
"""A module, token, bar or function that is not marked for this long, and for as many steps, while
the program launches on, is not what its steps go by any more: it was captured in a CUDA graph,
which is replayed now. A training step comes back after an evaluation, however long that takes, once
there were SETTLED_MARKS."""

SILENT_WARM_UP = 10
"""The same of what was marked a few times only: 4 updates that warm up before an update is captured
were 14 to 48 ms apart, the replays that followed never marked (an H200)."""


def is_silent(source: StepSource, moments: Int64s, launched_ns: int) -> bool:
    """Whether a site is marked no more, while the program launches on at `launched_ns`."""
    usual_ns = float(np.median(np.diff(moments)))
    # Marks count only while the program makes them: a module that was captured in a graph stood for
    # steps.
    is_settled = len(moments) >= SETTLED_MARKS
    stays = source == "loop" or RANKS[source] < RANKS["token"]
    least_ns = HELD_NS if stays and is_settled else SILENT_NS
    steps = SILENT_STEPS if is_settled else SILENT_WARM_UP
    return launched_ns - int(moments[-1]) > max(least_ns, steps * usual_ns)


LOOP_NS = HELD_NS // 3
"""Longest usual turn of a loop that others lie in: of a longer one, an epoch, the inner ones are
steps. Three turns are seen before anything is decided."""

LOOP_TURNS = 3
AHEAD_TURNS = 64

OVER = 0.1
"""Part of a loop's time for which the next one has turned once it has taken over."""

OF_TIME = 0.02
"""Part of the time that its usual turns take: a list of 24 layers that is made once a request turns
24 times in a few µs."""

LOOP_ALIKE = 2.0
"""Turns of a loop that others lie in are steps where two of three are within this factor of the
usual one."""


def steps_loop(
    moments: dict[Site, Int64s], depths: dict[Site, int], chosen: Site | None
) -> Site | None:
    """The loop whose turns are the steps: the outermost one of those that go on and whose turns are
    alike and short enough, which it then stays; None where none is."""
    moments = {site: its for site, its in moments.items() if not _is_left(its, moments)}
    if not moments:
        return None
    deepest = max(depths[site] for site in moments)
    for depth in sorted({depths[site] for site in moments}):
        sites = [site for site in moments if depths[site] == depth]
        going_on = [site for site in sites if not _is_over(site, sites, moments, depth)]
        if chosen in going_on:
            return chosen
        site = max(going_on, key=lambda site: int(moments[site][-1] - moments[site][0]))
        if depth == deepest or _are_steps(moments[site]):
            return site
    return None


def _is_over(site: Site, sites: list[Site], moments: dict[Site, Int64s], depth: int) -> bool:
    """Whether another loop of those as deep has taken over, as the steps do after a warm-up: at the
    program's top once it turned a few times, inside of another loop, where an evaluation comes and
    goes, once it took as long as this one."""
    its = moments[site]
    newest = max(sites, key=lambda site: int(moments[site][-1]))
    after = moments[newest][moments[newest] > its[-1]]
    taken_ns = after[-1] - its[-1] if len(after) else 0
    if not depth:  # a few turns of something at the program's end take next to nothing
        return len(after) >= LOOP_TURNS and bool(taken_ns >= OVER * (its[-1] - its[0]))
    return bool(taken_ns > its[-1] - its[0])


def _is_left(moments: Int64s, others: dict[Site, Int64s]) -> bool:
    """Whether a loop turns no more, whatever the depths are said to be: another one goes on for
    longer than this one ever turned and than a hundred of its turns take, which would lie in one
    of them. A loop of 40 launches that was called twice before the one that calls it in each turn
    was the step to the end (CuPy)."""
    last_ns = int(moments[-1])
    least_ns = max(int(last_ns - moments[0]), SILENT_STEPS * float(np.median(np.diff(moments))))
    return any(
        its[-1] - last_ns > least_ns and np.count_nonzero(its > last_ns) >= LOOP_TURNS
        for its in others.values()
    )


def _are_steps(moments: Int64s) -> bool:
    lengths = np.diff(moments)
    # The first ones fill the queue of launches, which takes next to nothing.
    lengths = lengths[min(AHEAD_TURNS, len(lengths) // 4) :]
    if len(lengths) < LOOP_TURNS - 1:
        return False
    usual_ns = float(np.median(lengths))
    alike = (lengths <= LOOP_ALIKE * usual_ns) & (lengths >= usual_ns / LOOP_ALIKE)
    if lengths[alike].sum() < OF_TIME * lengths.sum():
        return False
    return usual_ns <= LOOP_NS and bool(alike.mean() >= 2 / 3)


FILLED = 0.95
"""Part of a loop's turn that the turns of a loop inside have, from which these are the steps: the
batches of an epoch, and not the updates after a short rollout (0.90 to 0.93)."""

FILLING_TURNS = 0.5
"""Part of the turns that are several of the loop inside, of an epoch: a learner that updates itself
50 times in one of 50 turns has steps without any."""


def marks_per_turn(turns: Int64s, inner: Int64s, least: int) -> int:
    """How many marks of something else the turns of a loop hold, where each has as many; 0 where
    not, and of fewer turns."""
    counts = np.diff(np.searchsorted(inner, turns))
    if len(counts) < least:
        return 0
    usual = int(np.median(counts))
    return usual if (counts == usual).mean() >= 0.9 else 0


def calls_per_turn(moments: dict[Site, Int64s], turns: Int64s) -> float:
    """How often a turn of a loop calls the outermost module that is called most; 0 without one."""
    modules = (its for site, its in moments.items() if site.source == "module")
    calls = np.searchsorted(max(modules, key=len, default=_NO_MOMENTS), turns)
    return float(np.median(np.diff(calls)))


def fills_turns(its: Int64s, turns: Int64s) -> bool:
    """Whether the turns of a loop inside another one are nearly all that this one does."""
    rows = np.searchsorted(its, turns)
    counts = np.diff(rows)
    several = counts > 1
    if several.mean() < FILLING_TURNS:
        return False
    first, last = rows[:-1][several], rows[1:][several] - 1
    # A turn's mark is its end: the first one of each begins before.
    held = (its[last] - its[first]) * counts[several] / (counts[several] - 1)
    return bool(np.median(held / np.diff(turns)[several]) >= FILLED)


EPOCH = 64
"""Calls of a jitted function, or of a model that is not trained, from which a turn of a loop is an
epoch or a text where another loop makes one a turn: of layers that are called one by one, and of
what a sampler denoises, there are fewer."""


def token_loop(
    loop: Site, moments: dict[Site, Int64s], depths: dict[Site, int], called: list[Int64s]
) -> Site | None:
    """The loop over the tokens of a text inside another one, where each calls several layers of a
    model that is itself not called; None where there is none."""
    for site, depth in depths.items():
        if (
            depth == depths[loop] + 1
            and marks_per_turn(moments[loop], moments[site], LOOP_TURNS) > EPOCH
            and any(marks_per_turn(moments[site], calls, SETTLED_MARKS) > 1 for calls in called)
        ):
            return site
    return None


def is_as_good(chosen: Site, other: Site, moments: dict[Site, Int64s]) -> bool:
    """Whether another site marks the same steps, so that there is no reason to change."""
    counts = len(moments[chosen]), len(moments[other])
    if chosen.source == "loop" != other.source:
        return marks_per_turn(moments[chosen], moments[other], SETTLED_MARKS) == 1
    return (
        chosen.source == other.source != "loop"
        and abs(counts[0] - counts[1]) <= 0.1 * max(counts) + 1
    )
