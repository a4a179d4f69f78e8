"""Sends and receives of a simulated pipeline: who waits for whom, and where the chain ends."""

from __future__ import annotations

from gputui.attribute.local_collectives import Collective, CollectiveReport
from gputui.attribute.matched_collectives import Matching
from gputui.model.events import CaptureDelta
from gputui.report.tables import table
from gputui.state import Session
from tests.attribute.test_matched_collectives import START_NS
from tests.events_for_tests import attached, run_started

WIRE_NS, SIZE = 50_000, 4096


def pipeline(work_ns: list[int], parts: int) -> list[list[Collective]]:
    """Forward passes of `parts` through stages that take so long: what each received and sent.
    A kernel ends when both ranks have come and the message has passed."""
    ranks = len(work_ns)
    free_ns = [START_NS] * ranks
    found: list[list[Collective]] = [[] for _ in range(ranks)]
    for _ in range(parts):
        for rank in range(ranks):
            free_ns[rank] += work_ns[rank]
            if rank + 1 == ranks:
                continue
            sends_ns, receives_ns = free_ns[rank], free_ns[rank + 1]
            end_ns = max(sends_ns, receives_ns) + WIRE_NS
            found[rank].append(
                Collective("pp", "send", SIZE, sends_ns, end_ns, 0, 1, sent=((rank + 1, SIZE),))
            )
            found[rank + 1].append(
                Collective("pp", "recv", 0, receives_ns, end_ns, 0, 1, received=(rank,))
            )
            free_ns[rank] = free_ns[rank + 1] = end_ns
    return found


def session_of(found: list[list[Collective]]) -> Session:
    matching = Matching()
    ranks = len(found)
    # What comes late lies before what was there: the second half comes first.
    for half in (1, 0):
        for rank, made in enumerate(found):
            part = made[: len(made) // 2] if half == 0 else made[len(made) // 2 :]
            matching.add(rank + 1, CollectiveReport(part, [], {"pp": ranks}, {"pp": rank}), None)
    matching.match()
    session = Session.from_events(
        [run_started(), *(attached(rank + 1, rank=rank) for rank in range(ranks))]
    )
    for rank in range(ranks):
        peers = matching.peers.take_peers(rank + 1)
        session.apply([CaptureDelta(time_ns=2, process=rank + 1, peers=peers)])
    assert matching.peers.take_peers(1) == ()
    return session


def rows(found: list[list[Collective]]) -> dict[tuple[object, object], dict[str, object]]:
    session = session_of(found)
    made = table(session, session.runs[1], "peers").records()
    return {(row["rank"], row["for_rank"]): row for row in made}


def test_all_stages_wait_for_the_slow_one_directly_or_not() -> None:
    found = rows(pipeline([1_000_000, 1_000_000, 9_000_000, 1_000_000], 40))
    assert found[0, 1]["chain"] == "0 → 1 → 2"
    assert found[1, 2]["chain"] == "1 → 2"
    assert found[3, 2]["chain"] == "3 → 2"
    # The first message of each pair makes the connection: what it waits does not count.
    for pair in ((0, 1), (1, 2), (3, 2)):
        row = found[pair]
        assert isinstance(row["wait_ns"], int)
        assert 30 * 6_000_000 < row["wait_ns"] < 40 * 9_000_000
        assert row["messages"] == 40
    assert found[2, 1]["wait_ns"] == found[2, 3]["wait_ns"] == 0
    assert (found[2, 1]["chain"], found[2, 3]["sent_bytes"]) == ("", 40 * SIZE)


def test_a_kernel_waits_for_the_last_of_its_partners() -> None:
    """Rank 1 receives from 0 and from 2 in one kernel; 2 comes later."""
    at = [START_NS + ns for ns in (5_000, 0, 90_000)]
    end = START_NS + 100_000
    found = [
        [Collective("pp", "send", SIZE, at[0], end, 0, 1, sent=((1, SIZE),))] * 2,
        [Collective("pp", "recv", 0, at[1], end, 0, 2, received=(0, 2))] * 2,
        [Collective("pp", "send", SIZE, at[2], end, 0, 1, sent=((1, SIZE),))] * 2,
    ]
    run = session_of(found).runs[1]
    waits = {(sums.process, sums.peer): sums.wait_ns for sums in run.peers.values()}
    assert waits == {(1, 2): 0, (2, 1): 0, (2, 3): 90_000, (3, 2): 0}


def test_messages_without_a_counterpart_are_bounded_and_silent() -> None:
    one = Collective("pp", "send", 1, START_NS, START_NS + 1, 0, 1, sent=((5, 1),))
    matching = Matching()
    matching.add(1, CollectiveReport([one] * 30_000, [], {}, {"pp": 0}), None)
    # A process that never said which rank it is.
    matching.add(2, CollectiveReport([one], [], {}, {}), None)
    assert matching.peers.take_peers(1) == matching.peers.take_peers(2) == ()
