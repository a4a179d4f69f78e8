"""What binds each phase, and how near the GPU came to its limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gputui.model import units
from gputui.model.events import payload_text
from gputui.model.events.distributions import Totals
from gputui.model.leaves import COPIES, LEAVES, Leaf, idle_sum, leaf_of_number
from gputui.model.naming import is_launch
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.time_tree import benchmark_rows
from gputui.report.phase_tree import Phase, phase_tree, ranges_below
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.roofline import Roof, others_percent, roofline, steady_share
from gputui.report.schema import (
    REASON,
    ROWS,
    Column,
    TableSpec,
    count,
    if_any,
    if_differs,
    number,
    percent,
    rate,
    text,
    time,
)
from gputui.state import Run, Session

# --- Each phase's own time tree: what ran, why the GPU idled for it, and what binds it.
#
# What runs counts in the phase that launched it, idle time in the phase in which the thread was
# that launched what came next.

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
    """One phase, together with the phases inside it. `leaves` add up to its wall time, or to its
    busy time if idle time was not recorded by phase; `bound` is None if nothing leads."""

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
    for part in run.timing.range_leaves.values():
        own[part.range][leaf_of_number(part.leaf)] += part.ns
    inclusive: dict[Phase, dict[Leaf, int]] = {}
    # Children before parents, which take in their times.
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
    """The bound of one phase; None if it was not recorded, or if no GPU did anything for it."""
    inside = ranges_below(row.phase)
    times: dict[Leaf, int] = defaultdict(int)
    for part in run.timing.range_leaves.values():
        if part.range in inside:
            times[leaf_of_number(part.leaf)] += part.ns
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


# --- tables


def _flops(value: float | None) -> str:
    return units.quantity(value, "FLOP/s")


def _watts(value: float | None) -> str:
    return units.quantity(value, "W")


def _joules(value: float | None) -> str:
    return units.quantity(value, "J")


def _no_phases(run: Run, rows: Sequence[PhaseCauses]) -> Mapping[str, str]:
    if rows:
        return {}
    if run.ranges and run.kernels and not run.timing.range_leaves:
        return {ROWS: REASON}
    return {ROWS: "no phase ran anything on a GPU" if run.ranges else "the program has no ranges"}


def _no_counters(run: Run, rows: Sequence[Roof]) -> Mapping[str, str]:
    if not rows:
        return {ROWS: "no sample was taken in steady steps or an outermost phase"}
    missing = {}
    if all(row.tensor_active_percent is None and row.memory_peak_percent is None for row in rows):
        missing["limit"] = "the GPU has no GPM counters (Hopper and later have)"
    refused = filter(None, (event.unavailable_reason for event in run.counters.values()))
    if not any(row.kernel for row in rows) and (reason := next(refused, None)) is not None:
        missing["alone_percent"] = reason
    if all(row.peak_flops_per_s is None for row in rows):
        missing["peak_flops_per_s"] = "operations a cycle of this card are not known"
    return missing


PHASE_CAUSES: TableSpec[PhaseCauses] = TableSpec(
    key="phase_causes",
    title="What Binds Each Phase",
    meaning="Each phase's own time tree: what ran most, why the GPU idled, and what binds it.",
    columns=(
        text("Phase", "path", lambda row: "  " * row.row.depth + row.row.name, "The range's path",
             document=lambda row: row.row.path),
        number("Rank", "rank", lambda row: row.row.rank, "The process's rank", kind=int | None,
               seen=if_any),
        number("PID", "pid", lambda row: row.row.pid, "The process", seen=if_differs),
        time("Wall", "wall_ns", lambda row: row.wall_ns, "GPU time busy or idle for it"),
        percent("Idle", "idle_percent", lambda row: row.idle_percent,
                "Of this, while the thread that launched next was in it", kind=float),
        text("Idle Cause", "idle_cause", lambda row: row.cause and row.cause[0],
             "Why the GPU idled most", kind=str | None),
        percent("of Idle", "idle_cause_percent", lambda row: row.cause and row.cause[1],
                "Its share of the idle time", kind=float | None, priority=2),
        text("Mostly", "largest", lambda row: row.largest and row.largest[0],
             "What ran most in it", kind=str | None),
        percent("of Busy", "largest_percent", lambda row: row.largest and row.largest[1],
                "Its share of the phase's busy time", kind=float | None, priority=1),
        text("Bound by", "bound", lambda row: row.bound,
             "launch, host, communication, copies, memory or matmul, from half of the phase on",
             kind=str | None),
        Column("Leaves", key="leaves_ns", document=lambda row: {
            LEAVES[leaf].key: ns for leaf, ns in row.leaves.items()},
            value=lambda row: len(row.leaves),
            meaning="Wall time by leaf",
            kind=dict[str, int], in_table=False, unit="ns"),
    ),
    rows=phase_causes,
    order=45,
    document="phase_causes",
    unavailable=_no_phases,
)  # fmt: skip

ROOFLINE: TableSpec[Roof] = TableSpec(
    key="roofline",
    title="Roofline by the GPU's Counters",
    meaning="Power, activity and distance to the peaks, in steady steps and outermost phases, and "
    "with --counters of each kernel while it ran; none where others use the GPU too: counters are "
    "the whole card's.",
    columns=(
        text("Scope", "scope", lambda row: row.scope,
             "Steady steps, an outermost phase or a kernel; where other turns of the loop or "
             "pauses lie between the steps, first to last steady step"),
        number("GPU", "gpu", lambda row: row.gpu, "The GPU's index", seen=if_differs),
        time("Time", "length_ns", lambda row: row.length_ns, "How long it went on"),
        count("Samples", "samples", lambda row: row.samples, "Readings in it"),
        Column("Power", _watts, "power_watts", lambda row: row.watts, "W", "Mean", float | None),
        Column("Energy", _joules, "energy_joules", lambda row: row.joules, "J", "In it",
               float | None, priority=3),
        percent("SM Active", "sm_active_percent", lambda row: row.sm_active_percent, "Mean",
                kind=float | None, priority=2),
        percent("Tensor Active", "tensor_active_percent",
                lambda row: row.tensor_active_percent, "Cycles of the tensor pipes, mean",
                kind=float | None, priority=2),
        percent("Tensor Peak", "tensor_peak_percent", lambda row: row.tensor_peak_percent,
                "Active tensor pipes × clock, of the highest clock", kind=float | None),
        percent("Memory Peak", "memory_peak_percent", lambda row: row.memory_peak_percent,
                "Bytes moved, of the most possible", kind=float | None),
        Column("Tensor Rate", _flops, "tensor_flops_per_s", lambda row: row.tensor_flops_per_s,
               "FLOP/s", "Estimate from the same counters, for this type; instructions of older "
               "cards (FlashAttention 2 on Hopper) keep the pipes active for longer, and count up "
               "to twofold", float | None,
               priority=1),
        text("Type", "tensor_type", lambda row: row.tensor_type,
             "Of the run's matrix products by their kernels' names; fp16 stands for bf16 too",
             priority=2),
        rate("Memory Rate", "memory_bytes_per_s", lambda row: row.memory_bytes_per_s,
             "Bytes moved a second", kind=float | None, priority=1),
        Column("FLOP/Byte", units.quantity, "flops_per_byte", lambda row: row.flops_per_byte, "",
               "Arithmetic intensity", float | None, priority=2),
        text("Limit", "limit", lambda row: row.limit,
             "compute from 60 % active tensor pipes, memory from 75 % of its peak, or neither",
             kind=str | None),
        Column("Tensor Roof", _flops, "peak_flops_per_s", lambda row: row.peak_flops_per_s,
               "FLOP/s", "Dense, of this type, at the highest clock", float | None, priority=5),
        percent("Alone", "alone_percent", lambda row: row.alone_percent,
                "Of a kernel's time, that in which nothing else ran", kind=float | None,
                priority=3, seen=if_any),
        percent("Occupancy", "occupancy_percent", lambda row: row.occupancy_percent,
                "Active warps of a kernel, of those that SMs can hold", kind=float | None,
                priority=3, seen=if_any),
        percent("FP64 Active", "fp64_active_percent", lambda row: row.fp64_active_percent,
                "Cycles of a kernel's FP64 pipes", kind=float | None, priority=4, seen=if_any),
        percent("FMA Issued", "fma_issue_percent", lambda row: row.fma_issue_percent,
                "A kernel's instructions of the FMA pipes, of the most possible",
                kind=float | None, priority=4, seen=if_any),
        percent("Issued", "issue_percent", lambda row: row.issue_percent,
                "A kernel's instructions of all kinds, of the most possible", kind=float | None,
                priority=4, seen=if_any),
        rate("L2 Rate", "l2_bytes_per_s", lambda row: row.l2_bytes_per_s,
             "Bytes a kernel asked of the L2 cache, a second", kind=float | None, priority=4,
             seen=if_any),
        percent("±Tensor", "tensor_error_percent", lambda row: row.tensor_error_percent,
                "Half of the 90 % interval of a kernel's Tensor Active", kind=float | None,
                priority=4, seen=if_any),
        percent("±Memory", "memory_error_percent", lambda row: row.memory_error_percent,
                "Half of the 90 % interval of a kernel's Memory Peak", kind=float | None,
                priority=4, seen=if_any),
        percent("Others", "others_percent", lambda row: row.others_percent,
                "What other processes used of the GPU: its counters are the whole card's, so that "
                "from 10 % on none is the run's", kind=float | None, seen=if_any),
        rate("Memory Roof", "peak_bytes_per_s", lambda row: row.peak_bytes_per_s,
             "Bus width × twice the highest clock", kind=float | None, priority=5),
    ),
    rows=lambda session, run: roofline(Analysis(session, run)),
    order=46,
    in_summary=True,
    document="roofline",
    unavailable=_no_counters,
)  # fmt: skip


class Target(NamedTuple):
    """A figure of the steady steps beside what it should be."""

    figure: str
    gpu: int | None
    value: float | None
    unit: str
    target: float
    is_least: bool
    samples: int | None
    meaning: str

    @property
    def met(self) -> bool | None:
        """None where the figure was not measured."""
        if self.value is None:
            return None
        return self.value >= self.target if self.is_least else self.value < self.target


OCCUPANCY = "SM occupancy"
OCCUPANCY_TARGET = 50.0
LAUNCH_TARGET_US = 10.0
MEMORY_TARGET = 70.0
COMPUTE_TARGET = 70.0
TENSOR_TARGET = 50.0
"""Of the usual checklist: occupancy above 50 %, launches under 10 µs, 70 % of the memory's rate or
of what the SMs can compute, from which a program is bound by it, and 50 % active tensor cores."""


def _targets(session: Session, run: Run) -> list[Target]:
    """The five figures, on each GPU that has counters; launches of all processes together."""
    launches = Totals[str]()
    for call in run.api.values():
        if is_launch(call.name):
            launches.add("", call.time)
    # A launch waits where the queue is full, and the first one loads its kernel: not the mean.
    median_us = next((times.median for times in launches.values()), None)
    count = sum(times.count for times in launches.values())
    analysis = Analysis(session, run)
    tree = analysis.tree
    if tree is not None and tree.has_steps:
        span, filled = (tree.first_ns, tree.last_ns), steady_share(tree)
    else:
        span = run.started.time_ns, run.ended_ns
        busy_ns = sum(device.busy_ns for device in run.devices.values())
        filled = busy_ns / max(1, (span[1] - span[0]) * len(run.devices))
    rows = [
        Target("kernel launch", None, None if median_us is None else median_us / 1e3, "µs",
               LAUNCH_TARGET_US, False, count,
               "median of the launch calls themselves; a CUDA graph needs one")
    ]  # fmt: skip
    return [
        *rows,
        *(row for gpu in sorted(run.devices) for row in _counted(session, run, gpu, span, filled)),
    ]


FILLED = 0.5
"""Share of the time that is read from which a mean of the counters says something of the steps: of
a benchmark's rows, which take turns with what prepares them, it said 26 % of a copy at 97 %."""


