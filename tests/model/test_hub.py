"""Where events meet: in order, journalled before they are seen, one notice at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gputui.model.events import AnyEvent
from gputui.model.hub import Hub
from tests.events_for_tests import header, run_ended, run_started


class Recorded:
    """A recorder that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def write(self, events: Sequence[AnyEvent]) -> None:
        self.events += events


def test_a_reader_that_does_not_take_is_told_once() -> None:
    notices: list[None] = []
    hub = Hub(lambda: notices.append(None))
    hub.emit([header()])
    hub.emit([run_started()])
    assert len(notices) == 1
    assert hub.drain() == [header(), run_started()]
    hub.emit([run_ended()])
    assert len(notices) == 2
    assert hub.drain() == [run_ended()]
    assert hub.drain() == []


def test_nothing_passes_before_the_header() -> None:
    recorded = Recorded()
    hub = Hub(lambda: None, recorded)
    hub.emit([run_started()])
    assert hub.awaits_header
    assert hub.drain() == recorded.events == []
    hub.emit([header()])
    assert not hub.awaits_header
    assert hub.drain() == recorded.events == [header(), run_started()]


def test_events_of_many_threads_are_recorded_in_the_order_they_are_taken() -> None:
    recorded = Recorded()
    hub = Hub(lambda: None, recorded)
    hub.emit([header()])
    start = threading.Barrier(4)

    def emit(number: int) -> None:
        start.wait()
        for _ in range(200):
            hub.emit([run_started(number), run_ended(number)])

    threads = [threading.Thread(target=emit, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    taken: list[AnyEvent] = []
    while any(thread.is_alive() for thread in threads):
        taken += hub.drain()
    taken += hub.drain()
    assert taken == recorded.events
    assert len(taken) == 1 + 4 * 200 * 2
