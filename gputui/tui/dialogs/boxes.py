"""Small dialogs: a question, a line to type, details, the help."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Collapsible, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from gputui.model.units import size
from gputui.render.formats import Format
from gputui.report.tables.processes import OUTSIDE, ProcessRow
from gputui.tui.textual_internals import Resized
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.line_view import role_style
from gputui.tui.widgets.view import Details

if TYPE_CHECKING:
    from gputui.base import ManualPage


# What every dialog shares: a frame over the view, Escape, and that it is answered once.


ResultT = TypeVar("ResultT")
LEAVE = Binding("ctrl+c,ctrl+q", "leave", "quit at once", show=False, priority=True)


class Dialog(Resized, ModalScreen[ResultT | None]):
    """A question or a text over the view. Subclasses compose what is in the frame.

    Where nothing is chosen its result is None: Escape, or a click beside one that is only read. A
    click beside one that asks is no answer, and nothing typed is lost by it.
    """

    is_read_only = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "close", show=False),
        LEAVE,
    ]

    def __init__(self) -> None:
        super().__init__()
        self._is_closed = False

    def dismiss(self, result: ResultT | None = None) -> AwaitComplete:
        """Close with a result, once: keys that arrive in one read, as tmux and ssh deliver them,
        still reach the dialog that the first of them closed."""
        if self._is_closed:
            return AwaitComplete()
        self._is_closed = True
        return super().dismiss(result)

    def action_cancel(self) -> None:
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
            texts = [Text(text, role_style(self.app, role)) for text, role in row]
            if len(texts) == 2:
                grid = Table.grid()
                grid.add_column(no_wrap=True)
                grid.add_column()
                grid.add_row(*texts)
                parts.append(grid)
            else:
                parts.append(Text().join(texts))
        return Group(*parts)


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


Line = partial(Label, markup=False)
"""A text of a dialog."""


class Options(OptionList):
    """Textual's list, less two failures: of the keys for a page where nothing of it is visible
    (KeyError), as in a terminal of two lines, and of a click on a row that was drawn before the
    list became shorter (IndexError)."""

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def on_click(self, event: events.Click) -> None:
        """Choose nothing by a click on a row that is gone."""
        row = event.style.meta.get("option")
        if row is not None and row >= self.option_count:
            event.prevent_default()


# Where to write something, and in which format.


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The chosen format's key, and a path, which may end in "/"."""

    key: str
    path: str


class ExportDialog(Dialog[ExportRequest]):
    """Format and path. The path's suffix follows the format until it is edited."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
    ]

    def __init__(self, default: Path, formats: Sequence[Format], title: str) -> None:
        """`default` is the path without its suffix."""
        super().__init__()
        with suppress(OSError):  # this folder was deleted
            default = default.absolute()
        self._formats = formats
        self._title = title
        self._ending = formats[0].ending
        # Parts are held, not looked for: a message may come while they are taken down.
        options = [Option(Content(f"{known.key:<12} {known.title}")) for known in formats]
        self._list = Options(*options, compact=True)
        self._needs = Line(classes="dim")
        self._default = f"{default}{self._ending}"
        self._path = Input(select_on_focus=False)
        self._error = Line(classes="error")

    def compose(self) -> ComposeResult:
        """The formats, what the chosen one needs, and the path."""
        self._path.value = self._default  # Textual's field takes none before there is an app
        with Frame(self._title, "Enter write  ↑ ↓ format  Tab path  Esc cancel"):
            yield self._list
            yield self._needs
            yield self._path
            yield self._error

    def on_mount(self) -> None:
        self._list.highlighted = 0
        self._path.focus()

    def action_choose(self, step: int) -> None:
        at = (self._list.highlighted or 0) + step
        self._list.highlighted = at % len(self._formats)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The path ends as the format's files do."""
        chosen, path = self._formats[event.option_index], self._path
        self._needs.update(Content(chosen.requirements))
        if path.value.endswith(self._ending):
            path.value = path.value.removesuffix(self._ending) + chosen.ending
            path.cursor_position = len(path.value)
        self._ending = chosen.ending

    def on_option_list_option_selected(self) -> None:
        """A click, or Enter in the list."""
        self._path.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if not text:
            self._error.update("! a path is needed")
            return
        number = self._list.highlighted or 0
        self.dismiss(ExportRequest(self._formats[number].key, os.path.expanduser(text)))


class Answer(NamedTuple):
    """What a question may be answered with besides no: a letter, the button's text, and whether the
    letter is the answer, or only goes to the button."""

    key: str
    label: str
    is_at_once: bool = True


_LEAST_COLUMNS, _LEAST_LINES = 10, 5
"""Of a terminal on which a question shows its title's beginning and what it asks."""


