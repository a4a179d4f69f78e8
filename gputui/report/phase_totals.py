"""Sums over the range tree of a run, which the figures of its phases are computed from."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from gputui.report.main_step import STEP_NAMES, main_step
from gputui.report.phase_tree import Phase, PhaseTree, phases_around
from gputui.report.windows import Estimates
from gputui.state import Launched, Run

if TYPE_CHECKING:
    from gputui.report.phases import PhaseRow

_SILENCE_NS = 1_000_000_000
"""A process silent for longer than this has not changed: readers take less time to report it."""


class PhaseTotals:
    """What figures of single phases are computed from."""

    def __init__(self, run: Run, tree: PhaseTree) -> None:
        self.run = run
        self.rows: list[PhaseRow] = []
        self._tree = tree
        devices = run.devices
        self.on_gpu = bool(devices)
        self.gpu_ns = sum(device.busy_ns for device in devices.values())

    @cached_property
    def main_step(self) -> PhaseRow | None:
        """The step that came most often."""
        return main_step(self.run, self.rows)

    @cached_property
    def steps_ns(self) -> dict[int, int]:
        """By process, the time in its steps."""
        main = self.main_step
        return {
            row.key[0]: row.cpu.total
            for row in self.rows
            if main is not None and row.key[1:] == main.key[1:]
        }

    @cached_property
    def estimates(self) -> Estimates | None:
        """Where only windows were traced."""
        return Estimates.of(self.run)

    @cached_property
    def launched(self) -> dict[Phase, Launched]:
        """What was launched in each phase and in those inside it."""
        sums: dict[Phase, Launched] = {}
        for phase in reversed(self._tree.phases):
            counts = sums[phase] = Launched()
            for node in phase.nodes:
                counts.add(node.launched)
                if node.inherited is not None:
                    counts.add(node.inherited)
            for child in phase.children:
                counts.add(sums[child])
        return sums

    @cached_property
    def inherited(self) -> dict[Phase, int]:
        """Kernels launched for each phase by threads without ranges."""
        sums: dict[Phase, int] = {}
        for phase in reversed(self._tree.phases):
            own = sum(node.inherited.kernels for node in phase.nodes if node.inherited is not None)
            sums[phase] = own + sum(sums[child] for child in phase.children)
        return sums

    def elapsed(self, phase: Phase) -> int:
        """Time in a phase so far, including the instances that are open now."""
        total = 0
        for node in phase.nodes:
            total += node.cpu.total
            if node.open_since_ns is not None:
                total += max(0, self._until_ns(phase) - node.open_since_ns)
        return total

    def _until_ns(self, phase: Phase) -> int:
        # A short range is open in one delta and has ended long before the next is made.
        until_ns = self.run.processes[phase.key[0]].updated_ns
        newest_ns = self.run.updated_ns
        return newest_ns if newest_ns - until_ns > _SILENCE_NS else until_ns

    def enclosing_steps(self, phase: Phase) -> int:
        """Instances of the nearest step at or around a phase, 0 if there is none."""
        wanted = self.run.started.step_range
        # By the parents, not by the names: a file may nest a range in one of another domain.
        for around in phases_around(phase):
            if around.name == wanted if wanted else STEP_NAMES.match(around.name):
                return sum(node.cpu.count for node in around.nodes)
        return 0


def outside_ns(run: Run) -> int:
    """The time of a run in none of its phases, as its busiest thread saw it; 0 where that is not
    known: of several processes."""
    outermost: Counter[tuple[int, int, str]] = Counter()
    for node in run.ranges.values():
        of = node.definition
        if not of.parent:
            outermost[of.process, of.thread, of.domain] += node.cpu.total
    if len({process for process, _, _ in outermost}) != 1:
        return 0
    return max(0, run.duration_ns - max(outermost.values()))
