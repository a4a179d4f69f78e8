"""Background threads whose results return to the screen's thread as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from textual.message import Message

from gputui.tui.errors import one_line
from gputui.tui.look import Look
from gputui.tui.messages import Called

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
