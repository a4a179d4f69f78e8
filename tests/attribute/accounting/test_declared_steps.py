"""Steps that a workload declares end with themselves: what lies between the rows of a benchmark is
in no step, and each step counts, however long it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gputui.report.explain.time_tree import TimeTree, time_tree
from gputui.ring import RecordKind
from tests.attribute.capture_program import Program, Traced

US = 1_000
MS = 1_000 * US
PASSES = 8
ROWS = (20 * US, 500 * US, 60 * MS, 5 * US, 400 * MS)
"""How long a pass of each row takes on the GPU."""

LAUNCH_NS = 40 * US
BETWEEN_NS = 120 * MS
"""Memory is released, arrays are made, a graph is timed."""


def benchmark(program: Program, waits: bool) -> Iterator[np.void]:
    """Rows of passes, each a kernel launched at once or, where a step `waits` for it, one after the
    other; between rows the CPU works, and kernels that are no step's run."""
    clock, free, correlation = 1_000_000_000, 0, 0
    for length_ns in ROWS:
        for number in range(PASSES + 1):
            is_step = number > 0
            correlation += 1
            if is_step:
                yield program.push(clock, "step")
            yield program.call(clock + US, clock + 3 * US, correlation)
            start = max(free, clock + 6 * US)
            free = start + (length_ns if is_step else 2 * MS)
            yield program.kernel(start, free, correlation, "pass" if is_step else "fill")
            ended = free + 2 * US if waits else clock + 8 * US
            if is_step:
                yield program.pop(ended)
            clock = max(clock + LAUNCH_NS, ended + 4 * US)
        clock = max(clock, free) + BETWEEN_NS


