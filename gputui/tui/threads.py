"""Background threads whose results return to the screen's thread as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message

from gputui.base import one_line
from gputui.base.sanitize import LIKENESS
from gputui.tui.running import Ending
from gputui.tui.themes import defaults_of, sixteen_colors

# Messages that cross threads on their way to the screen.


class EventsReady(Message, bubble=False):
    """Events wait to be taken. Several of these count as one."""

    def can_replace(self, message: Message) -> bool:
        """A later notice adds nothing to an earlier one."""
        return isinstance(message, EventsReady)


@dataclass
class Called(Message, bubble=False):
    """A thread has finished: the screen's thread calls `then`."""

    then: Callable[[], None]


# Plain ASCII, for terminals and fonts limited to it.


@lru_cache(4096)
def plain(text: str) -> str:
    """`text` in ASCII and in as many cells: what has no substitute becomes "?"."""
    if text.isascii():
        return text
    text = text.translate(LIKENESS)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


class AsciiFilter(LineFilter):
    """Turns every drawn line into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        return [
            segment if segment.control else Segment(plain(segment.text), segment.style)
            for segment in segments
        ]


# How the application looks on the terminal there is: its colours, and ASCII where that is
# all.


class Look(Ending):
    """An application in this program's colours."""

    def __init__(self, driver_class: type[Driver] | None, *, ascii_only: bool) -> None:
        self._ascii: list[LineFilter] = []
        if ascii_only:
            self._ascii.append(AsciiFilter())
        self._colorless = NoColor()
        super().__init__(driver_class=driver_class)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours for themes that do not know what this program's colours mean."""
        return dict(defaults_of(self.current_theme))

    def get_css_variables(self) -> dict[str, str]:
        """The theme's colours; those there are on a terminal that has few."""
        variables = super().get_css_variables()
        if self.console.color_system == "standard":
            variables |= sixteen_colors(self.current_theme.dark)
        return variables

    def get_line_filters(self) -> list[LineFilter]:
        """NO_COLOR means none: Textual's greys are colours too. With --ascii nothing else
        leaves the program, borders and names included.
        """
        return [
            self._colorless if isinstance(one, Monochrome) else one
            for one in super().get_line_filters()
        ] + self._ascii


T = TypeVar("T")


class Threads(Look):
    """An application whose threads never touch what it shows."""

    def _post(self, message: Message) -> None:
        """From any thread; after the end it is ignored."""
        try:
            self.post_message(message)
        except RuntimeError:
            return

    def on_called(self, message: Called) -> None:
        message.then()

    def from_thread(self, then: Callable[[], None]) -> None:
        """Have the screen's thread call `then`."""
        self._post(Called(then))

    def in_thread(
        self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[str], None]
    ) -> threading.Thread:
        """Do `work` in a thread, then call `then` with its result, or `failed` with one line."""

        def main() -> None:
            try:
                result = work()
            except Exception as error:  # shown to the person, who can do something about it
                reason = one_line(error)
                self.from_thread(lambda: failed(reason))
            else:
                self.from_thread(lambda: then(result))

        thread = threading.Thread(target=main, name="work", daemon=True)
        thread.start()
        return thread
