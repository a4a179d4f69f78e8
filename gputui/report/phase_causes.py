"""Each phase's own time tree: what ran, why the GPU idled for it, and what binds it.

What runs counts in the phase that launched it, idle time in the phase in which the thread was that
launched what came next. Older recordings have idle time by phase without its causes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gputui.model.leaves import COPIES, LEAVES, Leaf, idle_sum, leaf_of_kernel, leaf_of_number
from gputui.report.phase_tree import Phase, phase_tree, ranges_below
from gputui.report.phases import PhaseRow, phase_rows
from gputui.state import Run, Session

MOSTLY = 0.5
"""Share of a phase from which something binds it."""

BETWEEN_NS = 200_000
"""Idle time a launch up to which the CPU is busy launching, as in the accounting (SHORT_NS)."""

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
    """One phase, with those inside it. `leaves` add up to its wall time, to its busy time where why
    it idled is not known; `bound` is None where nothing leads."""

    row: PhaseRow
    busy_ns: int
    idle_ns: int
    leaves: Mapping[Leaf, int]
    bound: str | None

    @property
    def wall_ns(self) -> int:
        """Busy and idle."""
        return self.busy_ns + self.idle_ns

    @property
    def idle_percent(self) -> float:
        """Of its wall time."""
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
    of = {leaf: ns for leaf, ns in leaves.items() if LEAVES[leaf].is_idle == idle}
    if not of or not whole_ns:
        return None
    leaf = max(of, key=lambda leaf: of[leaf])
    return LEAVES[leaf].label, 100.0 * of[leaf] / whole_ns


def phase_causes(session: Session, run: Run) -> list[PhaseCauses]:
    """The phases that used a GPU, parents before children."""
    if not run.devices:
        return []
    if run.timing.range_leaves:
        own = _recorded(run)
        idle_of: Mapping[int, int] = {}
    else:
        own, idle_of = _leaves_by_range(session, run), run.timing.idle_by_range()
    inclusive: dict[Phase, tuple[dict[Leaf, int], int]] = {}
    for phase in reversed(phase_tree(run, library_domains=False).phases):
        leaves: dict[Leaf, int] = defaultdict(int)
        idle_ns = 0
        for node in phase.nodes:
            number = node.definition.range
            idle_ns += idle_of.get(number, 0)
            for leaf, ns in own.get(number, {}).items():
                leaves[leaf] += ns
        for child in phase.children:
            for leaf, ns in inclusive[child][0].items():
                leaves[leaf] += ns
            idle_ns += inclusive[child][1]
        inclusive[phase] = leaves, idle_ns
    found = []
    for row in phase_rows(run):
        leaves, idle_ns = inclusive.get(row.phase, ({}, 0))
        if run.timing.range_leaves:
            if any(leaves.values()):
                found.append(_of_phase(row, leaves))
        elif row.gpu_busy_ns + idle_ns:
            found.append(_of_older(row, leaves, idle_ns))
    return found


def causes_of(run: Run, row: PhaseRow) -> PhaseCauses | None:
    """The same for one phase; None where it was not recorded, or no GPU did anything for it."""
    inside = ranges_below(row.phase)
    times: dict[Leaf, int] = defaultdict(int)
    for key, time in run.timing.range_leaves.items():
        if key.range in inside:
            times[leaf_of_number(key.leaf)] += time.ns
    return _of_phase(row, times) if any(times.values()) else None


def _recorded(run: Run) -> dict[int, dict[Leaf, int]]:
    found: dict[int, dict[Leaf, int]] = defaultdict(lambda: defaultdict(int))
    for key, time in run.timing.range_leaves.items():
        found[key.range][leaf_of_number(key.leaf)] += time.ns
    return found


def _leaves_by_range(session: Session, run: Run) -> dict[int, dict[Leaf, int]]:
    """Kernels' and copies' times by the innermost range that launched them."""
    found: dict[int, dict[Leaf, int]] = defaultdict(lambda: defaultdict(int))
    known: dict[int, Leaf] = {}
    for key, kernels in run.kernels.items():
        if key.kernel not in known:
            named = session.kernel_names.get(key.kernel)
            known[key.kernel] = leaf_of_kernel(named.name) if named else Leaf.OTHER
        found[key.phase][known[key.kernel]] += kernels.time.total
    for copy, both in run.memory_operations.items():
        leaf = _leaf_of_copy(copy.operation, (copy.source_kind, copy.destination_kind))
        found[copy.phase][leaf] += both.time.total
    return found


def _leaf_of_copy(operation: str, kinds: tuple[str | None, str | None]) -> Leaf:
    if "Host" not in operation:
        return Leaf.COPY_DEVICE
    return Leaf.COPY_PAGEABLE if "pageable" in kinds else Leaf.COPY_PINNED


def _of_phase(row: PhaseRow, times: Mapping[Leaf, int]) -> PhaseCauses:
    leaves = {leaf: ns for leaf, ns in times.items() if ns}
    idle_ns = idle_sum(leaves)
    busy_ns = sum(leaves.values()) - idle_ns
    if idle_ns < MOSTLY * (busy_ns + idle_ns):
        return PhaseCauses(row, busy_ns, idle_ns, leaves, _busy_with(leaves, busy_ns))
    why = max((leaf for leaf in leaves if LEAVES[leaf].is_idle), key=lambda leaf: leaves[leaf])
    bound = {Leaf.LAUNCH: "launch", Leaf.RANK: "communication"}.get(why, "host")
    return PhaseCauses(row, busy_ns, idle_ns, leaves, bound)


def _of_older(row: PhaseRow, times: Mapping[Leaf, int], idle_ns: int) -> PhaseCauses:
    busy_ns, total = row.gpu_busy_ns, sum(times.values())
    # Where streams overlap, operations take more time together than the phase is busy.
    leaves = {leaf: round(busy_ns * ns / total) for leaf, ns in times.items() if ns}
    bound = _busy_with(leaves, busy_ns)
    if idle_ns >= MOSTLY * (busy_ns + idle_ns):
        launches = row.launches
        bound = "launch" if launches and idle_ns / launches <= BETWEEN_NS else "host"
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
    found: dict[str, int] = {}
    for number, idle_ns in run.timing.idle_by_range().items():
        path = run.ranges[number].path if number in run.ranges else "outside every phase"
        found[path] = found.get(path, 0) + idle_ns
    whole = sum(found.values())
    if not whole or set(found) == {"outside every phase"}:
        return []
    return sorted(((path, ns / whole) for path, ns in found.items()), key=lambda one: -one[1])
