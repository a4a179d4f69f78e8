"""What a summary shows: the answer in a few lines, then facts and tables.

The answer as text is at most 24 lines, wrapped at the width there is. For the text formats, for
recordings without a screen, and for `gputui summary`.
"""

from __future__ import annotations

import os
import shlex
from textwrap import wrap

from gputui.base import did_you_mean
from gputui.base.sanitize import sanitize
from gputui.model import units
from gputui.model.units import moment
from gputui.render import NoRunError, UnknownNameError
from gputui.render.text_tables import TIED, in_lines
from gputui.report.answer import Group, Line, answer, clocks_line, job_of
from gputui.report.phases import shares_error_points
from gputui.report.schema import AnyTable
from gputui.report.tables import run_tables, summary_tables, table, table_names
from gputui.report.windows import cost_of, tracing_line
from gputui.state import Run, Session, remarks

# The answer as text: at most 24 lines, wrapped at the width there is.

# A terminal of the least usual size shows the answer without scrolling.
MOST_LINES = 24

LABEL = 15
"""Columns of the label, blanks included."""

WIDEST = 110
"""Longer lines are hard to read."""

NARROWEST = 30

_APART = "   "


def answer_text(
    session: Session, run: Run | None, width: int | None, more: Group | None = None
) -> str:
    """The answer in at most MOST_LINES lines; `more` stands at its end."""
    groups = answer(session, run)
    if more:
        groups.append(more)
    return fitted(groups, width)


def ways_on(recording: str) -> Group:
    """The commands that show a recording again, try cures of its findings on the command, and print
    its tables, for the end of an answer."""
    home = os.path.expanduser("~/")
    named = shlex.quote(recording)
    if recording.startswith(home):
        # From the home folder on: a path broken in two at 80 columns could not be copied.
        named = f"~/{shlex.quote(recording.removeprefix(home))}"
    return [
        Line("see it again", f"gputui --replay {named}", 7, is_typed=True),
        Line("try cures", f"gputui try {named} -- COMMAND", 7, is_typed=True),
        Line("tables", f"gputui summary {named} --full", 7, is_typed=True),
    ]


def fitted(groups: list[Group], width: int | None) -> str:
    """Groups of lines as text: what matters least is left out where there is no room."""
    columns = max(NARROWEST, min(width or WIDEST, WIDEST))
    while True:
        lines = _lines(groups, columns)
        ranks = {line.rank for group in groups for line in group}
        if len(lines) <= MOST_LINES or ranks <= {0}:
            return "\n".join(lines[:MOST_LINES]) + "\n"
        group, least_place = _least(groups, max(ranks))
        groups = [
            [line for place, line in enumerate(lines_of) if (number, place) != (group, least_place)]
            for number, lines_of in enumerate(groups)
        ]
        groups = [lines_of for lines_of in groups if lines_of]


def _least(groups: list[Group], rank: int) -> tuple[int, int]:
    """The last line of a rank."""
    return max(
        (number, place)
        for number, group in enumerate(groups)
        for place, line in enumerate(group)
        if line.rank == rank
    )


def _lines(groups: list[Group], columns: int) -> list[str]:
    lines: list[str] = []
    for number, group in enumerate(groups):
        if number:
            lines.append("")
        for line in group:
            lines += _wrapped(line, columns, is_title=not number)
    return lines


def _wrapped(line: Line, columns: int, *, is_title: bool) -> list[str]:
    text = sanitize(line.text)
    if is_title:
        return wrap(text, columns) or [""]
    label = f"  {sanitize(line.label)}"
    first = label.ljust(LABEL + 2) if len(label) <= LABEL else f"{label}  "
    figures = text.split(_APART)
    if len(figures) > 1:
        # Lines break between figures, not inside them.
        text = _APART.join(figure.replace(" ", TIED) for figure in figures)
    if line.is_typed:
        return [first + text]
    return in_lines(first + text, columns, " " * (LABEL + 2)) or [first.rstrip()]


def is_event_table(name: str) -> bool:
    """Whether a table is of single events, which need the trace."""
    if name in run_tables():
        return False
    from gputui.render.traces import EVENT_TABLES

    return name in EVENT_TABLES


