"""Estimates from windows of tracing, against programs of which all is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from gputui.attribute import Attributes, LaunchedOperations
from gputui.attribute.arrays import Holes
from gputui.attribute.collection import Collection
from gputui.attribute.distributions import grouped
from gputui.attribute.instances import Finalised
from gputui.attribute.range_stacks import Nodes
from gputui.attribute.windows import KEPT_STARTS, Windows
from gputui.inject import FIRST_EXCESS_NS, WINDOW_NS
from gputui.model.events import CaptureDelta, DeviceDelta, RangeDelta
from gputui.model.hub import Numbering
from gputui.report.answer import answer
from gputui.report.comparable import Subject
from gputui.report.compare import compare
from gputui.report.phases import phase_rows, shares_error_points
from gputui.report.tables.phases import PHASES
from gputui.report.windows import tracing_cost, tracing_line
from gputui.ring import SLOT, RecordKind, WindowEdge
from gputui.ring.reader import NO_RING
from gputui.state import Run, Session
from gputui.tui.widgets.run import notes
from tests.events_for_tests import at, attached, header, run_started

SLOWER, STALL_NS = 0.2, 8_000_000
"""What tracing costs the simulated program while it is on, and each switch of it."""

PHASES_NS = np.array([6e6, 9e6, 40e6, 30e6])
GPU_PART = np.array([0.9, 0.7, 0.95, 0.5])
NAMES = ("step", "attention", "mlp", "cache", "rare")


@dataclass
class Program:
    """Steps of four phases: one in every 16th step, one in 60 at random, one that grows."""

    begins: np.ndarray
    ends: np.ndarray
    gpu: np.ndarray
    windows: list[tuple[int, int, int, int]]

    @property
    def true_shares(self) -> np.ndarray:
        """Of all GPU time: from the program itself, not from what was seen of it."""
        sums = self.gpu.sum(axis=0)
        return 100 * sums / sums.sum()


def program(rng: np.random.Generator, seconds: float, period_s: float, graphs=0.0) -> Program:
    """Its windows stretch it; `graphs` is what CUPTI costs after the first."""
    count = int(seconds / 0.018)
    step = np.arange(count)
    host = PHASES_NS * rng.lognormal(0, 0.05, (count, 4))
    host[:, 0] *= 1 + 0.3 * step / count
    host[:, 2] *= step % 16 == 0
    host[:, 3] *= rng.random(count) < 1 / 60
    gpu = host * GPU_PART * rng.lognormal(0, 0.03, (count, 4))
    now, opens_ns, windows = float(at(10)), 0.0, []
    begins, ends = np.zeros((count, 5)), np.zeros((count, 5))
    open_at: float | None = None
    opens_ns = now + 1e9 * period_s * rng.random()
    for at_step in range(count):
        opening = None
        if open_at is None and now >= opens_ns:
            opening, now = now, now + STALL_NS
            open_at = now
        slower = 1 + SLOWER if open_at is not None else 1 + graphs * bool(windows)
        lengths = host[at_step] * slower
        begins[at_step, 0] = now if opening is None else opening
        for phase in range(4):
            begins[at_step, 1 + phase], now = now, now + lengths[phase]
            ends[at_step, 1 + phase] = now
        ends[at_step, 0] = now
        if opening is not None:
            windows.append([opening, open_at, 0, 0])
        if open_at is not None and now - open_at >= WINDOW_NS:
            windows[-1][2:] = now, now + STALL_NS
            now, open_at = now + STALL_NS, None
            opens_ns = now + 1e9 * period_s * (0.5 + rng.random()) - WINDOW_NS
    whole = [tuple(map(int, window)) for window in windows if window[3]]
    return Program(begins.astype(np.int64), ends.astype(np.int64), gpu, whole)


def seen(of: Program) -> tuple[Run, Windows, Session]:
    """What gputui makes of it: ranges always, kernels in windows."""
    nodes = Nodes(1, 10, Numbering(), None)
    parents = [-1, 1, 1, 1, 1]
    for name, parent in zip(NAMES, parents, strict=True):
        nodes.resolve(
            np.array([parent]), np.array([100 + NAMES.index(name)]), np.array([0]),
            lambda _: (10, ""), lambda _, name=name: Attributes(name), at(1),
        )  # fmt: skip
    watched = Windows(nodes, Holes())
    slots = np.zeros(4 * len(of.windows), SLOT)
    slots["kind"] = RecordKind.WINDOW
    slots["sub"] = np.tile([int(edge) for edge in WindowEdge], len(of.windows))
    slots["start"] = np.array(of.windows, np.uint64).reshape(-1)
    watched.feed(slots)
    ran = np.ones(of.begins.shape, np.bool_)
    ran[:, 1:] = of.gpu > 0
    which = np.broadcast_to(np.arange(1, 6), of.begins.shape)[ran].astype(np.int64)
    starts, ends = of.begins[ran], of.ends[ran]
    empty = np.zeros(len(which), np.int64)
    no = np.zeros(len(which), np.bool_)
    finalised = Finalised(
        empty, which, starts, ends, empty + 1, empty, empty, empty, empty, no, no, no, empty,
        empty.astype(np.uint64), empty.astype(np.uint8),
    )  # fmt: skip
    traced = np.zeros(of.gpu.shape, np.bool_)
    for _, on, off, _ in of.windows:
        traced |= (of.begins[:, 1:] >= on) & (of.begins[:, 1:] < off)
    traced &= of.gpu > 0
    gpu_starts = of.begins[:, 1:][traced]
    gpu_ends = gpu_starts + of.gpu[traced].astype(np.int64)
    at_nodes = np.broadcast_to(np.arange(2, 6), of.gpu.shape)[traced].astype(np.int64)
    none = np.zeros(len(at_nodes), np.int64)
    launched = LaunchedOperations(gpu_starts, gpu_ends, at_nodes, none)
    parts = watched.collect_parts(
        Collection(
            process=1, nodes=nodes, now_ns=int(ends.max()), ended=True, until_ns=None,
            settled_ns=None, finalised=finalised, launched=launched, known_until_ns=None,
            ring=NO_RING, unread=0, unplaced=0,
        )
    )  # fmt: skip
    times = dict(grouped(which, ends - starts))
    busy = np.bincount(at_nodes, gpu_ends - gpu_starts, 6).astype(np.int64)
    busy[1] = busy.sum()
    on_ns = sum(off - on for _, on, off, _ in of.windows)
    numbers = nodes.number
    delta = CaptureDelta(
        time_ns=int(ends.max()),
        process=1,
        ranges=tuple(
            RangeDelta(
                range=int(numbers[node]), cpu=times[node], gpu_busy_ns=int(busy[node]),
                gpu_total_ns=int(busy[node]),
            )
            for node in range(1, 6)
            if node in times
        ),
        devices=(DeviceDelta(process=1, device=0, busy_ns=int(busy[1]), operations=1,
                             first_start_ns=at(10), last_end_ns=int(ends.max())),),
        traced_ns=on_ns,
        paused_ns=int(ends.max()) - int(of.begins[0, 0]) - on_ns,
        **parts,
    )  # fmt: skip
    session = Session()
    started = replace(run_started(), max_cost_percent=3.0)
    session.apply([header(), started, attached(), *nodes.defined, delta])
    assert session.run is not None
    assert session.unknown_references == 0
    return session.run, watched, session


def test_bars_of_shares_hold_in_nine_of_ten_programs() -> None:
    rng = np.random.default_rng(7)
    held: list[bool] = []
    errors = []
    for _ in range(14):
        of = program(rng, 75, 4)
        run, _, _ = seen(of)
        rows = {row.name: row for row in phase_rows(run)}
        assert rows["step"].gpu_busy_percent == pytest.approx(100)
        row = [rows[name] for name in NAMES[1:]]
        found = np.array([one.gpu_busy_percent for one in row])
        bars = [one.gpu_busy_error_points for one in row]
        off = np.abs(found - of.true_shares)
        errors.append(off)
        held += [error <= bar for error, bar in zip(off, bars, strict=True) if bar is not None]
        assert sum(bar is not None for bar in bars) >= 3
        estimate = rows["mlp"].gpu_estimate
        assert estimate is not None
        assert estimate.amount == pytest.approx(of.gpu[:, 1].sum(), rel=0.03)
    assert np.mean(held) >= 0.9
    assert len(held) > 3 * 14
    assert np.mean(errors, axis=0).max() < 1.2


def test_the_cost_is_that_of_the_simulated_program() -> None:
    rng = np.random.default_rng(11)
    held, found, periods = [], [], []
    for _ in range(8):
        of = program(rng, 100, 5)
        run, watched, _ = seen(of)
        cost = tracing_cost(run)
        assert cost is not None
        assert cost.percent is not None
        assert cost.error_percent is not None
        spent = sum((1 - 1 / (1 + SLOWER)) * (off - on) + 2 * STALL_NS for _, on, off, _ in
                    of.windows)  # fmt: skip
        took = of.ends[-1, 0] - of.begins[0, 0]
        true = 100 * spent / (took - spent)
        held.append(abs(cost.percent - true) <= cost.error_percent)
        found.append(cost.percent / true)
        periods.append(watched.costs.period_ns(3.0) / (spent / len(of.windows) / 0.03))
    assert np.mean(held) >= 0.8
    assert np.mean(found) == pytest.approx(1, abs=0.1)
    # At 3 % a window that costs 100 ms comes every 3.3 s; on top the upper end, and rounding.
    assert 1.0 < np.mean(periods) < 1.7
    assert min(periods) > 0.7


def test_before_any_window_was_measured_the_dearest_program_is_assumed() -> None:
    costs = Windows(Nodes(1, 10, Numbering(), None), Holes()).costs
    assert costs.period_ns(2.0) >= FIRST_EXCESS_NS / 0.02
    assert costs.period_ns(50.0) >= WINDOW_NS / 0.8


def test_turns_are_kept_in_bounded_memory() -> None:
    costs = Windows(Nodes(1, 10, Numbering(), None), Holes()).costs
    nodes = np.ones(10_000, np.int64)
    for tick in range(30):
        costs.add(nodes, at(10 + tick) + np.arange(len(nodes)) * 100_000)
    assert costs.step == 1
    assert sum(map(len, costs._starts)) <= 2 * KEPT_STARTS


def test_what_a_budget_came_to_is_said_in_one_line() -> None:
    of = program(np.random.default_rng(3), 90, 5)
    run, _, session = seen(of)
    line = tracing_line(run, shares_error_points(run))
    assert line is not None
    assert line.startswith("tracing 9.6 % of the time, costs 1.7 % ± 0.5, GPU shares ± ")
    assert " points" in line
    assert "CUPTI" not in line
    shown = "".join(text for row in notes(run, 200) for text, _ in row)
    assert line in shown
    wrapped = notes(run, 40)
    assert notes(run, 40, most=len(wrapped)) == wrapped
    assert notes(run, 40, most=1)[0][-1][0].endswith("…")
    assert any(line in "".join(part.text for part in group) for group in answer(session, run))
    table = PHASES.table(session, run)
    assert "estimated" in table.note
    comparison = compare([Subject("windows", session, run), Subject("all", session, run)])
    assert any("part of the time" in remark for remark in comparison.remarks)
    (mlp,) = (item for item in comparison.of_kind("phase") if item.short == "mlp")
    assert "kernels" not in mlp.figures
    assert mlp.figures["gpu_total_ns"].values[0].error is not None


def test_a_budget_that_cannot_be_kept_says_its_floor() -> None:
    of = program(np.random.default_rng(5), 60, 6, graphs=0.06)
    run, _, _ = seen(of)
    cost = tracing_cost(run)
    assert cost is not None
    assert cost.floor_percent == pytest.approx(6, abs=3)
    line = tracing_line(run, None)
    assert line is not None
    total = cost.total_percent(cost.percent or 0)
    assert total > (cost.percent or 0) + (cost.floor_percent or 0)
    assert f", costs about {total:.1f} % (windows {cost.percent:.1f} % ± " in line
    assert f", CUPTI, which stays between them, {cost.floor_percent:.1f} %)" in line
    assert line.endswith("over the 3 % of --max-cost")
