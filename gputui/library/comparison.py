"""Runs side by side."""

from __future__ import annotations

import os
from typing import Any

from gputui.base.errors import GputuiError as Error
from gputui.library.frames import Frame, Row, framed
from gputui.library.recording import Run
from gputui.render.columnar import Frames


def compare(
    baseline: str | os.PathLike[str] | Run,
    *others: str | os.PathLike[str] | Run,
    frames: Frames | None = None,
) -> Comparison:
    """How runs differ from the first: of a path the newest run is taken, of the machine where it
    holds none. Raises Error, in one line, where one cannot be read or there is nothing to compare.
    """
    from gputui.playback.loading import load
    from gputui.report.compare import compare as compared
    from gputui.report.subject import Subject

    if not others:
        raise Error("compare() needs two runs or more")
    subjects = []
    for one in (baseline, *others):
        if isinstance(one, Run):
            label = f"{one.recording} #{one.number}"
            subjects.append(Subject(label, one._part.session, one._state))
        else:
            loaded = load(os.fspath(one))
            subjects.append(Subject(loaded.name, loaded.session, loaded.run))
    return Comparison(compared(subjects), frames)


class Comparison:
    """Runs side by side; the first is the baseline."""

    def __init__(self, compared: Any, frames: Frames | None) -> None:
        self._compared = compared
        self._frames = frames
        self.remarks: tuple[str, ...] = tuple(compared.remarks)
        """What cannot be compared, and why."""

    @property
    def figures(self) -> Frame:
        """A row for each figure of each run after the first: its value in the baseline and there,
        the difference, and whether that is more than noise."""
        return framed((_FIGURES, self.rows()), self._frames)

    def rows(self) -> list[Row]:
        """The same as a list of dictionaries."""
        subjects = self._compared.subjects
        rows: list[Row] = []
        for item in self._compared.items:
            for figure in item.figures.values():
                for index in range(1, len(subjects)):
                    found = figure.difference(index)
                    base, value = figure.values[0], figure.values[index]
                    cells = (
                        item.kind, item.name, item.was, figure.name, subjects[index].label,
                        base.amount if base else None, value.amount if value else None,
                        *((found.absolute, found.percent, found.noise, found.beyond_noise)
                          if found else (None,) * 4),
                    )  # fmt: skip
                    rows.append(dict(zip(_FIGURES, cells, strict=True)))
        return rows

    def failures(self, *conditions: str) -> list[str]:
        """A line for each of the conditions, as `gputui compare --fail-if` takes them, that holds
        of a run after the first. Raises Error where one makes no sense."""
        from gputui.report.gate import Condition

        parsed = [Condition.parse(text) for text in conditions]
        return [line for condition in parsed for line in condition.tripped(self._compared)]

    def document(self) -> Row:
        """All of it, as `gputui compare --format json` has it."""
        import msgspec

        from gputui.render.comparison import comparison_document

        document: Row = msgspec.to_builtins(comparison_document(self._compared))
        return document


_FIGURES: dict[str, type] = {
    "kind": str, "name": str, "was": str, "figure": str, "run": str, "baseline": float,
    "value": float, "difference": float, "difference_percent": float, "noise": float,
    "beyond_noise": bool,
}  # fmt: skip
