"""What a view of runs shows while there is none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, clip, wrap

# What shares are of, where that is not the steady steps; and a stretch of steps, drawn out.


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
