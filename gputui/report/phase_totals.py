"""What each phase has come to so far, without the statistics: for who asks at every sample.

Tables ask once, and go through all that a run holds (`phases`). An export of every sample cannot:
here each delta is added up as it comes, and a moment costs what its phases cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gputui.model.events import CaptureDelta, Distribution
from gputui.model.naming import is_kernel_launch
from gputui.report.paths import Paths
from gputui.report.phases import is_copy, phase_rows
from gputui.state import Run


class PhaseTotal(NamedTuple):
    """The fields of a PhaseRow that add up; `cpu_ns` is of instances that ended."""

    path: str
    domain: str
    pid: int
    rank: int | None
    instances: int
    cpu_ns: int
    gpu_busy_ns: int
    kernels: int
    launches: int
    memcpy_bytes: int


def phase_totals(run: Run) -> list[PhaseTotal]:
    """Of a run as it is now."""
    return [
        PhaseTotal(
            path=row.path,
            domain=row.domain,
            pid=row.pid,
            rank=row.rank,
            instances=row.instances,
            cpu_ns=row.cpu.total,
            gpu_busy_ns=row.gpu_busy_ns,
            kernels=row.kernels,
            launches=row.launches,
            memcpy_bytes=row.memcpy_bytes,
        )
        for row in phase_rows(run)
    ]


@dataclass(slots=True)
class _Own:
    """What was seen in one range itself; the GPU's time is already that of its children too."""

    instances: int = 0
    cpu_ns: int = 0
    gpu_busy_ns: int = 0
    kernels: int = 0
    launches: int = 0
    memcpy_bytes: int = 0


class _Tree:
    """The ranges of a run as they are now."""

    def __init__(self, run: Run) -> None:
        self.size = len(run.ranges)
        # A range is defined after its parent.
        self.upwards = [
            (number, node.definition.parent)
            for number, node in reversed(run.ranges.items())
            if node.definition.parent
        ]
        self.paths = [
            (process, domain, "/".join(names), [node.definition.range for node in nodes])
            for paths in [Paths(run, library_domains=False)]
            for process, domain, names in paths.keys
            for nodes in [paths.nodes[process, domain, names]]
        ]


class PhaseTotals:
    """The same as `phase_totals` at any time, of runs whose deltas were all added."""

    def __init__(self) -> None:
        self._own: dict[int, _Own] = {}
        """By range; a session has no two runs with ranges of one number."""
        self._trees: dict[int, _Tree] = {}
        """By run."""

    def add(self, run: Run, delta: CaptureDelta) -> None:
        """What one process of `run` did; what is of ranges that nobody defined is left out."""
        ranges = run.ranges
        for one in delta.ranges:
            if one.range in ranges:
                own = self._of(one.range)
                own.instances += _count(one.cpu)
                own.cpu_ns += _total(one.cpu)
                own.gpu_busy_ns += one.gpu_busy_ns
        for kernels in delta.kernels:
            if kernels.range in ranges and not kernels.inherited:
                self._of(kernels.range).kernels += kernels.time.count
        for kernels in delta.secondary_domain_kernels:
            if kernels.range in ranges:
                self._of(kernels.range).kernels += kernels.time.count - kernels.repeats
        for calls in delta.api:
            if calls.range in ranges and not calls.inherited and is_kernel_launch(calls.name):
                self._of(calls.range).launches += calls.time.count
        for copies in delta.memory_operations:
            if copies.range in ranges and not copies.inherited and is_copy(copies.operation):
                self._of(copies.range).memcpy_bytes += _total(copies.size)

    def of(self, run: Run) -> list[PhaseTotal]:
        """Every phase of `run`, parents before children."""
        tree = self._trees.get(run.started.run)
        if tree is None or tree.size != len(run.ranges):
            tree = self._trees[run.started.run] = _Tree(run)
        inside = {
            number: [own.kernels, own.launches, own.memcpy_bytes]
            for number in run.ranges
            for own in [self._own.get(number, _NOTHING)]
        }
        for number, parent in tree.upwards:
            above, below = inside[parent], inside[number]
            above[0] += below[0]
            above[1] += below[1]
            above[2] += below[2]
        return [
            self._row(run, process, domain, path, nodes, inside)
            for process, domain, path, nodes in tree.paths
        ]

    def _row(self, run: Run, process: int, domain: str, path: str, nodes: list[int],
             inside: dict[int, list[int]]) -> PhaseTotal:  # fmt: skip
        attached = run.processes[process].attached
        own = [self._own.get(number, _NOTHING) for number in nodes]
        launched = [inside[number] for number in nodes]
        return PhaseTotal(
            path,
            domain,
            attached.pid,
            attached.rank,
            sum([one.instances for one in own]),
            sum([one.cpu_ns for one in own]),
            sum([one.gpu_busy_ns for one in own]),
            sum([kernels for kernels, _, _ in launched]),
            sum([launches for _, launches, _ in launched]),
            sum([copied for _, _, copied in launched]),
        )

    def _of(self, number: int) -> _Own:
        own = self._own.get(number)
        if own is None:
            own = self._own[number] = _Own()
        return own


_NOTHING = _Own()


def _count(times: Distribution | None) -> int:
    return times.count if times is not None else 0


def _total(values: Distribution | None) -> int:
    """A total of nothing is none, whatever it says."""
    return values.total if values is not None and values.count > 0 else 0
