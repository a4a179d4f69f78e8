"""How the application ends: once, and after a failure with one line instead of a report."""

from __future__ import annotations

import sys
from typing import Any

from textual.app import App


class Ending(App[None]):
    """An application that keeps what it failed of, for the one who ran it to print."""

    crash: BaseException | None = None
    _leaving = False

    def quit_now(self) -> None:
        """Leave. What must be closed is closed by `run_app`, after the terminal is restored."""
        if not self._leaving:
            self._leaving = True
            self.exit()

    def _handle_exception(self, error: Exception) -> None:
        self.crash = error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual would print the local variables of every frame: other people's command lines.
        self._close_messages_no_wait()

    def panic(self, *renderables: Any) -> None:
        """Leave without Textual's report; `run_app` prints one line."""
        del renderables
        if self.crash is None:
            self.crash = sys.exc_info()[1] or RuntimeError("the terminal driver failed")
        self._return_code = 1
        self._close_messages_no_wait()
