"""What workloads say of themselves beside what gputui measured of them: `python -m
tests.workloads.beside_answers RECORDING...`.

Two tables. A workload's own step (by its own clock) beside the step of the answer, which come from
different clocks and different code and must agree within STEP_PERCENT; and the times of short GPU
work in its tables beside the kernels that were recorded in the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gputui.model.events.distributions import Statistics
from gputui.playback.opening import load
from gputui.report.explain import Analysis, conclusion
from gputui.report.phases import PhaseRow, phase_rows
from gputui.report.statistics import kernel_rows
from gputui.state import Run, Session

STEP_PERCENT = 2.0
"""Two clocks of one step may differ by."""

KERNEL_PERCENT = 5.0
"""A row's time on the GPU and its kernels may differ by."""

OWN_STEP = ("step_ms", "avg_ms", "itl_ms", "tpot_ms")
"""Names of a workload's own step, the first that it reports."""

_STEP, _GRAPH, _MS = "step", "graph", 1e6
_OF_KERNELS = {"timed_by", "convolution"}
"""Tables whose passes are kernels, by a column or their name: others have copies, and gaps."""


@dataclass(frozen=True)
class Steps:
    """A workload's step by three clocks, in milliseconds: its own, its `step` ranges on the host,
    and the answer's."""

    workload: str
    own_ms: float | None
    ranges_ms: float | None
    ranges: int
    answer_ms: float | None
    steps: int

    @property
    def off_percent(self) -> float | None:
        """How far the answer's is from its own; None where either is missing."""
        if not self.own_ms or self.answer_ms is None:
            return None
        return 100 * (self.answer_ms / self.own_ms - 1)


@dataclass(frozen=True)
class Work:
    """A row of a workload's table: a pass on the GPU by the table, and the kernels of a pass."""

    label: str
    table_us: float
    kernels_us: float
    kernels: float
    """Of a pass."""

    @property
    def off_percent(self) -> float:
        """How far the table is from the kernels."""
        return 100 * (self.table_us / self.kernels_us - 1)


def steps_of(session: Session, run: Run) -> Steps:
    """A run's own step and the answer's."""
    results = run.result.results if run.result is not None else {}
    own = next((value for name in OWN_STEP if isinstance(value := results.get(name), float)), None)
    if len(rows := _sweep(run)) > 1:  # its results are those of the last row
        own = sum(rows) / len(rows)
    spans = [row for row in phase_rows(run) if row.name == _STEP]
    count = sum(row.instances for row in spans)
    ended = conclusion(Analysis(session, run))
    tree = ended.tree if ended is not None and ended.tree and ended.tree.has_steps else None
    return Steps(
        workload=run.started.name,
        own_ms=own,
        ranges_ms=sum(row.cpu_total_ns for row in spans) / count / _MS if count else None,
        ranges=count,
        answer_ms=tree.step_mean_ns / _MS if tree is not None else None,
        steps=tree.program_steps if tree is not None else 0,
    )


def _sweep(run: Run) -> list[float]:
    """The mean step of each row of a sweep of `train`, which all have as many steps."""
    for table in run.result.tables if run.result is not None else ():
        names = [column.name for column in table.columns]
        if table.name == "headline":
            cells = (row[names.index("avg_ms")] for row in table.rows)
            return [value for value in cells if isinstance(value, float)]
    return []


def work_of(session: Session, run: Run) -> Iterator[Work]:
    """The rows of a table with `gpu_ms`, each with its own outermost range, in which its passes
    ran: they stand in the same order. None where some row has no range."""
    rows = phase_rows(run)
    inner = {row.path: row for row in rows if row.depth == 1}
    measured = [row for row in rows if not row.depth and f"{row.path}/{_STEP}" in inner]
    for table in run.result.tables if run.result is not None else ():
        names = [column.name for column in table.columns]
        if "gpu_ms" not in names or not _OF_KERNELS & {table.name, *names}:
            continue
        times = [cells[names.index("gpu_ms")] for cells in table.rows]
        if len(times) != len(measured):  # a row that was refused has no steps
            times = [table_ms for table_ms in times if table_ms is not None]
        if len(times) != len(measured):
            continue
        for table_ms, around in zip(times, measured, strict=True):
            steps = inner[f"{around.path}/{_STEP}"]
            own = _kernels(session, run, steps)
            if not isinstance(table_ms, float) or not own or not steps.instances:
                continue
            each = {name: times.count / steps.instances for name, times in own.items()}
            # Timed in a graph: there, too, its kernels were recorded.
            graph = inner.get(f"{around.path}/{_GRAPH}")
            timed = _kernels(session, run, graph) if graph is not None else {}
            kernels_ns = sum(times.total for times in own.values()) / steps.instances
            if sum(each.values()) == 1:  # else one name may be of kernels of several sizes
                [(name, kernel)] = own.items()
                kernels_ns = float(timed.get(name, kernel).median or 0)
            yield Work(
                label=around.name,
                table_us=1e3 * table_ms,
                kernels_us=kernels_ns / 1e3,
                kernels=sum(each.values()),
            )


def _kernels(session: Session, run: Run, row: PhaseRow) -> dict[str, Statistics]:
    """The kernels launched in a phase, or replayed in it, by name: another program on the same GPU
    makes some of them ten times as long, so that their median is looked at."""
    inside, waiting = set[int](), [node.definition.range for node in row.phase.nodes]
    while waiting:
        number = waiting.pop()
        inside.add(number)
        waiting += run.ranges[number].children
    return {each.name: each.times for each in kernel_rows(session, run, inside)}


def main(names: list[str]) -> None:
    """Print both tables of recordings; one that cannot be read is a line."""
    works: list[tuple[str, Work]] = []
    print(f"{'workload':<14}{'own ms':>10}{'ranges ms':>11}{'answer ms':>11}{'off %':>8}  steps")
    for name in names:
        try:
            loaded = load(name)
        except Exception as error:
            print(f"{Path(name).name}: {error}")
            continue
        if loaded.run is None:
            print(f"{Path(name).name}: no run")
            continue
        steps = steps_of(loaded.session, loaded.run)
        off = steps.off_percent
        far = " <<<" if off is not None and abs(off) > STEP_PERCENT else ""
        print(
            f"{steps.workload:<14}{_shown(steps.own_ms):>10}{_shown(steps.ranges_ms):>11}"
            f"{_shown(steps.answer_ms):>11}{_shown(off):>8}  {steps.steps} of {steps.ranges}{far}"
        )
        works += [(steps.workload, work) for work in work_of(loaded.session, loaded.run)]
    print(f"\n{'row':<40}{'table us':>11}{'kernels us':>11}{'off %':>8}  kernels of a pass")
    for workload, work in works:
        far = " <<<" if abs(work.off_percent) > KERNEL_PERCENT else ""
        print(
            f"{workload + ' ' + work.label:<40}{work.table_us:>11.2f}{work.kernels_us:>11.2f}"
            f"{work.off_percent:>8.1f}  {work.kernels:.1f}{far}"
        )


def _shown(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main(sys.argv[1:])
