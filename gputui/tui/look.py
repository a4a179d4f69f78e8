"""How the application looks on the terminal there is: its colours, and ASCII where that is all."""

from __future__ import annotations

from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor

from gputui.tui.ending import Ending
from gputui.tui.themes import VARIABLE_DEFAULTS, sixteen_colors


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
