"""Messages that cross threads on their way to the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from gputui.tui.source import Source


class EventsReady(Message, bubble=False):
    """Events wait to be taken. Several of these count as one."""

    def can_replace(self, message: Message) -> bool:
        """A later notice adds nothing to an earlier one."""
        return isinstance(message, EventsReady)


@dataclass
class Connected(Message, bubble=False):
    """The source is running."""

    source: Source


@dataclass
class NotConnected(Message, bubble=False):
    """There is no source, and why."""

    reason: str


@dataclass
class Called(Message, bubble=False):
    """A thread has finished: the screen's thread calls `then`."""

    then: Callable[[], None]