FEWEST = 2
"""Readings that say something: each is of the second before it, the first also of what was before
the steps."""


def _counted(
    session: Session, run: Run, gpu: int, span: tuple[int, int], filled: float
) -> Iterator[Target]:
    """The figures that are means of a GPU's counters, which steps, or without them what ran, have
    `filled`."""
    others = others_percent(run, gpu)
    state = session.gpus.get(gpu)
    history = state.samples.history if state is not None else ()
    inside = [sample for time_ns, sample in history if span[0] <= time_ns <= span[1]]

    def mean(name: str) -> float | None:
        if others is not None or filled < FILLED or len(inside) < FEWEST:
            return None
        if (series := run.readings.series(gpu, name)) is not None:
            return series.mean(span)
        # Of pipes that no chart shows there are the readings that the session remembers.
        values = [value for sample in inside if (value := getattr(sample, name)) is not None]
        return sum(values) / len(values) if values else None

    for figure, names, target, meaning in _COUNTED:
        means = {name: value for name in names if (value := mean(name)) is not None}
        busiest = max(means, key=lambda name: means[name], default=None)
        if others is not None:
            meaning = f"n/a: others used {others:.0f} % of this GPU; counters are the whole card's"
        elif filled < FILLED:
            meaning = (
                f"n/a: steps fill {100 * filled:.0f} % of the time that was read; by kernel: "
                "--counters, --table roofline"
            )
        elif len(inside) < FEWEST:
            meaning = f"n/a: readings of the counters that lie in the steps: {len(inside)}"
        elif len(names) > 1 and busiest is not None:
            meaning = f"{meaning}; here {busiest.split('_')[0]}"
        value = None if busiest is None else means[busiest]
        if value is not None and figure == OCCUPANCY and (active := mean("sm_active_percent")):
            value = min(100.0, 100.0 * value / active)
        yield Target(figure, gpu, value, "%", target, True, len(inside), meaning)


