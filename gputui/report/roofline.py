"""How near the GPU came to its limits, by its counters: over the steady steps and outermost phases,
and by kernel.

Tensor operations are the share of cycles in which tensor pipes were active × the clock × what an SM
does in a cycle; a copy of 4.27 TB/s on an H200 shows 88.8 % of its memory's peak, a matrix product
of 678 TFLOP/s 67 % of the tensor peak. Instructions of older cards are counted too high, twofold on
Hopper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from gputui.model import units
from gputui.model.events import CountedKernel, CountedPhase, GpuCounters, GpuFacts
from gputui.model.kernel_categories import category
from gputui.model.naming import short_name
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.leaves import USED_BY_ANOTHER, used_by_strangers
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import PhaseRow
from gputui.report.statistics import kernel_name, kernel_sums
from gputui.report.tables.energy import energy_joules
from gputui.state import Run, Session, Span

OPERATIONS = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "9.0": 4096, "10.0": 8192, "10.3": 8192}
"""Dense fp16 and bf16 operations of an SM in a cycle, by compute capability: data sheets' rates
divided by SMs and boost clock (A100 312 TFLOP/s, H100 989, B200 2250). Other cards differ by
model."""

NEAR_COMPUTE = 60.0
NEAR_MEMORY = 75.0
"""Percent from which it binds: a GEMM benchmark keeps the tensor pipes active for 81 to 94 % of the
cycles, a copy moves 89 % of the memory's peak (H200)."""


# Share of the time from the first steady step to the last from which steps are all of it.
_CLOSE = 0.95

STEADY_STEPS = "steady steps"
"""The scope of counters where steps are all that they read."""

# Rates of other types are multiples of that of fp16, as data sheets have them.
_FP16 = "fp16", 1.0
# fp16 stands for bf16 too, and for whatever a name does not say.
_TYPES = (
    (re.compile("tf32", re.I), "tf32", 0.5),
    (re.compile("e4m3|e5m2|fp8|f8f8", re.I), "fp8", 2.0),
    (re.compile("f64f64|d884|dgemm", re.I), "fp64", 1 / 16),
)


@dataclass(frozen=True, slots=True)
class Roof:
    """One scope on one GPU. Figures are None where they were not read; peaks are the card's at its
    highest clocks."""

    scope: str
    gpu: int
    length_ns: int
    samples: int
    watts: float | None = None
    joules: float | None = None
    sm_active_percent: float | None = None
    tensor_active_percent: float | None = None
    tensor_peak_percent: float | None = None
    memory_peak_percent: float | None = None
    tensor_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    peak_flops_per_s: float | None = None
    peak_bytes_per_s: float | None = None
    tensor_type: str = "fp16"
    kernel: int = 0
    """The kernel's number, where the row is of one: figures are of the time in which it ran."""
    alone_percent: float | None = None
    """How much of that time nothing else ran."""
    occupancy_percent: float | None = None
    fp64_active_percent: float | None = None
    fma_issue_percent: float | None = None
    issue_percent: float | None = None
    l2_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None
    """The part of `memory_bytes_per_s` that is read from the GPU's memory, and the part that is
    written to it."""
    tensor_error_percent: float | None = None
    """Half of the 90 % interval of `tensor_active_percent`, in percent."""
    memory_error_percent: float | None = None
    """The parts of `memory_peak_percent` that are reads and writes."""
    others_percent: float | None = None
    """What processes that are not the run's used of the GPU, where that is so much that its
    counters, which are the whole card's, say nothing of the run: then there is no other figure."""

    @property
    def kernel_facts(self) -> list[tuple[str, str]]:
        """What a kernel uses of the GPU while it runs, as labels and texts; of what was read."""
        percent = units.percent
        flops = units.quantity(self.tensor_flops_per_s, "FLOP/s")
        moved = f"{percent(self.memory_peak_percent)}, {units.rate(self.memory_bytes_per_s)}"
        figures = (
            ("SMs active", percent(self.sm_active_percent), self.sm_active_percent),
            ("of their warps", percent(self.occupancy_percent), self.occupancy_percent),
            (
                "tensor pipes",
                f"{percent(self.tensor_active_percent)}, {flops}",
                self.tensor_active_percent,
            ),
            ("memory", moved, self.memory_peak_percent),
            ("FP64 pipes", percent(self.fp64_active_percent), self.fp64_active_percent or None),
        )
        return [(label, text) for label, text, value in figures if value is not None]

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity: floating-point operations for each byte of memory traffic."""
        if not self.tensor_flops_per_s or not self.memory_bytes_per_s:
            return None
        return self.tensor_flops_per_s / self.memory_bytes_per_s

    @property
    def limit(self) -> str | None:
        """What binds it: "compute", at the clock that it had, "memory" or "neither"; None without
        counters."""
        tensor, memory = self.tensor_active_percent, self.memory_peak_percent
        if tensor is None and memory is None:
            return None
        by = {"compute": (tensor or 0.0) / NEAR_COMPUTE, "memory": (memory or 0.0) / NEAR_MEMORY}
        name = max(by, key=lambda name: by[name])
        return name if by[name] >= 1.0 else "neither"


def roofline(analysis: Analysis) -> list[Roof]:
    """The steady steps first, then the outermost phases in which samples were taken, then kernels,
    the longest first, where counters were sampled."""
    session, run = analysis.session, analysis.run
    of_phases = phase_spans(run).items()
    return [
        *steady_roofs(analysis),
        *(roof for name, spans in of_phases for roof in _on_each_gpu(session, run, name, spans)),
        *kernel_roofs(session, run),
    ]


def steady_roofs(analysis: Analysis) -> list[Roof]:
    """The rates in the steady steps; none if no steps were found."""
    tree = analysis.tree
    if tree is None or not tree.has_steps:
        return []
    return _on_each_gpu(
        analysis.session, analysis.run, steady_scope(tree), [(tree.first_ns, tree.last_ns)]
    )


def steady_scope(tree: TimeTree) -> str:
    """What counters read from the first steady step to the last is of: what lies between them is
    too short to be taken out of readings."""
    return STEADY_STEPS if steady_share(tree) >= _CLOSE else "first to last steady step"


def steady_share(tree: TimeTree) -> float:
    """The share of the time from the first steady step to the last that lies in steady steps."""
    whole_ns = (tree.last_ns - tree.first_ns) * tree.devices * tree.of_processes
    return tree.wall_ns / whole_ns if whole_ns else 1.0


def type_of_kernel(name: str) -> tuple[str, float]:
    """What a kernel's products are of by its name, and the rate of the tensor cores with that, of
    fp16's."""
    return next((kind[1:] for kind in _TYPES if kind[0].search(name)), _FP16)