def one_table(session: Session, run: Run | None, name: str) -> AnyTable:
    """A table by its name. Raises ExportError where there is none."""
    names = table_names(run)
    if name in names:
        return table(session, run, name)
    if run is None:
        words = f"there is no table {name!r} of a recording without a run"
        error = NoRunError if name in run_tables() else UnknownNameError
        raise error(f"{words}; known: {', '.join(names)}")
    from gputui.render.traces import EVENT_TABLES

    names += EVENT_TABLES
    hint = did_you_mean(name, names)
    raise UnknownNameError(f"there is no table {name!r}{hint}; known: {', '.join(names)}")


def tables_with_rows(session: Session, run: Run | None) -> list[AnyTable]:
    """The tables of the summary that have something to say."""
    return [table for table in summary_tables(session, run) if table.rows]


# --- what was recorded, where and when, how it ended, and the cost of capturing: one line each


MACHINE_ONLY = "machine only"
"""The title of a recording without a run."""


def title_of(run: Run | None) -> str:
    """What was recorded, in a word or two."""
    return MACHINE_ONLY if run is None else run.started.name


def facts_lines(session: Session, run: Run | None) -> list[str]:
    """The lines above the tables of a run, or of a recording without one."""
    return _machine(session) if run is None else _run(session, run)


def _machine(session: Session) -> list[str]:
    readings = session.readings
    length = units.duration(readings.duration_ns)
    lines = [
        f"{MACHINE_ONLY}: no run was recorded",
        *_where(session),
        f"{moment(session.started_ns)}, {length}: {units.count(readings.samples)} samples",
    ]
    if session.recorded_bytes is not None:
        lines.append(f"wrote {units.size(session.recorded_bytes)}")
    return lines


def _where(session: Session) -> list[str]:
    header = session.header
    if header is None:
        return []
    gpus = [gpu.facts.name for gpu in session.gpus.values()]
    names = [
        f"{gpus.count(name)} × {name}" if gpus.count(name) > 1 else name
        for name in dict.fromkeys(gpus)
    ]
    where = ", ".join(names) or f"no GPU ({header.gpu_unavailable_reason or 'none found'})"
    return [f"on {header.host.hostname}: {where}; {header.host.system}"]


def _run(session: Session, run: Run) -> list[str]:
    started = run.started
    parameters = " ".join(
        f"{name}={units.parameter(value)}" for name, value in run.parameters.items()
    )
    lines = [f"{started.kind} {started.name} {parameters}".rstrip()]
    lines += _where(session)
    lines.append(f"{moment(started.time_ns)}, {units.duration(run.duration_ns)}: {run.end_reason}")
    if (job := job_of(session, run)) is not None and job.world_size != 1:
        lines.append(job.line)
    if clocks := clocks_line(session, run):
        lines.append(clocks)
    lines += [remark.line for remark in remarks(run)]
    lines += [
        f"pid {process.attached.pid}: kernels not captured: {process.attached.cuda_status}"
        for process in run.processes.values()
        if process.attached.cuda_status not in ("tracing", "no CUDA")
    ]
    cost = cost_of(session, run, shares_error_points(run))
    seen = f"{units.count(cost.records)} records, {cost.dropped} dropped"
    if cost.unattributed:
        seen += f", {units.count(cost.unattributed)} operations without a launch"
    if cost.records_per_s:
        seen += f", {units.count(round(cost.records_per_s))} a second"
    if line := tracing_line(run, cost.shares_error_points):
        seen += f"; {line}"
    if cost.library_percent:
        # Named for what it is: 0.32 % of the run's time read as the whole cost, which was 14 to 25
        # % of a launch-bound decode with CUPTI's part.
        seen += f"; the library's own code {cost.library_percent:.2f} % of the run's time"
    if cost.slowdown_least_percent and cost.slowdown_most_percent:
        least, most = cost.slowdown_least_percent, cost.slowdown_most_percent
        seen += f", with CUPTI an estimated {least:.1f} to {most:.1f} % on the GPU's launches"
    if cost.reader_percent is not None:
        seen += f"; reader {cost.reader_percent:.1f} % of a core"
    if cost.recorded_bytes is not None:
        seen += f"; wrote {units.size(cost.recorded_bytes)}"
    if cost.traced_bytes is not None:
        seen += f" and a trace of {units.size(cost.traced_bytes)}"
    lines.append(f"capture: {seen}")
    return lines
