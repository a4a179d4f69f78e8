"""The run's own lines: what it is, its progress, what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Log

from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.model.units import duration, parameter, quantity
from gputui.report.alerts import amount_text, condition_text
from gputui.report.answer import outcome_words
from gputui.report.explain import Finding, Verdict
from gputui.report.phases import shares_error_points
from gputui.report.schema import lost_count, why_lost
from gputui.report.tables import metric_text
from gputui.report.verdict_words import VerdictWords, verdict_words, why_no_verdict
from gputui.report.windows import tracing_cost, tracing_line
from gputui.state import LOG_LINES, Gpu, Run, Session, lasting_alerts, remarks
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import (
    Row,
    Span,
    at_most,
    bar,
    clip,
    fit,
    flow,
    joined,
    paragraph,
    row_width,
    wrap,
)
from gputui.tui.widgets.line_view import FOR_READERS, readable
from gputui.tui.widgets.view import Details, Lead

# The verdict in rows: its word, its sentence, what to try; and where its evidence is.


_MORE = "Enter shows more"


MOST_SEEN = 3
"""Rows of what was seen of a cause, where a screen is high."""


def verdict_rows(
    found: Verdict,
    width: int,
    *,
    is_chosen: bool,
    most_seen: int = MOST_SEEN,
    inside: str = "",
    benchmark: str = "",
    has_bars: bool = False,
) -> list[Row]:
    """The answer: all of it, however low the screen: what stands below gives way. What was seen of
    where it is takes `most_seen` rows at most; `inside` is said where no line is known. Of the rows
    of a `benchmark`, which that sentence stands for, nothing is to be tried. `has_bars` is whether
    what a step then takes is drawn below."""
    words = verdict_words(found, inside, has_bars=has_bars)
    badge = "verdict" if found.findings else "verdict-good"
    rows = badged(found.word, words.headline, width, badge if is_chosen else "title")
    if benchmark:
        return [*paragraph(" BENCHMARK  ", benchmark, width, "value", "title"), *rows]
    room = width - row_width(rows[0]) - len(_MORE) - 1
    if found.findings and room > 1:
        rows[0] = (*rows[0], (" " * room, "text"), (_MORE, "dim"))
    rows += paragraph(" Where ", words.where, width)
    rows += _seen(words, width, most_seen)
    for label, text in (("Try", words.advice), ("Gain", words.gain), ("Speed", found.speed)):
        rows += paragraph(f" {label:<5} ", text, width)
    return rows


def badged(word: str, sentence: str, width: int, badge: str = "verdict") -> list[Row]:
    """The word of an answer, in the looks of a role, and its sentence."""
    lines = wrap(sentence, width - len(word) - 4, "value")
    lead: Row = ((" " * (len(word) + 4), "text"),)
    first: Row = ((f" {word} ", badge), ("  ", "text"))
    return [(*(lead if number else first), *line) for number, line in enumerate(lines)]


def _seen(words: VerdictWords, width: int, most: int) -> list[Row]:
    """As many sentences of what else was seen as there is room for beside the place, the first
    ones first."""
    placed = len(paragraph(" Where ", words.where, width))
    for shown in range(len(words.seen), 0, -1):
        rows = paragraph(" Seen  ", " ".join(words.seen[:shown]), width)
        if placed + len(rows) <= max(most, placed + bool(most)):
            return rows
    return []


def evidence(finding: Finding) -> Lead | Details:
    """Where a finding's evidence is: its leaf, or what is known of a fact."""
    if finding.cause in LEAF_OF_KEY:
        return Lead("time", finding.cause)
    if finding.kernel:
        return Lead("kernels", finding.kernel)
    is_placed = finding.view == "kernels" and finding.evidence  # which no row of the table is
    if finding.view and not is_placed:
        # What findings call the timeline is a matter of whole steps.
        return Lead("steps" if finding.view == "timeline" else finding.view)
    rows: list[Row] = [((finding.sentence, "text"),), *(((f"{one}.", "text"),) for one in
                       finding.evidence), ((f"Try: {finding.advice}.", "text"),),
                       ((f"Measured by: {finding.source}", "dim"),)]  # fmt: skip
    return Details(finding.word, tuple(rows))


