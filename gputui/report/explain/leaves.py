"""Under which leaf a device's time stands in the time tree: here, and nowhere after it.

The capture counts each nanosecond of a device by what it saw of that device and its process
(attribute.accounting). `settle` then moves time from one leaf to another where records of another
kind, or of other processes and ranks, say more. Each move keeps its reason, so that `moves` of a
time tree answer why it is, say, launch-bound:

- kernels to SHARED: a process that is not the run's, or no rank of its job, had the GPU meanwhile;
- SYNC to LAUNCH: what the CPU did not spend in synchronizing calls;
- HOST and WAIT to INPUT: what lies in ranges around the next batch of a data loader;
- LAUNCH to SYNC: launching that is reading values back, by the calls for it;
- COMMUNICATION to RANK: what collectives waited for another rank.

`together` makes one tree of a GPU that several processes of a run use. Each of them sees the whole
time of the device: what it ran itself, when the others ran something (PEER), and when nobody did.
The device's tree is the mean of what they see, by the length of what each saw, with the others'
time under the leaves that they have: an instant in which several ran something counts for each of
them in equal parts, and idle time for those that might have ended it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputui.model.events import LoopDelta, Scope, StepBlock
from gputui.model.events.distributions import Accumulator
from gputui.model.leaves import LEAVES, Leaf, idle_sum, is_kernel, leaf_of_number
from gputui.model.naming import is_synchronization
from gputui.model.steps import SOURCES_FIRST
from gputui.report.explain.rank_waits import Exposed, Matched, Place, ranks_of, waits
from gputui.report.phases import is_step_name
from gputui.state import Run
from gputui.state.run import MarkedSteps


class Moved(NamedTuple):
    """Time that the capture counted under one leaf and that is another's, and why."""

    source: Leaf
    target: Leaf
    ns: int
    share: float
    """Of what was under the source until then."""
    why: str


class Counted(NamedTuple):
    """What the capture counted of one process on a device."""

    by_scope: Sequence[Mapping[Leaf, int]]
    """Time by leaf, of each loop and scope that counts."""
    steps: int
    waited_ns: int | None
    """How long the process was in synchronizing calls meanwhile; None where that is unknown."""


class Settled:
    """The leaves of one process on a device, in ns, and what was moved between them."""

    def __init__(self) -> None:
        self.leaves: dict[Leaf, int] = {}
        self.moves: list[Moved] = []
        self.waits_are_known = False
        """Whether it is known how long collectives waited for other ranks."""

    def move(self, source: Leaf, target: Leaf, ns: int, why: str) -> None:
        """Counts so much of one leaf's time under another."""
        self.leaves[target] = self.leaves.get(target, 0) + ns
        if ns:
            self.moves.append(Moved(source, target, ns, ns / self.leaves[source], why))
            self.leaves[source] -= ns


def settle(
    run: Run, counted: Mapping[Place, Counted], by_match: Mapping[int, Matched]
) -> dict[Place, Settled]:
    """The leaves of each process and device as the time tree has them. `by_match` is what matched
    collectives say of each process (`rank_waits.matched`)."""
    settled = {place: _of_process(run, place, amounts) for place, amounts in counted.items()}
    exposed = {
        place: Exposed(counted[place].steps, own.leaves.get(Leaf.COMMUNICATION, 0))
        for place, own in settled.items()
    }
    for place, ns in waits(run, exposed, by_match).items():
        # Collectives that other work hides make nobody wait.
        waited_ns = min(ns, exposed[place].collectives_ns)
        settled[place].waits_are_known = True
        # Where nobody waited, readers of a device's tree find a RANK of 0.
        settled[place].move(
            Leaf.COMMUNICATION, Leaf.RANK, waited_ns, "collectives waited for another rank"
        )
    return settled


