"""How near each kernel came to the card's limits while it ran, where counters were sampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

from gputui.model.events import CountedKernel, CountedPhase, GpuCounters, GpuFacts
from gputui.model.naming import short_name
from gputui.report.statistics import kernel_name
from gputui.report.tables.bounds import Roof, peaks_of, type_of_kernel
from gputui.state import Run, Session


def kernel_roofs(session: Session, run: Run) -> Iterator[Roof]:
    """Each kernel whose counters the samples tell, those of a GPU by their time."""
    for gpu, counted in sorted(run.counters.items()):
        by_kernel: dict[int, list[CountedKernel]] = {}
        for row in counted.kernels:
            by_kernel.setdefault(row.kernel, []).append(row)
        facts = session.gpus[gpu].facts if gpu in session.gpus else None
        for number, rows in sorted(
            by_kernel.items(), key=lambda item: -sum(row.time_ns for row in item[1])
        ):
            name = kernel_name(session, number)
            yield _counted_roof(
                short_name(name), gpu, number, counted, rows, facts, type_of_kernel(name)
            )


_LEAST_TOLD = 0.9
"""Share of a kernel's time whose rates must be known: other launch shapes may differ."""

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
    figures = {name: _over_shapes(rows, place) for place, name in enumerate(counted.counters)}

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
        l2_bytes_per_s=certain("l2_bytes", 2 * (peak_bytes or 0.0)),
        tensor_error_percent=tensor_figure[1] if tensor is not None and tensor_figure else None,
        memory_error_percent=memory_error if memory is not None else None,
    )


def _percent(value: float | None) -> float | None:
    """Within what a share can be: an estimate may lie beyond."""
    return None if value is None else min(100.0, max(0.0, value))


def _over_shapes(
    rows: Iterable[CountedKernel | CountedPhase], place: int
) -> tuple[float, float] | None:
    """A counter's rate over several launch shapes of a kernel, by their time, and half of its
    interval as if all errors were one; None where too little of the time is known."""
    whole = known = rate = error = 0.0
    for row in rows:
        whole += row.time_ns
        values = row.rates[place : place + 1] + row.errors[place : place + 1]
        if len(values) == 2 and all(value is not None and isfinite(value) for value in values):
            known += row.time_ns
            rate += row.time_ns * (values[0] or 0.0)
            error += row.time_ns * (values[1] or 0.0)
    return (rate / known, error / known) if known > 0 and known >= _LEAST_TOLD * whole else None
