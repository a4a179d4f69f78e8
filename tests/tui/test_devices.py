"""Devices: cards in trouble, MIG, topology, charts over hours, and any number of GPUs."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.model.events import Alert, GpuUnavailable, MachineSample
from gputui.tui.source import Options
from gputui.tui.widgets.chart import TimeAxis, braille_rows
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import SECOND_NS, START_NS, Batch


def line_with(lines: list[str], text: str) -> str:
    """The first line that has `text`."""
    return next(line for line in lines if text in line)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16])
async def test_every_gpu_has_its_figures_at_every_size(
    show: Show, gpus: int, size: tuple[int, int]
) -> None:
    batches: list[Batch] = [[scripted.header(gpus)]]
    batches += [[scripted.machine(tick, gpus)] for tick in range(20)]
    async with show(batches, size) as shown:
        seen = set()
        for _ in range(gpus):
            text = shown.text
            assert "Processes on the GPUs" in text
            seen |= set(re.findall(r"^ *(\d+)  .* GiB", text, re.M)) | set(
                re.findall(r"─ (?:› )?GPU (\d+) ", text)
            )
            await shown.press("right")
        assert seen >= {str(index) for index in range(gpus)}


async def test_a_card_in_trouble_says_so_on_its_card(show: Show) -> None:
    batch = [scripted.header(1), scripted.machine(0, 1), scripted.status(0, bad=True)]
    async with show([batch], (120, 40)) as shown:
        for part in ("Xid errors 3 (last 79)", "ECC uncorrected 1", "pending: reset the GPU"):
            assert part in shown.text
    async with show([[*batch[:2], scripted.status(0)]], (120, 40)) as shown:
        assert "Xid" not in shown.text
        assert "ECC" not in shown.text


async def test_a_card_at_its_power_limit_is_not_shown_as_in_trouble(show: Show) -> None:
    sample = scripted.machine(0, 1)
    capped = replace(sample, gpus=(replace(sample.gpus[0], throttle_reasons=("power cap",)),))
    async with show([[scripted.header(1), capped]], (120, 40)) as shown:
        assert "power cap" in shown.text
        assert "THROTTLED" not in shown.text


async def test_a_lost_card_marks_itself_alone_and_shows_the_age_of_its_figures(show: Show) -> None:
    lost = GpuUnavailable(
        time_ns=START_NS + 5 * SECOND_NS, gpu=1, reasons={"device": "the GPU is lost"}
    )
    batches: list[Batch] = [[scripted.header(2)], [scripted.machine(0, 2)], [lost]]
    later = scripted.machine(30, 2)
    batches.append([msgspec.structs.replace(later, gpus=later.gpus[:1])])
    async with show(batches, (120, 40)) as shown:
        assert shown.text.count("the GPU is lost: figures are 30.0 s old") == 1
        await shown.press("right", "enter")
        assert "! the GPU is lost" in shown.text


@pytest.mark.parametrize("back_s", [5, 600, 7200])
async def test_a_clock_that_is_set_back_leaves_cards_and_charts_whole(
    show: Show, back_s: int
) -> None:
    batches: list[Batch] = [[scripted.header(1)]]
    batches += [[scripted.machine(7200 + tick, 1)] for tick in range(20)]
    batches += [[scripted.machine(7220 - back_s + tick, 1)] for tick in range(3)]
    async with show(batches, (120, 40)) as shown:
        assert "old" not in shown.text
        assert "GPU 0" in shown.text
        for _ in range(8):
            await shown.press("less_than_sign")
        assert "GPU 0" in shown.text


async def test_a_card_that_does_not_answer_is_marked_in_the_list(show: Show) -> None:
    batches: list[Batch] = [[scripted.header(8)], [scripted.machine(0, 8)]]
    later = scripted.machine(10, 8)
    batches.append([msgspec.structs.replace(later, gpus=later.gpus[1:])])
    async with show(batches, (80, 24)) as shown:
        assert shown.text.count("! no answer") >= 1
        assert "! no answer" in line_with(shown.lines, "  0  ")


async def test_mig_instances_have_their_lines(show: Show) -> None:
    batch = scripted.with_instances(scripted.header(1), scripted.machine(0, 1))
    async with show([batch], (120, 40)) as shown:
        assert "77 %" in line_with(shown.lines, "3g.71gb")
        assert "9.00/70.0 GiB" in line_with(shown.lines, "3g.71gb")
        assert "n/a" in line_with(shown.lines, "4g.71gb")


async def test_details_have_every_field_with_units_reasons_and_topology(show: Show) -> None:
    first = scripted.header(2)
    gpus = (msgspec.structs.replace(first.gpus[0], topology={1: "NV18"}), first.gpus[1])
    batch: Batch = [
        msgspec.structs.replace(first, gpus=gpus),
        scripted.machine(0, 2),
        scripted.status(0, bad=True),
        scripted.no_nvlink(0),
    ]
    async with show([batch], (120, 160)) as shown:
        await shown.press("enter")
        for label, figure in (
            ("to GPU 1", "NV18"),
            ("energy since driver load", "7.20 MJ (2.00 kWh)"),
            ("throttled so far by", "power cap 12.5 s"),
            ("ECC uncorrected", "1"),
            ("persistence mode", "on"),
            ("last Xid error", "79 at 20"),
            ("NVLink received", "n/a: no NVLink on this machine"),
            ("FP64 pipe active", "n/a: "),
            ("row remapping pending", "yes"),
        ):
            assert figure in line_with(shown.lines, label)


async def test_charts_zoom_from_half_a_minute_to_a_day(show: Show) -> None:
    batches: list[Batch] = [[scripted.header(1)]]
    batches.append([scripted.machine(60 * tick, 1) for tick in range(26 * 60)])
    async with show(batches, (120, 40)) as shown:
        for _ in range(9):
            units = re.findall(r"-\d+(\w)", line_with(shown.lines, "now"))
            assert len(set(units)) == 1, "an axis has one unit"
            await shown.press("minus")
        assert "-12h" in shown.text
        assert "charts show 24 h" in shown.text
        axis = line_with(shown.lines, "now")
        drawn = {x for line in shown.lines for x, c in enumerate(line) if "\u2800" < c < "\u2900"}
        assert axis.count("now") == 2
        assert len(drawn) > 90  # the whole day is there
        await shown.press(*["plus"] * 9)
        assert "charts show 30 s" in shown.text


async def test_the_cursor_reads_all_charts_at_one_moment(show: Show) -> None:
    batches: list[Batch] = [[scripted.header(1)]]
    for tick in range(40):
        sample = scripted.machine(tick, 1)
        gpu = msgspec.structs.replace(
            sample.gpus[0],
            sm_active_percent=float(tick),
            tensor_active_percent=float(tick) / 2,
        )
        batches.append([msgspec.structs.replace(sample, gpus=(gpu,))])
    async with show(batches, (120, 40)) as shown:
        assert "SM active  39 %  min 0 %  mean 20 %  max 39 %" in shown.text
        await shown.press("comma", "comma", "shift+left")
        assert "SM active  36 %" in shown.text
        assert "Tensor active  18 %" in shown.text
        assert "charts at " in shown.text
        await shown.give([[scripted.machine(40, 1)]])
        assert "SM active  36 %" in shown.text
        await shown.press("full_stop")
        assert "SM active  37 %" in shown.text
        await shown.press("0")
        assert "charts at " not in shown.text


async def test_phases_are_marked_where_they_began(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=20, ended=False), (120, 40)) as shown:
        assert "┬decode" in shown.text


def test_a_phase_that_has_no_room_beside_a_time_is_cut_with_a_mark() -> None:
    axis = TimeAxis(10 * SECOND_NS, SECOND_NS // 2, SECOND_NS // 2)

    def drawn(*marks: tuple[int, str]) -> str:
        return "".join(text for text, _ in axis.axis_spans(24, marks, "0:10"))

    assert drawn() == "────-10s────────────0:10"
    assert drawn((3 * SECOND_NS, "decode")) == "────-10s──┬decode───0:10"
    assert drawn((4 * SECOND_NS + SECOND_NS // 2, "decode")) == "────-10s─────┬deco…─0:10"


async def test_a_gpu_that_does_little_among_busy_ones_is_named(show: Show) -> None:
    def reading(tick: int, loads: tuple[float, ...]) -> MachineSample:
        sample = scripted.machine(tick, len(loads))
        return replace(
            sample,
            gpus=tuple(
                replace(gpu, sm_active_percent=load, memory_used_bytes=9 << 30)
                for gpu, load in zip(sample.gpus, loads, strict=True)
            ),
        )

    busy = [[reading(tick, (92.0, 91.0, 4.0, 90.0))] for tick in range(12)]
    async with show([[scripted.header(4)], *busy], (120, 40)) as shown:
        assert "! GPU 2 is 4.0 % busy, the others 91 %" in shown.text
        await shown.give([[reading(tick, (0.0, 0.0, 95.0, 0.0))] for tick in range(12, 24)])
        assert "! GPU 0 is idle and holds 9.00 GiB; GPU 1 is idle and holds 9.00 GiB" in shown.text
        await shown.give([[reading(tick, (90.0,) * 4)] for tick in range(24, 36)])
        assert "! GPU" not in shown.text


async def test_an_alert_has_a_line_and_a_mark_and_is_heard_of_while_paused(show: Show) -> None:
    """At the GPU, at the top of every view, at once; and none of it once it is over."""

    def alert(second: int, *, raised: bool) -> Alert:
        return Alert(
            time_ns=START_NS + second * SECOND_NS, condition="gpu.power_watts > 650 for 10s",
            subject="gpu1", what="power_watts", gpu=1, raised=raised, value=660.0, worst=689.0,
            since_ns=START_NS + (second - 10) * SECOND_NS,
        )  # fmt: skip

    batches: list[Batch] = [[scripted.header(2)], [scripted.machine(20, 2)]]
    async with show(batches, (120, 40), options=Options(notify="bell")) as shown:
        written: list[str] = []
        assert shown.app._driver is not None
        shown.app._driver.write = written.append  # type: ignore[method-assign]
        await shown.press("space")
        await shown.give([[alert(21, raised=True)]])
        await shown.until(lambda: "ALERT gpu1.power_watts > 650 for 10s: 660 W" in shown.text)
        assert written == ["\x07"]
        await shown.press("space")
        assert "▲ 1 alert " in shown.lines[0]
        assert "▲ ALERT gpu1.power_watts > 650 for 10s: reached 689 W" in shown.text
        assert "▲ GPU 1" in shown.text
        assert "▲ GPU 0" not in shown.text
        await shown.pilot.resize_terminal(80, 24)
        await shown.settle()
        assert "▲ alert" in line_with(shown.lines, "  1  ")
        await shown.give([[alert(40, raised=False)]])
        over = "alert over: gpu1.power_watts > 650 for 10s: 689 W"
        await shown.until(lambda: over in shown.text)
        await shown.press("left")
        assert "▲" not in shown.text


_VALUE = st.none() | st.floats(0, 1.5)


@given(st.lists(st.tuples(_VALUE, _VALUE), max_size=12), st.integers(1, 6))
def test_dots_reach_from_the_axis_to_each_value(
    pairs: list[tuple[float | None, float | None]], height: int
) -> None:
    """Each value has its own dot and all those below it; nothing else is drawn."""
    values = [value for pair in pairs for value in pair]
    rows = braille_rows(values, 1.0, height)
    lit = {
        (2 * x + right, 4 * (height - 1 - y) + up)
        for y, row in enumerate(rows)
        for x, cell in enumerate(row)
        for right, bits in enumerate(((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)))
        for up, bit in enumerate(bits)
        if cell != " " and (ord(cell) - 0x2800) & bit
    }
    for x, value in enumerate(values):
        column = sorted(level for column, level in lit if column == x)
        if value is None:
            assert column == []
            continue
        own = min(4 * height - 1, math.floor(value * 4 * height))
        assert column == list(range(own + 1))


async def test_charts_of_the_console_of_linux_are_blocks(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its font has no braille."""
    monkeypatch.setenv("TERM", "linux")
    batches: list[Batch] = [[scripted.header(1)]]
    batches.append([scripted.machine(tick, 1) for tick in range(30)])
    async with show(batches, (120, 40)) as shown:
        assert "█" in shown.text
        assert not any("\u2800" < c < "\u2900" for c in shown.text)


async def test_sections_of_details_fold_and_nothing_closes(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3), (120, 40)) as shown:
        await shown.press("enter")
        assert "architecture" in shown.text
        await shown.press("tab", "enter")
        assert "▶ Chip" in shown.text
        assert "architecture" not in shown.text
        await shown.press("enter")
        assert "▼ Chip" in shown.text
        await shown.press("escape")
        assert shown.app.screen is shown.app.main
