"""What every dialog shares: a frame over the view, Escape, and that it is answered once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from gputui.tui.widgets.canvas import Row

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp

ResultT = TypeVar("ResultT")


class Dialog(ModalScreen[ResultT | None]):
    """A question or a text over the view. Subclasses compose what is in the frame.

    Where nothing is chosen its result is None: Escape, or a click beside one that is only read. A
    click beside one that asks is no answer, and nothing typed is lost by it.
    """

    is_read_only = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "close", show=False),
        Binding("ctrl+c,ctrl+q", "leave", "quit at once", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False

    @property
    def gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    def dismiss(self, result: ResultT | None = None) -> AwaitComplete:
        """Close with a result, once: keys that arrive in one read, as tmux and ssh deliver them,
        still reach the dialog that the first of them closed."""
        if self._is_closed:
            return AwaitComplete()
        self._is_closed = True
        return super().dismiss(result)

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def action_leave(self) -> None:
        """End the program, as behind the dialog."""
        self.gputui.quit_now()

    def on_click(self, event: events.Click) -> None:
        """Beside what is only read: close it."""
        if self.is_read_only and event.widget is self:
            self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        """What is only read closes at a key that means nothing in it, and the key does what it does
        behind."""
        is_known = not self.active_bindings.keys().isdisjoint(event.aliases)
        if self.is_read_only and not is_known and not self._is_closed:
            event.stop()
            self.dismiss(None)
            self.app.post_message(events.Key(event.key, event.character))

    def drawn(self, rows: Iterable[Row]) -> Group:
        """Rows in the looks that they have in views, broken at the width there is: of a label and a
        text the text stands under itself."""
        parts: list[Text | Table] = []
        for row in rows:
            texts = [Text(text, self._look(role)) for text, role in row]
            if len(texts) == 2:
                grid = Table.grid()
                grid.add_column(no_wrap=True)
                grid.add_column()
                grid.add_row(*texts)
                parts.append(grid)
            else:
                parts.append(Text().join(texts))
        return Group(*parts)

    def _look(self, role: str) -> Style:
        behind = self.app.screen_stack[0]  # which has the looks of roles, for all
        return behind.get_component_rich_style(f"line--{role}", partial=True)

    def _screen_resized(self, size: Size) -> None:
        del size
        super()._screen_resized(self.app.size)  # for the reason that MainScreen has


class Frame(VerticalScroll, can_focus=False, inherit_bindings=False):
    """The box of a dialog, as high as what it holds. It scrolls where the terminal is smaller, with
    the focus and the wheel: arrows are for what is in it."""

    def __init__(self, title: str, keys: str = "", *, wide: bool = False) -> None:
        """`keys` says at the bottom what they do."""
        super().__init__(classes="wide" if wide else "")
        self.border_title = Content(title)
        self.border_subtitle = Content(keys)


class ReadFrame(Frame, can_focus=True):
    """One that arrows scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", show=False),
        Binding("down,j", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown,space", "page_down", show=False),
        Binding("home,g", "scroll_home", show=False),
        Binding("end,G", "scroll_end", show=False),
    ]


class Line(Static):
    """A text of a dialog; never read as markup."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str = "") -> None:
        super().__init__(text, id=id, classes=classes, markup=False)


class Options(OptionList):
    """Textual's list, less two failures: of the keys for a page where nothing of it is visible
    (KeyError), as in a terminal of two lines, and of a click on a row that was drawn before the
    list became shorter (IndexError)."""

    def action_page_down(self) -> None:
        """Down by what is visible."""
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        """Up by what is visible."""
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def on_click(self, event: events.Click) -> None:
        """Choose nothing by a click on a row that is gone."""
        row = event.style.meta.get("option")
        if row is not None and row >= self.option_count:
            event.prevent_default()
