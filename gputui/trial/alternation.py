"""Which of the cures that are switched in a run gets the next pairs, beside which others that are
on, and when the run is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from gputui.trial.blocks import JOINED, Pair, Steps, newest_alike
from gputui.trial.proof import (
    BESIDE_PAIRS,
    EARLY_PAIRS,
    FEWEST,
    HELD,
    LEAST_GAIN,
    LOOKS,
    NEAR,
    MeasuredGain,
    gain_of_pairs,
    is_decided,
    is_near,
    ratios_of,
    show_nothing,
)
from gputui.trial.runs import MEASURED_S, RunInFolder, is_measured


class Waiting(NamedTuple):
    """A cure that waits for a run of its own: the ablations that come after it, and by how much
    longer than others that run takes."""

    bounds: Set[str]
    longer_s: float = 0.0


class Alternation:
    """Says when a run with cures that are switched is over, and which get pairs next.

    `before` has the pairs of each cure from earlier runs; the run may be timed for `limit_s`. A
    claim is corrected for `others` that are measured in other runs. `input_share` is as for
    `gain_of_pairs`; `tell` gets a line about what the pairs show so far. Where only `brief` ones
    are left, LATER of the time is enough. `promise` are those that a finding promises something of.

    `bounds` are ablations (`other_bounds` in other runs): they come when cures need no more pairs
    or have had their time, and have `bounds_s`. Cures in `waiting` need runs of their own: of
    `whole_s` time is left for the longest such run that fits, unless the program has no use for it.

    A cure that is proven to gain HELD stays on, if it `is_right` by the results so far, and all
    others are measured anew beside it: steps are shorter then, and what they gain there is what a
    user gets. `beside` are on from the start of the run to its end. At last all gains are measured
    as one: none that was refused, and of alternatives, which have the same of `choices`, one."""

    def __init__(
        self,
        before: dict[str, list[Pair]],
        limit_s: float,
        others: int = 0,
        input_share: float = 0.0,
        tell: Callable[[str], None] = lambda _: None,
        brief: Sequence[str] = (),
        bounds: Sequence[str] = (),
        bounds_s: float = 0.0,
        other_bounds: int = 0,
        waiting: Mapping[str, Waiting] | None = None,
        whole_s: float = math.inf,
        promise: Set[str] | None = None,
        beside: tuple[str, ...] = (),
        is_right: Callable[[Steps, str], bool] = lambda _steps, _name: True,
        choices: Mapping[str, object] | None = None,
    ) -> None:
        self._brief, self._bounds = set(brief), set(bounds)
        self._before, self._limit_s, self._tell = before, limit_s, tell
        self._told = ""
        self._others, self._other_bounds = others, other_bounds
        self._input_share, self._bounds_s = input_share, bounds_s
        self._waiting, self._whole_s = waiting or {}, whole_s
        self._promise = before.keys() if promise is None else promise
        self._began_s = 0.0
        self._bounds_since_s: float | None = None
        self._kept = set(before)
        self._asked_for: tuple[Set[str], Sequence[str]] = self._kept, ()
        self._gains: dict[str, MeasuredGain | None] = {}
        self._claimed: Set[str] = set()
        self._beside, self._is_right = beside, is_right
        self._choices = choices or {name: name for name in before}
        self._held: tuple[str, ...] = ()
        self._settled: Set[str] = set()
        """Those whose gains were claimed when the last of them was held."""

    def look(self, run: RunInFolder, seconds: float) -> str:
        """Why it is over, so many seconds after its start; empty to go on."""
        steps = run.reader.steps
        if steps is None:
            return ""  # loading takes what it takes
        self._began_s = self._began_s or seconds
        waiting = self._waiting.keys() - run.reader.not_applied.keys()
        refused, ended = run.reader.not_applied.keys(), run.reader.ended.keys()
        left_out = refused | set().union(*(self._waiting[name].bounds for name in waiting))
        every = {
            name: [
                pair for pair in self._before[name] + steps.pairs(name)
                if not ended & {*pair.beside}
            ]
            for name in self._before
            if name not in left_out
        }  # fmt: skip
        self._beside = tuple(name for name in self._beside if name not in refused)
        # What was held on top of one that is gone was measured beside it.
        self._held = tuple(takewhile(every.__contains__, self._held))
        pairs = self._alike(every)
        if not pairs:
            return steps.over or is_measured(run, MEASURED_S)
        still = self._open(pairs)
        if self._holds_more(steps) or not self._settled <= self._claimed | {*self._held}:
            self._settled = self._settled & (self._claimed | {*self._held})
            pairs = self._alike(every)
            still = self._open(pairs)
        if waiting or still & self._bounds:
            still = {name for name in still if self._may_show(name, pairs[name])}
        cures = still - self._bounds
        kept = self._kept & pairs.keys()
        is_brief = bool(kept) and kept <= self._brief | self._bounds
        limit_s = self._limit_s * (LATER if is_brief else 1.0)
        has_passed = bool(waiting) and seconds > self._until_s(waiting, steps)
        is_over = (has_passed or seconds - self._began_s > limit_s) and not any(
            is_near(pairs[name]) for name in kept - self._bounds
        )
        is_last = self._bounds_since_s is None and (is_over or not cures)
        together = JOINED.join(self._compatible())
        # Beside others that are on all the time it would not be all.
        if (
            is_last
            and JOINED in together
            and not self._beside
            and not steps.over
            and len(steps.pairs(together)) < LOOKS[0]
        ):
            self._ask(run, steps, {together}, ())
            return ""
        if (
            self._bounds_since_s is None and (is_over or not cures) and not has_passed
            and self._bounds_s > 0.0 and still & self._bounds
        ):  # fmt: skip
            self._bounds_since_s = seconds
        if self._bounds_since_s is not None:
            still &= self._bounds
            is_over = has_passed or (
                seconds - self._bounds_since_s > self._bounds_s
                and not any(is_near(pairs[name]) for name in kept & self._bounds)
            )
        if not still:
            return "the gains are known"
        if is_over:
            return PART_SPENT
        if steps.over:
            return steps.over
        ratios = {name: median(ratios_of(pairs[name])) for name in still if pairs[name]}
        if ratios:
            self._say(pairs, ratios)
        self._kept, chosen = still, self._next(still, pairs, ratios)
        # The program as it is, is what ablations are of.
        self._ask(run, steps, chosen, () if chosen <= self._bounds else self._held)
        return ""

    def _ask(self, run: RunInFolder, steps: Steps, cures: Set[str], held: Sequence[str]) -> None:
        if (cures, held) != self._asked_for:
            self._asked_for = cures, held
            last = max((block.pair for block in steps.blocks), default=0)
            run.keep(sorted(cures), last + 2, held)

    def _alike(self, every: Mapping[str, list[Pair]]) -> dict[str, list[Pair]]:
        """Of these pairs those beside what is held now; of what was claimed before, and of
        ablations, the newest."""
        beside = {*self._beside, *self._held}
        return {
            name: newest_alike(pairs) if name in self._settled | self._bounds
            else [pair for pair in pairs if {*pair.beside} == beside]
            for name, pairs in every.items()
        }  # fmt: skip

    def _holds_more(self, steps: Steps) -> bool:
        """Whether one more cure stays on from now on: that which gains most."""
        much = {
            name: gain.middle
            for name, gain in self._gains.items()
            if gain is not None and gain.middle >= HELD and is_decided(gain)
            and name in self._claimed - self._settled - self._bounds - self._alternatives
            and self._is_right(steps, name)
        }  # fmt: skip
        if not much:
            return False
        self._held = (*self._held, max(much, key=lambda name: much[name]))
        self._settled = self._settled | (self._claimed - self._bounds)
        return True

    @property
    def _alternatives(self) -> set[str]:
        """What nobody wants beside those that are held."""
        held = {self._choices[name] for name in self._held}
        return {name for name in self._before if self._choices[name] in held} - {*self._held}

    def _compatible(self) -> list[str]:
        """The gains that are measured as one: those that are held, and of others with the same
        choice the largest."""
        gains = {name: gain.middle for name, gain in self._gains.items() if gain is not None}
        others = [name for name in gains if name in self._claimed - self._bounds]
        chosen = {self._choices[name]: name for name in sorted(others, key=gains.__getitem__)}
        chosen |= {self._choices[name]: name for name in self._held}
        return [
            *self._held,
            *(name for name in others if name in {*chosen.values()} - {*self._held}),
        ]

    def _until_s(self, waiting: Iterable[str], steps: Steps) -> float:
        """When time for those that wait must be left. A program whose results are not seen is run
        as it is first."""
        runs = 1 if steps.losses or steps.outputs else 2
        left_s = self._whole_s - NEEDED * runs * (self._began_s + RUN_S)
        least_s = self._began_s + LEAST_S
        until_s = [left_s - self._waiting[name].longer_s for name in waiting]
        return min((each for each in until_s if each > least_s), default=max(least_s, left_s))

    def _open(self, pairs: dict[str, list[Pair]]) -> set[str]:
        """Those of which more pairs may still show a gain."""
        bounds = len(pairs.keys() & self._bounds)
        tried = {
            True: bounds + self._other_bounds, False: len(pairs) - bounds + self._others
        }  # fmt: skip
        gains = self._gains = {
            name: gain_of_pairs(pairs[name], tried[name in self._bounds], self._input_share)
            for name in pairs
        }
        still = {
            name for name in pairs.keys() - self._settled - self._alternatives
            if not show_nothing(pairs[name])
            and not is_decided(gains[name], is_bound=name in self._bounds)
        }  # fmt: skip
        claimed = {name: gain for name, gain in gains.items() if gain and gain.is_claimed}
        self._claimed = claimed.keys()
        shown = [median(ratios_of(pairs[name])) for name in still if pairs[name]]
        shown += [gain.middle for gain in claimed.values()]
        if max(shown, default=0.0) > NEAR:
            # The time of those that show nothing is another's, which does; beside a proven one
            # nobody waits for what little they may gain.
            least = NEAR if claimed else LEAST_GAIN
            still = {
                name for name in still
                if name in claimed or len(pairs[name]) < BESIDE_PAIRS
                or median(ratios_of(pairs[name])) >= least
            }  # fmt: skip
        return still

    def _may_show(self, name: str, pairs: list[Pair]) -> bool:
        """Whether it takes time that others wait for: blocks that differ by 8 % gave one that did
        nothing nine pairs of a second each."""
        is_promised = name in self._promise or name in self._bounds
        return is_promised or len(pairs) < EARLY_PAIRS or median(ratios_of(pairs)) > NEAR

    def _next(
        self, still: set[str], pairs: dict[str, list[Pair]], ratios: dict[str, float]
    ) -> set[str]:
        """Of these the one whose pairs show most, until it is proven or shows it no more; all,
        where none shows any. In turn with twelve others a gain of 2 took 38 s to prove."""
        still = still - self._bounds or still
        shows = [
            name for name in sorted(still & ratios.keys() - self._claimed)
            if ratios[name] > (SURE if len(pairs[name]) == 1 else NEAR)
        ]  # fmt: skip
        return {max(shows, key=lambda name: ratios[name])} if shows else still

    def _say(self, pairs: dict[str, list[Pair]], ratios: dict[str, float]) -> None:
        best = max(ratios, key=lambda name: ratios[name])
        count = len(pairs[best])
        least = f" of {FEWEST} or more" if count < FEWEST else ""
        said = f"{best}: {ratios[best]:.3g}× so far, pair {count}{least}"
        if said != self._told:
            self._tell(said)
        self._told = said


SURE = 1.25
"""A gain of a single pair from which its cure gets the next ones alone."""


LEAST_S = 10.0
"""Of a run of cures that are switched, whatever waits for it."""
RUN_S, NEEDED = MEASURED_S + 1.0, 1.2
"""What a run of its own takes beside its start, at least; and how many times as much is left for
it."""

LATER = 0.3
"""Of the time of a run that cures get which answer nothing that was found, where others wait."""

PART_SPENT = "its part of the budget is spent"
