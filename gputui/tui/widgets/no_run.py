"""What a view of runs shows while there is none."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, wrap


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
