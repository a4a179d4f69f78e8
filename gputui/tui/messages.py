"""Messages that cross threads on their way to the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from gputui.tui.source import Source


class EventsReady(Message, bubble=False):
    """Events wait to be taken. Any number of these is one."""

    def can_replace(self, message: Message) -> bool:
        """A later notice says nothing that an earlier one did not."""
        return isinstance(message, EventsReady)


@dataclass
class Connected(Message, bubble=False):
    """The source runs."""

    source: Source


@dataclass
class NotConnected(Message, bubble=False):
    """There is no source, and why."""

    reason: str


@dataclass
class Called(Message, bubble=False):
    """A thread has finished: `then` is to be called by the screen's own."""

    then: Callable[[], None]