def tensor_type(session: Session, run: Run) -> tuple[str, float]:
    """The data type of the run's matrix products, by the names of their kernels, and the tensor
    cores' rate with that type relative to fp16 (data sheets: tf32 half of it, fp8 double)."""
    times: dict[tuple[str, float], int] = {}
    for kernel, (_, ns) in kernel_sums(run).items():
        name = kernel_name(session, kernel)
        if category(name) in ("matmul", "attention"):
            type_ns = type_of_kernel(name)
            times[type_ns] = times.get(type_ns, 0) + ns
    whole = sum(times.values())
    if not whole:
        return _FP16
    names = [
        type_ns[0]
        for type_ns in sorted(times, key=lambda type_ns: -times[type_ns])
        if times[type_ns] > 0.05 * whole
    ]
    return " and ".join(names), sum(type_ns[1] * ns for type_ns, ns in times.items()) / whole


def roofs_of_phase(session: Session, run: Run | None, phase: PhaseRow) -> list[Roof]:
    """The rates in one phase, on each GPU. None for a phase inside another, or if no sample was
    taken."""
    spans = phase_spans(run).get(phase.name) if run is not None and not phase.depth else None
    return _on_each_gpu(session, run, phase.name, spans) if run is not None and spans else []


def _on_each_gpu(session: Session, run: Run, scope: str, spans: list[Span]) -> list[Roof]:
    roofs = [_roof(session, run, scope, gpu, spans) for gpu in sorted(run.devices)]
    return [roof for roof in roofs if roof.samples]


def phase_spans(run: Run) -> dict[str, list[Span]]:
    """When each outermost phase went on, as far as was noted: until the next one began."""
    starts = sorted(run.phase_starts)
    if not starts:
        return {}
    ends = [since_ns for since_ns, _ in starts[1:]] + [run.ended_ns]
    spans: dict[str, list[Span]] = {}
    for (began_ns, name), end_ns in zip(starts, ends, strict=True):
        since_ns = max(began_ns, run.started.time_ns)
        if end_ns > since_ns:
            spans.setdefault(name, []).append((since_ns, end_ns))
    return spans