def _of_process(run: Run, place: Place, counted: Counted) -> Settled:
    """What records of the process itself and of others on its GPU say."""
    settled = Settled()
    overlap = taken_by_others(run, *place)
    for part in counted.by_scope:
        for leaf, ns in part.items():
            settled.leaves[leaf] = settled.leaves.get(leaf, 0) + ns
    for leaf, ns in [*settled.leaves.items()] if overlap else ():
        if is_kernel(leaf):
            settled.move(leaf, Leaf.SHARED, round(ns * overlap), "another process had the GPU")
    if counted.waited_ns is not None:
        # A step takes the longer of the GPU's work and the CPU's: without its synchronizing calls
        # it cannot gain more than the CPU spends in them. What is beyond is the CPU's slowness.
        beyond_ns = max(0, settled.leaves.get(Leaf.SYNC, 0) - counted.waited_ns)
        settled.move(Leaf.SYNC, Leaf.LAUNCH, beyond_ns, "the CPU was in no synchronizing call")
    loaded = input_share(run, *place)
    for leaf in (Leaf.HOST, Leaf.WAIT):
        input_ns = round(loaded.get(leaf, 0.0) * settled.leaves.get(leaf, 0))
        settled.move(leaf, Leaf.INPUT, input_ns, "the program was in a data loader's range")
    reading_ns = round(reading_share(run, place[0]) * settled.leaves.get(Leaf.LAUNCH, 0))
    settled.move(Leaf.LAUNCH, Leaf.SYNC, reading_ns, "most calls read values back and wait")
    settled.leaves = {leaf: ns for leaf, ns in settled.leaves.items() if ns}
    return settled


def settled_block(block: StepBlock, moves: Iterable[Moved], transfer_ns: float | None) -> StepBlock:
    """A block of steps with its part of what was moved, and with all of its exposed collectives
    beyond so much a step as waiting for another rank, where that is known: steps all transfer as
    much."""
    leaves = dict(block.leaves)
    for move in moves:
        if move.target is not Leaf.RANK and (ns := round(move.share * leaves.get(move.source, 0))):
            leaves[move.source] -= ns
            leaves[move.target] = leaves.get(move.target, 0) + ns
    if transfer_ns is not None:
        both_ns = leaves.get(Leaf.COMMUNICATION, 0)
        leaves[Leaf.COMMUNICATION] = min(both_ns, round(transfer_ns * block.steps))
        leaves[Leaf.RANK] = both_ns - leaves[Leaf.COMMUNICATION]
    return replace(block, leaves=tuple((leaf, ns) for leaf, ns in leaves.items() if ns))


LEAST_TURNS = 3
"""Steps without which a share would be of chance."""

LEAST_PAUSES = 5
"""Pauses that make a loop one that waits for work."""

LEAST_SHARE = 0.02
"""Share of all time since the first kernel below which steps are not what the program does."""


MANY_WAITS = 2
"""Waits a step from which they are a habit: a decoder has to read its token."""

WAITS_AMONG_LAUNCHES = 0.01
"""Waits for each operation from which they keep a step from being captured into CUDA graphs: a
training step that logs its loss has one in hundreds."""


def all_steps(run: Run) -> int:
    """The number of steps of every loop and device, steady or not."""
    return sum(sums.steps for sums in run.loops.values())


def waits_a_step(run: Run, steps: int) -> float:
    """Calls that wait for the GPU, a step, of which the run has so many."""
    return synchronizations(run) / max(1, steps)


def _waits_in_steps(run: Run, steps: int) -> float:
    """Calls of a run of so many steps that only wait for the GPU, without those of its set-up, as
    far as the time that the steady steps of each main loop wait tells them: of 17 a step that one
    had, 15 were of a first step that tried algorithms (cudnn.benchmark)."""
    its = [call for call in run.api.values() if is_synchronization(call.name)]
    count, total_ns = sum(c.time.count for c in its), sum(c.time.total for c in its)
    longest: dict[tuple[int, int], LoopDelta] = {}
    for sums in run.loops.values():
        if sums.scope == Scope.STEADY and sums.step_ns is not None:
            before = longest.setdefault((sums.process, sums.device), sums)
            if before.step_ns is None or sums.step_ns.total > before.step_ns.total:
                longest[sums.process, sums.device] = sums
    waited = [sums.waited_ns for sums in longest.values() if sums.waited_ns is not None]
    expected_ns = total_ns * sum(sums.steps for sums in longest.values()) / max(1, steps)
    return count * min(1.0, sum(waited) / expected_ns) if waited and expected_ns else count