_COUNTED = (
    (OCCUPANCY, ("sm_occupancy_percent",), OCCUPANCY_TARGET,
     "warps, while SMs are active, of those they can hold; more helps where memory is waited for"),
    ("memory bandwidth", ("memory_bandwidth_percent",), MEMORY_TARGET,
     "of the peak; above the target the program is memory-bound"),
    ("compute throughput",
     ("tensor_active_percent", "fp64_active_percent", "fp32_active_percent",
      "fp16_active_percent", "integer_active_percent"), COMPUTE_TARGET,
     "cycles of the SMs' busiest pipes; above the target the program is compute-bound"),
    ("tensor cores active", ("tensor_active_percent",), TENSOR_TARGET,
     "cycles of the tensor pipes; below the target products are small, or not on tensor cores"),
)  # fmt: skip


def _of_what(run: Run, rows: Sequence[Target]) -> str:
    """What the means are of beside one program's steps: counters are the card's, and a benchmark's
    rows are different work."""
    gpus = {row.gpu for row in rows if row.gpu is not None and row.value is not None}
    if not gpus:
        return ""
    notes = []
    if not gpus <= run.readings.sharing.keys():
        notes.append("counters of the whole card: the driver does not say here who else used it")
    if different := sum(benchmark_rows(run)):
        notes.append(f"means over {different} rows of different work")
    return "; ".join(notes)


