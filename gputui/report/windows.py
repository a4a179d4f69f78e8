"""Estimates from windows of tracing, and what windows and all tracing cost, with how sure it is.

A phase's GPU time is that of its ranges: of each, the GPU time launched in it in windows, by its
occurrences there, times all its occurrences, which are counted always. That is a ratio estimator
with windows as clusters: its variance is that of the residuals of windows (W. G. Cochran, Sampling
Techniques, 6.13), of a share those of the share of two such sums, less the part that was seen
(the finite population). Bars are 95 %, by Student's t on the groups of windows less one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gputui.model.units import percent, quantity, size
from gputui.report.phase_tree import Phase
from gputui.report.statistics import FEWEST_BLOCKS, Mean, half_width, mean_of_blocks
from gputui.state import Process, Run, Session

NOTE = "shares of GPU time estimated from windows of tracing, by occurrences"

LEAST_SEEN = 8
"""Groups of windows that saw a phase, of those that there are, from which its error is known: of a
rarer one bars held in less than nine of ten simulated programs."""

_PPM = 1e6
# No range has this number: it stands for what was launched outside of every range.
_OUTSIDE = 0


@dataclass(slots=True)
class _Sum:
    """An estimated sum, and its residual in each group of windows."""

    amount: float
    residuals: list[float]
    seen: set[int]
    """The groups of windows in which something of the phase ran."""

    def add(self, other: _Sum) -> None:
        self.amount += other.amount
        self.seen |= other.seen
        for index, residual in enumerate(other.residuals):
            self.residuals[index] += residual


class Estimates:
    """The GPU time of the phases of a run of whose kernels only windows were traced."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: dict[int, dict[int, tuple[float, float]]] = {}
        for sums in run.window_work.values():
            by_thread = self._seen.setdefault(sums.range, {})
            by_thread[sums.group] = sums.occurrences_ppm / _PPM, float(sums.gpu_ns)
        self._groups = sorted({sums.group for sums in run.window_work.values()})
        self._sums = {number: self._sum(number) for number in self._seen}
        self._whole = self._together(self._sums.values())
        busy = sum(device.busy_ns for device in run.devices.values())
        launched = sum(gpu for by_thread in self._seen.values() for _, gpu in by_thread.values())
        self._busy_part = busy / launched if launched else 1.0

    @staticmethod
    def of_run(run: Run) -> Estimates | None:
        """None where all was traced, or all of a part of the program: then figures are of that
        part."""
        is_sampled = run.traced_share < 1 and run.started.captured_part is None
        return Estimates(run) if run.window_work and is_sampled else None

    def gpu_ns(self, phase: Phase) -> Mean | None:
        """Time of the operations launched inside; None where no window saw it."""
        phase_sum = self._phase(phase)
        return None if phase_sum is None else self._mean(phase_sum, phase_sum.amount, 0.0, 1.0)

    def share_percent(self, phase: Phase) -> Mean | None:
        """The share of the time in which a GPU was busy; None if no window saw the phase."""
        phase_sum, whole = self._phase(phase), self._whole.amount
        if phase_sum is None or not whole:
            return None
        share = phase_sum.amount / whole
        # Operations overlap: of the phase as of all.
        total = sum(node.gpu_total_ns for node in phase.nodes)
        busy = sum(node.gpu_busy_ns for node in phase.nodes)
        scale = 100.0 / self._busy_part * (busy / total if total else self._busy_part)
        return self._mean(phase_sum, share * scale, share, whole / scale)

    def _phase(self, phase: Phase) -> _Sum | None:
        numbers, pending = [], [phase]
        while pending:
            inner = pending.pop()
            numbers += [node.definition.range for node in inner.nodes]
            pending += inner.children
        if any(number in self._sums for number in numbers):
            return self._together(self._sums[inner] for inner in numbers if inner in self._sums)
        return None

    def _together(self, sums: Iterable[_Sum]) -> _Sum:
        whole = _Sum(0.0, [0.0] * len(self._groups), set())
        for part in sums:
            whole.add(part)
        return whole

    def _sum(self, number: int) -> _Sum:
        """The GPU time of what was launched in a range itself."""
        seen = self._seen[number]
        gpu = sum(amount for _, amount in seen.values())
        base, occurrences = self._base(number)
        traced = sum(amount for amount, _ in base.values())
        if not gpu or not traced:
            return _Sum(gpu, [0.0] * len(self._groups), set())
        ratio, factor = gpu / traced, max(1.0, occurrences / traced)
        nothing = (0.0, 0.0)
        residuals = [
            factor * (seen.get(group, nothing)[1] - ratio * base.get(group, nothing)[0])
            for group in self._groups
        ]
        return _Sum(gpu * factor, residuals, {group for group, (_, ns) in seen.items() if ns})

    def _base(self, number: int) -> tuple[dict[int, tuple[float, float]], float]:
        """What occurred in windows, and how often in all: of the range, of one around it where it
        has not ended or is no range of the program's (what a CUDA graph replays), else time."""
        while number in self._run.ranges:
            node = self._run.ranges[number]
            base = self._seen.get(number, {})
            if node.cpu.count and any(occurred for occurred, _ in base.values()):
                return base, float(node.cpu.count)
            number = node.definition.parent
        processes = self._run.processes.values()
        elapsed_ns = sum(process.traced_ns + process.paused_ns for process in processes)
        return self._seen.get(_OUTSIDE, {}), elapsed_ns / 1e9

    def _mean(self, phase_sum: _Sum, amount: float, share: float, scale: float) -> Mean:
        """An amount with the error of `phase_sum` less `share` of the whole, over `scale`; no error
        where too few windows saw it."""
        mine, whole, count = phase_sum.residuals, self._whole.residuals, len(self._groups)
        if count < FEWEST_BLOCKS or len(phase_sum.seen) < min(LEAST_SEEN, count):
            return Mean(amount)
        squares = sum((own - share * other) ** 2 for own, other in zip(mine, whole, strict=True))
        unseen = 1.0 - self._run.traced_share
        error = math.sqrt(squares * unseen * count / (count - 1)) / scale
        return Mean(amount, error, count - 1.0)


