"""The answer first: a verdict on the first screen, its evidence a key or a click away."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import cast

import msgspec
import pytest
from rich.cells import cell_len
from rich.style import Style
from textual.events import Click
from textual.widgets import OptionList

from gputui.base.sanitize import cut_middle
from gputui.model.events import Alert, Distribution, RunStarted, StepBlock
from gputui.model.events.distributions import Accumulator
from gputui.model.kernel_categories import short_names
from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.model.units import count, duration
from gputui.playback.opening import open_recording
from gputui.report.answer import answer
from gputui.report.explain import Analysis, Finding, Verdict, conclusion
from gputui.report.explain.evidence import largest_part
from gputui.report.explain.finding import Gain
from gputui.report.explain.time_tree import time_tree
from gputui.report.statistics import kernel_rows, memory_time_rows
from gputui.report.tables.time import leaf_shares
from gputui.state import Session
from gputui.tui.dialogs.palette import Palette
from gputui.tui.source import Options
from gputui.tui.views.overview import OverviewView
from gputui.tui.widgets.canvas import apportion, nice_top, row_width
from gputui.tui.widgets.causes import cause_rows, cured_bar, hundred_bar
from gputui.tui.widgets.run import evidence, verdict_rows
from gputui.tui.widgets.run_panels import distribution, step_points
from gputui.tui.widgets.view import Lead
from tests.conftest import DATA
from tests.events_for_tests import times
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded
from tests.tui.test_steps import SLOW

LAUNCH = DATA / "faults" / "launch.gputui.gz"
FIRST = Options(shows_run=True)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_a_program_without_ranges_opens_on_its_verdict(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([recorded(LAUNCH)], size, options=FIRST) as shown:
        head = "\n".join(shown.lines[2:12])
        for part in ("LAUNCH-BOUND", "88 % of each step", "CUDA graphs", "░░░░", "busy 9.7 %"):
            assert part in head
        assert "Where each step goes" in shown.text
        assert " 2 Time " in shown.lines[0]
        assert " 3 Timeline " in shown.lines[0]
        assert " 7 Runs " in shown.lines[0]
        assert "Step time  median 83.9 µs, p99 177 µs" in shown.text
        assert "A step here is 3 operations, repeated: yours may hold many of them." in shown.text
        assert all(cell_len(line) <= size[0] for line in shown.lines)
        view = shown.app.main.view
        assert isinstance(view, OverviewView)
        for key in ("down", "right"):  # the verdict is chosen already: each goes on from it
            await shown.press(key)
            assert view._chosen is not None
            assert view._chosen
            await shown.press("0")
        # The evidence in two keys, back in two.
        await shown.press("enter")
        assert shown.app.main.current == "time"
        assert "─ idle › launch-bound ─" in shown.text
        assert ("Mean of 36.5 k steady steps of 3 operations." in shown.text) == (size[0] > 80)
        await shown.press("enter")
        assert shown.app.main.current == "steps"
        assert "▲" in shown.text
        assert "Steps in order  36.5 k, mean" in shown.text
        assert re.search("─ means of [0-9,]+ each, │ the longest ─", shown.text)
        assert "─ 36,465" in shown.text
        assert "─ Distribution ─" in shown.text
        assert "Esc back" in shown.lines[-1]
        await shown.press("escape", "escape")
        assert shown.app.main.current == "overview"
        assert "Esc back" not in shown.lines[-1]
        await shown.press("escape")
        assert shown.app.main.current == "overview"


async def test_what_the_first_steps_seem_to_say_is_no_verdict(show: Show) -> None:
    events = recorded(LAUNCH)
    early = [one for one in events if one.time_ns - events[0].time_ns < 9_300_000_000]
    async with show([early], (80, 24), options=FIRST) as shown:
        assert "Watching the first steps: " in shown.text
        assert "launch-bound" in shown.text
        assert "LAUNCH-BOUND" not in shown.text


async def test_why_nothing_is_captured_stands_there_once(show: Show) -> None:
    started = next(one for one in recorded(LAUNCH) if isinstance(one, RunStarted))
    blind = msgspec.structs.replace(started, capture_unavailable_reason="no CUPTI was found")
    async with show([[scripted.header(1), blind]], (120, 40), options=FIRST) as shown:
        assert "No verdict: no GPU work is seen in this run." in shown.text
        head = "\n".join(line for line in shown.lines[:5] if "─" not in line)
        assert head.count("no CUPTI was found") == 1  # the output has it as its own line


async def test_a_chart_of_a_single_step_gives_way_to_how_steps_are_spread(show: Show) -> None:
    async with show([recorded(DATA / "h100-graphs.gputui.gz")], (120, 40), options=FIRST) as shown:
        assert "─ Step time" not in shown.text
        assert "─ Distribution ─" in shown.text
        await shown.press("3", "3")
        assert "Only the lengths of the newest 1 of 47 steps were kept one by one." in shown.text


async def test_panels_show_what_the_sentence_says_and_nothing_else(show: Show) -> None:
    async with show([recorded(DATA / "faults" / "no_cache.gputui.gz")], options=FIRST) as shown:
        assert "4.02 ms to 8.59 ms within 560 steps." in shown.text
        assert "─ GPU work a step  4.06 ms to 8.85 ms ─" in shown.text
    async with show([recorded(DATA / "h200-serve.gputui.gz")], options=FIRST) as shown:
        assert re.search(
            " decode/attention +472 µs .+ prefill/attention +111 µs ", shown.text, re.S
        )
        assert not re.search("^ Rest ", shown.text, re.MULTILINE)
        await shown.press("l", "end")
        assert "─ Log of " in shown.text
        await shown.press("escape")  # hides it; the end is where the answer is, not the last panel
        assert "─ Log of " not in shown.text
        await shown.press("enter")
        assert shown.app.main.current == "time"
    imported = list(open_recording(str(DATA / "h100-training.json.gz")))
    async with show([imported], options=FIRST) as shown:
        assert "─ GPU 0  NVIDIA H100" in shown.text
        assert not re.search(r" n/a |printed nothing|z scale", shown.text)
        await shown.press("6")
        assert not re.search("n/a|100 %┤|z scale|t tree", shown.text)
        await shown.press("6")
        assert "no reading of it" in shown.text


async def test_rows_of_a_benchmark_are_named_first_and_nothing_is_to_be_tried(show: Show) -> None:
    benchmark = DATA / "experiments" / "streams.gputui.gz"
    async with show([recorded(benchmark)], (80, 24), options=FIRST) as shown:
        assert shown.lines[2].startswith(" BENCHMARK  These are steps of 5 rows of different work")
        assert "COPY-BOUND" in shown.text
        assert not re.search("^ (Try|Gain|Where) ", shown.text, re.MULTILINE)
        assert shown.text.count("different work") == 1


def in_full(found: Verdict) -> str:
    """What stands there of a verdict at 80 columns, none of it cut."""
    rows = verdict_rows(found, 80, is_chosen=True)
    text = " ".join("".join(part for part, _ in row) for row in rows)
    assert "…" not in text
    return " ".join(text.split())


def test_a_fact_that_leads_says_what_of_the_speed_and_where_it_is_seen() -> None:
    leak = Finding(
        cause="memory_grows",
        view="memory",
        word="",
        sentence="It grows.",
        advice="look for it",
        value=1,
        threshold=1,
        source="",
    )
    found = Verdict("MEMORY GROWS", "It grows.", (leak,), speed="Nothing stands out.")
    text = "\n".join("".join(part for part, _ in row) for row in
                     verdict_rows(found, 80, is_chosen=True))  # fmt: skip
    assert text.startswith(" MEMORY GROWS   It grows. ")
    assert "Enter shows more\n Try   look for it.\n Speed Nothing stands out." in text
    assert evidence(leak) == Lead("memory")
    slow = msgspec.structs.replace(leak, sentence="The CPU is slow. " * 9, place="train.py:7 step")
    assert "Mostly at train.py:7 step." in in_full(Verdict("CPU-BOUND", slow.text, (slow,)))
    seen = msgspec.structs.replace(slow, evidence=(".item() at train.py:7: 2 × a step", "x" * 300))
    lines = in_full(Verdict("CPU-BOUND", seen.text, (seen,)))
    assert "Where .item() at train.py:7: 2 × a step. Try" in lines  # whole sentences or none
    long = msgspec.structs.replace(slow, place=f"train.py:7 {'step' * 99}")
    rows = verdict_rows(Verdict("CPU-BOUND", long.text, (long,)), 80, is_chosen=True)
    assert max(row_width(row) for row in rows) <= 80
    many = msgspec.structs.replace(leak, advice="more of them, " * 9,
                                  gains=(Gain(5.3, 6.0),))  # fmt: skip
    told = in_full(Verdict("SLOW", "It is.", (many,)))
    assert told.count("more of them") == 9
    assert told.endswith("5.3 to 6.0× faster.")


@pytest.mark.parametrize("fault", ["pageable", "odd_shapes", "lock_while_asleep"])
def test_where_no_line_is_known_what_takes_most_is_named(fault: str) -> None:
    session = Session.from_events(recorded(DATA / "faults" / f"{fault}.gputui.gz"))
    run = session.run
    assert run is not None
    found = conclusion(Analysis(session, run))
    assert found is not None
    inside = largest_part(session, run, found.findings[0])
    if fault == "lock_while_asleep":  # its line is known
        assert not inside
        return
    rows = memory_time_rows(run) if fault == "pageable" else kernel_rows(session, run)
    of = {"pageable": "Host-to-Device", "odd_shapes": "Kernel2"}[fault]
    largest = max((row for row in rows if of in row.name), key=lambda row: row.total)
    assert of in inside
    assert inside.endswith(f"{count(largest.instances)} × {duration(largest.average)}")
    drawn = verdict_rows(found, 80, is_chosen=True, inside=inside)
    assert any("".join(text for text, _ in row) == f" Where {inside}" for row in drawn)


async def test_what_a_low_screen_has_no_room_for_is_counted_and_a_key_away(show: Show) -> None:
    async with show([recorded(LAUNCH)], (80, 24), options=FIRST) as shown:
        await shown.press("2")
        lines = shown.lines
        where = next(y for y, line in enumerate(lines) if line.startswith("─ idle › launch-bound"))
        assert "waits for the next kernel launch 88 %" in lines[where + 1]  # what was seen first
        await shown.pilot.resize_terminal(60, 16)
        await shown.settle()
        [cut] = re.findall(r"… (\d+) more lines  → shows all", shown.text)
        assert int(cut) > 1
        assert re.search(r" cause  .*\d+ more ↓ ", shown.text)
        assert re.search(r" total +100.0 %", shown.text)
        assert "between two launches" not in shown.text
        await shown.press("right")
        await shown.press("pagedown")
        assert "between two launches" in " ".join(shown.text.split())
        await shown.press("escape")


async def test_what_a_key_does_a_click_does(show: Show) -> None:
    waits = Alert(time_ns=1, since_ns=1, condition="idle.launch > 40%", subject="run",
                  what="idle.launch", value=88.0, worst=90.0)  # fmt: skip
    async with show([recorded(LAUNCH), [waits]], (120, 40), options=FIRST) as shown:
        assert "▲ ALERT idle.launch > 40%: reached 90 %" in shown.text
        await shown.click("─ Output ─")
        assert shown.app.main.log_pane.display
        await shown.press("l")
        await shown.click("busy  matmul")
        assert shown.app.main.current == "overview"
        await shown.click("busy  matmul")
        assert shown.app.main.current == "time"
        assert "─ busy › matmul ─" in shown.text
        assert "▲ launch-bound " in shown.text
        await shown.click("▸ matmul")
        assert "▾ matmul" in shown.text
        assert "of it" in shown.text
        await shown.click("▾ busy")
        assert "matmul" not in shown.text.split("total")[0].replace("busy › matmul", "")
        await shown.press("escape")
        await shown.click("Kernels  GPU time")
        assert shown.app.main.current == "kernels"
        await shown.click("CUDA calls")
        assert "cudaLaunchKernel" in shown.text
        await shown.pilot.click("#of-1")
        await shown.settle()
        assert shown.app.main.current == "overview"


async def test_the_palette_and_the_clipboard(show: Show) -> None:
    async with show([recorded(DATA / "h200-inference.gputui")], (120, 40), options=FIRST) as shown:
        await shown.press("colon")
        assert isinstance(shown.app.screen, Palette)
        await shown.until(lambda: "choose a workload" in shown.text)
        assert " kernel " not in shown.text  # until something is typed
        await shown.press(*"gpus: memory")
        await shown.until(lambda: "choose a workload" not in shown.text)
        await shown.press("enter")
        await shown.until(lambda: shown.app.main.current == "memory")
        await shown.press("ctrl+p", *"zzz")
        await shown.until(lambda: "No matches" in shown.text)
        await shown.press("escape", "5", "down", "y")
        row = shown.app.main.view.copied
        assert row.startswith("nvjet_sm90")
        assert shown.app.clipboard == row
        assert f"copied {len(row)} characters" in shown.text
        await shown.press("Y")
        assert "distribution_ele" in shown.app.clipboard

        await shown.press("slash", *"nvjet", "enter", "colon", *"layer", "space", *"norm")
        listed = r" vectorized_layer_norm_kernel +kernel"
        await shown.until(lambda: re.search(listed, shown.text) is not None)
        await shown.press("enter")
        await shown.until(lambda: "vectorized_layer_norm" in shown.app.main.view.copied)
        await shown.press("colon", *"warmup/step/mlp")
        await shown.until(lambda: "warmup/step/mlp  phase" in shown.text)
        await shown.press("enter")
        # It was closed.
        await shown.until(lambda: shown.app.main.view.copied == "warmup/step/mlp")
        assert shown.app.main.current == "phases"
        await shown.press("left", "left", "home", "escape", "colon", *"warmup/step/mlp")
        await shown.until(lambda: "warmup/step/mlp  phase" in shown.text)
        await shown.press("enter")
        await shown.until(lambda: shown.app.screen is shown.app.main)
        await shown.until(lambda: shown.app.main.view.copied == "warmup/step/mlp")


async def test_hostile_names_and_runs_without_a_gpu(show: Show) -> None:
    for batches in (scripted.hostile_session(), scripted.cpu_session(ended=False)):
        async with show(batches, (120, 40), options=FIRST) as shown:
            on_cpu = "the program has not loaded CUDA" in shown.text
            panels = ("─ step  median ", "─ Host  gpu-box ", "─ Timeline  the last step kept, ")
            assert all((panel in shown.text) is on_cpu for panel in panels)
            for key in ("1", "2", "3"):
                await shown.press(key, "down", "right", "down", "enter", "escape")
                assert all(cell_len(line) <= 120 for line in shown.lines)


def test_the_ink_equals_the_figure() -> None:
    tree = None
    for event_file in (LAUNCH, DATA / "faults" / "input.gputui.gz"):
        session = Session.from_events(recorded(event_file))
        assert session.run is not None
        tree = time_tree(session.run)
        assert tree is not None
        known = leaf_shares(tree)
        said = [line.label for group in answer(session, session.run) for line in group]
        for state, leaves in (("busy", known.busy), ("idle", known.idle)):
            assert f"{state}  {known.text(leaves):>7}" in said
        row, _ = hundred_bar(tree, 200)
        busy = sum(len(text) for text, _ in row if text[0] == "█")
        assert abs(busy / 200 - (1 - tree.share(tree.idle_ns))) <= 1 / 200
        rows, leaves = cause_rows(tree, 100, 20)
        largest = tree.leaves[leaves[0]]
        widest = 8 * len(rows[0][-1][0])
        for line, leaf in zip(rows, leaves, strict=False):
            assert LEAVES[leaf].label in line[1][0]
            meaning = LEAVES[leaf]  # textures are whole cells
            drawn = line[-1][0].replace(meaning.texture, "█")
            off = abs(_eighths(drawn) - widest * tree.leaves[leaf] / largest)
            assert off <= (4 if meaning.is_idle else 1)


def test_what_a_cure_leaves_is_drawn_on_the_scale_of_the_bar_above_it() -> None:
    for gain, drawn in (
        (Gain(2.0, 4.0), ("█" * 50, "─" * 49 + "┤")),
        (Gain(2.0, 20.0), ("", "─" * 99 + "┤")),  # said as "at least 2.0×"
        (Gain(1.0, 2.0), ("█" * 100, "─" * 99 + "┤")),
    ):
        assert tuple(text for text, _ in cured_bar(gain, 200)) == drawn


async def test_where_pauses_count_the_bar_and_the_sentence_are_of_the_same_time(show: Show) -> None:
    pauses = DATA / "faults" / "save_each_ten.gputui.gz"
    async with show([recorded(pauses)], (120, 40), options=FIRST) as shown:
        found = shown.app.model.found[0]
        assert found is not None
        first = found.findings[0]
        assert first.with_pauses
        said = 0.0
        for key in (first.cause, *first.covers):
            label = re.escape(LEAVES[LEAF_OF_KEY[key]].label)
            shares = {*re.findall(rf"[^a-z] +{label} +(\d+\.\d) %", shown.text)}
            assert len(shares) <= 1
            said += sum(map(float, shares))
        assert said == pytest.approx(first.share_percent, abs=0.2)
        assert "a step, pauses too" in shown.text


def test_a_share_is_rounded_as_in_the_summary() -> None:
    """48.949 % is 48.9, whatever the others are."""
    session = Session.from_events(recorded(LAUNCH))
    assert session.run is not None
    tree = time_tree(session.run)
    assert tree is not None
    blocks = tuple(StepBlock(device=0, loop=1, steps=10, ns=50) for _ in range(10))
    steady = replace(tree, steps=100, newest=(), blocks=(blocks,))
    assert step_points(steady)[1] == "all 100 steps, means of 10 each"
    turns = replace(steady, steps=117)  # with its warm-up and pauses
    assert step_points(turns)[1] == "100 of 117 steps, means of 10 each"
    leaves = {Leaf.MATMUL: 20_388, Leaf.HOST: 48_949, Leaf.WAIT: 29_124, Leaf.LAUNCH: 1_539}
    known = leaf_shares(replace(tree, wall_ns=100_000, leaves=leaves))
    assert [known.text([leaf]) for leaf in leaves] == ["20.4 %", "48.9 %", "29.1 %", "1.5 %"]
    assert (known.text(known.busy), known.text(known.idle)) == ("20.4 %", "79.6 %")


def _eighths(text: str) -> int:
    return sum(8 if cell == "█" else " ▏▎▍▌▋▊▉".index(cell) for cell in text)


def test_parts_and_scales() -> None:
    assert apportion([1, 1, 1], 100) == [34, 33, 33]
    assert apportion([], 7) == []
    assert [nice_top(value) for value in (0.9, 12, 21, 26, 60)] == [1.0, 15.0, 25.0, 30.0, 60.0]


def test_no_two_kernels_read_alike() -> None:
    name = "void at::native::vectorized_elementwise_kernel<{}, at::native::{}<float>>(int, {})"
    names = [name.format(*parts) for parts in ((4, "Add", "A"), (4, "Mul", "A"), (8, "Mul", "A"))]
    assert short_names(["void kernel<getrf_wo_pivot_params_<float, 0> >(int)"], 60) == [
        "getrf_wo_pivot_params_"
    ]
    for width in (20, 30, 60):
        short = short_names(names, width)
        assert len(set(short)) == 3
        assert all(cell_len(one) <= width for one in short)
    tiles = [f"nvjet_sm90_tst_{tile}_64x4_bz_TNT" for tile in ("256x8", "256x9", "257x8", "257x9")]
    for width in range(12, 40):
        assert len(set(short_names(tiles, width))) == 4
    assert cut_middle("nvjet_sm90_tst_64x8_splitK_bias_TNT", 24) == "nvjet_sm90_tst…_bias_TNT"


@pytest.mark.parametrize(
    ("lengths", "shown"),
    [
        # Steps known within 1 %: five empty classes stood between two buckets.
        (times(*[3_700_000] * 210, *[3_740_000] * 490, *[3_800_000] * 95, *[3_000_000] * 5),
         [("< 3.68 ms", 5), ("3.68 ms", 210), ("3.75 ms", 490), ("3.82 ms", 95)]),
        # Few steps: no more classes than they fill; the slow ones say how slow.
        (times(*[13_000_000, 13_200_000] * 16, 219_000_000, 401_000_000),
         [("13.0 ms", 16), ("13.1 ms", 16), ("219 ms to 401 ms", 2)]),
        (times(70, 70, 70), [("70 ns", 3)]),
    ],
)  # fmt: skip
def test_classes_are_as_fine_as_the_steps_are_known(
    lengths: Distribution, shown: list[tuple[str, int]]
) -> None:
    spread = Accumulator.merged([lengths])
    if len(shown) == 4:
        spread._make_coarse()
    rows = distribution(spread, 12, 60).rows
    assert [(row[0][0].strip(), int(row[2][0])) for row in rows] == shown
    assert sum(often for _, often in shown) == spread.count


@pytest.mark.parametrize("size", [(120, 40), (200, 50)], ids=str)
async def test_the_kernels_say_how_many_are_shown(show: Show, size: tuple[int, int]) -> None:
    """What was cut with its panel was counted as shown."""
    slow = Path(__file__).parents[2] / "gputui" / "demo" / "slow.gputui.gz"
    async with show([recorded(slow)], size) as shown:
        await shown.press("1")
        y = next(y for y, line in enumerate(shown.lines) if "─ Kernels " in line)
        found = re.search(r"─ Kernels .*? (\d+) of \d+", shown.lines[y])
        assert found is not None
        below = [line[found.start() : found.end()] for line in shown.lines[y + 1 :]]
        rows = takewhile(lambda text: re.search(r" %  +[\d.]+", text), below)
        assert len(list(rows)) == int(found[1])


async def test_the_palette_where_nothing_of_it_is_visible(show: Show) -> None:
    async with show([recorded(DATA / "h200-inference.gputui")], (120, 40), options=FIRST) as shown:
        await shown.press("colon")
        await shown.until(lambda: "choose a workload" in shown.text)
        await shown.pilot.resize_terminal(20, 2)
        await shown.press("pagedown", "pageup", "end", "pagedown")
        await shown.pilot.resize_terminal(120, 40)
        await shown.press("escape")
        await shown.until(lambda: shown.app.screen is shown.app.main)


async def test_escape_that_comes_with_the_colon_closes_the_palette(show: Show) -> None:
    async with show([recorded(DATA / "h200-inference.gputui")], (120, 40), options=FIRST) as shown:
        for _ in range(3):
            shown.app.main.action_palette()
            cast("Palette", shown.app.screen).dismiss()  # before it is mounted
            await shown.until(lambda: shown.app.screen is shown.app.main)
        assert "choose a workload" not in shown.text


async def test_a_click_on_a_row_of_the_palette_that_is_gone_chooses_nothing(show: Show) -> None:
    async with show([recorded(DATA / "h200-inference.gputui")], (120, 40), options=FIRST) as shown:
        await shown.press("colon")
        await shown.until(lambda: "choose a workload" in shown.text)
        listed = shown.app.screen.query_one(OptionList)
        gone = Style(meta={"option": listed.option_count})
        x, y = listed.region.offset
        listed.post_message(Click(listed, 0, 0, 0, 0, 1, False, False, False, x, y, gone))
        await shown.settle()
        assert isinstance(shown.app.screen, Palette)
        await shown.press("escape")
        await shown.until(lambda: shown.app.screen is shown.app.main)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_every_panel_is_a_card_that_tab_reaches_and_opens(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([recorded(SLOW)], size, options=FIRST) as shown:
        view = shown.app.main.view
        assert isinstance(view, OverviewView)
        titles = sum(line.count("─ ") > 0 for line in view.drawn)
        opened, seen = set[str](), []
        await shown.press("tab")
        while view._chosen not in seen:
            seen.append(view._chosen)
            focused = [row for row in view.painted if any(role == "tab-active" for _, role in row)]
            assert focused or isinstance(view._chosen, int)
            await shown.press("enter")
            if shown.app.main.current == "overview":  # the output is a pane below
                await shown.press("l")
                opened.add("log")
            else:
                opened.add(shown.app.main.current)
                await shown.press("escape")
            await shown.press("tab")
        assert len(seen) >= titles
        wanted = {"time", "steps", "devices"} | ({"phases", "kernels", "log"} if size[0] > 80
                                                 else set())  # fmt: skip
        assert wanted <= opened


async def test_a_click_anywhere_in_a_card_opens_its_view(show: Show) -> None:
    async with show([recorded(SLOW)], (120, 40), options=FIRST) as shown:
        view = shown.app.main.view
        y = next(y for y, line in enumerate(view.drawn) if line.startswith("─ Step time"))
        await shown.pilot.click(view, offset=(30, y + 4))
        await shown.settle()
        assert shown.app.main.current == "steps"


async def test_the_verdict_says_how_sure_it_is(show: Show) -> None:
    async with show([recorded(SLOW)], (80, 24), options=FIRST) as shown:
        tree = shown.app.model.analysis(shown.app.model.run).tree
        words = " ".join(shown.text.split())
        pattern = r"Sure launch-bound [\d.]+ ms ± (\d+) µs of a step's .* interval, (\d+) steady"
        [(half_us, steps)] = re.findall(pattern, words)
        assert int(steps) == tree.steps
        blocks = [(block.steps, dict(block.leaves)[Leaf.LAUNCH]) for block in tree.blocks[0]]
        jackknife = []
        for left_out in range(len(blocks)):
            rest = blocks[:left_out] + blocks[left_out + 1 :]
            jackknife.append(sum(ns for _, ns in rest) / sum(steps for steps, _ in rest))
        mean = sum(jackknife) / len(jackknife)
        square = sum((each - mean) ** 2 for each in jackknife) * (len(blocks) - 1) / len(blocks)
        # Student's quantile of a few to many blocks, times the error that leaving each out gives.
        assert 1.9 <= float(half_us) * 1000 / square**0.5 <= 2.4