def _value(row: Target) -> str | None:
    return None if row.value is None else f"{row.value:.3g} {row.unit}"


TARGETS: TableSpec[Target] = TableSpec(
    key="targets",
    title="Checklist: Figures beside Their Targets",
    meaning="Occupancy, launches, bandwidth, pipes and tensor cores of the steady steps, with "
    "targets; by the card's counters, which say nothing of the program where others use it too.",
    columns=(
        text("Figure", "figure", lambda row: row.figure, "What was measured"),
        number("GPU", "gpu", lambda row: row.gpu, "The GPU's index", kind=int | None,
               seen=if_differs),
        text("Value", "value", _value, "Mean over the steady steps, without them over the run",
             kind=float | None, document=lambda row: row.value),
        text("Target", "target",
             lambda row: f"{'>' if row.is_least else '<'} {row.target:g} {row.unit}",
             "What it should be", kind=float, document=lambda row: row.target),
        number("Samples", "samples", lambda row: row.samples,
               "Launches, or readings of the counters, that it is of", kind=int | None),
        text("Met", "met", lambda row: None if row.met is None else "yes" if row.met else "no",
             "Whether it is", kind=bool | None, document=lambda row: row.met),
        text("Meaning", "meaning", lambda row: row.meaning, "What the figure says"),
    ),
    rows=_targets,
    order=47,
    in_summary=True,
    note=_of_what,
    unavailable=lambda _run, rows: (
        {} if any(row.value is not None for row in rows) else {ROWS: "nothing was launched"}
    ),
)  # fmt: skip