@dataclass(frozen=True, slots=True)
class TracingCost:
    """What windows of tracing cost the program, of the process that they cost most. Percentages are
    of the time that it would have taken without them.
    """

    max_percent: float | None
    """The budget; None where another share was asked for."""
    windows: int
    percent: float | None
    """None where no range repeats, or too little of one was seen around windows."""
    error_percent: float | None
    """Half the 95 % interval."""
    floor_percent: float | None
    """What CUPTI costs between windows, roughly: it stays in the program. None if not measured."""

    def total_percent(self, windows_percent: float) -> float:
        """The cost with CUPTI's, if windows cost this: the turns around windows contain CUPTI's
        cost, too."""
        return 100 * ((1 + windows_percent / 100) * (1 + (self.floor_percent or 0.0) / 100) - 1)

    @property
    def is_over(self) -> bool:
        """Whether the budget is not kept: for certain, or because of what CUPTI costs anyway."""
        if self.max_percent is None:
            return False
        least = 0.0
        if self.percent is not None and self.error_percent is not None:
            # Windows and CUPTI, which stays, in one figure: a screen led with 2.6 % where both took
            # 10.9.
            least = max(0.0, self.percent - self.error_percent)
        return self.total_percent(least) > self.max_percent


def tracing_cost(run: Run) -> TracingCost | None:
    """None where kernels are traced all the time, or in a part of the program."""
    if run.started.captured_part is not None:
        return None
    if run.traced_share == 1 and run.started.max_cost_percent is None:
        return None
    costs = [_cost(run, number, process) for number, process in run.processes.items()]
    return max(costs, key=lambda cost: (cost.percent or 0.0, cost.windows), default=None)


def _cost(run: Run, number: int, process: Process) -> TracingCost:
    costs = [sums for sums in run.window_costs.values() if sums.process == number]
    percent = error = floor = None
    elapsed_ns = process.traced_ns + process.paused_ns
    if costs and elapsed_ns:
        mean = mean_of_blocks(
            [(amount.windows, amount.taken_ns - amount.bare_ns) for amount in costs]
        )
        spent_ns = mean.amount * process.windows
        bare_ns = elapsed_ns - spent_ns
        if bare_ns > 0:
            percent = 100 * spent_ns / bare_ns
            width = half_width(mean)
            error = None if width is None else 100 * process.windows * width / bare_ns
    if process.standing_ppm is not None:
        floor = max(0.0, process.standing_ppm / 1e4)
    return TracingCost(run.started.max_cost_percent, process.windows, percent, error, floor)


