"""Background threads whose results return to the screen's thread as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message

from gputui.tui.ending import Ending
from gputui.tui.errors import one_line
from gputui.tui.messages import Called
from gputui.tui.themes import VARIABLE_DEFAULTS, sixteen_colors

# How the application looks on the terminal there is: its colours, and ASCII where that is
# all.


class Look(Ending):
    """An application in this program's colours."""

    def __init__(self, driver_class: type[Driver] | None, *, ascii_only: bool) -> None:
        self._ascii: list[LineFilter] = []
        if ascii_only:
            from gputui.tui.plain import AsciiFilter

            self._ascii.append(AsciiFilter())
        self._colorless = NoColor()
        super().__init__(driver_class=driver_class)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours for themes that do not know what this program's colours mean."""
        return dict(VARIABLE_DEFAULTS)

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
    ) -> None:
        """Do `work` in a thread, then call `then` with its result, or `failed` with one line."""

        def main() -> None:
            try:
                result = work()
            except Exception as error:  # shown to the person, who can do something about it
                reason = one_line(error)
                self._post(Called(lambda: failed(reason)))
            else:
                self._post(Called(lambda: then(result)))

        threading.Thread(target=main, name="work", daemon=True).start()
