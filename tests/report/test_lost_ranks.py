"""A rank that died, failed or hangs is named; those that waited for it are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    CollectiveDelta,
    OpenRange,
    ProcessDetached,
    ProcessOutOfSight,
    RunAskedToEnd,
    RunEnded,
    RunOutput,
)
from gputui.report.explain import Analysis, conclusion
from gputui.report.explain.finding import Finding
from gputui.report.explain.lost_ranks import lost_ranks
from gputui.state import Session
from tests.events_for_tests import at, attached, defined, header, run_started

RANKS = 4


def found(*events: AnyEvent) -> list[Finding]:
    session = Session.from_events(
        [run_started(), *(attached(rank + 1, rank=rank) for rank in range(RANKS))]
    )
    session.apply(events)
    return list(lost_ranks(Analysis(session, session.runs[1])))


def collective(
    rank: int, entered: int, left: int, seconds: float, ranks: int = 0, open_range: int = 0
) -> CaptureDelta:
    return CaptureDelta(
        time_ns=at(seconds),
        process=rank + 1,
        collectives=(
            CollectiveDelta(
                communicator="world",
                kind="all_reduce",
                size_class=5,
                entered=entered,
                left=left,
                entered_ns=at(seconds),
                ranks=ranks,
            ),
        ),
        open_ranges=(OpenRange(open_range, at(seconds)),) if open_range else (),
    )


def later(seconds: float) -> CaptureDelta:
    return CaptureDelta(time_ns=at(seconds), process=1, records=1)


def output(*lines: str) -> RunOutput:
    return RunOutput(time_ns=at(3), run=1, stream="stderr", lines=lines)


def gone(rank: int, seconds: float, clean: bool = False) -> ProcessDetached:
    return ProcessDetached(time_ns=at(seconds), process=rank + 1, clean=clean)


def out_of_sight(rank: int, seconds: float) -> ProcessOutOfSight:
    return ProcessOutOfSight(time_ns=at(seconds), process=rank + 1)


def test_the_rank_that_is_not_in_the_collective_hangs() -> None:
    in_it = [collective(rank, 21, 20, 5) for rank in (0, 1, 3)]
    [one] = found(
        defined(1, "step", process=3),
        defined(2, "load", parent=1, process=3),
        collective(2, 20, 20, 4.9, open_range=2),
        *in_it,
        later(17),
    )
    assert one.cause == "rank_hangs"
    assert one.headline == "rank 2 hangs"
    assert one.sentence == (
        "Rank 2 did not come to the all_reduce that ranks 0, 1 and 3 are in for 12.0 s; "
        "it is in step/load."
    )


def test_a_rank_that_hung_until_the_end_was_stopped_or_is_looked_at_the_next_time() -> None:
    """As on two H100s: gputui continued the stopped one so that it could end."""
    in_it = [collective(rank, 21, 20, 5) for rank in (0, 1, 3)]
    for pids, word, advice in (
        ((), "12.0 s", "run it again, and look at its stack while it hangs: py-spy dump --pid PID"),
        (
            (attached(3).pid,),
            "stopped (SIGSTOP)",
            "find what stopped it: a debugger, Ctrl-Z, a scheduler",
        ),
    ):
        ended = RunEnded(time_ns=at(17), run=1, reason="stopped", stopped=True, continued=pids)
        [one] = found(collective(2, 20, 20, 4.9), *in_it, later(17), ended)
        assert one.sentence.endswith(f"{word}.")
        assert one.advice == advice


def test_a_hang_is_named_though_somebody_ended_it() -> None:
    """As on two H100s: Ctrl-C reached the rank that slept, the other stood in the kernel."""
    stopped = output("[rank2]: Traceback (most recent call last):", "[rank2]: KeyboardInterrupt")
    in_it = [collective(rank, 21, 20, 5) for rank in (0, 1, 3)]
    for clean in (False, True):
        ended = gone(2, 17.5, clean)
        [one] = found(collective(2, 20, 20, 4.9), *in_it, later(17), stopped, ended)
        assert one.headline == "rank 2 hangs"


def test_who_gave_up_waiting_is_not_the_one_that_hangs() -> None:
    """As with Gloo, whose ranks fail after a time-out: they are in the collective no more."""
    in_it = [collective(rank, 21, 21, 5) for rank in (0, 1, 3)]
    lines = output(
        *(
            f"[rank{rank}]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 12000ms for recv"
            for rank in (0, 1, 3)
        )
    )
    ended = [gone(rank, 17, clean=True) for rank in (0, 1, 3)]
    [one] = found(collective(2, 20, 20, 4.9), *in_it, lines, *ended, gone(2, 20))
    assert one.headline == "rank 2 hangs"
    assert "that ranks 0, 1 and 3 are in for 12.0 s." in one.sentence


def test_whom_the_end_of_a_rank_took_along_did_not_end_early() -> None:
    closed = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:38543"
    in_it = [collective(rank, 21, 21, 5) for rank in (0, 1, 3)]
    lines = output(f"[rank1]: {closed}", f"[rank0]: {closed}")
    ended = [gone(0, 4.9, clean=True), gone(2, 5.0, clean=True), gone(1, 5.1, clean=True)]
    # What the launcher ended for it vanished.
    [one] = found(collective(2, 20, 20, 4.9), *in_it, lines, *ended, gone(3, 5.2))
    assert one.sentence == "Rank 2 ended before the others, whose collectives then failed."
    # Killed, it takes others along too.
    [one] = found(collective(2, 20, 20, 4.9), *in_it, lines, ended[0], gone(2, 5), *ended[2:])
    assert one.headline == "rank 2 died"


def test_a_rank_that_never_came_is_missing_where_the_communicator_has_all() -> None:
    in_it = [collective(rank, 1, 0, 5, ranks=RANKS) for rank in (0, 1, 3)]
    [one] = found(*in_it, later(17))
    assert one.headline == "rank 2 hangs"


def test_a_rank_that_ended_before_the_others_keeps_them_waiting() -> None:
    """As with uneven data: nobody tells NCCL that one is gone."""
    in_it = [collective(rank, 21, 20, 5) for rank in (0, 1, 3)]
    [one] = found(collective(2, 20, 20, 4.9), gone(2, 4.95, clean=True), *in_it, later(17))
    assert one.headline == "rank 2 ended early"
    assert one.sentence == (
        "Rank 2 ended without coming to the all_reduce that ranks 0, 1 and 3 are in for 12.0 s."
    )
    aborted = [gone(rank, 30) for rank in (0, 1, 3)]
    [one] = found(collective(2, 20, 20, 4.9), gone(2, 4.95, clean=True), *in_it, *aborted)
    assert one.headline == "rank 2 ended early"


@pytest.mark.parametrize(
    ("last", "seen_until", "headline"),
    [
        (None, None, "ranks 2 and 3 hang"),
        (gone, 20, "ranks 2 and 3 hang"),
        (out_of_sight, 16, "ranks 2 and 3 hang"),
        (out_of_sight, 6, "ranks 2 and 3 are out of sight"),
    ],
)
def test_ranks_of_a_host_hang_for_as_long_as_they_were_seen(
    last: Callable[[int, float], AnyEvent] | None, seen_until: float | None, headline: str
) -> None:
    """A recording that ended, of a host or a link that was lost, cannot tell; one that goes on
    without bringing anything of its ranks can."""
    session = Session()
    hosts = ("a", "a", "b", "b")
    ranks = [replace(attached(at + 1, rank=at), host=name) for at, name in enumerate(hosts)]
    before = [collective(rank, 20, 20, 4.9) for rank in (2, 3)]
    ended = [last(rank, seen_until) for rank in (2, 3)] if last and seen_until else []
    in_it = [collective(rank, 21, 20, 5) for rank in (0, 1)]
    session.apply([run_started(), *ranks, *before, *in_it, later(17), *ended])
    (one,) = lost_ranks(Analysis(session, session.runs[1]))
    assert one.headline == headline
    assert ("cannot be told" in one.sentence) == headline.endswith("out of sight")


@pytest.mark.parametrize(
    "events",
    [
        # Too short.
        [*(collective(rank, 21, 20, 5) for rank in (0, 1, 3)), collective(2, 20, 20, 5), later(14)],
        # A long computation, between collectives.
        [*(collective(rank, 21, 21, 5) for rank in range(4)), later(60)],
        # Records were lost once, and all went on.
        [*(collective(rank, 21, 21, 5) for rank in (0, 1, 3)), collective(2, 20, 20, 5), later(60)],
        # All are in it: it is slow, or the network is.
        [*(collective(rank, 21, 20, 5) for rank in range(4)), later(60)],
    ],
)
def test_nobody_hangs(events: list[AnyEvent]) -> None:
    assert found(*events) == []


def test_the_first_to_vanish_is_named_and_not_who_waited_for_it() -> None:
    waiting = [collective(rank, 21, 20, 5) for rank in (0, 1, 3)]
    [one] = found(collective(2, 20, 20, 5), *waiting, gone(2, 5.5), later(30))
    assert one.cause == "rank_died"
    assert "Rank 2 (pid 103) vanished" in one.sentence
    assert "3 others still run, 24.5 s later" in one.sentence
    ended = [gone(0, 5.4), gone(2, 5.5), gone(1, 5.7), gone(3, 5.7)]
    [one] = found(collective(2, 20, 20, 5), *waiting, *ended)
    assert one.headline == "rank 2 died"


@pytest.mark.parametrize(("asked_at", "word"), [(5.4, None), (6.0, "RANK 2 DIED")])
def test_who_vanished_once_the_run_was_asked_to_end_did_not_die(
    asked_at: float, word: str | None
) -> None:
    """After Ctrl-C every rank vanishes. A rank that did so before leads without a GPU too, though
    somebody ended the run."""
    session = Session()
    ranks = [attached(rank + 1, rank=rank) for rank in range(RANKS)]
    vanished = [gone(rank, 5.5 + (rank != 2)) for rank in range(RANKS)]
    ended = RunEnded(time_ns=at(7), run=1, exit_code=1, reason="", asked_ns=at(asked_at))
    session.apply([header(), run_started(), *ranks, *vanished, ended])
    run = session.runs[1]
    found = conclusion(Analysis(session, run))
    assert (found.word if found is not None else None) == word
    assert run.outcome == "stopped"
    session = Session()  # so far, or gputui was killed meanwhile
    asked = RunAskedToEnd(time_ns=at(asked_at), run=1)
    session.apply([header(), run_started(), *ranks, *vanished[: RANKS - 1], asked])
    found = conclusion(Analysis(session, session.runs[1]))
    assert (found.word if found is not None else None) == word


def test_out_of_memory_and_failures_name_the_first_rank_and_not_those_it_took_along() -> None:
    [one] = found(
        output(
            "[rank1]: Traceback (most recent call last):",
            "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited",
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        gone(1, 4),
        gone(0, 4.1),
    )
    assert one.cause == "rank_out_of_memory"
    assert "Rank 1 ran out of memory: torch.OutOfMemoryError" in one.sentence
    [one] = found(output("[rank3]: ValueError: no such token", "[rank2]: KeyError: 7"))
    assert one.sentence == "Rank 3 failed first, and 1 more: ValueError: no such token."


def test_ranks_that_end_properly_are_no_finding() -> None:
    assert found(*(gone(rank, 5, clean=True) for rank in range(RANKS))) == []
    assert found(output("ValueError: of a program without ranks", "[rank1]: a remark")) == []


def test_a_data_loader_that_inherits_a_rank_is_not_that_rank() -> None:
    worker = attached(9, rank=1)
    events = [collective(rank, 20, 20, 5) for rank in range(4)]
    ended = ProcessDetached(time_ns=at(6), process=9, clean=False)
    assert found(worker, *events, ended, later(7)) == []
