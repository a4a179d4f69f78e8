"""A run as rules, documents and screens read it: everything that is computed of it, each figure
once.

An analysis is of its session as that is at one moment. When further events have been folded into
the session, a new analysis is made (the screen makes one for each revision of its model). None is
changed, so none can be stale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

from gputui.model.events import DeviceDelta, GpuFacts, KernelDefined
from gputui.model.leaves import Leaf
from gputui.report.explain.finding import Finding
from gputui.report.explain.leaves import all_steps
from gputui.report.explain.lines import LikeliestLine, line_shares
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import Matched, Place, matched
from gputui.report.explain.ranks import Lateness, lateness_of, rank_times
from gputui.report.explain.time_tree import TimeTree, device_trees, tree_of
from gputui.report.statistics import kernel_sums
from gputui.state import Readings, Run, Session

OF_ONE_KIND, ALIKE = 0.9, 2.0
"""Part of all steps from which they are of one kind: loops whose steps differ by no more than this
factor in their operations, as those for warm-up."""


class MachineAnalysis:
    """What rules about the machine read: the session, and readings of the machine, which are those
    of a run (its `readings`) or of the time without one."""

    def __init__(self, session: Session, readings: Readings | None = None) -> None:
        self.session = session
        self.readings = session.readings if readings is None else readings
        self.results: dict[Callable[..., object], Any] = {}
        """The results of functions that are `computed_once`."""


class Analysis(MachineAnalysis):
    """What rules about a run read: its time trees, ranks and sums. Each is computed when it is
    first asked for. `verdict`, `findings` and `conclusion` are functions of an analysis, and are
    computed once, too."""

    def __init__(self, session: Session, run: Run) -> None:
        super().__init__(session, run.readings)
        self.run = run
        self._lines: dict[Leaf | None, list[LikeliestLine]] = {}

    @property
    def kernel_names(self) -> Mapping[int, KernelDefined]:
        """The kernels' names by their numbers."""
        return self.session.kernel_names

    @cached_property
    def devices(self) -> dict[int, DeviceDelta]:
        """What all processes together did on each GPU, by the machine's index."""
        return self.run.devices

    @cached_property
    def facts(self) -> GpuFacts | None:
        """The facts of the run's first GPU; the GPUs of a run are taken to be alike. None if they
        were not read."""
        gpus = self.session.gpus
        return next((gpus[index].facts for index in sorted(self.devices) if index in gpus), None)

    @cached_property
    def matched(self) -> dict[int, Matched]:
        """What the matched collectives show of each process."""
        return matched(self.run)

    @cached_property
    def device_trees(self) -> dict[Place, TimeTree]:
        """The time tree of each device of each process, empty ones too."""
        return device_trees(self.run, self.matched)

    @cached_property
    def tree(self) -> TimeTree | None:
        """The time tree of the run: its steady steps, on all GPUs; None if no operation was
        captured."""
        return tree_of(self.run, self.device_trees)

    def tree_of_gpu(self, gpu: int) -> TimeTree | None:
        """The time tree of one GPU; None if no operation was captured on it."""
        return tree_of(self.run, self.device_trees, gpu)

    @cached_property
    def kernel_sums(self) -> Mapping[int, tuple[int, int]]:
        """For each kernel, by its number: how often it ran, and its time in ns. Both are sums of
        the whole run."""
        return kernel_sums(self.run)

    @cached_property
    def ranks(self) -> list[RankTime]:
        """The time of each rank and device, the latest rank first."""
        return rank_times(self.run, self.device_trees, self.matched)

    @cached_property
    def lateness(self) -> Lateness | None:
        """The rank that is late; None if none is, or if it is not clear which."""
        return lateness_of(self.ranks, self.matched)

    @cached_property
    def all_steps(self) -> int:
        """The number of steps of the whole run, on every device, steady or not: those that the
        program marks, if the recognized steps are something else. Where other loops are of other
        work, as many steps of the main one as have all their operations: what is counted for the
        whole run is so much a step by these."""
        marked = sum(tree.steps for tree in self.device_trees.values() if tree.marked_by)
        if marked or self._are_of_one_kind or self.tree is None or not self.tree.operations:
            return marked or all_steps(self.run)
        operations = sum(sums.operations for sums in self.run.loops.values() if sums.steps)
        return max(1, round(operations * self.tree.steps / self.tree.operations))

    @property
    def steps_of_one_kind(self) -> int:
        """All steps, if nearly all have about as many operations as the main loop's; else 0.
        What is counted for the whole run is exactly so much a step only then: a learner that fills
        its memory in a loop of its own first was said to read 273 values in each step, which reads
        1,024."""
        return self.all_steps if self._are_of_one_kind else 0

    @cached_property
    def _are_of_one_kind(self) -> bool:
        loops: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        for sums in self.run.loops.values():
            counts = loops[sums.process, sums.device, sums.loop]
            counts[0] += sums.steps
            counts[1] += sums.operations
        sizes = {loop: operations / steps for loop, (steps, operations) in loops.items() if steps}
        tree = self.tree
        usual = tree.operations / tree.steps if tree is not None and tree.steps else 0.0
        alike = sum(
            loops[loop][0] for loop in sizes if usual <= ALIKE * sizes[loop] <= ALIKE**2 * usual
        )
        return alike >= OF_ONE_KIND * all_steps(self.run)

    def part_of_kernels(self, wanted: Callable[[str], bool]) -> tuple[int, float]:
        """Launches of the kernels with such names in the whole run, and their part of the time of
        all kernels, 0 to 1."""
        names, sums = self.kernel_names, self.kernel_sums
        whole_ns = sum(ns for _, ns in sums.values())
        chosen = [sums[number] for number in sums if number in names and wanted(names[number].name)]
        ns = sum(ns for _, ns in chosen)
        return sum(count for count, _ in chosen), ns / whole_ns if whole_ns else 0.0

    def lines(self, leaf: Leaf | None = None) -> list[LikeliestLine]:
        """The program's lines that samples saw, the most frequent first (see `line_shares`); with
        `leaf`, only those seen under that leaf."""
        if leaf not in self._lines:
            self._lines[leaf] = line_shares(self.run, leaf=leaf)
        return self._lines[leaf]


A = TypeVar("A", bound=MachineAnalysis)
Result = TypeVar("Result")


def computed_once(compute: Callable[[A], Result]) -> Callable[[A], Result]:
    """Decorator: keeps the result of a function of an analysis with the analysis."""

    @wraps(compute)
    def result_of(analysis: A) -> Result:
        if compute not in analysis.results:
            analysis.results[compute] = compute(analysis)
        result: Result = analysis.results[compute]
        return result

    return result_of


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule about a run. `order` is the place of its findings among all, lowest first."""

    order: int
    find: Callable[[Analysis], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class MachineRule:
    """A rule about readings of the machine, which needs no run. `order` is as in RunRule."""

    order: int
    find: Callable[[MachineAnalysis], Iterable[Finding]]
