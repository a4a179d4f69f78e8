"""Phases: what runs now stays in sight, libraries and autograd are told apart."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.model.events import (
    CaptureDelta,
    KernelDelta,
    OpenRange,
    ProcessAttached,
    RangeDefined,
    RangeDelta,
    RunStarted,
    StepTimeline,
)
from tests.conftest import DATA
from tests.events_for_tests import times
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import SECOND_NS, START_NS, Batch
from tests.tui.test_recorded import recorded

LAUNCH = DATA / "faults" / "launch.gputui.gz"
AT = START_NS + 100 * SECOND_NS
FINISHED = 20


def finished_phases() -> list[Batch]:
    """A run that decodes, behind so many phases that it starts below the fold of 24 lines."""
    run = scripted.decode_run(0, 500, cuda=True, ended=False)
    early: Batch = [
        RangeDefined(time_ns=AT, range=100 + n, process=1, thread=1, parent=0, name=f"before{n}")
        for n in range(FINISHED)
    ]
    first, rest = run[0], run[1:]
    attached = next(n for n, event in enumerate(first) if isinstance(event, RangeDefined))
    return [[scripted.header(1)], [*first[:attached], *early, *first[attached:]], *rest]


async def test_what_runs_is_in_sight_until_the_person_moves(show: Show) -> None:
    batches = finished_phases()
    async with show(batches[:-1], (80, 24)) as shown:
        await shown.press("4", "s")  # in the program's order
        assert "decode  ● now" in shown.text
        assert "step  ● now" in shown.text
        assert "before0" not in shown.text
        await shown.press("g")
        assert "before0" in shown.text
        assert "0 follows" in shown.text
        await shown.give(batches[-1:])
        assert "before0" in shown.text
        assert "decode  ● now" not in shown.text
        await shown.press("0")
        assert "decode  ● now" in shown.text
        await shown.press("g", "escape")
        assert "decode  ● now" in shown.text


async def test_a_phase_larger_than_the_view_gives_way_to_the_open_one_inside(show: Show) -> None:
    names = ["train", *[f"stage{n}" for n in range(30)], "inner", "leaf"]
    parents = {"train": 0, "inner": 30, "leaf": 32} | {f"stage{n}": 1 for n in range(30)}
    numbers = {name: index + 1 for index, name in enumerate(names)}
    run = scripted.decode_run(0, 500, cuda=False, ended=False)[0][:2]
    defined: Batch = [
        RangeDefined(
            time_ns=AT,
            range=numbers[name],
            process=1,
            thread=1,
            parent=parents[name] if name != "inner" else numbers["stage29"],
            name=name,
        )
        for name in names
    ]
    opened = CaptureDelta(
        time_ns=AT,
        process=1,
        open_ranges=tuple(
            OpenRange(range=numbers[name], since_ns=AT - 5)
            for name in ("train", "stage29", "inner", "leaf")
        ),
    )
    async with show([[scripted.header(0)], [*run, *defined, opened]], (80, 24)) as shown:
        await shown.press("4", "s")  # in the program's order
        assert "stage29  ● now" in shown.text
        assert "leaf  ● now" in shown.text
        assert "stage0 " not in shown.text


async def test_names_that_number_themselves_are_one_line(show: Show) -> None:
    run = scripted.decode_run(0, 500, cuda=False, ended=False)[0][:2]
    steps: Batch = [
        RangeDefined(time_ns=AT, range=n, process=1, thread=1, parent=0, name=f"Step {n}")
        for n in (1, 2)
    ]
    async with show([[scripted.header(0)], [*run, *steps]], (80, 24)) as shown:
        await shown.press("4")
        assert "Step #" in shown.text
        assert "Step 2" not in shown.text


def with_libraries() -> list[Batch]:
    """A range of NCCL's, and kernels that autograd's thread launched in "step"."""
    run = scripted.decode_run(0, 500, cuda=True, ended=False)
    step = next(
        event.range for event in run[0] if isinstance(event, RangeDefined) and event.name == "step"
    )
    more: Batch = [
        RangeDefined(
            time_ns=AT,
            range=200,
            process=1,
            thread=1,
            parent=0,
            domain="NCCL",
            name="ncclAllReduce",
        ),
        CaptureDelta(
            time_ns=AT,
            process=1,
            ranges=(RangeDelta(range=200, cpu=scripted.dist(7, 1000)),),
            kernels=(
                KernelDelta(
                    process=1,
                    range=step,
                    kernel=1,
                    device=0,
                    time=scripted.dist(9, 1000),
                    inherited=True,
                ),
            ),
        ),
    ]
    return [[scripted.header(1)], *run, more]


async def test_keys_that_have_nothing_to_do_say_so(show: Show) -> None:
    run = scripted.decode_run(0, 500, cuda=True)
    async with show([[scripted.header(1)], *run], (120, 40)) as shown:
        await shown.press("4", "d")
        assert "no library (NCCL, CUB) wrote a range here" in shown.text
        await shown.press("0")
        assert "nothing runs now: 0 follows what does" in shown.text
        for title in ("average", "kernels", "count"):  # as s does, headings are clicked
            await shown.click(title)
            assert "by " + title in shown.text
        await shown.click("count  average")
        assert "by count ▲" in shown.text
        await shown.press("1", "1")
        for keys, said in (
            ("r", "nothing to sort here"),
            (",", "no charts here: 6 shows some"),
            (("left",), "all tables are listed here: Enter opens one"),
            ("44", "this view has no further tab"),
            (("3", "up"), "no further lane has anything in this window"),
            ("0", "the newest is in sight already"),
            (("6", "right"), "there is no other GPU"),
            (("full_stop",), "there is nothing later to read"),
            (("6", "6", "down"), "nothing is listed here"),
            (("enter",), "where a rank's time goes is not known here"),
        ):
            await shown.press(*keys)
            assert said in shown.lines[-1]


async def test_ranges_of_libraries_come_with_one_key(show: Show) -> None:
    async with show(with_libraries(), (120, 40)) as shown:
        await shown.press("4")
        assert "ncclAllReduce" not in shown.text
        assert "d: 1 of libraries" in shown.text
        await shown.press("d")
        assert "ncclAllReduce [NCCL]" in shown.text
        await shown.press("6", "d")
        assert "ranges of libraries are in Phases" in shown.text


async def test_kernels_of_threads_without_ranges_are_marked(show: Show) -> None:
    async with show(with_libraries(), (120, 40)) as shown:
        await shown.press("4")
        step = next(line for line in shown.lines if "▾ step" in line)
        assert "*" in step
        attention = next(line for line in shown.lines if " attention " in line and "%" in line)
        assert "*" not in attention
        assert "* launched by threads without a range" in shown.text


async def test_what_is_not_seen_is_told_apart_from_what_is(show: Show) -> None:
    why = "no kernels (phases are captured): CUDA_INJECTION64_PATH is held by Nsight Systems (nsys)"
    batches = finished_phases()[:-1]
    at = next(n for n, event in enumerate(batches[1]) if isinstance(event, RunStarted))
    batches[1][at] = replace(batches[1][at], capture_unavailable_reason=why)
    async with show(batches, (80, 24)) as shown:
        await shown.press("4")
        assert "decode  ● now" in shown.text
        assert "no kernels (phases are captured)" in shown.text
        assert "(nsys)" in shown.text
        assert "phases are not seen" not in shown.text


async def test_shares_are_the_same_on_both_views_and_say_of_what(show: Show) -> None:
    first = scripted.decode_run(0, 500, cuda=False, ended=False)[0][:2]
    other = ProcessAttached(
        time_ns=AT, run=1, process=2, pid=4712, parent_pid=1, rank=1, command="python x.py",
        cuda_status="no CUDA",
    )  # fmt: skip
    batch: Batch = [
        *first,
        other,
        RangeDefined(time_ns=AT, range=1, process=1, thread=1, parent=0, name="step"),
        RangeDefined(time_ns=AT, range=2, process=2, thread=2, parent=0, name="step"),
        RangeDefined(
            time_ns=AT, range=3, process=1, thread=1, parent=0, name="io", domain="loader"
        ),
        *(
            CaptureDelta(
                time_ns=AT + SECOND_NS,
                process=process,
                ranges=tuple(RangeDelta(range=number, cpu=times(total)) for number, total in found),
            )
            for process, found in ((1, ((1, 3_000_000), (3, 1_000_000))), (2, ((2, 3_000_000),)))
        ),
        StepTimeline(time_ns=AT, process=2, range=2, start_ns=AT, duration_ns=3_000_000, spans=()),
    ]
    async with show([[scripted.header(1)], batch], (120, 40)) as shown:
        await shown.press("4")
        steps = [line for line in shown.lines if line.lstrip().startswith("step")]
        assert len(steps) == 2
        assert all("100 %" in line for line in steps)
        assert " rank " in next(line for line in shown.lines if line.startswith("phase"))
    no_rank = replace(other, rank=None)
    batch = [no_rank if event is other else event for event in batch]
    async with show([[scripted.header(1)], batch], (120, 40)) as shown:
        await shown.press("4")
        heading = next(line for line in shown.lines if line.startswith("phase"))
        assert " pid " in heading
        assert " rank " not in heading
        loading = next(line for line in shown.lines if "io [loader]" in line)
        assert "%" not in loading  # not in a step: in no scope
        await shown.press("G", "enter")
        assert "process             4000" in shown.text
        assert "GPU busy" not in shown.text
        await shown.press("escape", "1", "1")
        await shown.click("Phases (NVTX")
        await shown.press("enter")
        assert "share of the wall time of each step on the launching thread" in shown.text
        words = [line.split() for line in shown.lines]
        assert [line[:4] for line in words if line[:1] == ["step"]] == [
            ["step", "default", pid, "100"] for pid in ("4000", "4712")
        ]
        assert [line[:4] for line in words if line[:1] == ["io"]] == [["io", "loader", "4000", "1"]]


async def test_a_run_without_marks_has_no_line_for_them(show: Show) -> None:
    batches = [[scripted.header(0)], *scripted.decode_run(0, 500, cuda=False, ended=False)]
    async with show(batches, (80, 24)) as shown:
        await shown.press("4")
        assert "─ Phases ─" in shown.text
        assert "MARK" not in shown.text.upper()


async def test_a_range_of_a_library_leaves_the_page_as_helpful_as_none(show: Show) -> None:
    """One line of CUB's took the place of where each step goes, over forty empty rows."""
    events = recorded(LAUNCH)
    attached = next(n for n, one in enumerate(events) if isinstance(one, ProcessAttached))
    at = events[attached].time_ns
    cub: Batch = [
        RangeDefined(
            time_ns=at, range=900, process=1, thread=1, parent=0, domain="CCCL", name="cub::Scan"
        ),
        CaptureDelta(time_ns=at, process=1, ranges=(RangeDelta(range=900, cpu=times(20, 22)),)),
    ]
    async with show([[*events[: attached + 1], *cub, *events[attached + 1 :]]], (120, 40)) as shown:
        await shown.press("4")
        assert "cub::Scan [CCCL]" in shown.text
        assert "these ranges cover <0.01 % of the run" in shown.text
        assert "─ Where each step goes ─" in shown.text
        assert "launch-bound" in shown.text
        assert "Kernels of" not in shown.text  # it has none
        await shown.press("enter")
        assert "GPU time   " in shown.text
        assert "other threads" not in shown.text
