"""What shares are of, where that is not the steady steps; and a stretch of steps, drawn out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, clip


def scope_rows(model: Model, width: int, instead: str = "") -> list[Row]:
    """A row that names the scope; none where it is the usual one. `instead` is what a view shows
    that does not follow it."""
    if model.run is None or (model.scope is None and not model.ranks):
        return []
    from gputui.report.explain.finding import rank_names
    from gputui.report.scope import STEADY, in_words

    words = in_words(model.run, model.scope or STEADY)
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
    shown = [
        (cell, role if is_inside else "dim")
        for (cell, role), is_inside in zip(cells, inside, strict=True)
    ]
    return [
        ("".join(cell for cell, _ in part), role)
        for role, part in groupby(shown, key=lambda one: one[1])
    ]