TABLES = (PHASE_CAUSES, ROOFLINE, TARGETS)


# What is known of one phase.


MOST_CAUSES = 6
"""Leaves of a phase among its details."""


def phase_facts(
    row: PhaseRow,
    *,
    on_gpu: bool,
    causes: PhaseCauses | None = None,
    roofs: Sequence[Roof] = (),
    in_order: str = "",
) -> list[tuple[str, str]]:
    """What is known of a phase, as labels and texts; `causes` are why the GPU idled and what it
    did, `roofs` what its counters said meanwhile, `in_order` draws the mean times of its names."""
    whose = f"{row.pid}" if row.rank is None else f"{row.pid}, rank {row.rank}"
    pairs = [
        ("path", row.path),
        ("domain", row.domain or "(default)"),
        ("process", whose),
        ("category", row.category or ""),
        ("newest payload", payload_text(row.payload) if row.payload else ""),
        ("instances", units.count(row.instances)),
        ("CPU time", units.duration(row.cpu_total_ns)),
        ("average", units.duration(row.cpu.average)),
        ("median", units.duration(row.cpu.median)),
        ("shortest", units.duration(row.cpu.minimum)),
        ("longest", units.duration(row.cpu.maximum)),
        ("deviation", units.duration(row.cpu.deviation)),
    ]
    if (means_ns := row.in_order_ns) is not None:
        pairs.insert(6, ("names, see #", units.count(row.names)))
        longest = units.duration(max(means_ns, default=0.0))
        pairs.insert(8, ("average, in order", f"{in_order} to {longest}".strip()))
    if row.threads:
        pairs.insert(3, ("threads", ", ".join(row.threads)))
    if on_gpu:
        pairs += [
            ("GPU busy", units.duration(row.gpu_busy_ns)),
            ("GPU time", units.duration(row.gpu_total_ns)),
            ("GPU span, average", _gpu_span(row)),
            ("kernels", units.count(row.kernels)),
            (
                "  of other threads",
                f"{units.count(row.inherited_kernels)} (autograd's, in no range of their own)"
                if row.inherited_kernels
                else "",
            ),
            ("launches", units.count(row.launches)),
        ]
        if replayed := row.launched.replayed:
            pairs.append(("replayed by graphs", f"{units.count(replayed)} kernels captured here"))
    if causes is not None:
        pairs.append(("bound by", causes.bound or "(nothing leads)"))
        largest = sorted(causes.leaves.items(), key=lambda part: -part[1])[:MOST_CAUSES]
        pairs += [
            (f"  {LEAVES[leaf].label}", f"{100 * ns / causes.wall_ns:.1f} %  {units.duration(ns)}")
            for leaf, ns in largest
        ]
    for roof in roofs:
        pairs.append((f"GPU {roof.gpu} in it", f"{units.count(roof.samples)} samples"))
        pairs += [(f"  {label}", text) for label, text in _counters(roof)]
    return [pair for pair in pairs if pair[1]]


def _gpu_span(row: PhaseRow) -> str:
    if row.gpu_projected_ns is None:
        return units.duration(None)
    average = units.duration(row.projected.average)
    return f"{average} from its first operation's start to its last's end"


def _counters(roof: Roof) -> list[tuple[str, str]]:
    """Labels and texts of the counters that were read."""
    read = [
        ("power", roof.watts, units.quantity(roof.watts, "W")),
        ("energy", roof.joules, units.joules(roof.joules)),
        ("SM active", roof.sm_active_percent, units.percent(roof.sm_active_percent)),
        ("of tensor peak", roof.tensor_peak_percent, units.percent(roof.tensor_peak_percent)),
        ("of memory peak", roof.memory_peak_percent, units.percent(roof.memory_peak_percent)),
    ]
    return [(label, text) for label, value, text in read if value is not None]
