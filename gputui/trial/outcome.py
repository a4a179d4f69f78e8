"""What trials came to: a document for programs, a table and a few lines for people; and what is
kept of forecast and measurement."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from gputui.base.sanitize import cut_to_width, sanitize
from gputui.cures import BOUND
from gputui.model import units
from gputui.model.events import SCHEMA_VERSION
from gputui.render import write_whole
from gputui.render.text_tables import LEAST_FOLDED, in_lines, to_text
from gputui.report.schema import Column, Table, text
from gputui.trial.blocks import JOINED
from gputui.trial.proof import (
    FEWEST,
    NEAR,
    MeasuredGain,
)
from gputui.trial.runs import INTERRUPTED

if TYPE_CHECKING:
    from gputui.report.explain import Finding

Verdict = Literal["gain", "slower", "nothing", "unclear", "another result", "bound", "not tried"]
"""What a trial says: a gain is proven; the program is slower; there is no gain worth having; more
pairs would be needed; faster, but with another result; what the cause costs at most; or why not."""

Way = Literal["in one run", "a run each", ""]
"""How it was tried; empty where it was not."""

MOST_WIDE = 4.0
"""Ends of an interval that are further apart say nothing."""

WHOLE_STEP = 10.0
"""What a step is so many times faster without is the step itself: that names no cause."""

MOST_LINES, MOST_REMARKS = 21, 3
"""Of the answer for people, and remarks in it: a terminal of 24 lines has it whole, with the line
of where it is kept and the prompt."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A cure that was tried. Gains are factors: how many times faster a step is. `forecast_*` are
    what the finding `cause` had promised. `result` is what the cure leaves of results by its class,
    `same` what was seen of them. `why` says why a cure was not tried, or not to the end."""

    cure: str
    result: str
    cause: str | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    verdict: Verdict
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    off_ns: float | None = None
    on_ns: float | None = None
    way: Way = ""
    pairs: int = 0
    beside: tuple[str, ...] = ()
    """The cures that were on without it, too: it gains so much more than these do."""
    same: str = ""
    ready_s: float | None = None
    """From the start of a run to its first timed step, where that is a run of its own."""
    change: str = ""
    """What to write into the source."""
    place: str = ""
    """Where, as FILE:LINE, if the cure came by the call that it is about."""
    why: str = ""
    applies: bool = True
    """Whether the program has what it is about; `why` says what it has not."""
    last_lines: tuple[str, ...] = ()
    """What the program printed last where it failed with it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a command: the answer of `gputui try --json`, and the file beside the
    recording. `step_ns` is a step of the program as it is."""

    schema: int = SCHEMA_VERSION
    command: tuple[str, ...]
    folder: str
    time: str
    recording: str | None = None
    verdict: str = ""
    headline: str = ""
    step_source: str = ""
    step_ns: float | None = None
    trials: tuple[Trial, ...] = ()
    together: Trial | None = None
    runs: int = 0
    seconds: float = 0.0
    seed: int = 0
    reason: str = ""
    """Where no gain is proven: what a step is slow for, where, and what that costs or takes."""
    remarks: tuple[str, ...] = ()


def reason_of(trials: Sequence[Trial], findings: Sequence[Finding]) -> str:
    """Why no gain is proven: what the program is slow for first of all, and what was measured of
    it, or else what its finding says. Empty where one is."""
    if any(trial.verdict == "gain" for trial in trials):
        return ""
    open_ones = _open(trials)
    more = (
        f" Not tried to the end: {open_ones}; a longer --budget may prove it." if open_ones else ""
    )
    first = findings[0] if findings else None
    place = f" at {first.place}" if first is not None and first.place else ""
    bounds = [each for each in trials if each.verdict == "bound"]
    bound = max(
        (each for each in bounds if (each.gain or 0.0) < WHOLE_STEP or _is_at(each, first)),
        key=lambda trial: trial.gain or 0.0,
        default=None,
    )
    if bound is not None:
        took = ""
        if bound.off_ns and bound.on_ns:
            took = f", {units.duration(bound.on_ns)} in place of {units.duration(bound.off_ns)}"
        is_named = "@" in bound.cure
        return (
            f"No gain is proven, but what costs most is: without it ({bound.cure}"
            f"{'' if is_named else place}) a step is {_times(bound.gain or 0)}× as fast{took}. To "
            f"do by hand: {bound.change}.{more}"
        )
    if more:
        return more.strip()
    others = ", ".join(each.cure for each in trials if each.verdict == "another result")
    faster = f"What is faster computes something else ({others}). " if others else ""
    if first is None:
        is_open = any(each.verdict == "not tried" and each.applies for each in trials)
        nothing = "" if is_open else "Nothing that a cure is for was found in it."
        return faster.strip() or nothing
    least = min((gain.low for gain in first.gains), default=0.0)
    most = max((gain.high for gain in first.gains), default=0.0)
    promised = f", {least:.3g} to {most:.3g}× by forecast" if most else ""
    untried = [
        each for each in trials
        if each.cause == first.cause and each.verdict == "not tried" and each.why
        and (each.result != BOUND or "@" in each.cure)
    ]  # fmt: skip
    # What the program does not even import is the least of reasons.
    untried.sort(key=lambda each: (NOT_IMPORTED in each.why, "@" not in each.cure))
    whys = [f" {each.cure}: {each.why}." for each in untried]
    return (
        f"{faster}What it is slow for ({first.word}{place}{promised}) has to be changed by hand: "
        f"{first.advice}.{''.join(whys[:MOST_WHYS])}"
    )


NOT_IMPORTED = "does not import"

MOST_WHYS = 2
"""Cures of which the answer in a sentence says why they were not tried."""


def _is_at(trial: Trial, finding: Finding | None) -> bool:
    """Whether it takes away the function at a finding's line."""
    function = finding.place.rpartition(" ")[2].rpartition(".")[2] if finding is not None else ""
    return bool(function) and "@" in trial.cure and trial.cure.endswith(f":{function}")


