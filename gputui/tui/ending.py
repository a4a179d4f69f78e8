"""How the application ends: once, and after a failure with one line instead of a report.

What ends it decides about the run. A person who quits, or a signal, ends the run too; a failure of
the screen, of whatever kind, does not, nor does a lost terminal with --keep-running.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import RenderableType
from textual.app import App
from textual.worker import WorkerFailed


class Ending(App[None]):
    """An application that keeps what it failed of, for the one who ran it to print."""

    crash: BaseException | None = None
    is_wished = False
    """Whether it was asked to end, before it failed."""
    outlives_terminal = False
    """Whether a run goes on without the terminal."""
    _leaving = False

    def quit_now(self) -> None:
        """Leave. What must be closed is closed by `run_app`, after the terminal is restored."""
        if not self._leaving:
            self._leaving = True
            self.exit()

    def exit(
        self, result: None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """Leave because a person or a signal says so."""
        self.is_wished = self.is_wished or self.crash is None
        super().exit(result, return_code, message)

    def hang_up(self) -> None:
        """The terminal is gone: leave, as a shell's programs do, or without ending the run."""
        if self.outlives_terminal:
            super().exit()
        else:
            self.exit()

    def _handle_exception(self, error: Exception) -> None:
        inner = error.error if isinstance(error, WorkerFailed) else error
        self.crash = self.crash or inner
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