def synchronizations(run: Run) -> int:
    """Calls of a run that only wait for the GPU."""
    return sum(call.time.count for call in run.api.values() if is_synchronization(call.name))


def waits_among_launches(run: Run, steps: int) -> float | None:
    """Waits for the GPU for each operation of so many steps; None where they are few, or steps
    unknown."""
    operations = sum(sums.operations for sums in run.loops.values())
    waits = _waits_in_steps(run, steps)
    many = operations and waits >= MANY_WAITS * max(1, steps)
    # No CUDA graph can have the waits among a step's launches, so they come first in the advice.
    return waits / operations if many and waits >= WAITS_AMONG_LAUNCHES * operations else None


# Ranges of torch.profiler around the next batch of a data loader.
_LOADS = re.compile(r"enumerate\(DataLoader\)|\bDataLoader\b.*__next__")


def input_share(run: Run, process: int, device: int) -> dict[Leaf, float]:
    """By leaf, which share of a device's idle time lies in ranges that fetch the next batch, where
    no samples of the program's lines say what it was at."""
    whole: dict[Leaf, int] = defaultdict(int)
    loading: dict[Leaf, int] = defaultdict(int)
    for time in run.timing.range_leaves.values():
        leaf = leaf_of_number(time.leaf)
        if (time.process, time.device) != (process, device) or leaf not in (Leaf.HOST, Leaf.WAIT):
            continue
        whole[leaf] += time.ns
        node = run.ranges.get(time.range)
        if node is not None and _LOADS.search(node.path):
            loading[leaf] += time.ns
    return {leaf: loading[leaf] / ns for leaf, ns in whole.items() if ns and loading[leaf]}


READING = 0.25
"""Share of a program's CUDA calls that copy a value and wait for it, from which launching means
reading values: a decoder reads one in hundreds of calls, a program that logs each tensor as many as
it launches kernels."""


def reading_share(run: Run, process: int) -> float:
    """Which share of the time between launches is reading values back, by the calls that do so."""
    waits = copies = whole = 0
    for call in run.api.values():
        if call.process == process:
            count = call.time.count
            waits += count if is_synchronization(call.name) else 0
            copies += count if "Memcpy" in call.name else 0
            whole += count
    read = waits + min(waits, copies)
    steps = sum(loop.steps for loop in run.loops.values() if loop.process == process)
    if waits < MANY_WAITS * steps or read < READING * whole:
        return 0.0
    return read / whole if whole else 0.0


USED_BY_ANOTHER = 0.10
"""Share of a GPU's time from which another process is on it."""


def taken_by_others(run: Run, process: int, device: int) -> float:
    """Which share of its kernels' time a process lost to others on the device, 0 to 1.

    It takes both: others are at work there meanwhile, and kernels are stretched; no more is lost
    than the others used.
    """
    stretched = _stretched(run, process, device)
    if not stretched:
        return 0.0
    used = max(used_by_strangers(run, device), _used_by_siblings(run, process, device))
    return min(stretched, used) if used >= USED_BY_ANOTHER else 0.0


def shares_with_itself(run: Run) -> bool:
    """Whether processes of the run with work of their own share a GPU."""
    places = {(time.process, time.device) for time in run.leaf_times.values()}
    return any(_used_by_siblings(run, *place) >= USED_BY_ANOTHER for place in places)


def _stretched(run: Run, process: int, device: int) -> float:
    """By which share of its kernels' time a process's kernels are longer than the same kernels can
    be."""
    stretched = run.stretches.get((process, device))
    return (
        stretched.stretched_ns / stretched.compared_ns
        if stretched and stretched.compared_ns
        else 0.0
    )


def used_by_strangers(run: Run, device: int) -> float:
    """Which share of the device's time processes used that are not the run's, as the driver counts
    it. If the driver does not name the run's own process, the others cannot be distinguished from
    it (containers)."""
    sharing = run.readings.sharing.get(device)
    return sharing.share if sharing is not None else 0.0


