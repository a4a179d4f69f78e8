"""One of the runs that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gputui.report.explain.analysis import Analysis
from gputui.report.explain.time_tree import TimeTree
from gputui.report.means import inflation
from gputui.state import Readings, Run, Session


@dataclass(frozen=True)
class Subject:
    """One run to compare, or the machine if no run was recorded, and its title."""

    label: str
    session: Session
    run: Run | None

    @property
    def readings(self) -> Readings:
        """Of the machine: during the run, or over the recording without one."""
        return self.session.readings if self.run is None else self.run.readings

    @cached_property
    def tree(self) -> TimeTree | None:
        """Where its time went, None where no operation was captured."""
        return None if self.run is None else Analysis(self.session, self.run).tree

    @cached_property
    def steps(self) -> float:
        """Steps of one device, with those of its warm-up: what totals are a step of."""
        if self.run is None or self.tree is None or not self.tree.has_steps:
            return 0.0
        return sum(sums.steps for sums in self.run.loops.values()) / self.tree.devices

    @cached_property
    def widening(self) -> float:
        """How much less certain a mean is than its instances say, because they are alike."""
        return 1.0 if self.tree is None else inflation(self.tree.step_mean, self.tree.step_ns)

    @property
    def on_gpu(self) -> bool:
        """Whether anything ran on a GPU."""
        return self.run is not None and bool(self.run.devices)

    @property
    def is_estimated(self) -> bool:
        """Whether kernels were traced part of the time only."""
        return self.run is not None and self.run.traced_share < 1

    @property
    def started_ns(self) -> int:
        return self.session.started_ns if self.run is None else self.run.started.time_ns

    @property
    def duration_ns(self) -> int:
        return self.readings.duration_ns if self.run is None else self.run.duration_ns
