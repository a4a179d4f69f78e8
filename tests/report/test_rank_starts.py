"""Ranks that began late, and hosts whose clocks are apart: each is told from the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.model.events import AnyEvent, CaptureDelta, CollectiveDelta
from gputui.report.explain import Analysis
from gputui.report.explain.lost_ranks import clocks_apart, late_starts
from gputui.state import Session
from tests.events_for_tests import at, attached, run_started


@pytest.mark.parametrize(
    ("hosts", "began", "newest", "said"),
    [
        ("aaaa", (2, 2, 14, 2), (60, 60, 60, 60), ["rank 2 began late"]),
        ("aaaa", (2, 2, 11, 2), (60, 60, 60, 60), []),
        ("aa", (2, 14), (60, 60), ["rank 1 began late"]),
        ("aabb", (2, 2, 32, 32), (60, 60, 90, 90), ["clock of b apart"]),
        ("aabb", (32, 32, 2, 2), (90, 90, 60, 60), ["clock of b apart"]),
        ("aabb", (2, 2, 2, 32), (60, 60, 60, 60), ["rank 3 began late"]),
        # The newest collective waited 30 s for host b.
        ("aabb", (2, 2, 2, 2), (60, 60, 90, 90), []),
        ("aabc", (2, 2, 32, 2), (60, 60, 90, 60), ["clock of b apart"]),
        # Not all are in the same collective: whose clock is whose is not known.
        ("aabb", (2, 2, 32, 32), (60, 60, 90, None), []),
    ],
)
def test_late_starts_and_clocks_that_are_apart(
    hosts: str, began: tuple[float, ...], newest: tuple[float | None, ...], said: list[str]
) -> None:
    events: list[AnyEvent] = [run_started()]
    for rank, (host, first, last) in enumerate(zip(hosts, began, newest, strict=True)):
        name = host if len(set(hosts)) > 1 else None
        process = attached(rank + 1, rank=rank)
        events.append(replace(process, host=name, began_ns=at(first)))
        sums = CollectiveDelta(
            communicator="world",
            kind="all_reduce",
            size_class=5,
            entered=40 if last is not None else 39,
            entered_ns=at(last or 60),
        )
        events.append(CaptureDelta(time_ns=at(95), process=rank + 1, collectives=(sums,)))
    session = Session()
    session.apply(events)
    found = [
        *late_starts(Analysis(session, session.runs[1])),
        *clocks_apart(Analysis(session, session.runs[1])),
    ]
    assert [one.word for one in found] == said