def _used_by_siblings(run: Run, process: int, device: int) -> float:
    """Which share of the device's time other processes of the run used that have work of their own;
    ranks of one job work together, and do not count."""
    ranks = ranks_of(run)
    if process in ranks:
        return 0.0
    host = run.processes[process].attached.host
    # For all processes at once: a verdict on 64 of them took 2 s.
    wall_ns, busy_ns = 0, dict.fromkeys(run.processes, 0)
    for time in run.leaf_times.values():
        if time.device == device and time.process in busy_ns:
            busy_ns[time.process] += time.ns if is_kernel(leaf_of_number(time.leaf)) else 0
            wall_ns += time.ns if time.process == process else 0
    used = sum(
        ns * (1.0 - _stretched(run, number, device))
        for number, ns in busy_ns.items()
        if ns
        and number != process
        and run.processes[number].attached.host == host
        and number not in ranks
    )
    return used / wall_ns if wall_ns else 0.0


# Which marks of a program (StepMarks) say what its steps are, where the steps that were recognized
# are something else: what repeated before the first mark, or within a step.

FEWEST_MARKS = 6
"""Chosen, not measured. Their distances have to be known, or the median step would not be."""

SPANNED = 0.5
"""Part of the device's time after the first mark that marks have to span."""

OF_LOOP = 0.25
"""Part of the recognized loop that marks are at least as long as: a last evaluation is no run."""

ANOTHER = 1.5
"""Recognized steps for each marked one, or the other way round, from which they are not the same.
Of 80 optimizer steps with a checkpoint every few, 69 were recognized: the rest were pauses."""

SAME_SPAN = 0.9
"""Part of the longest span of a source's sites that another site spans which marks as long."""


def is_marked(loop: LoopDelta) -> bool:
    """Whether the program itself marked where the turns of a loop begin."""
    return loop.source not in (None, "repetition")


def names_steps(run: Run) -> bool:
    """Whether ranges name themselves steps, which win over marks."""
    wanted = run.started.step_range
    names = (each.definition.name for each in run.ranges.values())
    return any(name == wanted if wanted else is_step_name(name) for name in names)


def covers_the_rest(first_ns: int, last_ns: int, loops: Iterable[LoopDelta]) -> bool:
    """Whether a span is most of a device's time from its beginning on."""
    end_ns = max((loop.last_ns for loop in loops), default=last_ns)
    return last_ns - first_ns >= SPANNED * (end_ns - first_ns)


def marked_steps(run: Run, process: int, device: int, main: int | None) -> MarkedSteps | None:
    """The marks of a process that stand for the steps of its `main` loop on a device; None where
    that loop's own steps are those, or none speaks of most of the time after its first mark.
    Without a main loop, only where no steps at all were recognized."""
    loops = [
        each for each in run.loops.values() if (each.process, each.device) == (process, device)
    ]
    loop = run.loops.get((process, device, Scope.STEADY, main)) if main is not None else None
    if (loop is not None and is_marked(loop)) or not run.marked_steps or names_steps(run):
        return None
    if loop is None and any(each.steps for each in loops):
        return None  # several loops, none of which is the run: pauses among them say more
    spanning = [
        marks
        for (marker, *_), marks in run.marked_steps.items()
        if marker == process
        and marks.source in SOURCES_FIRST
        and len([*marks.lengths_ns]) >= FEWEST_MARKS - 1
        and covers_the_rest(marks.first_ns, marks.last_ns, loops)
    ]
    if loop is not None:
        least_ns = OF_LOOP * (loop.last_ns - loop.first_ns)
        spanning = [marks for marks in spanning if marks.last_ns - marks.first_ns >= least_ns]
    if not spanning:
        return None
    source = min((marks.source for marks in spanning), key=SOURCES_FIRST.index)
    sites = [marks for marks in spanning if marks.source == source]
    if loop is not None and any(_is_same(loop, marks) for marks in sites):
        return None
    longest_ns = max(marks.last_ns - marks.first_ns for marks in sites)
    # Of optimizers the one that runs less often: a generator's, once in five of its opponent's.
    return min(
        (marks for marks in sites if marks.last_ns - marks.first_ns >= SAME_SPAN * longest_ns),
        key=lambda marks: marks.marks,
    )


