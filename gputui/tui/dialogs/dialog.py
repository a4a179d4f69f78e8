"""What every dialog shares: a box of lines over the view, and keys that come here first."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.geometry import Size
from textual.screen import ModalScreen

from gputui.tui.widgets.canvas import Row, flow
from gputui.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp

ResultT = TypeVar("ResultT")

_WIDEST = 110
_FRAME = 4  # a border and a blank on either side


class _Box(LineView):
    def on_resize(self) -> None:
        """The lines depend on the room."""
        if isinstance(self.screen, Dialog):
            self.screen.draw()


class Dialog(ModalScreen[ResultT]):
    """A box of lines. Subclasses give the rows and take the keys.

    Rows are shown from `top`; `focus_line` is kept in sight when it is not None. The last
    `footer` rows stay at the bottom.
    """

    TITLE = ""
    widest = _WIDEST
    is_read_only = False
    """Whether it is only read: a key that means nothing in it closes it and does what it does
    behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.box = _Box()
        self.top = 0
        self.focus_line: int | None = None
        self._is_closed = False
        self._room = 0
        self._hints: list[tuple[int, int, str]] = []
        """The keys at the bottom, and in which cells they stand."""

    def rows(self, width: int) -> list[Row]:
        """What the box holds."""
        raise NotImplementedError

    def footer(self, width: int) -> list[Row]:
        """What stays at its bottom."""
        raise NotImplementedError

    def key(self, key: str, character: str | None) -> None:
        """A key was pressed."""
        raise NotImplementedError

    def dismiss(self, result: ResultT | None = None) -> AwaitComplete:
        """Close with a result, once. Keys that arrive in one read, as tmux and ssh deliver them,
        still reach the dialog that the first of them closed: one that is only read passes them on,
        as if they had come later."""
        if self._is_closed:
            return AwaitComplete()
        self._is_closed = True
        return super().dismiss(result)

    def compose(self) -> ComposeResult:
        """Only the box."""
        yield self.box

    def on_mount(self) -> None:
        """The first drawing."""
        self.box.border_title = None
        self.draw()

    def on_resize(self) -> None:
        """Another terminal size."""
        self.draw()

    def _screen_resized(self, size: Size) -> None:
        del size
        super()._screen_resized(self.app.size)  # for the reason that MainScreen has

    def draw(self) -> None:
        """Lay the box out and show its lines."""
        width = min(self.widest, self.app.size.width - 6)
        inner = max(10, width - _FRAME)
        rows = self.rows(inner)
        footer = self.footer(inner)
        height = min(len(rows) + len(footer) + 2, self.app.size.height - 2)
        room = max(1, height - 2 - len(footer))
        if self.focus_line is not None:
            self.top = min(max(self.top, self.focus_line - room + 1), self.focus_line)
        self.top = max(0, min(self.top, len(rows) - room))
        self._room = room
        self._hints = hint_places(footer[-1]) if footer else []
        self.box.styles.width = width
        self.box.styles.height = height
        shown = rows[self.top : self.top + room]
        shown += [()] * (room - len(shown))
        last = min(self.top + room, len(rows))
        whole = len(rows) <= room
        self.box.border_subtitle = "" if whole else f"{self.top + 1} to {last} of {len(rows)}"
        self.box.show(shown + footer)

    def scroll_by(self, lines: int) -> None:
        """Show other lines of a long text."""
        self.top = max(0, self.top + lines)
        self.draw()

    def scroll_key(self, key: str) -> bool:
        """Take a key that scrolls."""
        page = max(1, self.app.size.height - 8)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
        steps |= {"home": -(10**6), "g": -(10**6), "end": 10**6, "G": 10**6}
        if key in steps:
            self.scroll_by(steps[key])
            return True
        return False

    def on_key(self, event: events.Key) -> None:
        """Nothing behind the dialog hears a key."""
        event.stop()
        event.prevent_default()
        if event.key in ("ctrl+c", "ctrl+q"):
            app: GputuiApp = self.app  # type: ignore[assignment]
            app.quit_now()
        elif not self._is_closed:
            self.key(event.key, event.character)
        elif self.is_read_only:
            self.pass_on(event.key, event.character)

    def pass_on(self, key: str, character: str | None) -> None:
        """Close, and give a key to what is behind."""
        self.dismiss(None)
        self.app.post_message(events.Key(key, character))

    def clicked(self, line: int) -> None:
        """A line of `rows` was clicked."""

    def footer_clicked(self, line: int) -> None:
        """A line of `footer` above the keys was clicked."""

    def on_click(self, event: events.Click) -> None:
        """A line of the box, or a key named at its bottom. Outside of it: one that is only read
        closes; one that asks stays, for a stray click is no answer."""
        event.stop()
        inside = self.box.content_region
        if self._is_closed or not inside.contains(event.screen_x, event.screen_y):
            if self.is_read_only and not self.box.region.contains(event.screen_x, event.screen_y):
                self.dismiss(None)
            return
        y, x = event.screen_y - inside.y, event.screen_x - inside.x
        if y < self._room:
            self.clicked(self.top + y)
            return
        if y < inside.height - 1:
            self.footer_clicked(y - self._room)
            return
        for start, end, key in self._hints:
            if start <= x < end:
                self.key(key, None)
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.scroll_by(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.scroll_by(-3)


_KEYS = {
    "Enter": "enter", "Esc": "escape", "Tab": "tab", "Ctrl-Y": "ctrl+y", "Ctrl-R": "ctrl+r",
    "↑": "up", "↓": "down", "←": "left", "→": "right", "PgUp": "pageup", "PgDn": "pagedown",
}  # fmt: skip


def hint_places(row: Row) -> list[tuple[int, int, str]]:
    """Where the keys of a row of hints stand. What they do, in words, is the last one's."""
    found = []
    x = 0
    for (text, role), after in zip_longest(row, row[1:], fillvalue=("", "text")):
        if role == "key":
            start = x
            words = text.split(" ")
            for word in words:
                end = start + len(word) + (len(after[0]) if word is words[-1] else 0)
                if word in _KEYS or len(word) == 1:
                    found.append((start, end, _KEYS.get(word, word)))
                start += len(word) + 1
        x += len(text)
    return found


def key_hints(width: int, *hints: tuple[str, str]) -> list[Row]:
    """A blank line, then what keys do."""
    items: list[Row] = [((keys, "key"), (f" {does}", "dim")) for keys, does in hints]
    return [(), *flow(items, width, 1)]