NO_VERDICT = "No verdict: no GPU work is seen in this run."


def unaccounted(run: Run) -> str:
    """That there is no verdict, and why."""
    why = why_no_verdict(run)
    return f"No verdict{' yet' * run.is_active}: {why[0].lower()}{why[1:]}"


# What shares are of, where that is not the steady steps; and a stretch of steps, drawn out.


def scope_rows(model: Model, width: int, instead: str = "") -> list[Row]:
    """A row that names the scope; none where it is the usual one. `instead` is what a view shows
    that does not follow it."""
    if model.run is None or (model.scope is None and not model.ranks):
        return []
    from gputui.report.explain.finding import rank_names
    from gputui.report.scope import STEADY, scope_in_words

    words = scope_in_words(model.run, model.scope or STEADY)
    if instead and model.scope is not None:
        words = f"{instead}, not {words}"
    back = " back to the steady steps"
    if model.ranks:
        words, back = f"{rank_names(model.ranks)}: {words}", " back to all ranks"
    keys = (("   v", "key"), (" next scope   ", "dim"), ("0", "key"), (back, "dim"))
    return [clip(((" scope  ", "label"), (words, "value"), *keys), width)]


def dimmed(spans: Sequence[Span], inside: Sequence[bool]) -> list[Span]:
    """Spans of one cell a column, grey where a column is not `inside`."""
    cells = [(cell, role) for text, role in spans for cell in text]
    return joined(
        (cell, role if is_inside else "dim")
        for (cell, role), is_inside in zip(cells, inside, strict=True)
    )