def _is_same(loop: LoopDelta, marks: MarkedSteps) -> bool:
    if not loop.steps or not marks.mean_ns:
        return False
    turns = marks.mean_ns * loop.steps / max(1, loop.last_ns - loop.first_ns)
    return 1 / ANOTHER <= turns <= ANOTHER


def overlapping(loops: Iterable[LoopDelta], marks: MarkedSteps) -> set[tuple[int, Scope]]:
    """The loops and scopes that lie within the span of marks for more than half of their time.

    Not set-up: its moments are those at which it was accounted for. 135 ms before the first mark
    would have been a third of the time around 235 ms of marks."""
    return {
        (loop.loop, loop.scope)
        for loop in loops
        # The moments of marks are those at which they were accounted for.
        if loop.scope is not Scope.SETUP
        and 2 * (min(loop.last_ns, marks.last_ns) - max(loop.first_ns, marks.first_ns))
        > loop.last_ns - loop.first_ns
    }


def step_lengths(marks: MarkedSteps) -> Accumulator:
    """As many lengths as there are steps, spread as those that are known; their mean is that of
    all marks after warm-up."""
    steps, mean_ns = marks.marks - 1, marks.mean_ns or 0.0
    measured = sorted(marks.lengths_ns) or [round(mean_ns)]
    lengths = Accumulator(
        count=steps, total=round(steps * mean_ns), minimum=measured[0], maximum=measured[-1]
    )
    for number, length_ns in enumerate(measured):
        times = (number + 1) * steps // len(measured) - number * steps // len(measured)
        lengths.values[length_ns] = lengths.values.get(length_ns, 0) + times
    lengths.squares = sum(
        times * (length_ns - mean_ns) ** 2 for length_ns, times in lengths.values.items()
    )
    return lengths


def scope_of(
    run: Run,
    process: int,
    device: int,
    times_by_scope: dict[tuple[int, Scope], dict[Leaf, int]],
) -> tuple[int | None, tuple[Scope, ...]]:
    """The main loop of a device, and what of it counts; (None, everything) without steps."""
    steady = {
        sums.loop: sums
        for sums in run.loops.values()
        if (sums.process, sums.device) == (process, device) and sums.scope is Scope.STEADY
    }
    times: dict[int, dict[Scope, int]] = defaultdict(lambda: defaultdict(int))
    for (loop, scope), leaves in times_by_scope.items():
        times[loop][scope] += sum(leaves.values())
    # Where there is nothing beside the steps, they were chosen: then few are enough.
    least = 1 if len(times_by_scope) == 1 else LEAST_TURNS
    loops = [loop for loop, sums in steady.items() if sums.steps >= least]
    if loops:
        # By what its usual step takes: copying a model to the GPU repeats too, with long imports
        # and reading of files between two of its short turns.
        main = max(loops, key=lambda loop: (steady[loop].usual_ns, loop))
        its = [
            sums for sums in run.loops.values() if (sums.process, sums.device) == (process, device)
        ]
        marked = [
            loop
            for loop in loops
            if is_marked(sums := steady[loop])
            and sums.steps >= FEWEST_MARKS
            and covers_the_rest(sums.first_ns, sums.last_ns, its)
        ]
        if marked:
            # What repeats in set-up, as while JAX compiles, may take longer than all marked steps.
            longest = max(marked, key=lambda loop: (steady[loop].usual_ns, loop))
            again = [loop for loop in marked if _is_more_of(steady[longest], steady[loop])]
            return max([longest, *again]), (Scope.STEADY,)
        counted_ns = times[main][Scope.STEADY]
        # Many pauses are how a loop goes (a server between requests); one is what came before it.
        pauses = run.loops.get((process, device, Scope.PAUSE, main))
        if pauses is not None and pauses.steps >= LEAST_PAUSES:
            counted_ns += times[main][Scope.PAUSE]
        if counted_ns >= LEAST_SHARE * sum(
            sum(leaves.values()) for leaves in times_by_scope.values()
        ):
            return main, (Scope.STEADY,)
    return None, tuple(Scope)