def _roof(session: Session, run: Run, scope: str, gpu: int, spans: list[Span]) -> Roof:
    readings = run.readings
    length_ns = sum(end_ns - start_ns for start_ns, end_ns in spans)
    gpu_state = session.gpus.get(gpu)
    moments = (
        [moment_ns for moment_ns, _ in gpu_state.samples.history] if gpu_state is not None else []
    )
    samples = sum(1 for time_ns in moments if any(start <= time_ns <= end for start, end in spans))
    if (others := others_percent(run, gpu)) is not None:
        return Roof(scope, gpu, length_ns, samples, others_percent=others)

    def mean(field: str) -> float | None:
        series = readings.series(gpu, field)
        return None if series is None else series.mean(*spans)

    energies = [energy_joules(readings, gpu, span) for span in spans]
    joules = (
        sum(joules_and_source[0] for joules_and_source in energies if joules_and_source)
        if energies and all(energies)
        else None
    )
    tensor, clock = mean("tensor_active_percent"), mean("sm_clock_mhz")
    facts = gpu_state.facts if gpu_state is not None else None
    peak_flops, peak_bytes = peaks_of(facts)
    type_name, of_fp16 = tensor_type(session, run) if tensor is not None else _FP16
    peak_flops = peak_flops * of_fp16 if peak_flops is not None else None
    highest = facts.max_sm_clock_mhz if facts is not None else None
    of_peak = tensor * clock / highest if tensor is not None and clock and highest else None
    return Roof(
        scope,
        gpu,
        length_ns,
        samples,
        mean("power_watts"),
        joules,
        mean("sm_active_percent"),
        tensor,
        of_peak,
        mean("memory_bandwidth_percent"),
        peak_flops * of_peak / 100 if peak_flops and of_peak is not None else None,
        mean("memory_bandwidth_bytes_per_s"),
        peak_flops,
        peak_bytes,
        type_name,
    )


def others_percent(run: Run, gpu: int) -> float | None:
    """What processes that are not the run's used of a GPU, in percent; None below
    USED_BY_ANOTHER, and where the driver does not say it."""
    share = used_by_strangers(run, gpu)
    return 100 * share if share >= USED_BY_ANOTHER else None


def peaks_of(facts: GpuFacts | None) -> tuple[float | None, float | None]:
    """Tensor operations and bytes a second at the highest clocks; memory moves twice a clock."""
    if facts is None:
        return None, None
    a_cycle = OPERATIONS.get(facts.compute_capability or "")
    flops = bytes_per_s = None
    if a_cycle and facts.sm_count and facts.max_sm_clock_mhz:
        flops = float(a_cycle) * facts.sm_count * facts.max_sm_clock_mhz * 1e6
    if facts.memory_bus_width_bits and facts.max_memory_clock_mhz:
        bytes_per_s = facts.memory_bus_width_bits / 8 * 2 * facts.max_memory_clock_mhz * 1e6
    return flops, bytes_per_s


# --- How near each kernel came to the card's limits while it ran, where counters were sampled.


def kernel_roofs(session: Session, run: Run) -> Iterator[Roof]:
    """The kernels whose counters the samples show, by GPU and by their time."""
    for gpu, counted in sorted(run.counters.items()):
        by_kernel: dict[int, list[CountedKernel]] = {}
        for row in counted.kernels:
            by_kernel.setdefault(row.kernel, []).append(row)
        facts = session.gpus[gpu].facts if gpu in session.gpus else None
        others = others_percent(run, gpu)
        for number, rows in sorted(
            by_kernel.items(), key=lambda item: -sum(row.time_ns for row in item[1])
        ):
            name = kernel_name(session, number)
            if others is not None:
                time_ns = sum(row.time_ns for row in rows)
                yield Roof(
                    short_name(name), gpu, time_ns, counted.samples, kernel=number,
                    others_percent=others,
                )  # fmt: skip
                continue
            yield _counted_roof(
                short_name(name), gpu, number, counted, rows, facts, type_of_kernel(name)
            )


def mean_of_kernels(session: Session, run: Run) -> list[Roof]:
    """How near all kernels of each GPU together came to the peaks, weighted by their time; None if
    too little of it is known."""
    by_gpu: dict[int, list[Roof]] = {}
    for roof in kernel_roofs(session, run):
        by_gpu.setdefault(roof.gpu, []).append(roof)
    means = []
    for gpu, roofs in by_gpu.items():
        whole_ns = sum(roof.length_ns for roof in roofs)
        with_peaks = [
            (roof.length_ns, roof.tensor_peak_percent, roof.memory_peak_percent)
            for roof in roofs
            if roof.tensor_peak_percent is not None and roof.memory_peak_percent is not None
        ]
        known_ns = sum(row[0] for row in with_peaks)
        if known_ns and known_ns >= _LEAST_TOLD * whole_ns:
            tensor = sum(ns * (percent or 0.0) for ns, percent, _ in with_peaks) / known_ns
            memory = sum(ns * (percent or 0.0) for ns, _, percent in with_peaks) / known_ns
            means.append(
                Roof(
                    "kernels",
                    gpu,
                    known_ns,
                    roofs[0].samples,
                    tensor_peak_percent=tensor,
                    memory_peak_percent=memory,
                )
            )
    return means