def tree_of(
    waits: bool, ticks: int, made: Callable[[Program, bool], Iterator[np.void]] = benchmark,
    late_ns: int = 0, every: int = 1,
) -> TimeTree:  # fmt: skip
    """Operations, or one of `every` so many, are recorded `late_ns` after they ended."""
    program = Program()
    traced = Traced(program, step_range="step")

    def recorded_ns(slot: np.void) -> int:
        is_late = slot["kind"] == RecordKind.KERNEL and slot["correlation"] % every == 0
        return int(slot["end"] or slot["start"]) + (late_ns if is_late else 0)

    records = sorted(made(program, waits), key=recorded_ns)
    size = max(1, len(records) // ticks)
    for at in range(0, len(records), size):
        part = records[at : at + size]
        seconds = (int(part[-1]["end"] or part[-1]["start"]) - 1_700_000_000_000_000_000) / 1e9
        # Where some are late, what a flush says has come is what had ended before that.
        flushed_ns = int(seconds * 1e9) - (late_ns if every > 1 else 0)
        traced.feed([*part, program.flush(flushed_ns)], seconds)
        traced.collect(seconds)
    found = time_tree(traced.finish(seconds=30))
    assert found is not None
    return found


@pytest.mark.parametrize("late_ns", [0, 30 * MS])
@pytest.mark.parametrize("ticks", [1, 3, 40])
@pytest.mark.parametrize("waits", [True, False])
def test_the_mean_step_is_that_of_the_passes_alone(waits: bool, ticks: int, late_ns: int) -> None:
    found = tree_of(waits, ticks, late_ns=late_ns)
    assert found.program_steps == len(ROWS) * PASSES
    # A pass that is shorter than a launch takes as long as the launch, unless it is the last.
    lengths = [length if waits else max(length, LAUNCH_NS) for length in ROWS]
    expected = sum(lengths) / len(ROWS)
    assert found.step_mean_ns == pytest.approx(expected, rel=0.01)
    assert not found.paused


def rows_in_ranges(program: Program, waits: bool) -> Iterator[np.void]:
    """Rows in ranges of their own, a millisecond apart, whose passes work on the CPU for three
    milliseconds before they launch a kernel of one, as those that read a file."""
    clock = 1_000_000_000
    for row in range(5):
        yield program.push(clock, f"row {row}")
        for number in range(5):
            correlation = 10 * row + number + 1
            is_step = number > 0
            if is_step:
                yield program.push(clock, "step")
                clock += 3 * MS
            yield program.call(clock, clock + 3 * US, correlation)
            yield program.kernel(clock + 6 * US, clock + MS, correlation)
            clock += MS + 5 * US if waits or not is_step else 8 * US
            if is_step:
                yield program.pop(clock)
            clock += 2 * US
        yield program.pop(clock)
        clock += 2 * MS


@pytest.mark.parametrize("ticks", [1, 7])
@pytest.mark.parametrize("waits", [True, False])
def test_a_row_begins_with_what_its_first_step_does_on_the_cpu(waits: bool, ticks: int) -> None:
    found = tree_of(waits, ticks, rows_in_ranges)
    assert found.program_steps == 20
    # Without waiting the kernel of one pass runs while the next one reads.
    each = 4 * MS if waits else (4 * 3 * MS + MS) / 4
    assert found.step_mean_ns == pytest.approx(each, rel=0.02)


@pytest.mark.parametrize("ticks", [7, 30])
@pytest.mark.parametrize("waits", [True, False])
def test_steps_that_are_complete_out_of_order_are_the_same(waits: bool, ticks: int) -> None:
    found = tree_of(waits, ticks, rows_in_ranges, late_ns=9 * MS, every=3)
    assert found.program_steps == 20
    each = 4 * MS if waits else (4 * 3 * MS + MS) / 4
    assert found.step_mean_ns == pytest.approx(each, rel=0.02)


@pytest.mark.parametrize("ticks", [1, 7])
def test_what_the_main_stream_does_between_rows_begins_no_step(ticks: int) -> None:
    """The steps of one row send and receive on a stream of their own."""

    def made(program: Program, _waits: bool) -> Iterator[np.void]:
        clock = 1_000_000_000
        for number in range(90):
            row, step = divmod(number, 30)
            is_step = 5 <= step < 25
            if not step:
                yield program.push(clock, f"row {row}")
            if is_step:
                yield program.push(clock, "step")
            yield program.call(clock + 10 * US, clock + 20 * US, number + 1)
            name = "ncclDevKernel_SendRecv" if is_step else "fill"
            kernel = program.kernel(clock + 30 * US, clock + 60 * US, number + 1, name)
            kernel["b"] = 9 if is_step else 7
            yield kernel
            if is_step:
                yield program.pop(clock + 25 * US)
            clock += 100 * US if is_step else 300 * US
            if step == 29:
                yield program.pop(clock)

    found = tree_of(False, ticks, made)
    assert (found.program_steps, found.pauses) == (60, 0)
    # The last of a row has no gap after it, and the first begins with its range.
    assert found.step_mean_ns == pytest.approx(98 * US, rel=0.01)


def rows_with_more_between(
    program: Program, waits: bool, pause_ns: int, between: Callable[[int], Iterator[np.void]]
) -> Iterator[np.void]:
    """Two rows of 20 passes of 10 ms, and after each what runs `between` from a moment on."""
    clock = free = 1_000_000_000
    for row in range(2):
        yield program.push(clock, f"row {row}")
        for number in range(1, 21):
            correlation = 100 * row + number
            yield program.push(clock, "step")
            yield program.call(clock, clock + 3 * US, correlation)
            start = max(free, clock + 6 * US)
            free = start + 10 * MS
            yield program.kernel(start, free, correlation)
            clock = free + 5 * US if waits else clock + 40 * US
            yield program.pop(clock)
            clock += 2 * US
        yield from between(free)
        clock = free = free + pause_ns
        yield program.pop(clock)


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_called_nobody_knows_when_is_in_no_step(waits: bool) -> None:
    def made(program: Program, waits: bool) -> Iterator[np.void]:
        def replayed(since_ns: int) -> Iterator[np.void]:
            yield program.kernel(since_ns + 50 * MS, since_ns + 900 * MS, since_ns // MS)

        return rows_with_more_between(program, waits, 2_000 * MS, replayed)

    found = tree_of(waits, 20, made)
    assert (found.program_steps, found.step_mean_ns) == (40, pytest.approx(10 * MS, rel=0.01))


@pytest.mark.parametrize("pause_ns", [30_500 * MS, 31_000 * MS, 32_000 * MS])
def test_a_row_after_a_long_time_without_steps_has_all_of_its_own(pause_ns: int) -> None:
    def made(program: Program, waits: bool) -> Iterator[np.void]:
        def compiling(since_ns: int) -> Iterator[np.void]:
            for number in range(150):
                moment = since_ns + (number + 1) * 200 * MS
                yield program.call(moment, moment + 3 * US, 10_000 + number)
                yield program.kernel(moment + 6 * US, moment + MS, 10_000 + number)

        return rows_with_more_between(program, waits, pause_ns, compiling)

    found = tree_of(True, 60, made)
    assert (found.program_steps, found.step_mean_ns) == (40, pytest.approx(10 * MS, rel=0.01))


def test_steps_that_launch_nothing_are_counted() -> None:
    """As of a server that computes on the CPU, or whose first turns only wait."""
    program = Program()
    traced = Traced(program, step_range="step")
    clock = 1_000_000_000
    records = []
    for _ in range(4):
        records += [program.push(clock, "step"), program.pop(clock + MS)]
        clock += 2 * MS
    traced.feed([*records, program.flush(clock)], 1.0)
    traced.collect(1.0)
    run = traced.finish(seconds=3)
    assert sum(node.cpu.count for node in run.ranges.values()) == 4