AGAIN = 0.5
"""Part of the time of a longer warm-up that a loop of the same work takes which follows it."""


def _is_more_of(warm_up: LoopDelta, loop: LoopDelta) -> bool:
    """Whether the turns of a loop of the program do the same as those of one before: a decode of 64
    tokens that warmed up took longer than the 54 that were measured."""
    per_turn = sorted(each.operations / max(1, each.steps) for each in (warm_up, loop))
    return (
        loop.source == "loop"
        and loop.loop > warm_up.loop
        and loop.usual_ns >= AGAIN * warm_up.usual_ns
        and per_turn[0] >= 0.9 * per_turn[1]
    )


Leaves = Mapping[Leaf, int]


class Part(NamedTuple):
    """What one process has of a GPU that others of the run use too."""

    process: int
    gpu: int
    leaves: dict[Leaf, int]
    """The device's time by leaf, as far as it is this process's: the times of all processes of a
    device add up to its wall time."""

    @property
    def busy_ns(self) -> int:
        """The time in which the process ran something; time in which another process ran something,
        too, counts half."""
        return sum(ns for leaf, ns in self.leaves.items() if not LEAVES[leaf].is_idle)

    @property
    def idle_ns(self) -> int:
        """The time in which nobody ran anything, as far as this process had to end it."""
        return idle_sum(self.leaves)


def together(run: Run, seen: Mapping[Place, Leaves]) -> dict[Place, Part]:
    """The parts of processes that share a GPU and were seen doing so."""
    settled_parts: dict[Place, Part] = {}
    groups: dict[tuple[str | None, int], dict[Place, Leaves]] = defaultdict(dict)
    for place, leaves in seen.items():
        process = run.processes.get(place[0])
        host = process.attached.host if process is not None else None
        if any(leaves.values()):
            groups[host, place[1]][place] = leaves
    for group in groups.values():
        if len(group) > 1 and any(leaves.get(Leaf.PEER) for leaves in group.values()):
            settled_parts |= _parts_of_group(group)
    return settled_parts


def _parts_of_group(group: Mapping[Place, Leaves]) -> dict[Place, Part]:
    walls = {place: sum(leaves.values()) for place, leaves in group.items()}
    scale = max(walls.values()) / sum(walls.values())
    busy = {place: _busy_ns(leaves) for place, leaves in group.items()}
    amounts: dict[Place, dict[Leaf, float]] = {place: defaultdict(float) for place in group}
    for place, leaves in group.items():
        for leaf, ns in leaves.items():
            if leaf is not Leaf.PEER:
                amounts[place][leaf] += ns * scale
        theirs = sum(ns for other, ns in busy.items() if other != place)
        for other, own_leaves in group.items():
            if other != place and busy[other]:
                share = leaves.get(Leaf.PEER, 0) * scale * busy[other] / theirs
                for leaf, ns in own_leaves.items():
                    if _is_own(leaf):
                        amounts[other][leaf] += share * ns / busy[other]
        if not theirs:
            amounts[place][Leaf.PEER] += leaves.get(Leaf.PEER, 0) * scale
    rounded = {
        place: {leaf: round(ns) for leaf, ns in own_leaves.items()}
        for place, own_leaves in amounts.items()
    }
    # What rounding leaves is the largest one's.
    place, leaf = max(
        ((place, leaf) for place, own_leaves in rounded.items() for leaf in own_leaves),
        key=lambda place_and_leaf: rounded[place_and_leaf[0]][place_and_leaf[1]],
    )
    rounded[place][leaf] += max(walls.values()) - sum(
        sum(own_leaves.values()) for own_leaves in rounded.values()
    )
    return {place: Part(*place, own_leaves) for place, own_leaves in rounded.items()}


def _is_own(leaf: Leaf) -> bool:
    return not LEAVES[leaf].is_idle and leaf is not Leaf.PEER


def _busy_ns(leaves: Leaves) -> int:
    return sum(ns for leaf, ns in leaves.items() if _is_own(leaf))