NO_TIME, TIME_OVER = "there was no time left", "its time was over (--budget)"
LATE = (NO_TIME, TIME_OVER, INTERRUPTED)
"""Why cures were not tried, or not to the end, that a longer budget may try."""


def more_than_proven(trials: Sequence[Trial]) -> list[str]:
    """In a line each what promises more than the gains that are proven, or shows that more is left:
    a cure that had no time, and what costs most. Empty where none is proven."""
    gains = {trial.cure: trial.gain or 0.0 for trial in trials}

    def in_all(trial: Trial) -> float:
        """Its gain, with those of what was on beside it."""
        return math.prod(gains.get(cure, 1.0) for cure in (trial.cure, *trial.beside))

    proven = [in_all(trial) for trial in trials if trial.verdict == "gain"]
    if not proven:
        return []
    least = NEAR * max(proven)
    lines = []
    if open_ones := _open([each for each in trials if (each.forecast_high or 0.0) > least]):
        lines.append(f"May gain more, not proven: {open_ones}; a longer --budget tries it")
    bounds = [
        trial for trial in trials
        if trial.verdict == "bound" and (trial.gain or 0.0) < WHOLE_STEP and in_all(trial) > least
    ]  # fmt: skip
    if bounds:
        bound = max(bounds, key=in_all)
        lines.append(
            f"More is left: without it ({bound.cure}{_beside(bound)}) a step is "
            f"{_times(bound.gain or 0.0)}× as fast; {bound.change}"
        )
    return lines


def _beside(trial: Trial) -> str:
    """What was on beside it, as it follows a figure."""
    return f" with {' and '.join(trial.beside)}" if trial.beside else ""


def _open(trials: Sequence[Trial]) -> str:
    """Cures that showed or promised something, and had no time to be proven."""
    shown = [
        (each.gain or 0.0, each)
        for each in trials
        if each.result != BOUND and each.verdict == "unclear" and (each.gain or 0.0) > NEAR
    ]
    promised = [
        (each.forecast_low, each)
        for each in trials
        if each.result != BOUND and each.verdict == "not tried" and each.applies
        and each.forecast_low is not None and each.why.startswith(LATE)
    ]  # fmt: skip
    named = [
        f"{each.cure} ({_times(gain)}× so far, {_lacks(each)})" if each.gain is not None
        else f"{each.cure} ({_times(gain)}× at least by forecast{_wants(each)})"
        for gain, each in sorted((*shown, *promised), key=lambda pair: -pair[0])[:3]
    ]  # fmt: skip
    return ", ".join(named)


def _lacks(trial: Trial) -> str:
    """What a gain that was measured lacks to be proven."""
    if trial.way == "a run each":
        return f"in {trial.pairs} run{'s' * (trial.pairs != 1)} each, which may differ by as much"
    if trial.pairs < FEWEST:
        return f"{trial.pairs} of {FEWEST} pairs"
    if trial.why.endswith(RUNS_TELL):
        return f"{trial.pairs} pairs; {RUNS_TELL}"
    return f"{trial.pairs} pairs that differ"


RUNS_TELL = "runs of its own must tell"
"""Why pairs that show a gain are no proof of it, at the end of what raises the doubt."""


