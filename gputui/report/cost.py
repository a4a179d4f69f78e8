"""The cost of capturing a run: the library in the traced processes, reader and monitor here."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.report.phases import shares_error_points
from gputui.report.windows import TracingCost, tracing_cost
from gputui.state import Run, Session

CUPTI_NS = 1_000, 3_000
"""What CUPTI adds to the launching thread for a GPU operation, at least and at most, as measured
with and without it on H100 and H200 machines (docs/measurements.md): 1.1 µs of an empty kernel, 1.6
of one in a CUDA graph, 1.8 to 2.6 in an eager decode."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts are ring records; percentages are of one core over the run's time.

    A share of the run's time is None while the run has no duration.
    """

    records: int
    dropped: int
    unattributed: int
    callback_ns: int
    """The library's measurement of its own time, in ranges' calls (one in SAMPLE_EVERY is timed,
    and counts for SAMPLE_NS_MAX at most) and in CUPTI's callbacks (CPU time).
    """
    reader_cpu_ns: int
    records_per_s: float | None
    library_percent: float | None
    """Of the run's time, in the library's own code: CUPTI's is not in it."""
    slowdown_least_percent: float | None
    """An estimate of what tracing adds in all, the library's time and CUPTI's (CUPTI_NS), where the
    launching thread is what the GPU waits for; over the time in which the run used a GPU, None
    where no kernels were traced. A run that keeps its GPU busy may hide all of it.
    """
    slowdown_most_percent: float | None
    reader_percent: float | None
    monitor_cpu_percent: float | None
    """All of gputui, since the last tick."""
    kernels_traced_percent: float
    tracing: TracingCost | None
    """Measured in the program, where kernels are traced in windows."""
    shares_error_points: float | None
    """Of the phases' shares that are estimated from windows, the largest error."""
    recorded_bytes: int | None
    """Of the whole session's recording, as of the last tick; None if unknown."""
    traced_bytes: int | None


def cost_of(session: Session, run: Run) -> Cost:
    """Sums over the processes of `run`."""
    processes = run.processes.values()
    records = sum(process.records for process in processes)
    callback_ns = sum(process.callback_ns for process in processes)
    reader_cpu_ns = sum(process.reader_cpu_ns for process in processes)
    duration_ns = run.duration_ns
    # The reader may still be working after the child ended.
    read_until_ns = run.ended.time_ns if run.ended else run.updated_ns
    reading_ns = max(duration_ns, read_until_ns - run.started.time_ns)

    # CUPTI's part cannot be measured from inside: what it was seen to add to an operation bounds
    # it.
    least, most = (_slowdown_percent(run, cupti_ns) for cupti_ns in CUPTI_NS)

    def share(time_ns: int) -> float | None:
        return 100 * time_ns / duration_ns if duration_ns else None

    return Cost(
        records=records,
        dropped=sum(process.dropped for process in processes),
        unattributed=sum(process.unattributed for process in processes),
        callback_ns=callback_ns,
        reader_cpu_ns=reader_cpu_ns,
        records_per_s=records / (duration_ns / 1e9) if duration_ns else None,
        library_percent=share(callback_ns),
        slowdown_least_percent=least,
        slowdown_most_percent=most,
        reader_percent=100 * reader_cpu_ns / reading_ns if reading_ns else None,
        monitor_cpu_percent=session.own_cpu_percent,
        kernels_traced_percent=100.0 * run.traced_share,
        tracing=tracing_cost(run),
        shares_error_points=shares_error_points(run),
        recorded_bytes=session.recorded_bytes,
        traced_bytes=session.traced_bytes,
    )


def _slowdown_percent(run: Run, cupti_ns: int) -> float | None:
    """Of the process in which tracing took the largest part of the time on its GPUs."""
    operations: dict[int, int] = {}
    span_ns: dict[int, int] = {}
    for use in run.timing.devices.values():
        operations[use.process] = operations.get(use.process, 0) + use.operations
        span_ns[use.process] = max(span_ns.get(use.process, 0), use.span_ns)
    slowdowns = []
    for process, length_ns in span_ns.items():
        added_ns = operations[process] * cupti_ns + run.processes[process].callback_ns
        if length_ns > added_ns:
            slowdowns.append(100.0 * added_ns / (length_ns - added_ns))
    return max(slowdowns, default=None)
