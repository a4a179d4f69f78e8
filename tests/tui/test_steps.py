"""All steps in bars: ink that equals the figure, slow ones found, a window that stays."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gputui.model.events import AnyEvent, CaptureDelta, RunEnded, StepBlock, StepLanes
from gputui.model.events.distributions import Accumulator
from gputui.model.leaves import DOING, EIGHTHS, ROW_PARTS, Leaf, pack, unpack
from gputui.playback.opening import open_recording
from gputui.report.explain import Analysis
from gputui.report.explain.time_tree import TimeTree
from gputui.report.tables.timing import (
    StepColumn,
    columns_of_tree,
    merged_columns,
    next_slow,
    numbers_row,
)
from gputui.state import Session
from gputui.tui.views.steps import StepsView
from gputui.tui.widgets.step_columns import explained, spread, step_bars
from tests.conftest import DATA
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded

SLOW = Path(__file__).parents[2] / "gputui" / "demo" / "slow.gputui.gz"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> list[AnyEvent]:
    """Steps of a program on an H200, as nsys recorded them, through the same attribution as live
    ones."""
    path: Path = tmp_path_factory.mktemp("nsys") / "ranges.sqlite"
    path.write_bytes(gzip.decompress((DATA / "h200-ranges.sqlite.gz").read_bytes()))
    return list(open_recording(str(path)))


def lanes_of(events: list[AnyEvent]) -> StepLanes:
    return next(event for event in events if isinstance(event, StepLanes))


def test_the_parts_of_a_step_are_busy_or_idle_for_a_cause(training: list[AnyEvent]) -> None:
    step = lanes_of(training)
    assert len(step.busy) == 96
    for part, busy in enumerate(step.busy):
        whole = busy + sum(lane.parts[part] for lane in step.idle)
        assert abs(whole - 1000) <= len(step.idle) + 1


def test_threads_and_streams_of_a_step_are_kept_in_few_bytes(training: list[AnyEvent]) -> None:
    step = lanes_of(training)
    assert [lane.thread for lane in step.threads] == [498, 529]  # the main one, autograd's
    for thread in step.threads:
        assert set(unpack(thread.doing)) <= set(DOING)
        assert len(unpack(thread.doing)) == ROW_PARTS
    busy = [lane.busy_ns for lane in step.streams]
    assert busy == sorted(busy, reverse=True)
    assert len(busy) == 3
    for stream in step.streams:
        ink = sum(EIGHTHS.index(letter) for letter in unpack(stream.ink)) / 8 / ROW_PARTS
        assert ink == pytest.approx(stream.busy_ns / step.duration_ns, abs=1 / 16)
    without = replace(step, threads=(), streams=())
    assert len(msgspec.json.encode(step)) - len(msgspec.json.encode(without)) <= 200


def test_rows_that_a_recording_makes_up_are_read_as_far_as_they_go() -> None:
    assert unpack(pack("llls" + "h" * 44)) == "llls" + "h" * 44
    assert unpack("h999999999l") == "h" * ROW_PARTS
    assert unpack("\x1b[31m 7 l2") == "mll"
    assert unpack("") == ""


def test_the_next_slow_step_is_found_either_way() -> None:
    even = [StepColumn(n, 1, ns, {}) for n, ns in enumerate((10, 10, 31, 10, 16, 10), 1)]
    assert [next_slow(even, at, 1, 10.0) for at in (-1, 2, 4)] == [2, 4, 2]  # round again
    assert [next_slow(even, at, -1, 10.0) for at in (5, 4, 2)] == [4, 2, 4]
    assert next_slow(even[:2], 0, 1, 10.0) is None
    blocks = [StepColumn(1, 8, 80, {}), StepColumn(9, 8, 92, {})]
    assert next_slow(blocks, -1, 1, 10.0) == 1  # single slow steps are lost in their means
    # Four of one length are slower than usual, and faster than the mean: nothing is slow there.
    fast = [*blocks, StepColumn(17, 4, 44, {}), StepColumn(21, 4, 200, {})]
    assert next_slow(fast, 1, 1, 10.0) == 3
    assert numbers_row(blocks, 40) == "1 ───────── means of 8 each ───────── 16"
    assert numbers_row(blocks, 20) == ""


def stalling() -> list[StepColumn]:
    """Steps of 13 ms, each fourth of 340, as they are recorded: in blocks of four."""
    ms = 1_000_000
    leaves = {Leaf.MATMUL: 40 * ms, Leaf.HOST: 339 * ms}
    return [
        StepColumn(first, 4, 379 * ms, leaves, (first + n, 1), (340 if n == 3 else 13) * ms)
        for first in range(1, 41, 4)
        for n in range(4)
    ]


def test_single_long_steps_are_seen_among_short_ones() -> None:
    """13, 13, 13, 340 ms: each block was drawn at its mean, and all looked alike."""
    columns = stalling()
    rows, scale = step_bars(spread(columns, 40), 13e6, 5)
    assert scale == 1.5e8  # where usual steps still have ink
    assert rows[0] == "   ▲" * 10
    assert rows[1] == "   █" * 10
    assert rows[-1] == "▃▃▃█" * 10
    [row], _ = step_bars(spread(columns, 20), 13e6, 1)
    assert row == "▃▲" * 10  # the longest of each two
    assert numbers_row(columns, 40).strip("─ 140") == "each column one step"
    assert [next_slow(columns, at, 1, 13e6) for at in (0, 3, 39)] == [3, 7, 3]
    assert [next_slow(columns, at, -1, 13e6) for at in (3, 0)] == [39, 39]
    assert (
        merged_columns(columns).ns == 10 * 379e6
    )  # a block's sum once, however many columns it has


def test_several_steps_in_a_column_show_their_mean_and_the_longest() -> None:
    columns = [
        StepColumn(1, 100, 1000, {}, (1, 50), 100),
        StepColumn(1, 100, 1000, {}, (51, 50), 10),
    ]
    rows, scale = step_bars(spread(columns, 2), 10.0, 5)
    assert scale == 40  # four usual steps: one of ten would leave them half a row
    assert rows == ["▲ ", "│ ", "│ ", "▂▂", "██"]
    wide, _ = step_bars(spread(columns, 6), 10.0, 5)
    assert wide[0] == "▲     "  # one step, however wide its column
    assert "means of 50 each, │ the longest" in numbers_row(columns, 60)


def test_steps_have_their_time_under_the_causes_of_the_time_tree() -> None:
    """Each of 59 steps was launch-bound 27 points beyond all of them together."""
    events = recorded(DATA / "gains" / "class_report.gputui.gz")
    session = Session()
    session.apply(events)
    assert session.run is not None
    tree = Analysis(session, session.run).tree
    assert tree is not None
    assert {move.source for move in tree.moves} == {Leaf.SYNC, Leaf.LAUNCH}
    whole = merged_columns(columns_of_tree(tree))
    for leaf in (Leaf.SYNC, Leaf.LAUNCH):
        share = whole.leaves[leaf] / whole.whole_ns
        assert share == pytest.approx(tree.share(tree.leaves[leaf]), abs=0.01)


def test_pauses_stand_among_the_steps_where_shares_are_of_them() -> None:
    """14 pauses were 30 % of a loop's time, and in Timeline at no scope."""
    blocks = (
        StepBlock(0, 1, 2, 20, ((0, 20),), ((1, 8), (1, 12)), 1, ((int(Leaf.INPUT), 300),)),
        StepBlock(0, 1, 2, 20, ((0, 20),), ((2, 2**40),)),
        StepBlock(0, 1, 2, 20, ((0, 20),), ((1, 10),)),  # its parts are made up
    )
    tree = TimeTree(60, {Leaf.MATMUL: 60}, 1, 6, 6, Accumulator(), 0, 0, blocks=(blocks,))
    columns = columns_of_tree(tree, with_pauses=True)
    assert [column.own for column in columns] == [(1, 1), (2, 1), (3, 0), (3, 2), (5, 2)]
    assert [column.pauses for column in columns] == [0, 0, 1, 0, 0]
    assert [column.longest_ns for column in columns] == [8, 12, None, 2**40, None]
    assert next_slow(columns, 0, 1, 10.0) == 2
    [words, cause] = explained(columns[2], tree, 80)
    assert "Pause after step 2  300 ns" in "".join(text for text, _ in words)
    assert "idle input  100.0 %" in "".join(text for text, _ in cause)
    assert [column.pauses for column in columns_of_tree(tree)] == [0] * 4


