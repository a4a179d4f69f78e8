"""The steps that a program marks itself: reported as events, and as the moments at which the steps
of its devices begin. Python programs mark them by STEP records (hook/step_marks.py); XLA puts an
NVTX range around each call of a jitted function, which is as good.

For `traced_process`. Not in `tracker`, which seeks steps in what a program launches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from gputui.attribute import Strings
from gputui.attribute.accounting.steps import (
    EPOCH,
    LOOP_TURNS,
    RANKS,
    SETTLED_MARKS,
    SPEAKS_FOR,
    Site,
    calls_per_turn,
    fills_turns,
    is_as_good,
    is_silent,
    marks_per_turn,
    shares_of_time,
    site_of_source,
    steps_loop,
    token_loop,
)
from gputui.attribute.arrays import Int64s, Slots, times_ns
from gputui.model.events import ITEM_UNITS, MARKED_LENGTHS, STEP_SOURCES, StepMarks, StepSource
from gputui.model.naming import XLA_DOMAIN
from gputui.model.steps import HELD_NS
from gputui.ring import ENDS, GROWN, LEARNS, RecordKind

MOST_SITES = 256
"""For how many threads and sites of a process marks are reported; marks of further ones are left
out."""

MOST_RECENT = 1 << 16
"""Newest marks of a site that are remembered, of the last 10 s."""

MOST_SIZES = 256
"""Numbers of items whose calls of a module are counted; of further ones those are left out."""

MOST_NAMES = 100_000
"""Names of ranges that are looked at for XLA's calls."""

_PUSH = int(RecordKind.RANGE_PUSH)
_NO_MOMENTS = np.empty(0, np.int64)

_MARKED = [STEP_SOURCES.index(source) + 1 for source in RANKS]
"""Sources that STEP records have."""

BAR_COVERS = 0.25
"""Marks of a progress bar for each of a module's, from which its iterations are the steps."""

SETTLED_NS = 3_000_000_000
"""How long something that a loop may call several times in a turn has to be marked for that."""

UPDATES = 16
"""Updates up to which a turn of a loop is a step where nothing is known to be played in it: more
are an epoch."""

LEARNED = 0.75
"""Part of what a step's calls of the model are given that its update is made of where these are
micro-batches: 0.99 where they are, 0.41 where a learner also plays and asks what is best."""


class _Marks:
    """The marks of one site: those since the last report, and the newest."""

    def __init__(self) -> None:
        self.recent_ns: Int64s = _NO_MOMENTS
        self.before_ns: int | None = None
        self.began_ns = 0
        """The first mark of a loop."""
        self.over_ns = 0
        """When the program had left a loop; 0 while it has not."""
        self.new_ns: list[Int64s] = []
        self.first = 0
        self.seen = 0
        """Marks that had no ordinal of their own."""
        self.items = 0
        self.all_items = self.all_marks = 0
        self.unit = 0
        self.grown = 0
        self.calls: Counter[tuple[int, bool]] = Counter()
        """How often a module was called for so many items, to learn from them or not."""
        self.depth = 0
        """In how many other loops a loop lies."""

    def count_calls(self, records: Slots) -> None:
        """Counts calls of a module by what it was given."""
        learns = (records["source_kind"] & LEARNS) != 0
        kinds, counts = np.unique(records["end"] << np.uint64(1) | learns, return_counts=True)
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            call = kind >> 1, bool(kind & 1)
            if call in self.calls or len(self.calls) < MOST_SIZES:
                self.calls[call] += count


# XLA's range around a call of a compiled module: `XlaModule:#hlo_module=jit_step,program_id=7#`
# (xla/service/gpu/gpu_executable.cc, ModuleAnnotations). The number is new for each compilation.
_XLA_CALL = re.compile(r"XlaModule:#.*?hlo_module=(jit_[^,#]*)")


PLAYED = 3
"""How many times more items a learner learns from at once than it plays for: 8 to 32 of PPO with 16
environments, 6 of 4,096 environments; an evaluation has batches as large as the training or larger.
"""
PLAYS = 8
"""Calls that play in a loop's turn of several updates, at least: one small call is the last batch
of an evaluation."""
PLAYS_ONCE = 0.5
"""The same in a turn with one update or none, as of DQN."""