class Question(Dialog[str]):
    """Its result is the letter of the answer. No has the focus: Enter, the key for everything, must
    not end a run; an answer that does something has a letter and a button of its own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,q", "cancel", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, rows: Sequence[Row], *answers: Answer, no: str = "no") -> None:
        super().__init__()
        self._title = title
        self._rows = rows
        self._answers = answers
        self._no = no

    def compose(self) -> ComposeResult:
        """The text, and a button for each answer."""
        with Frame(self._title):
            yield Static(self.drawn(self._rows))
            with Horizontal(classes="buttons"):
                yield Button(Content(f"n  {self._no}"), id="n", compact=True)
                for one in self._answers:
                    label = Content(f"{one.key}  {one.label}")
                    yield Button(label, id=one.key, compact=True, variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self._answer(event.button.id or "n")

    def _answer(self, letter: str) -> None:
        """Close with an answer; with one that does something only where there is room to read what
        is asked."""
        if letter == "n":
            self.dismiss(None)
        elif self.size.width >= _LEAST_COLUMNS and self.size.height >= _LEAST_LINES:
            self.dismiss(letter)

    def on_key(self, event: events.Key) -> None:
        """A letter that is an answer, or leads to one."""
        for one in self._answers:
            if event.key.lower() == one.key and not self._is_closed:
                event.stop()
                if one.is_at_once:
                    self._answer(one.key)
                else:
                    self.query(f"#{one.key}").focus()


SIGNALS = {
    "t": ("TERM", "asks it to end; most programs save and clean up"),
    "i": ("INT", "as Ctrl-C in its terminal"),
    "k": ("KILL", "ends it at once; nothing is saved"),
}
"""By the letter that chooses it."""


class SignalQuestion(Question):
    """Which signal to send to a process, naming the process first: a letter only chooses, nothing
    is sent without Enter or a click, nor by Enter alone."""

    def __init__(self, process: ProcessRow) -> None:
        gpus = ", ".join(f"GPU {gpu}" for gpu in process.gpus)
        uses = f" on {gpus}" if gpus else ""
        if process.gpu_memory_bytes is not None:
            uses += f" with {size(process.gpu_memory_bytes)}"
        who = f"process {process.pid} of {process.user or 'an unknown user'}{uses}"
        rows: list[Row] = [((who, "text"),), ((process.command or OUTSIDE, "title"),)]
        if process.run is not None:
            own = "It is part of gputui's own run: x ends all of that."
            rows.append(((own, "warn"),))
        rows.append(())
        rows += [((f"{name:<5} ", "label"), (does, "text")) for name, does in SIGNALS.values()]
        answers = [Answer(key, name, is_at_once=False) for key, (name, _) in SIGNALS.items()]
        super().__init__("Send a signal to this process?", rows, *answers, no="send none")


class Prompt(Dialog[str]):
    """One line of text to type: a name, a folder, a time. What is typed replaces what there was;
    after an arrow it changes it."""

    def __init__(
        self,
        title: str,
        hint: str,
        does: str,
        text: str = "",
        wrong: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`wrong` says why a text is invalid, "" if it is valid."""
        super().__init__()
        self._title = title
        self._hint = hint
        self._does = does
        self._text = text
        self._wrong = wrong
        # Parts are held, not looked for: a message may come while they are taken down.
        self._error = Line(classes="error")

    def compose(self) -> ComposeResult:
        """The hint, the field, and what is wrong with it."""
        with Frame(self._title, f"Enter {self._does}  Esc cancel"):
            yield Line(self._hint, classes="dim")
            yield Input(self._text)
            yield self._error

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Give the text, unless it is wrong."""
        if wrong := self._wrong(event.value):
            self._error.update(Content(f"! {wrong}"))
        else:
            self.dismiss(event.value)

    def on_input_changed(self) -> None:
        self._error.update("")


class DetailsBox(Dialog[None]):
    """Details of something, to be read."""

    is_read_only = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q,backspace", "cancel", show=False)]

    def __init__(self, details: Details, page: ManualPage | None = None) -> None:
        """`page` is one of the manual, in place of the details' rows."""
        super().__init__()
        self._details = details
        self._page = page

    def compose(self) -> ComposeResult:
        sections = [*self._sections(self._details.rows)]
        folds = "Tab Enter fold  " * any(isinstance(one, Collapsible) for one in sections)
        with ReadFrame("", f"{folds}↑ ↓ PgUp PgDn scroll  Esc close", wide=True):
            yield Line(self._details.title, classes="title")
            if self._page is not None:
                # Textual's own view of Markdown makes a widget of each block: 6 s of CPU for the
                # longest page and 0.5 for a key, 0.4 here. The parser takes 50 ms to load.
                from rich.markdown import Markdown

                yield Static(Markdown(self._page.read()))
            yield from sections

    def add(self, rows: tuple[Row, ...]) -> None:
        """Show what was found out meanwhile."""
        for frame in self.query(ReadFrame):
            frame.mount(*self._sections(rows))

    def failed(self, reason: str) -> None:
        """Show why nothing was found out."""
        self.add(((), ((f"! {reason}", "warn"),)))

    def _sections(self, rows: Sequence[Row]) -> Iterator[Static | Collapsible]:
        """What stands before the first title, and what is under each, which folds."""
        parts: list[tuple[Row, list[Row]]] = [((), [])]
        for row in rows:
            if [role for _, role in row] == ["head"]:
                parts.append((row, []))
            else:
                parts[-1][1].append(row)
        for title, inside in parts:
            text = Static(self.drawn(inside))
            if title:
                yield Collapsible(text, title=title[0][0].strip(), collapsed=False)
            elif inside:
                yield text
