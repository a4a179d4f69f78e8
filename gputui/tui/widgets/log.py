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

_ROLES = {"stdout": "text", "stderr": "text", "gputui": "accent"}
_MARKS = {"stdout": "  ", "stderr": "│ ", "gputui": "› gputui: "}


def log_rows(run: Run | None, width: int, height: int, back: int) -> list[Row]:
    """The log's last lines, `back` lines before the end; what the program did not print on its
    standard output is marked."""
    if run is None:
        return [heading("Log", width), (("  no run yet", "dim"),)]
    lines = list(run.log)
    room = max(0, height - 1)
    end = max(min(len(lines), room), len(lines) - back)
    note = f"{_lines(len(lines) - end)} below" if end < len(lines) else _lines(run.log_lines)
    if any(line.stream == "stderr" for line in lines):
        note = f"│ stderr · {note}"
    rows: list[Row] = [heading(f"Log of {run.started.name}", width, note)]
    if all(line.stream == "gputui" for line in lines):
        text = "nothing printed so far" if run.is_active else "the program printed nothing"
        rows.append(((f"  {text}", "dim"),))
        room -= 1
    rows += [_line(line, width) for line in lines[max(0, end - room) : end]]
    return rows


def _lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"


def output_note(run: Run) -> str:
    """How much the program printed, and where the rest is."""
    marked = "│ stderr · " if any(line.stream == "stderr" for line in run.log) else ""
    return f"{marked}{_lines(run.log_lines)} · l larger"


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

    def scroll_back(self, lines: int) -> bool:
        """Further back, or (negative) towards the end; whether there was anything."""
        run = self._model.run
        most = max(0, len(run.log) - self.size.height + 1) if run is not None else 0
        before, self._back = self._back, max(0, min(most, self._back + lines))
        self.draw()
        return self._back != before

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
