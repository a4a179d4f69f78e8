"""The view of ranks: the late one and why, those alike as one line, each one's time."""

from __future__ import annotations

import re

import msgspec
import pytest

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    ClockCompared,
    CollectiveDelta,
    IdleLane,
    KernelDefined,
    KernelDelta,
    ProcessAttached,
    StepLanes,
)
from gputui.model.leaves import Leaf
from gputui.report.explain.ranks import lanes_together
from gputui.state import Session
from gputui.tui.views.ranks import aligned_by
from tests.events_for_tests import at, attached, header, run_started, times
from tests.report.test_ranks import job_events, rank
from tests.sessions_for_tests import analysed
from tests.tui.conftest import Show

RANKS = [rank() for _ in range(8)]
RANKS[5] = rank(wait=40_000_000)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_the_late_rank_comes_first_and_ranks_alike_are_folded(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([[header(), *job_events(RANKS)]], size) as shown:
        await shown.press("1")
        assert ("Waiting for other ranks, by step" in shown.text) == (size[0] >= 100)
        await shown.press("6")
        assert "RANK 5 IS LATE" in shown.text
        assert "7 ranks wait 40.0 ms of each 82.0 ms step for rank 5." in shown.text
        assert "─ Where the time of rank 5 goes ─" in shown.text
        rows = [line.split() for line in shown.lines if line.split()[:1] == ["5"]]
        assert len(rows) == 1
        assert "▸ 4 more ranks, late 0 %, waiting 49 %" in shown.text
        await shown.press("right")
        assert "more ranks" not in shown.text
        assert {"0", "4", "7"} <= {(line.split() or [""])[0] for line in shown.lines}
        await shown.press("left", "home", "enter")
        assert "Rank 5 (GPU 5)" in shown.text
        assert "CPU waiting" in shown.text


async def test_ranks_that_are_marked_are_what_the_other_views_are_of(show: Show) -> None:
    async with show([[header(), *job_events(RANKS)]], (80, 24)) as shown:
        await shown.press("1", "6", "end", "m")
        assert "scope: ranks 3, 4, 6 and 7, in all views but this one" in shown.lines[-1]
        assert "●▸ 4 more ranks, " in shown.text
        assert "RANK 5 IS LATE" in shown.text
        await shown.press("2")
        assert " scope  ranks 3, 4, 6 and 7: steady steps" in shown.text
        assert "Try   look at all ranks: " in shown.text
        assert " other rank                 48.8 %" in shown.text
        await shown.press("6", "m")  # unmarked
        await shown.press("home", "m", "2")
        assert " scope  rank 5: steady steps" in shown.text
        assert "RANKS WAIT" not in shown.text
        await shown.press("escape")
        assert "scope: all ranks, steady steps" in shown.lines[-1]
        assert " scope  " not in shown.text


async def test_kernels_name_the_rank_with_most_and_follow_the_ranks_that_are_marked(
    show: Show,
) -> None:
    kernels = [KernelDefined(time_ns=0, kernel=1, name="uneven", mangled="")]
    kernels += [KernelDefined(time_ns=0, kernel=2, name="even", mangled="")]
    parts = [
        CaptureDelta(time_ns=2, process=process, kernels=tuple(
            KernelDelta(process=process, range=0, kernel=kernel, device=0, time=times(ns))
            for kernel, ns in ((1, process * 1_000_000), (2, 500_000))
        ))
        for process in (1, 2)
    ]  # fmt: skip
    events = [header(), *job_events([rank(), rank()]), *kernels, *parts]
    async with show([events], (120, 40)) as shown:
        await shown.press("5")
        assert re.search(r"uneven +.* 3\.00 ms +rank 1 2\.00× +2 ", shown.text)
        assert re.search(r"even +.* 1\.00 ms +alike +2 ", shown.text)
        assert re.search(r"by rank\n +2\.00 ms +1 × +rank 1 +2\.00 ms each\n +1\.00 ms", shown.text)
        await shown.press("6", "home", "m", "5")
        assert re.search(r"uneven .* 1\.00 ms +1 ", shown.text)
        assert "most on" not in shown.text


async def test_a_run_without_ranks_says_how_to_get_some(show: Show) -> None:
    async with show([[header(), *job_events([rank()])]], (80, 24)) as shown:
        await shown.press("1", "6")
        assert "start a job with torchrun" in shown.text


async def test_a_rank_that_hangs_is_named_though_ranks_cannot_be_compared(show: Show) -> None:
    events: list[AnyEvent] = [header(), run_started()]
    for number, entered in enumerate((21, 20)):
        sums = CollectiveDelta(
            communicator="world", kind="all_reduce", size_class=5, entered=entered, left=20,
            entered_ns=at(5), ranks=2,
        )  # fmt: skip
        events.append(attached(number + 1, rank=number))
        events.append(CaptureDelta(time_ns=at(20), process=number + 1, collectives=(sums,)))
    async with show([events], (80, 24)) as shown:
        await shown.press("1", "6")
        assert "RANK 1 HANGS   Rank 1 did not come to the all_reduce" in shown.text
        assert "Ranks 0 and 1 cannot be compared: " in shown.text


def step(process: int, start_ns: int, alone: int) -> StepLanes:
    """A step of ten parts: idle, busy, and so many at the end in which only collectives ran."""
    return StepLanes(
        time_ns=2,
        process=process,
        device=process - 1,
        start_ns=start_ns,
        duration_ns=1_000_000,
        busy=(0, *[1000] * 9),
        idle=(IdleLane(int(Leaf.LAUNCH), (1000, *[0] * 9)),),
        alone=(*[0] * (10 - alone), *[1000] * alone),
    )


async def test_a_step_of_each_rank_lies_on_one_axis_and_lateness_over_the_steps(
    show: Show,
) -> None:
    ranks = [rank(), rank(wait=40_000_000)]
    # The steps that were kept of a rank need not be the same: those that lie beside one another.
    lanes = [step(1, 0, 5), step(1, 5_000_000, 5), step(2, 5_200_000, 0)]
    async with show(
        [[header(), *job_events(ranks), *job_events(ranks)[2:]], lanes], (120, 50)
    ) as s:
        await s.press("1", "6")
        title = next(n for n, line in enumerate(s.lines) if "Waiting for other ranks" in line)
        assert title < next(n for n, line in enumerate(s.lines) if line.startswith("─ Ranks "))
        waiting, late = s.lines[title + 1 : title + 3]
        assert waiting.startswith(" rank 0")  # by number: the late one is the light row
        assert "█" * 50 in waiting
        assert waiting.endswith("40.0 ms")
        assert late.split() == ["rank", "1", "0", "ns"]
        assert "A step of each rank  1.20 ms" in s.text
        first, second = (
            next(
                line
                for line in s.lines
                if line.startswith(f" rank {number}") and line.count("░") > 3
            )
            for number in (0, 1)
        )
        assert "╱" * 40 in first
        assert "╱" not in second
        assert second.index("░") - first.index("░") == pytest.approx(0.2 / 1.2 * 107, abs=2)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_many_ranks_share_the_rows_of_the_map(show: Show, size: tuple[int, int]) -> None:
    ranks = [rank() for _ in range(64)]
    ranks[37] = rank(wait=40_000_000)
    events = [*job_events(ranks), *job_events(ranks)[2:]]
    async with show([[header(), *events]], size) as s:
        await s.press("1", "6")
        lines = s.lines
        if "Waiting for other ranks" not in s.text:
            assert size[1] == 24  # the table and the answer come first
            return
        title = next(n for n, line in enumerate(lines) if "Waiting for other ranks" in line)
        rows = [line for line in lines[title + 1 :] if line.startswith(" rank ") and "█" in line]
        first, last = re.findall(r"rank (\d+)–(\d+)", "\n".join(rows))[0]
        assert int(first) == 0
        assert int(last) > 0
        assert all(len(line) <= size[0] for line in lines)


@pytest.mark.parametrize(
    ("error_ns", "note", "offset_ns"),
    [
        (10_000, "clocks of hosts aligned to ± 20.0 µs", 200_000),
        (400_000, "each from its start: clocks of hosts are known to ± 800 µs", 0),
        (None, "each from its start: clocks of hosts are not compared", 0),
    ],
)
def test_hosts_lie_on_one_axis_if_their_clocks_are_known_well_enough(
    error_ns: int | None, note: str, offset_ns: int
) -> None:
    events = [
        msgspec.structs.replace(event, host="ab"[event.process - 1])
        if isinstance(event, ProcessAttached)
        else event
        for event in job_events([rank(), rank()])
    ]
    if error_ns is not None:
        events += [
            ClockCompared(
                time_ns=3, by="here", offset_ns=7_000_000 * at, error_ns=error_ns, host=host
            )
            for at, host in enumerate("ab", 1)
        ]
    session = Session.from_events([header(), *events, step(1, 0, 5), step(2, 7_200_000, 0)])
    assert session.run is not None
    offsets_ns, said = aligned_by(session, session.run)
    assert said == note
    ranks = sorted(analysed(session.run).ranks, key=lambda one: one.rank)
    lanes = lanes_together(session.run, ranks, offsets_ns)
    assert [lane.offset_ns for lane in lanes] == [0, offset_ns]