def _wants(trial: Trial) -> str:
    """How much time it lacks."""
    _, _, wants = trial.why.partition(f"{NO_TIME}: ")
    return f", {wants}" if wants else ""


def with_gain(trial: Trial, gain: MeasuredGain | None) -> Trial:
    """The trial with what was measured; a gain of one run each has no interval."""
    if gain is None:
        return trial
    has_ends = gain.low > 0.0
    return msgspec.structs.replace(
        trial,
        gain=gain.middle,
        gain_low=gain.low if has_ends else None,
        gain_high=gain.high if has_ends else None,
        pairs=gain.pairs,
    )


def _times(value: float) -> str:
    return f"{value:.{2 if value < 9.95 else 1 if value < 99.5 else 0}f}"


def _forecast(trial: Trial) -> str:
    if trial.forecast_low is None or trial.forecast_high is None:
        return units.MISSING
    low, high = _times(trial.forecast_low), _times(trial.forecast_high)
    return f"{low}×" if low == high else f"{low} to {high}×"


def measured_text(trial: Trial) -> str:
    """The gain with its interval, as "2.08× (1.97 to 2.13)"."""
    if trial.gain is None:
        return units.MISSING
    if trial.gain_low is None or trial.gain_high is None:
        return f"{_times(trial.gain)}×"
    # An interval this wide says no more than its middle.
    if trial.gain_high > MOST_WIDE * trial.gain_low:
        return f"about {_times(trial.gain)}×"
    return f"{_times(trial.gain)}× ({_times(trial.gain_low)} to {_times(trial.gain_high)})"


def _says(trial: Trial) -> str:
    """The last column: what it means, and what was seen of the results."""
    if trial.verdict == "not tried":
        return f"not tried: {trial.why}"
    if trial.verdict == "another result":
        return f"not counted: {trial.same}"
    if trial.verdict == "bound":
        left = f"without it {units.duration(trial.on_ns)} of {units.duration(trial.off_ns)}"
        return f"{left}; {trial.why}" if trial.why else left
    words = {
        "gain": "" if trial.same else "results not compared",
        "slower": "slower",
        "nothing": "" if trial.why else "nothing to gain",
        "unclear": "unclear",
    }[trial.verdict]
    return "; ".join(filter(None, (words, _beside(trial).strip(), trial.why, trial.same)))


def _way(trial: Trial) -> str:
    if trial.way == "in one run":
        return f"{trial.pairs} on/off pairs"
    return f"{trial.pairs} run{'s' * (trial.pairs != 1)} each" if trial.way else ""


COLUMNS: tuple[Column[Trial], ...] = (
    text("Cure", "cure", lambda trial: trial.cure, "Its name, for --cure", flexible=False),
    text("Class", "result", lambda trial: trial.result,
         "What it leaves of results: exact, rounding, different; bound: an ablation",
         flexible=False, priority=1),
    text("Forecast", "forecast", _forecast, "What the finding had promised", flexible=False,
         priority=2),
    text("Gain (95 %)", "measured", measured_text,
         "How many times faster a step is, with a 95 % interval", flexible=False),
    text("How", "way", _way,
         "Pairs of blocks in one run, or runs each", flexible=False, priority=3),
    text("Result", "says", _says, "What it means, and what was seen of the results"),
)  # fmt: skip

_ORDER = ("gain", "bound", "another result", "unclear", "slower", "nothing", "not tried")


def answer_lines(outcome: Outcome, width: int | None) -> list[str]:
    """The answer, at most MOST_LINES lines of a terminal of that width; lines of any length where
    there is none."""
    step = f", {units.duration(outcome.step_ns)} a step" if outcome.step_ns else ""
    if step and outcome.step_source:
        step += f" ({outcome.step_source})"
    room = max(LEAST_FOLDED, (width or 400) - len(step))
    lines = [f"{cut_to_width(sanitize(shlex.join(outcome.command), 120), room)}{step}"]
    if outcome.headline:
        said = ": ".join(filter(None, (outcome.verdict, outcome.headline)))
        lines += _wrapped(cut_to_width(said, HEADLINE_LINES * (width or 400)), width)
    claimed = [trial for trial in outcome.trials if trial.verdict == "gain"]
    after = _after(outcome, claimed, width)
    # Without a recording they were named; else most of them are for faults that it has not.
    is_named = outcome.recording is None
    shown = [
        trial
        for trial in outcome.trials
        if trial.verdict != "not tried" or is_named or (trial.cause and trial.applies)
    ]
    # Those that only had no time are named in a line, if they promised something.
    in_time = [trial for trial in shown if not trial.why.startswith(LATE)]
    shown = shown if is_named else in_time or shown
    rows = sorted(
        shown,
        key=lambda trial: (_ORDER.index(trial.verdict), -(trial.gain or 0.0)),
    )
    room = MOST_LINES - len(lines) - len(after)
    if rows and room > TABLE_HEAD:
        lines += _table_lines(outcome, rows, width, room)
    return [*lines, *after][:MOST_LINES]


