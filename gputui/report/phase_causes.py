"""Each phase's own time tree: what ran, why the GPU idled for it, and what binds it.

What runs counts in the phase that launched it, idle time in the phase in which the thread was that
launched what came next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gputui.model.leaves import COPIES, LEAVES, Leaf, idle_sum, leaf_of_number
from gputui.report.phase_tree import Phase, phase_tree, ranges_below
from gputui.report.phases import PhaseRow, phase_rows
from gputui.state import Run, Session

MOSTLY = 0.5
"""Share of a phase from which something binds it."""

_MEMORY = (
    Leaf.ELEMENTWISE,
    Leaf.ELEMENTWISE_CHAIN,
    Leaf.ATTENTION_UNFUSED,
    Leaf.NORMALIZATION,
    Leaf.SOFTMAX,
    Leaf.OPTIMIZER,
)
_COMPUTE = (Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED, Leaf.ATTENTION)


@dataclass(frozen=True, slots=True)
class PhaseCauses:
    """One phase, with those inside it. `leaves` add up to its wall time, or to its busy time where
    idle time was not seen by phase; `bound` is None where nothing leads."""

    row: PhaseRow
    busy_ns: int
    idle_ns: int
    leaves: Mapping[Leaf, int]
    bound: str | None

    @property
    def wall_ns(self) -> int:
        """The time that the leaves divide: the GPU busy and idle."""
        return self.busy_ns + self.idle_ns

    @property
    def idle_percent(self) -> float:
        """The share of its wall time in which the GPU was idle, in percent."""
        return 100.0 * self.idle_ns / self.wall_ns

    @property
    def largest(self) -> tuple[str, float] | None:
        """What ran most, and its percentage of the busy time."""
        return _largest(self.leaves, self.busy_ns, idle=False)

    @property
    def cause(self) -> tuple[str, float] | None:
        """Why the GPU idled most, and its percentage of the idle time."""
        return _largest(self.leaves, self.idle_ns, idle=True)


def _largest(leaves: Mapping[Leaf, int], whole_ns: int, idle: bool) -> tuple[str, float] | None:
    leaves_of_kind = {leaf: ns for leaf, ns in leaves.items() if LEAVES[leaf].is_idle == idle}
    if not leaves_of_kind or not whole_ns:
        return None
    leaf = max(leaves_of_kind, key=lambda leaf: leaves_of_kind[leaf])
    return LEAVES[leaf].label, 100.0 * leaves_of_kind[leaf] / whole_ns


def phase_causes(_session: Session, run: Run) -> list[PhaseCauses]:
    """The phases that used a GPU, parents before children."""
    own: dict[int, dict[Leaf, int]] = defaultdict(lambda: defaultdict(int))
    for time in run.timing.range_leaves.values():
        own[time.range][leaf_of_number(time.leaf)] += time.ns
    inclusive: dict[Phase, dict[Leaf, int]] = {}
    for phase in reversed(phase_tree(run, library_domains=False).phases) if own else ():
        leaves: dict[Leaf, int] = defaultdict(int)
        inclusive[phase] = leaves
        below = [inclusive[child] for child in phase.children]
        for times in (*(own.get(node.definition.range, {}) for node in phase.nodes), *below):
            for leaf, ns in times.items():
                leaves[leaf] += ns
    return [
        _of_phase(row, phase_leaves)
        for row in phase_rows(run)
        if any((phase_leaves := inclusive.get(row.phase, {})).values())
    ]


def causes_of(run: Run, row: PhaseRow) -> PhaseCauses | None:
    """The same for one phase; None where it was not recorded, or no GPU did anything for it."""
    inside = ranges_below(row.phase)
    times: dict[Leaf, int] = defaultdict(int)
    for time in run.timing.range_leaves.values():
        if time.range in inside:
            times[leaf_of_number(time.leaf)] += time.ns
    return _of_phase(row, times) if any(times.values()) else None


def _of_phase(row: PhaseRow, times: Mapping[Leaf, int]) -> PhaseCauses:
    leaves = {leaf: ns for leaf, ns in times.items() if ns}
    idle_ns = idle_sum(leaves)
    busy_ns = sum(leaves.values()) - idle_ns
    if idle_ns < MOSTLY * (busy_ns + idle_ns):
        return PhaseCauses(row, busy_ns, idle_ns, leaves, _busy_with(leaves, busy_ns))
    why = max((leaf for leaf in leaves if LEAVES[leaf].is_idle), key=lambda leaf: leaves[leaf])
    bound = {Leaf.LAUNCH: "launch", Leaf.RANK: "communication"}.get(why, "host")
    return PhaseCauses(row, busy_ns, idle_ns, leaves, bound)


def _busy_with(leaves: Mapping[Leaf, int], busy_ns: int) -> str | None:
    """What leads: more than half of the busy time."""
    groups = {
        "communication": (Leaf.COMMUNICATION,),
        "copies": COPIES,
        "memory": _MEMORY,
        # Which of the two binds a matrix product only counters can say.
        "matmul": _COMPUTE,
    }
    sums = {name: sum(leaves.get(leaf, 0) for leaf in group) for name, group in groups.items()}
    name = max(sums, key=lambda name: sums[name])
    return name if sums[name] >= MOSTLY * busy_ns else None


def idle_phases(run: Run) -> list[tuple[str, float]]:
    """(path, part of all idle time), the largest first."""
    idle_by_path: dict[str, int] = {}
    for number, idle_ns in run.timing.idle_by_range().items():
        path = run.ranges[number].path if number in run.ranges else "outside every phase"
        idle_by_path[path] = idle_by_path.get(path, 0) + idle_ns
    whole = sum(idle_by_path.values())
    if not whole or set(idle_by_path) == {"outside every phase"}:
        return []
    return sorted(
        ((path, ns / whole) for path, ns in idle_by_path.items()), key=lambda share: -share[1]
    )
