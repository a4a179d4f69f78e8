"""The answer as text: at most 24 lines, wrapped at the width there is."""

from __future__ import annotations

import os
import shlex
from textwrap import wrap

from gputui.base.sanitize import sanitize
from gputui.report.answer import Group, Line, answer
from gputui.state import Run, Session

MOST_LINES = 24
LABEL = 15
"""Columns of the label, blanks included."""

WIDEST = 110
"""Longer lines are hard to read."""

NARROWEST = 30

_APART = "   "
_TIED = "\N{NO-BREAK SPACE}"


def answer_text(
    session: Session, run: Run | None, width: int | None, more: Group | None = None
) -> str:
    """The answer in at most MOST_LINES lines; `more` stands at its end."""
    groups = answer(session, run)
    if more:
        groups.append(more)
    return fitted(groups, width)


def ways_on(recording: str) -> Group:
    """What to type next."""
    home = os.path.expanduser("~/")
    named = shlex.quote(recording)
    if recording.startswith(home):
        named = f"~/{shlex.quote(recording.removeprefix(home))}"
    return [
        Line("see it again", f"gputui --replay {named}", 7, is_typed=True),
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
        group, at = _least(groups, max(ranks))
        groups = [
            [line for place, line in enumerate(lines_of) if (number, place) != (group, at)]
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
        text = _APART.join(figure.replace(" ", _TIED) for figure in figures)
    if line.is_typed:
        return [first + text]
    lines = wrap(first + text, columns, subsequent_indent=" " * (LABEL + 2), break_on_hyphens=False)
    return [line.replace(_TIED, " ") for line in lines] or [first.rstrip()]