def tracing_line(run: Run, shares_error: float | None) -> str | None:
    """ "tracing 12 % of the time, costs 1.8 % ± 0.3, shares ± 0.4 points"; None where all is
    traced. `shares_error` is the largest of the shares' that are shown. Where a part of the program
    is captured: which, and how much of the time that is."""
    if (part := run.started.captured_part) is not None:
        share = f", {100 * run.traced_share:.1f} % of the time" if run.kernels else ""
        none = "" if run.kernels else ": nothing ran there"
        return f"kernels, copies and calls are of {part}{share}{none}"
    cost = tracing_cost(run)
    if cost is None:
        return None
    if not run.traced_share or (not cost.windows and run.traced_share == 1):
        return "no window of tracing yet: kernels are traced in windows within --max-cost"
    text = f"tracing {100 * run.traced_share:.{1 if run.traced_share < 0.1 else 0}f} % of the time"
    if cost.percent is not None:
        windows = max(0.0, cost.percent)
        error = "" if cost.error_percent is None else f" ± {cost.error_percent:.1f}"
        if cost.floor_percent:
            text += (
                f", costs about {cost.total_percent(windows):.1f} % (windows {windows:.1f} %{error}"
                f", CUPTI, which stays between them, {cost.floor_percent:.1f} %)"
            )
        else:
            text += f", costs {windows:.1f} %{error}"
    elif cost.max_percent is not None:
        text += ", its cost not measured: no range repeats around windows"
    if shares_error is not None:
        text += f", GPU shares ± {shares_error:.1f} points"
    if cost.is_over:
        text += f"; over the {cost.max_percent:g} % of --max-cost"
    return text


# --- The cost of capturing a run: the library in the traced processes, reader and monitor here.

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
    """The share of the run's time that the capture library's own code took, without CUPTI's."""
    slowdown_least_percent: float | None
    """An estimate of what tracing adds in all, where the GPU waits for the launching thread: the
    library's time and CUPTI's (CUPTI_NS), over the time in which the run used a GPU. None if no
    kernels were traced. A run that keeps its GPU busy may hide all of it."""
    slowdown_most_percent: float | None
    reader_percent: float | None
    monitor_cpu_percent: float | None
    """All of gputui, since the last tick."""
    kernels_traced_percent: float
    tracing: TracingCost | None
    """Measured in the program, where kernels are traced in windows."""
    shares_error_points: float | None
    """The largest error among the phases' shares that are estimated from windows."""
    recorded_bytes: int | None
    """The size of the whole session's recording, as of the last tick; None if unknown."""
    traced_bytes: int | None


def cost_of(session: Session, run: Run, shares_error_points: float | None) -> Cost:
    """The cost, summed over the processes of `run`; `shares_error_points` is of its phases."""
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
        shares_error_points=shares_error_points,
        recorded_bytes=session.recorded_bytes,
        traced_bytes=session.traced_bytes,
    )


def _slowdown_percent(run: Run, cupti_ns: int) -> float | None:
    """The share in the process in which tracing took the largest part of the time on its GPUs."""
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


def captured_words(session: Session, run: Run, shares_error: float | None) -> list[tuple[str, str]]:
    """What was captured, and what that cost."""
    processes = list(run.processes.values())
    if not processes:
        return [("nothing", run.unseen_reason or "no process of the run was seen")]
    cost = cost_of(session, run, shares_error)
    pairs = [
        ("processes", str(len(processes))),
        ("records", quantity(cost.records)),
        ("records a second", quantity(cost.records_per_s)),
        ("dropped", quantity(cost.dropped)),
        ("unattributed", quantity(cost.unattributed)),
        ("library's own code, of the run", percent(cost.library_percent)),
        ("with CUPTI, at most", percent(cost.slowdown_most_percent)),
        ("reader, of a core", percent(cost.reader_percent)),
        ("gputui, of a core", percent(cost.monitor_cpu_percent)),
    ]
    if cost.recorded_bytes is not None:
        pairs.append(("recorded", size(cost.recorded_bytes)))
    if cost.traced_bytes is not None:
        pairs.append(("traced", size(cost.traced_bytes)))
    statuses = sorted({process.attached.cuda_status for process in processes})
    return pairs + [("CUDA", status) for status in statuses]
