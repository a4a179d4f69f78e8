"""The timeline, as a person meets it: a trace of PyTorch's profiler, kept steps of a recording."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from textual.widgets import Input

from gputui.model.events import (
    AnyEvent,
    IdleLane,
    RunEnded,
    StepLanes,
    StepOperations,
    StepTimeline,
    StreamLane,
    ThreadLane,
)
from gputui.playback.lanes import LaneKind, kept_steps, open_kept
from gputui.playback.opening import open_recording
from gputui.state import Session
from gputui.tui.shell.keys import own_keys
from gputui.tui.views.timeline import TimelineView
from gputui.tui.widgets.lanes import LaneWindow
from gputui.tui.widgets.view import Lead
from tests.attribute.test_kept_operations import decoding
from tests.conftest import DATA
from tests.tui.conftest import Show
from tests.tui.test_replay import Replay, replayed

TRAINING = DATA / "h100-training.json.gz"


KEYS = (
    *("plus", "minus", "g", "l", "L", "up", "down", "left", "right", "home", "end", "pageup"),
    *("pagedown", "comma", "full_stop", "n", "N", "0"),
)


@asynccontextmanager
async def timeline(size: tuple[int, int] = (120, 40)) -> AsyncIterator[Replay]:
    """The view, once every operation is read."""
    async with replayed(size, TRAINING) as replay:
        replay.playback.seek(3600)
        await replay.until(lambda: replay.app.model.run is not None)
        await replay.press("3")
        await replay.until(lambda: "GPU 0 busy" in replay.text)
        yield replay


def window(replay: Replay) -> str:
    found = re.search(r"Timeline  (.*?) of ", replay.text)
    assert found is not None, replay.text
    return found[1]


async def test_lanes_have_names_and_the_cursor_is_explained() -> None:
    async with timeline() as replay:
        for label in ("whole run", "stream 7", "main", "calls"):
            assert f" {label} " in replay.text
        for name in ("ProfilerStep", "backward", "optimizer"):
            assert f"▏{name}" in replay.text
        assert "In this window  GPU time" in replay.text
        assert re.search(r"one of \d+, usually ", replay.text)
        assert re.search(r"launched .* before by cu\w+ on python3", replay.text)
        assert re.search(r"grid \d+×\d+×\d+, block \d+×", replay.text)
        await replay.press("L")
        view = replay.app.main.view
        title = next(line for line in reversed(view.drawn) if line.startswith("─ "))
        assert "void " not in title  # as in the tables; its full name is below
        assert view.copied.removeprefix("void ")[:80] in replay.text
        await replay.press(*["plus"] * 5)
        bars = [text for row in view.painted for text, look in row if look == "cursor"]
        assert any(text.startswith("▏") for text in bars)
        assert not any("▁" in text for text in bars if text.startswith("▏"))


async def test_zoom_pan_and_fit() -> None:
    async with timeline() as replay:
        whole = window(replay)
        await replay.press("plus", "plus")
        assert window(replay) != whole
        closer = window(replay)
        await replay.press("full_stop")
        assert window(replay) != closer
        await replay.press("comma", "minus", "minus")
        await replay.press("0")
        assert "0 ns to " in window(replay)
        assert "100 % of" in replay.text


async def test_from_a_kernel_to_its_launch_and_back() -> None:
    async with timeline() as replay:
        view = replay.app.main.view
        kernel = view.copied
        await replay.press("l")
        assert view.copied.startswith("cu")
        assert "its work" in replay.text
        await replay.press("l")
        assert view.copied == kernel


async def test_gaps_measures_and_searches_are_a_key_away() -> None:
    async with timeline() as replay:
        await replay.press("g")
        assert "before it the GPU idled" in replay.text
        await replay.press("left_square_bracket")
        await replay.press("g", "right_square_bracket")
        found = re.search(r"between \[ and \]: .* GPU 0 busy .* (\d+) operations", replay.text)
        assert found is not None
        assert int(found[1]) >= 1
        await replay.press("slash", *"adamw", "enter")
        await replay.until(lambda: "adamw" in replay.app.main.view.copied.lower())
        first = replay.text
        at, hits = re.findall(r"/ adamw: (\d+) of (\d+), n next", first)[0]
        await replay.press("n")
        assert replay.text != first
        await replay.press("N", *["N"] * int(at))  # from the first one to the last
        assert f"/ adamw: {hits} of {hits}, n next" in replay.text
        await replay.press("slash", *"matmul", "enter")  # no name of a kernel, but its kind
        assert re.search(r"/ matmul: \d+ of \d+, n next", replay.text)
        await replay.press("slash", *"zzz", "enter")
        assert "/ zzz: nothing is called so" in replay.text
        await replay.press("escape")


def length_ns(replay: Replay) -> float:
    """How long what is under the cursor took, as its words say."""
    found = re.findall(r"^ ([\d.]+) (ns|µs|ms|s), from ", replay.text, re.M)
    return float(found[-1][0]) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[found[-1][1]]


async def test_the_longest_comes_first_and_then_shorter_ones() -> None:
    async with timeline() as replay:
        await replay.press("L")
        longest = length_ns(replay)
        lengths = []
        for _ in range(4):
            await replay.press("L")
            lengths.append(length_ns(replay))
        assert lengths == sorted(lengths, reverse=True)
        assert longest >= lengths[0]
        await replay.press("right", "L")  # the longest again, not the one after that on the right
        assert length_ns(replay) == longest
        await replay.press("plus", "L")  # of a window around it
        assert length_ns(replay) == longest
        assert "L again goes to the next one" in replay.text


async def test_a_search_without_a_hit_leaves_the_view_where_it_was() -> None:
    async with timeline() as replay:
        view = replay.app.main.view
        assert isinstance(view, TimelineView)
        await replay.press("slash", "z", "z")
        assert not view._is_followed, "a newer step takes the place of the one that is searched"
        await replay.press("escape")
        assert view._is_followed
        await replay.press("plus", "plus", "right")
        title, chosen = window(replay), replay.app.main.view.copied
        seen = []
        await replay.press("slash")
        assert "find a name" in replay.app.main.query_one(Input).placeholder
        for letter in "adamwzz":
            await replay.press(letter)
            seen.append((window(replay), replay.app.main.view.copied))
        assert any(place != (title, chosen) for place in seen[:5])
        assert seen[-1] == (title, chosen)
        assert "nothing is called so" in replay.text
        await replay.press("backspace", "backspace", "escape")
        assert (window(replay), replay.app.main.view.copied) == (title, chosen)
        await replay.press("slash", *"adamw", "enter")
        hit = replay.app.main.view.copied
        assert "adamw" in hit.lower()
        await replay.press("escape")  # what was kept by Enter stays
        assert replay.app.main.view.copied == hit


async def test_enter_leads_to_the_kernel_and_the_phase() -> None:
    async with timeline() as replay:
        name = replay.app.main.view.copied
        await replay.press("enter")
        assert replay.app.main.current == "kernels"
        assert replay.app.main.view.copied == name
        await replay.press("t")
        assert isinstance(replay.app.main.view, TimelineView)
        assert replay.app.main.view.copied == name
        await replay.press("escape", "escape")
        assert isinstance(replay.app.main.view, TimelineView)
        await replay.press("down", "down", "enter")
        await replay.until(lambda: replay.app.main.current == "phases")


async def test_no_title_of_a_kernel_s_details_stands_without_its_lines() -> None:
    async with timeline() as replay:
        await replay.press("5")
        seen = set()
        for height in range(28, 46):
            await replay.pilot.resize_terminal(120, height)
            await replay.pilot.pause()
            lines = [line.strip() for line in replay.app.main.view.drawn if line.strip()]
            seen.update(lines)
            assert lines[-1] not in ("launched as", "launched in", "by rank"), height
        assert {"launched as", "launched in"} <= seen


async def test_what_is_clicked_is_chosen_and_what_is_dragged_over_fills_the_window() -> None:
    async with timeline() as replay:
        view = replay.app.main.view
        y = next(y for y, line in enumerate(view.drawn) if line.startswith(" stream 7"))
        x = view.drawn[y].rindex("▏") + 2
        before = view.copied
        await replay.pilot.click(view, offset=(x, y))
        await replay.pilot.pause()
        assert view.copied != before or "cursor" in str(view.painted[y])
        wide = window(replay)
        await replay.pilot.mouse_down(view, offset=(40, y))
        await replay.pilot.hover(view, offset=(60, y))
        await replay.pilot.mouse_up(view, offset=(60, y))
        await replay.pilot.pause()
        narrow = window(replay)
        assert narrow != wide
        await replay.pilot.click(view, offset=(20, 1))  # in all of the run
        await replay.pilot.pause()
        assert window(replay) != narrow


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 50)])
async def test_it_fits_any_terminal_and_no_key_is_dead(size: tuple[int, int]) -> None:
    async with timeline(size) as replay:
        main = replay.app.main
        for key in KEYS:
            main._message, before = None, main.view.painted
            await replay.press(key)
            await replay.pilot.pause()
            assert main._message is not None or main.view.painted != before, key
            assert all(len(line) <= size[0] for line in main.view.drawn)


@pytest.fixture(scope="module")
def decode() -> list[AnyEvent]:
    """A program whose steps were kept with every operation, as while it runs."""
    return [event for event in decoding(14) if not isinstance(event, RunEnded)]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_a_live_run_has_named_kernels_of_its_newest_kept_step(
    show: Show, decode: list[AnyEvent], size: tuple[int, int]
) -> None:
    async with show([decode], size) as shown:
        await shown.press("3")
        kept = min(8, sum(isinstance(event, StepOperations) for event in decode))
        assert re.search(rf"step of 3\.00 ms.* {kept} of {kept} kept: N$", shown.text, re.M)
        for label in ("whole step", "GPU 0 busy", "idle because", "stream 0", "thread 100"):
            assert f" {label} " in shown.text
        assert "▏decode_step" in shown.text
        assert re.search(r"▏ker(nel|…)", shown.text)  # by name, with no key
        await shown.press("L")
        assert "launched" in shown.text
        await shown.press("g")
        assert re.search(r"before it the GPU idled [\d.]+ .s: \w+", " ".join(shown.text.split()))
        await shown.press("N")
        assert f"{kept - 1} of {kept} kept" in shown.text
        await shown.press("0")
        assert f" {kept} of {kept} kept" in shown.text


async def test_of_what_was_not_kept_no_figure_is_shown(show: Show, decode: list[AnyEvent]) -> None:
    whole = next(event for event in decode if isinstance(event, StepOperations))
    at = decode.index(whole)
    # What is after it is as the launches before a step: of that time no device was kept.
    half = replace(whole, duration_ns=whole.duration_ns // 2)
    async with show([[*decode[:at], half]]) as shown:
        await shown.press("3", "0")
        assert " not kept" not in shown.text
        await shown.press("end", *["plus"] * 4)
        busy = next(line for line in shown.lines if line.startswith(" GPU 0 busy"))
        assert busy.endswith(" not kept")
        assert " 0.0 %" not in shown.text
        words = " ".join(shown.text.split())
        assert "after this step: what the GPU did then was not kept" in words
        await shown.press("left_square_bracket", "left", "right_square_bracket")
        assert "GPU 0 not kept" in shown.text


async def test_a_kept_step_without_most_of_its_operations_says_so(
    show: Show, decode: list[AnyEvent]
) -> None:
    steps = [event for event in decode if isinstance(event, StepOperations)]
    others = [event for event in decode if event not in steps]
    for step in (steps[-1], replace(steps[-1], duration_ns=steps[-1].duration_ns // 8)):
        async with show([[*others, step]]) as shown:
            await shown.press("3")
            said = re.search(r"! (\d+) of some (\d+) operations of a step were kept", shown.text)
            assert (said is not None) == (step is not steps[-1])
            assert said is None or 2 * int(said[1]) < int(said[2])


async def test_a_chosen_step_stays_while_others_are_kept(
    show: Show, decode: list[AnyEvent]
) -> None:
    steps = [event for event in decode if isinstance(event, StepOperations)]
    first = decode.index(steps[0]) + 1
    async with show([decode[:first]]) as shown:
        await shown.press("3")
        assert "1 of 1 kept\n" in shown.text  # no key to another one
        await shown.give([[steps[1]]])
        assert "2 of 2 kept" in shown.text  # the newest, as long as nothing is chosen
        await shown.press("N", "right")
        name = shown.app.main.view.copied
        await shown.give([[replace(steps[1], start_ns=steps[1].start_ns + 10**9)]])
        assert "1 of 3 kept" in shown.text
        assert shown.app.main.view.copied == name


async def test_enter_on_a_cause_leads_to_its_longest_gap(
    show: Show, decode: list[AnyEvent]
) -> None:
    async with show([decode]) as shown:
        await shown.app.main.follow_lead(Lead("timeline", "idle.launch"))
        await shown.settle()
        assert "GPU idled" in shown.text
        assert "launch-bound" in shown.text


def test_a_gap_before_which_its_end_was_launched_is_queued(decode: list[AnyEvent]) -> None:
    session = Session()
    session.apply(decode)
    run = session.run
    assert run is not None
    step = kept_steps(run)[-1]
    lanes = open_kept(session, run, step)
    window = LaneWindow(run, lanes, 0, lanes.end_ns, 100)
    [(process, device)] = lanes.busy
    gaps = lanes.gaps(process, device)
    assert gaps is not None
    calls = next(lane for lane in lanes.lanes if lane.kind is LaneKind.CALLS)
    stream = next(lane for lane in lanes.lanes if lane.kind is LaneKind.STREAM)
    for start, end in zip(gaps.starts[:20].tolist(), gaps.ends[:20].tolist(), strict=True):
        row = int(np.flatnonzero(stream.spans.starts == end)[0])
        [call] = np.flatnonzero(calls.correlations == stream.correlations[row])
        moments = calls.spans.starts
        was = int(moments[call])
        moments[call] = start - 1
        assert "queued, this was launched before the gap began" in window.idle_words(stream, end)[0]
        moments[call] = start + 1
        assert "queued" not in window.idle_words(stream, end)[0]
        moments[call] = was


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> list[AnyEvent]:
    """Steps of a program on an H200, as nsys recorded them, without their operations: as an older
    gputui kept them."""
    path: Path = tmp_path_factory.mktemp("nsys") / "ranges.sqlite"
    path.write_bytes(gzip.decompress((DATA / "h200-ranges.sqlite.gz").read_bytes()))
    return list(open_recording(str(path)))


async def test_steps_without_operations_have_what_was_kept_of_them(
    show: Show, training: list[AnyEvent]
) -> None:
    step = next(event for event in training if isinstance(event, StepLanes))
    other = replace(step, busy=(1000,) * 96, idle=(), start_ns=step.start_ns + 10**8,
                    duration_ns=2 * step.duration_ns)  # fmt: skip
    at = training.index(step)
    rest = [event for event in training[at:] if not isinstance(event, StepLanes | StepTimeline)]
    async with show([[*training[:at], other, step, *rest]], (120, 40)) as shown:
        await shown.press("3")
        assert "step of 16.0 ms, slow, 3.2× a usual one" in shown.text
        assert next(line for line in shown.lines if "GPU 0 busy" in line).endswith("100.0 %")
        await shown.press("N")
        assert "step of 8.00 ms, slow, 1.6× a usual one, at" in shown.text
        assert " 1 of 2 kept: n\n" in shown.text
        busy = next(line for line in shown.lines if "GPU 0 busy" in line)
        assert busy.endswith("12.8 %")
        ink = [" ▁▂▃▄▅▆▇█".index(cell) for cell in busy[14 : 14 + 97]]
        assert abs(sum(ink) / 97 / 8 - 0.128) < 1 / 16  # what is there at all shows an eighth
        because = next(line for line in shown.lines if line.startswith(" idle because ░"))
        assert because.endswith("87.2 %")
        assert re.search(r"^ main .*▏in the program's own code", shown.text, re.M)
        assert "thread 529" in shown.text
        assert next(line for line in shown.lines if line.startswith(" stream 17")).endswith(" %")


async def test_what_a_recording_makes_up_does_no_harm(
    show: Show, training: list[AnyEvent], decode: list[AnyEvent]
) -> None:
    step = next(event for event in training if isinstance(event, StepLanes))
    whole = next(event for event in decode if isinstance(event, StepOperations))
    odd: list[tuple[list[AnyEvent], AnyEvent, AnyEvent]] = [
        (training, step, replace(step, busy=(), idle=(), duration_ns=0)),
        (training, step, replace(step, duration_ns=2**63 - 1)),
        (training, step, replace(step, busy=(2**31 - 1, 0),
                                 idle=(IdleLane(99, (1, 2)), IdleLane(13, (1,))))),
        (training, step, replace(
            step, threads=(ThreadLane(2**32, "?q9", 7), ThreadLane(1, "")),
            streams=(StreamLane(-1, 2**63 - 1, "zz99i"), StreamLane(1, 0, "")))),
        (decode, whole, replace(whole, packed=b"no zlib")),
        (decode, whole, replace(whole, refers=(), duration_ns=2**63 - 1)),
        (decode, whole, replace(whole, start_ns=0)),
    ]  # fmt: skip
    for events, event, other in odd:
        at = events.index(event)
        async with show([[*events[:at], other, *events[at + 1 :]]], (80, 24)) as shown:
            await shown.press("3", "N", "right", *KEYS)
            assert shown.app.is_running


async def test_a_recording_without_operations_has_its_steps_in_bars() -> None:
    async with replayed(path=DATA / "h200-medium.gputui") as replay:
        await replay.press("3")
        assert replay.app.main.current == "steps"
        await replay.press("3")
        assert replay.app.main.current == "steps"


async def test_what_the_help_does_needs_no_focus() -> None:
    """What is chosen there is done when its dialog has gone, the focus comes back later: on a busy
    machine the screen ended."""
    async with timeline() as replay:
        main = replay.app.main
        [gap] = [key for key in own_keys(TimelineView) if key.help == "next gap"]
        main.set_focus(None)
        await main.run_action(gap.action)
        await replay.until(lambda: "before it the GPU idled" in replay.text)