# Share of a kernel's time whose rates must be known: other launch shapes may differ.
_LEAST_TOLD = 0.9

UNCERTAIN = 10.0
"""Half of a 90 % interval, in percent of the peak, from which a figure is not shown."""


def _counted_roof(
    scope: str,
    gpu: int,
    kernel: int,
    counted: GpuCounters,
    rows: Sequence[CountedKernel | CountedPhase],
    facts: GpuFacts | None,
    tensor_type: tuple[str, float],
) -> Roof:
    figures = {
        name: _over_shapes(rows, place, 1.0 if name.endswith("_percent") else counted.amounts_per_s)
        for place, name in enumerate(counted.counters)
    }

    def certain(name: str, peak: float | None = 100.0) -> float | None:
        figure = figures.get(name)
        if figure is None or not peak or 100 * figure[1] / peak > UNCERTAIN:
            return None
        return figure[0]

    peak_flops, peak_bytes = peaks_of(facts)
    peak_flops = peak_flops * tensor_type[1] if peak_flops is not None else None
    tensor = certain("tensor_active_percent")
    read, written = figures.get("memory_read_bytes"), figures.get("memory_write_bytes")
    memory = memory_error = None
    if peak_bytes and read is not None and written is not None:
        # Errors of both add up at worst.
        memory_error = 100 * (read[1] + written[1]) / peak_bytes
        memory = read[0] + written[0] if memory_error <= UNCERTAIN else None
    cycles = figures.get("sm_cycles")
    highest = facts.max_sm_clock_mhz if facts is not None else None
    of_peak = (
        tensor * cycles[0] / 1e6 / highest if tensor is not None and cycles and highest else None
    )
    time_ns = sum(row.time_ns for row in rows)
    alone_ns = sum(row.alone_ns for row in rows)
    tensor_figure = figures.get("tensor_active_percent")
    return Roof(
        scope,
        gpu,
        time_ns,
        counted.samples,
        sm_active_percent=_percent(certain("sm_active_percent")),
        tensor_active_percent=_percent(tensor),
        tensor_peak_percent=_percent(of_peak),
        memory_peak_percent=None if memory is None else _percent(100 * memory / (peak_bytes or 1)),
        tensor_flops_per_s=peak_flops * of_peak / 100
        if peak_flops and of_peak is not None
        else None,
        memory_bytes_per_s=memory,
        peak_flops_per_s=peak_flops,
        peak_bytes_per_s=peak_bytes,
        tensor_type=tensor_type[0],
        kernel=kernel,
        alone_percent=100 * alone_ns / time_ns if time_ns else None,
        occupancy_percent=_percent(certain("occupancy_percent")),
        fp64_active_percent=_percent(certain("fp64_active_percent")),
        fma_issue_percent=_percent(certain("fma_issue_percent")),
        issue_percent=_percent(certain("issue_percent")),
        l2_bytes_per_s=certain("l2_bytes", 2 * (peak_bytes or 0.0)),
        read_bytes_per_s=read[0] if memory is not None and read is not None else None,
        written_bytes_per_s=written[0] if memory is not None and written is not None else None,
        tensor_error_percent=tensor_figure[1] if tensor is not None and tensor_figure else None,
        memory_error_percent=memory_error if memory is not None else None,
    )


def _percent(value: float | None) -> float | None:
    """Within what a share can be: an estimate may lie beyond."""
    return None if value is None else min(100.0, max(0.0, value))


def _over_shapes(
    rows: Iterable[CountedKernel | CountedPhase], place: int, unit: float
) -> tuple[float, float] | None:
    """A counter's rate over several launch shapes of a kernel, by their time, and half of its
    interval as if all errors were one, in `unit`; None where too little of the time is known."""
    whole_ns = counted_ns = rate = error = 0.0
    for row in rows:
        whole_ns += row.time_ns
        values = row.rates[place : place + 1] + row.errors[place : place + 1]
        if len(values) == 2 and all(value is not None and isfinite(value) for value in values):
            counted_ns += row.time_ns
            rate += row.time_ns * (values[0] or 0.0)
            error += row.time_ns * (values[1] or 0.0)
    if not counted_ns or counted_ns < _LEAST_TOLD * whole_ns:
        return None
    return unit * rate / counted_ns, unit * error / counted_ns