def panel(title: str, paragraphs: Sequence[Row], width: int, height: int) -> list[Row]:
    """A block of text in the middle of an empty view."""
    inner = max((sum(len(text) for text, _ in row) for row in paragraphs), default=0)
    left = " " * max(0, (width - max(inner, len(title))) // 2)
    top = max(0, (height - len(paragraphs) - 2) // 3)
    rows: list[Row] = [()] * top
    rows.append(((left, "text"), (title, "title")))
    rows.append(())
    rows.extend(((left, "text"), *row) for row in paragraphs)
    return rows


def no_run(model: Model, width: int, height: int, text: str = "") -> list[Row]:
    """A view of runs while there is none: how to start one, or why none will come."""
    if model.failure or model.remark:
        why = model.failure or model.remark
        return panel("No run", wrap(why, max(20, width - 4), "warn"), width, height)
    if model.is_opening:
        return panel("Opening", [(("reading what there is to show…", "text"),)], width, height)
    rows: list[Row] = [((text, "text"),)] if text else []
    if model.can_start:
        rows += [
            (("w", "key"), ("              choose a workload and start it", "text")),
            (("gputui -- CMD", "key"), ("  runs a program of yours", "text")),
            (("7", "key"), ("              shows the runs that were recorded", "text")),
        ]
    elif model.hosts is not None:
        text = f"the GPUs of {model.host} are in GPUs: 6 shows them, and all hosts"
        rows = [((text, "text"),)]
    else:
        held = "holds no run" if model.lost_end else "holds no run so far"
        rows = [((f"the recording {held}", "text"),)]
    return panel("No run yet", rows, width, height)


# Alerts that last: a line each, and the mark beside what they are about.


MARK = "▲"
_MOST = 3


def alert_rows(session: Session, width: int) -> list[Row]:
    """The newest alerts that last."""
    lasting = lasting_alerts(session)
    rows: list[Row] = []
    for span in lasting[-_MOST:]:
        told = span.raised
        worst = amount_text(told.what, span.worst)
        text = f" {MARK} ALERT {condition_text(told)}: reached {worst}"
        more = f" and {len(lasting) - _MOST} more" if len(lasting) > _MOST and not rows else ""
        rows.append(clip(((text + more, "hot"),), width))
    return rows


def has_alert(session: Session, what: Gpu | Leaf) -> bool:
    """Whether an alert about a GPU, or a leaf of the time tree, lasts."""
    for span in lasting_alerts(session):
        told = span.raised
        if isinstance(what, Leaf):
            if told.what == LEAVES[what].key:
                return True
        elif told.gpu == what.facts.index:
            return True
    return False


class State(NamedTuple):
    """A run's state, in words and as a mark before them."""

    mark: str
    words: str
    role: str

    @property
    def cell(self) -> Span:
        """Both, in the state's colour."""
        return (f"{self.mark} {self.words}", self.role)


_MARKS = {
    "running": ("▶", "accent"),
    "stopped": ("■", "warn"),
    "detached": ("■", "text"),
    "done": ("✓", "good"),
    "ended": ("■", "text"),
    "failed": ("✗", "hot"),
}


def state(run: Run, *, lost_end: bool = False) -> State:
    """The run's state. `lost_end` if no more is to come."""
    mark, role = ("■", "warn") if run.ended is None and lost_end else _MARKS[run.outcome]
    return State(mark, outcome_words(run, lost_end=lost_end), role)


def eta_ns(run: Run) -> float | None:
    """Time left of the stage at its mean speed so far; None while unknown."""
    progress = run.progress
    if run.ended is not None or progress is None or not progress.total or progress.done <= 0:
        return None
    elapsed = run.updated_ns - run.stage_started_ns
    left = max(0.0, progress.total - progress.done)
    return elapsed * left / progress.done if elapsed > 0 else None


def run_row(run: Run, width: int, *, lost_end: bool = False) -> Row:
    """One row: what runs, and at its right end how far it is, or how it ended."""
    given = "  ".join(
        f"{name}={parameter(value)}" for name, value in run.started.parameters.items()
    )
    if run.started.kind == "command":
        given = " ".join(run.started.arguments)
    right = _progress(run, lost_end=lost_end)
    room = width - row_width(right) - 3
    name = run.started.name
    first, _, others = given.partition(" ")
    rest = others if first == name else given
    left = clip(((f" {name}  ", "title"), (rest, "dim")), max(12, room))
    gap = " " * max(2, width - row_width(left) - row_width(right) - 1)
    return clip((*left, (gap, "text"), *right), width)


def _progress(run: Run, *, lost_end: bool) -> Row:
    """Stage, bar, how much of how much and the estimated time left; the state where nothing more
    is to come or nothing is reported."""
    progress = run.progress
    now = state(run, lost_end=lost_end).cell
    if progress is None or run.ended is not None or lost_end:
        if progress is None or not progress.total:
            return (now,)
        unit = f" {progress.unit}" if progress.unit else ""
        far = f"{progress.stage} {progress.done:.0f} of {progress.total:.0f}{unit}  "
        return ((far, "dim"), now)
    done = f"{progress.done:.0f}" if progress.done == int(progress.done) else f"{progress.done:.1f}"
    unit = f" {progress.unit}" if progress.unit else ""
    stage = (f"{progress.stage} ", "label")
    if not progress.total:
        return (stage, (f"{done}{unit}  ", "value"), now)
    fraction = min(1.0, progress.done / progress.total)
    left = eta_ns(run)
    ending = f"{done} of {progress.total:.0f}{unit}"
    if left is not None and fraction < 1:
        ending += f", {duration(left)} left"
    return (stage, ("▕", "dim"), (bar(fraction, 20), "accent"), ("▏ ", "dim"), (ending, "value"))


def _is_static(name: str) -> bool:
    """Whether a metric describes the run rather than its speed: those come last."""
    return not any(word in name for word in ("per_s", "ttft", "tpot", "itl", "loss", "latency"))


def metric_rows(run: Run, width: int, lines: int) -> list[Row]:
    """Values the workload reported."""
    items: list[Row] = []
    for name, value in sorted(run.metrics.items(), key=lambda item: _is_static(item[0])):
        label, text = metric_text(name, value)
        items.append(((f"{label} ", "label"), (text, "value")))
    return [((" ", "text"), *row) for row in flow(items, width - 1, lines)]


def problems(run: Run, width: int, remark: str = "") -> list[Row]:
    """What ended the run or makes its figures wrong; `remark` is a problem of the recording."""
    rows: list[Row] = wrap(f"! {remark}", width, "warn") if remark else []
    if run.ended is not None and run.outcome == "failed":
        rows += wrap(f"! {run.ended.reason}", width, "hot")
    dropped = lost_count(run)
    if dropped:
        why = f" ({reason})" if (reason := why_lost(run)) else ""
        text = f"! {quantity(dropped)} records were dropped{why}: figures are too low"
        rows += wrap(text, width, "warn")
    return rows


def notes(run: Run, width: int, most: int | None = None) -> list[Row]:
    """What the person must know to read the figures, such as what is not captured. Of more than
    `most` rows the last one shown ends in an ellipsis."""
    rows: list[Row] = []
    for each in remarks(run):
        rows += wrap(f"! {each.line}", width, "warn")
    if tracing := tracing_line(run, shares_error_points(run)):
        cost = tracing_cost(run)
        over = cost is not None and cost.is_over
        rows += wrap(f"! {tracing}" if over else tracing, width, "warn" if over else "dim")
    return rows if most is None else at_most(rows, most, width)


# What the child printed: the last lines in a card, all that is kept of it in Textual's log.


_LOG_ROLES = {"stdout": "text", "stderr": "text", "gputui": "accent"}
_LOG_MARKS = {"stdout": "  ", "stderr": "│ ", "gputui": "› gputui: "}


def log_rows(run: Run, width: int, height: int) -> list[Row]:
    """The last lines; what the program did not print on its standard output is marked."""
    rows: list[Row] = [((f"  {nothing}", "dim"),)] if (nothing := _why_empty(run)) else []
    lines = [*islice(reversed(run.log), max(0, height - len(rows)))]
    return rows + [
        ((fit(_LOG_MARKS[line.stream] + line.text, width).rstrip(), _LOG_ROLES[line.stream]),)
        for line in reversed(lines)
    ]


def _why_empty(run: Run) -> str:
    """What stands in place of lines of the program, "" where it has any."""
    if any(line.stream != "gputui" for line in run.log):
        return ""
    if run.outcome == "ended":
        return "what the program printed is not in it"
    return "nothing printed so far" if run.is_active else "the program printed nothing"


def output_note(run: Run) -> str:
    """How much the program printed, and what marks its errors."""
    marked = "│ stderr · " if any(line.stream == "stderr" for line in run.log) else ""
    return f"{marked}{run.log_lines} line{'s' * (run.log_lines != 1)}"


class LogPane(Log, can_focus=False):
    """It stays where it was scrolled to, else it follows what is printed."""

    def __init__(self, model: Model) -> None:
        super().__init__(id="log", max_lines=LOG_LINES)
        self._model = model
        self._of: tuple[Run | None, str] = (None, "")
        self._told = 0

    def draw(self) -> None:
        run = self._model.run
        if run is None:
            self.border_title, self._of = " Log: no run yet ", (None, "")
            self.clear()
            return
        self.border_title = Content(f" Log of {run.started.name} · {output_note(run)} ")
        nothing = _why_empty(run)
        before, self._of = self._of, (run, nothing)
        if before[0] is not run or before[1] != nothing or run.log_lines < self._told:
            self.clear()
            self._told = 0
            if nothing:
                self.write(f"  {nothing}\n")
        lines = [*islice(reversed(run.log), run.log_lines - self._told)]
        self._told = run.log_lines
        rows: list[Row] = [
            ((_LOG_MARKS[one.stream] + one.text, "text"),) for one in reversed(lines)
        ]
        if self.app.has_class(FOR_READERS):
            rows = readable(rows)
        text = "".join(f"{part}\n" for ((part, _),) in rows)
        self.write(text, scroll_end=self.is_vertical_scroll_end)