async def test_the_cursor_stays_at_its_steps_while_more_come(show: Show) -> None:
    """It stood at columns that held other steps when blocks of steps were put together; under a
    drag they are not."""
    events = recorded(SLOW)
    more = [one for one in events if isinstance(one, CaptureDelta) and one.step_blocks][-1]
    async with show([[one for one in events if not isinstance(one, RunEnded)]], (120, 40)) as shown:
        await shown.press("3", "3", *["left"] * 20)
        view = shown.app.main.view
        assert isinstance(view, StepsView)

        def own() -> tuple[int, int]:
            assert view._column is not None
            return view._column.own

        first, _ = own()
        for _ in range(4):
            await shown.give([[more] * 40])
            low, steps = own()
            assert low <= first < low + steps
            assert "▲" in shown.text
        await shown.press("0")
        y = next(n for n, line in enumerate(view.drawn) if line.startswith(" GPU busy"))
        await shown.pilot.mouse_down(view, offset=(14 + 20, y))
        await shown.pilot.hover(view, offset=(14 + 30, y))
        assert view.dragged is not None
        chosen = [view._columns[n].first for n in view.dragged]
        await shown.give([[more] * 70])
        assert [view._columns[n].first for n in view.dragged] == chosen
        await shown.pilot.mouse_up(view, offset=(14 + 30, y))
        await shown.settle()
        scope = shown.app.model.scope
        assert scope is not None
        assert scope.first == chosen[0]
