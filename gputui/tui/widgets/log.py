"""What the child printed: the last lines, and earlier ones on request."""

from __future__ import annotations

from textual import events

from gputui.state import LogLine, Run
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, fit, heading
from gputui.tui.widgets.line_view import LineView
from gputui.tui.widgets.view import (
    SCROLL_LINES,
)

_ROLES = {"stdout": "text", "stderr": "warn", "gputui": "accent"}
_MARKS = {"stdout": "  ", "stderr": "! ", "gputui": "› "}


def log_rows(run: Run | None, width: int, height: int, back: int) -> list[Row]:
    """The log's last lines, `back` lines before the end. Standard error is marked "!"."""
    if run is None:
        return [heading("Log", width), (("  no run yet", "dim"),)]
    lines = list(run.log)
    room = max(0, height - 1)
    end = max(min(len(lines), room), len(lines) - back)
    note = f"{len(lines) - end} lines below" if end < len(lines) else f"{run.log_lines} lines"
    rows: list[Row] = [heading(f"Log of {run.started.name}", width, note)]
    if not lines:
        rows.append((("  nothing printed so far", "dim"),))
    rows += [_line(line, width) for line in lines[max(0, end - room) : end]]
    return rows


def _line(line: LogLine, width: int) -> Row:
    return ((fit(_MARKS[line.stream] + line.text, width).rstrip(), _ROLES[line.stream]),)


class LogPane(LineView):
    def __init__(self, model: Model) -> None:
        super().__init__(id="log")
        self._model = model
        self._back = 0

    def draw(self) -> None:
        width, height = self.size
        self.show(log_rows(self._model.run, width, height, self._back))

    def scroll_back(self, lines: int) -> None:
        """Further back, or (negative) towards the end."""
        run = self._model.run
        most = max(0, len(run.log) - self.size.height + 1) if run is not None else 0
        self._back = max(0, min(most, self._back + lines))
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.scroll_back(SCROLL_LINES)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.scroll_back(-SCROLL_LINES)