HEADLINE_LINES = 3
TABLE_HEAD = 5
"""Lines of a table without rows: a blank one, its title, and at most two of a note."""


def _table_lines(
    outcome: Outcome, rows: Sequence[Trial], width: int | None, room: int
) -> list[str]:
    """As many of the trials as there is room for, a blank line first."""
    runs = "1 run" if outcome.runs == 1 else f"{outcome.runs} runs"
    columns = tuple(
        each for each in COLUMNS if any(each.text(row) not in ("", units.MISSING) for row in rows)
    )
    for count in range(min(room - TABLE_HEAD, len(rows)), 0, -1):
        left = len(outcome.trials) - count
        has_more = any(row.verdict != "not tried" for row in rows[count:])
        why = "not shown for want of room" if has_more else "did not apply or had no time"
        table = Table(
            "trials", f"Tried in {runs}, {outcome.seconds:.0f} s", columns, rows[:count],
            f"{left} more cure{'s' * (left > 1)} {why}: --json"
            if left else "",
        )  # fmt: skip
        lines = ["", *to_text(table, width, folds=True).splitlines()]
        if len(lines) <= room:
            return lines
    return []


def _wrapped(text: str, width: int | None) -> list[str]:
    """Text in lines that are broken between words, and indented as it is and a little more."""
    if width is None:
        return [text]
    indent = len(text) - len(text.lstrip())
    return in_lines(text, max(LEAST_FOLDED, width), " " * (indent + 2 * bool(indent)))


def _after(outcome: Outcome, claimed: Sequence[Trial], width: int | None) -> list[str]:
    """What is written below the table."""
    lines: list[str] = []
    if claimed:
        lines = ["", "Write:"]
        causes: set[str] = set()
        claimed = sorted(claimed, key=lambda trial: (len(trial.beside), -(trial.gain or 0.0)))
        best: dict[tuple[str, str], Trial] = {}
        for trial in claimed:
            # Two cures may be the same line, of a loader's batches and of a model's, say.
            best.setdefault((trial.change, trial.cure.partition("@")[2]), trial)
        claimed = [*best.values()]
        for trial in claimed[:5]:
            # Of what needs runs of its own the best for a finding is tried together with others.
            is_other = trial.way == "a run each" and trial.cause in causes
            change = f"or {trial.change}" if is_other else trial.change
            place = f"{trial.place}: " if trial.place else ""
            gain = f"{_times(trial.gain or 0)}×{_beside(trial)}"
            lines.append(f"  {place}{change}  # {trial.cure}, {gain}")
            causes |= {trial.cause} if trial.cause else set()
        if outcome.together is not None and outcome.together.gain is not None:
            is_all = outcome.together.cure.count(JOINED) + 1 == len(claimed)
            which = "All together" if is_all else f"Together ({outcome.together.cure})"
            said = "; ".join(filter(None, (measured_text(outcome.together), outcome.together.same)))
            lines.append(f"{which}: {said}.")
    elif outcome.trials:
        is_measured = any(trial.verdict != "not tried" for trial in outcome.trials)
        is_bound = any(trial.verdict == "bound" for trial in outcome.trials)
        lines = ["", "No gain is proven." if is_measured else "No cure was measured."]
        if outcome.reason:
            lines[-1] = outcome.reason if is_bound else f"{lines[-1]} {outcome.reason}"
        elif is_measured and outcome.recording is not None and not any(
            trial.cause for trial in outcome.trials
        ):  # fmt: skip
            lines[-1] += " No finding calls for a cure: --all tries all that keep results."
    # All that were named have a row.
    whys = [trial.why for trial in outcome.trials if trial.why and outcome.recording is None]
    remarks = [each for each in outcome.remarks if not any(map(each.endswith, whys))]
    lines += [sanitize(remark, 300) for remark in remarks[:MOST_REMARKS]]
    return [broken for line in lines for broken in _wrapped(line, width) or [""]]


def encode(outcome: Outcome) -> str:
    """The outcome as JSON, indented, with a line feed at its end."""
    return msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode() + "\n"


def write_beside(outcome: Outcome, path: Path) -> None:
    """Keep it in a file, private to its owner. Raises ExportError."""
    write_whole(path, encode(outcome))