ROLLOUT = 1.25
"""Calls of the model for each update in a loop's turn from which it also plays, as in reinforcement
learning (1.5 where four observations are played and eight parts of them learned, the one program
that it rests on): an epoch of few batches calls it as often as it updates, whatever else it waits
for."""


class ProgramSteps:
    """STEP records and ranges of one process in, in order; StepMarks out."""

    def __init__(self, process: int, strings: Strings) -> None:
        self._process = process
        self._strings = strings
        self._sites: dict[Site, _Marks] = {}
        self._jitted: dict[int, str | None] = {}
        """The functions that XLA's ranges are of, by the number of their names."""
        self.chosen: Site | None = None
        """What the steps go by; None where the program says nothing."""
        self._given_ns = 0
        self._around_ns = 0
        """When the outermost loop around what the steps go by began."""
        self.is_new = False
        """Whether no moments of it were taken before the last ones."""
        self.follows = False
        """Whether it is a loop that began once another one was over."""
        self.entered_ns: int | None = None
        """When the program came to the loop whose turns the steps are, where that is among what was
        taken last."""
        self.left_ns: int | None = None
        """When the program left the loop whose turns the steps are, where what was taken last are
        its last ones."""
        self.rest_ns: Int64s | None = None
        """The moments of the loop before it that were not taken, once."""

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add STEP records, none later than `now_ns`. Unknown sources are ignored."""
        if not len(records):
            return
        records = records[np.isin(records["sub"], _MARKED)]
        # A key a site; kinds of sources are few, so they fit beside the name's number.
        keys = (
            records["thread"].astype(np.uint64) << np.uint64(40)
            | records["sub"].astype(np.uint64) << np.uint64(32)
            | records["name"].astype(np.uint64)
        )
        for key in np.unique(keys):
            its = records[keys == key]
            newest = its[-1]
            site = Site(
                int(newest["thread"]),
                STEP_SOURCES[int(newest["sub"]) - 1],
                self._strings.label(int(newest["name"])) if newest["name"] else "",
            )
            marks = self._marks_of(site)
            if marks is None:
                continue
            if site.source == "loop":
                is_end = its["source_kind"] == ENDS
                marks.over_ns = int(times_ns(its["start"][is_end]).max(initial=marks.over_ns))
                its = its[~is_end]
                if not len(its):
                    continue
            if not marks.new_ns:
                marks.first = int(its["value"][0])
            marks.new_ns.append(np.minimum(times_ns(its["start"]), now_ns))
            if site.source == "loop":
                marks.depth = int(newest["end"])
                marks.began_ns = marks.began_ns or int(marks.new_ns[0][0])
                continue
            marks.grown += int(np.count_nonzero(its["source_kind"] & GROWN))
            if site.source == "module":
                marks.count_calls(its)
            unit = int(newest["source_kind"]) & ~(GROWN | LEARNS)
            if 0 < unit <= len(ITEM_UNITS):
                marks.unit = unit
                items = int(np.minimum(its["end"], 1 << 40).sum())
                marks.items += items
                marks.all_items += items
                marks.all_marks += len(its)

    def feed_ranges(self, records: Slots, now_ns: int) -> None:
        """Adds records of ranges; ranges of XLA are calls of jitted functions."""
        pushes = records[(records["kind"] == _PUSH) & (records["a"] != 0)]
        if not len(pushes):
            return
        names = pushes["name"]
        for number in np.unique(names).tolist():
            its = pushes[names == number]
            if number not in self._jitted and len(self._jitted) < MOST_NAMES:
                is_xla = self._strings.domain(int(its["a"][0])) == XLA_DOMAIN
                call = _XLA_CALL.match(self._strings.label(number)) if is_xla else None
                self._jitted[number] = call[1] if call else None
            function = self._jitted.get(number)
            if function is None:
                continue
            for thread in np.unique(its["thread"]).tolist():
                marks = self._marks_of(Site(thread, "jax", function))
                if marks is None:
                    continue
                if not marks.new_ns:
                    marks.first = marks.seen + 1
                moments = np.minimum(times_ns(its["start"][its["thread"] == thread]), now_ns)
                marks.new_ns.append(moments)
                marks.seen += len(moments)

    def _marks_of(self, site: Site) -> _Marks | None:
        marks = self._sites.get(site)
        if marks is None and len(self._sites) < MOST_SITES:
            marks = self._sites[site] = _Marks()
        return marks

    def collect(self) -> Iterable[StepMarks]:
        """An event for each site that was marked since the last call."""
        for site, marks in self._sites.items():
            if not marks.new_ns:
                continue
            moments = np.concatenate(marks.new_ns)
            with_last = moments if marks.before_ns is None else np.append(marks.before_ns, moments)
            lengths = np.maximum(0, np.diff(with_last[-MARKED_LENGTHS - 1 :]))
            yield StepMarks(
                time_ns=int(moments[-1]),
                process=self._process,
                thread=site.thread,
                source=site.source,
                site=site.name,
                first=max(1, min(marks.first, 1 << 62)),
                marks=len(moments),
                span_ns=max(0, int(moments[-1] - moments[0])),
                lengths_ns=tuple(lengths.tolist()),
                items=marks.items if marks.unit else None,
                unit=ITEM_UNITS[marks.unit - 1] if marks.unit else None,
                grown=marks.grown,
            )
            marks.before_ns, marks.new_ns, marks.items = int(moments[-1]), [], 0
            marks.grown = 0
            recent = np.concatenate((marks.recent_ns, moments))
            marks.recent_ns = recent[recent >= recent[-1] - HELD_NS][-MOST_RECENT:]

    def take_moments(self, first_ns: int, launched_ns: int, until_ns: int) -> Int64s:
        """Moments up to `until_ns` at which steps begin, since the last call; where the steps go by
        something else than before, all that are remembered of that. Before `first_ns` nothing was
        launched: loops of before are none of steps; `launched_ns` is the newest launch."""
        chosen = self._choose(first_ns, launched_ns)
        self.rest_ns = self.entered_ns = self.left_ns = None
        if self._given_ns:
            self.is_new = self.follows = False
        if chosen != self.chosen:
            self.is_new, self.follows = True, False
            if self.chosen and chosen and self.chosen.source == chosen.source == "loop":
                over_ns, began_ns = (self._moments(self._sites[s]) for s in (self.chosen, chosen))
                if began_ns[0] >= over_ns[-1]:
                    self.rest_ns, self.follows = over_ns[over_ns > self._given_ns], True
            self.chosen, self._given_ns, self._around_ns = chosen, 0, 0
        if chosen is None:
            return _NO_MOMENTS
        moments = self._moments(self._sites[chosen])
        left_ns = self._left_after(chosen, int(moments[-1]))
        if left_ns > until_ns:  # the last mark and the end are taken together
            moments = moments[:-1]
        moments = moments[(moments > self._given_ns) & (moments <= until_ns)]
        if len(moments):
            around_ns = self._loop_around(chosen, int(moments[-1]))
            if around_ns > max(self._around_ns, first_ns):
                # What was marked before the loop that it is in now is of a warm-up.
                self._around_ns = around_ns
                if not self.is_new:
                    self.is_new = self.follows = True
                    self.rest_ns = moments[moments < around_ns]
                moments = moments[moments >= around_ns]
            self._given_ns = int(moments.max())
            is_first = chosen.source == "loop" and moments[0] == self._sites[chosen].began_ns
            self.entered_ns = int(moments[0]) if is_first else None
            self.left_ns = left_ns if 0 < left_ns <= until_ns else None
        return moments

    def _left_after(self, chosen: Site, newest_ns: int) -> int:
        """When the program left the outermost loop around the newest mark of a loop; 0 where it did
        not or that is not known."""
        if chosen.source != "loop":
            return 0
        ends = (
            marks.over_ns
            for site, marks in self._sites.items()
            if site.source == "loop" and not marks.depth and marks.began_ns <= newest_ns
        )
        return min((ns for ns in ends if ns >= newest_ns), default=0)

    def _loop_around(self, chosen: Site, newest_ns: int) -> int:
        """When the outermost loop began that a loop inside another one is in at a moment; 0 where
        that is not known."""
        if chosen.source != "loop" or not self._sites[chosen].depth:
            return 0
        begins = (
            marks.began_ns
            for site, marks in self._sites.items()
            if site.source == "loop" and not marks.depth and site != chosen
        )
        return max((ns for ns in begins if ns < newest_ns), default=0)

    @property
    def is_settled(self) -> bool:
        """Whether what the steps go by has marked several."""
        if self.chosen is None:
            return False
        marks = self._sites[self.chosen]
        moments = self._moments(marks)
        # A loop may call this several times in a turn, and have turned too seldom so far.
        is_inside = any(site.source == "loop" for site in self._sites)
        if self.chosen.source == "loop":
            is_inside = marks.depth > 0
        if is_inside and moments[-1] - moments[0] < SETTLED_NS:
            return False
        return len(moments) >= SETTLED_MARKS

    @property
    def micro_batches(self) -> int | None:
        """How many calls of the model a training step has, if several and always as many."""
        if self.chosen is None:
            return None
        source = "optimizer" if self.chosen.source == "loop" else self.chosen.source
        if RANKS[source] > 1:
            return None
        steps = self._moments(self._sites[self.chosen])
        updates = {site.name: marks for site, marks in self._sites.items() if site.source == source}
        models = [
            marks
            for site, marks in self._sites.items()
            if site.source == "module" and site.thread == self.chosen.thread
        ]
        if len(updates) != 1 or not models or len(steps) < SETTLED_MARKS:
            return None
        [update] = updates.values()
        moments = self._moments(update)
        if self.chosen.source == "loop" and marks_per_turn(steps, moments, LOOP_TURNS) != 1:
            return None
        model = max(models, key=lambda marks: len(self._moments(marks)))
        called = self._moments(model)
        calls = np.diff(np.searchsorted(called, steps))
        usual = int(np.median(calls))
        # An update has the items of the calls that it learns from.
        given = usual * model.all_items / max(1, model.all_marks)
        if update.all_items and update.all_items < LEARNED * given * update.all_marks:
            return None
        return usual if usual > 1 and (calls == usual).mean() >= 0.9 else None

    def _turn_of(
        self, inner: Int64s, moments: dict[Site, Int64s], depths: dict[Site, int]
    ) -> Site | None:
        """The loop of whose turns each holds one mark of something else, if there is one."""
        turns = {
            site: moments[site]
            for site in depths
            if site in moments
            and marks_per_turn(moments[site], inner, LOOP_TURNS) == 1
            and np.count_nonzero(inner > moments[site][-1]) <= LOOP_TURNS  # it goes on
        }
        return steps_loop(turns, depths, self.chosen)

    def _plays(self, updates: Int64s, turns: Int64s) -> bool:
        """Whether the turns of a loop also play, as in reinforcement learning: a model is called
        without learning for far fewer items than it learns from at once."""
        modules = [marks for site, marks in self._sites.items() if site.source == "module"]
        calls = sum((marks.calls for marks in modules), Counter[tuple[int, bool]]())
        learned = sum(count for (_, learns), count in calls.items() if learns)
        if not learned or len(turns) < LOOP_TURNS:
            return False
        before, usual = 0, 0
        for (items, learns), count in sorted(calls.items()):
            before += count * learns
            if 2 * before >= learned:
                usual = items
                break
        played = sum(
            count
            for (items, learns), count in calls.items()
            if not learns and PLAYED * items <= usual
        )
        rows = [np.searchsorted(self._moments(marks), turns[[0, -1]]) for marks in modules]
        each = sum(int(last - first) for first, last in rows) / (len(turns) - 1)
        each *= played / calls.total()
        several = np.count_nonzero((updates > turns[0]) & (updates <= turns[-1])) >= len(turns)
        return bool(each >= (PLAYS if several else PLAYS_ONCE))

    @staticmethod
    def _moments(marks: _Marks) -> Int64s:
        return np.concatenate((marks.recent_ns, *marks.new_ns))

    def _choose(self, first_ns: int, launched_ns: int) -> Site | None:
        """The site that the steps go by, now that something was launched at `launched_ns`. One that
        is silent for long gives way to another, or to none."""
        moments = {site: self._moments(marks) for site, marks in self._sites.items()}
        moments = {
            site: its[its >= first_ns] if site.source == "loop" else its
            for site, its in moments.items()
        }
        # While another function compiles after each epoch, the one that trains is silent. A model
        # that is trained also plays, in reinforcement learning.
        trains = any(RANKS[site.source] < RANKS["token"] for site in moments)
        called = [its for site, its in moments.items() if site.source == "jax"]
        models = {
            site: its for site, its in moments.items() if site.source == "module" and not trains
        }
        if models:
            # A few layers that encode what hundreds of tokens are decoded from say nothing.
            shares = shares_of_time(models)
            least = SPEAKS_FOR * sum(shares.values())
            called += [its for site, its in models.items() if shares[site] >= least]
        called.sort(key=len, reverse=True)
        moments = {
            site: its
            for site, its in moments.items()
            if len(its) > 1 and not is_silent(site.source, its, launched_ns)
        }
        if not moments:
            return None
        newest_ns = max(int(its[-1]) for its in moments.values())
        moments = {site: its for site, its in moments.items() if its[-1] >= newest_ns - HELD_NS}
        best: dict[StepSource, Site] = {}
        depths = {site: self._sites[site].depth for site in moments if site.source == "loop"}
        for source in {site.source for site in moments}:
            its = {site: moments[site] for site in moments if site.source == source}
            if source == "loop":
                site = steps_loop(its, depths, self.chosen)
            else:
                site = site_of_source(source, its)
            if site is not None:
                best[source] = site
        if not best:
            return None
        if (loop := best.get("loop")) is not None:
            turns = moments[loop]
            tokens = best.get("token")
            if tokens and marks_per_turn(turns, moments[tokens], LOOP_TURNS - 1) > 1:
                del best["token"]
            for inner in (best.get("optimizer"), best.get("accelerate")):
                if inner is None:
                    continue
                turn = self._turn_of(moments[inner], moments, depths)
                several = marks_per_turn(turns, moments[inner], LOOP_TURNS)
                plays = self._plays(moments[inner], turns)
                # What is learned after a rollout is gone through several times, in two loops.
                is_next = turn is not None and depths[turn] <= depths[loop] + 1
                if turn is not None and (
                    (several <= 1 and (turn == loop or not plays))
                    or (is_next and fills_turns(moments[turn], turns))
                    or (is_next and 0 < calls_per_turn(moments, turns) < ROLLOUT * several)
                ):
                    return turn
                if plays or 1 < several <= UPDATES:
                    del best[inner.source]
            # Launches that run ahead come in bursts, 12 turns in 40 ms, then none for 400: a loop
            # whose turns are not alike holds one call each, and what is alike inside of it none.
            is_one_each = any(marks_per_turn(turns, calls, LOOP_TURNS) == 1 for calls in called)
            for calls in called:
                turn = self._turn_of(calls, moments, depths)
                if turn is not None and (
                    marks_per_turn(turns, calls, LOOP_TURNS) > EPOCH
                    or (not is_one_each and depths[turn] < depths[loop])
                ):
                    return turn
            if (token := token_loop(loop, moments, depths, called)) is not None:
                return token
        rank = min(RANKS[source] for source in best)
        first = {source: site for source, site in best.items() if RANKS[source] == rank}
        if "tqdm" in first and len(first) > 1:
            most = max(len(moments[site]) for source, site in first.items() if source != "tqdm")
            if len(moments[first["tqdm"]]) < BAR_COVERS * most:
                del first["tqdm"]
            else:
                return first["tqdm"]
        site = max(first.values(), key=lambda site: len(moments[site]))
        if (
            self.chosen is not None
            and self.chosen in moments
            and is_as_good(self.chosen, site, moments)
        ):
            return self.chosen
        return site
