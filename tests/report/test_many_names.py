"""Programs with a name for everything: work that grows with the names, and memory that does not."""

from __future__ import annotations

from functools import partial

import pytest

from gputui.model.events import OTHER_KERNELS, CaptureDelta, KernelDefined, KernelDelta, RangeDelta
from gputui.render import formats
from gputui.report import statistics
from gputui.report.phases import phase_rows
from gputui.state import Session, fold, remarks
from tests.calls_for_tests import calls_of
from tests.events_for_tests import at, attached, defined, header, run_ended, run_started, times


def lettered(number: int) -> str:
    """A number without digits, which would be folded."""
    return str(number).translate(str.maketrans("0123456789", "abcdefghij"))


def session_of(names: int) -> Session:
    """A kernel and a range for each name."""
    numbers = range(1, names + 1)
    session = Session.from_events([header(), run_started(), attached()])
    session.apply(
        KernelDefined(time_ns=at(2), kernel=i, name=f"void fused_{i}<float>(int)", mangled=f"_Z{i}")
        for i in numbers
    )
    session.apply(defined(i, f"range {lettered(i)}") for i in numbers)
    kernels = tuple(
        KernelDelta(process=1, range=i, kernel=i, device=0, time=times(5 * i)) for i in numbers
    )
    ranges = tuple(RangeDelta(range=i, cpu=times(7 * i)) for i in numbers)
    delta = CaptureDelta(time_ns=at(3), process=1, kernels=kernels, ranges=ranges)
    session.apply([delta, run_ended()])
    return session


@pytest.mark.parametrize("key", ["table", "json"])
def test_a_summary_works_in_proportion_to_the_names(key: str) -> None:
    sessions = session_of(60), session_of(240)
    few, many = (partial(formats.summary, made, made.run, key) for made in sessions)
    few(), many()  # what is imported and cached on the way, checks of documents too
    assert calls_of(many) < 4.2 * calls_of(few)


def test_a_summary_asks_for_each_category_once_and_copies_no_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def category(name: str) -> str:
        asked.append(name)
        return "other"

    monkeypatch.setattr(statistics, "category", category)
    session = session_of(50)
    formats.summary(session, session.run, "table")
    assert len(asked) == len(set(asked)) == 50
    run = session.run
    assert run is not None
    held = {id(kernels.time) for kernels in run.kernels.values()}
    assert {id(row.times) for row in statistics.kernel_rows(session, run)} == held


def test_kernels_over_the_limit_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_KERNELS", 20)
    session = session_of(100)
    run = session.run
    assert run is not None
    assert len(session.kernel_names) == 21
    rows = {row.name: row for row in statistics.kernel_rows(session, run)}
    assert rows[OTHER_KERNELS].instances == 80
    assert sum(row.total for row in rows.values()) == sum(5 * i for i in range(1, 101))


def test_ranges_over_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_RANGES", 20)
    session = session_of(100)
    run = session.run
    assert run is not None
    assert len(run.ranges) == len(phase_rows(run)) == 20
    assert any("80 ranges" in remark.line for remark in remarks(run))
