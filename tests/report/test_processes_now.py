"""The process table: joined over GPUs, marked, sorted, filtered, as a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import (
    HostSample,
    LauncherSample,
    MachineSample,
    ProcessDetached,
    ProcessSample,
)
from gputui.report.schema import sorted_rows
from gputui.report.tables.processes import (
    PROCESSES_NOW,
    ProcessRow,
    filter_rows,
    launcher_rows,
    process_rows,
    tree_rows,
)
from gputui.state import Session
from tests.events_for_tests import at, attached, gpu, header, run_ended, run_started


def session_of(*processes: ProcessSample, launchers: tuple[LauncherSample, ...] = ()) -> Session:
    return Session.from_events(
        [
            header(gpu(0), gpu(1)),
            MachineSample(
                time_ns=at(10), host=HostSample(), processes=processes, launchers=launchers
            ),
        ]
    )


def on(gpu: int, pid: int = 7, **more: object) -> ProcessSample:
    return ProcessSample(pid=pid, gpu=gpu, start_time_ns=at(4), **more)  # type: ignore[arg-type]


def test_a_process_on_several_gpus_is_one_row() -> None:
    session = session_of(
        on(0, gpu_memory_bytes=100, sm_percent=90.0, cpu_percent=150.0, kind="C"),
        on(0, pid=8, gpu_memory_bytes=1),
        on(1, gpu_memory_bytes=200, sm_percent=30.0, cpu_percent=150.0, kind="C"),
    )
    both, other = process_rows(session)
    assert (both.pid, both.gpus, both.gpu_memory_bytes) == (7, (0, 1), 300)
    assert (both.sm_percent, both.cpu_percent) == (60.0, 150.0)
    assert [(use.gpu, use.gpu_memory_bytes, use.sm_percent) for use in both.uses] == [
        (0, 100, 90.0),
        (1, 200, 30.0),
    ]
    assert both.run_time_ns == 6_000_000_000
    assert both.kind == "C"
    assert (other.pid, other.sm_percent, other.memory_bandwidth_percent) == (8, None, None)


def test_a_pid_that_is_used_again_is_another_process() -> None:
    later = ProcessSample(pid=7, gpu=1, start_time_ns=at(9))
    first, second = process_rows(session_of(on(0), later))
    assert first.identity != second.identity


def test_our_own_processes_are_marked_while_they_run() -> None:
    session = session_of(on(0, pid=101), on(0, pid=55))
    session.apply([run_started(), attached(rank=3)])
    ours, other = process_rows(session)
    assert (ours.run, ours.rank, other.run) == (1, 3, None)
    session.apply([ProcessDetached(time_ns=at(11), process=1, clean=True)])
    assert [row.run for row in process_rows(session)] == [None, None]


def test_our_own_process_is_shown_where_the_driver_lists_other_pids() -> None:
    session = session_of(on(0, pid=70_000))
    session.apply([run_started(), attached()])
    foreign, ours = process_rows(session)
    assert (foreign.pid, foreign.run) == (70_000, None)
    assert (ours.pid, ours.run, ours.uses, ours.command) == (101, 1, (), "python")
    session.apply([run_ended()])
    assert [row.pid for row in process_rows(session)] == [70_000]


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=20), st.booleans())
def test_rows_without_a_figure_come_last(values: list[float | None], descending: bool) -> None:
    rows = [ProcessRow(pid=pid, cpu_percent=value) for pid, value in enumerate(values)]
    by = PROCESSES_NOW.column("cpu_percent")
    ordered = sorted_rows(rows, by, other_way=not descending)
    assert sorted(row.pid for row in ordered) == list(range(len(values)))
    known = [value for value in values if value is not None]
    told = [row.cpu_percent for row in ordered]
    assert told[: len(known)] == sorted(known, reverse=descending)
    assert told[len(known) :] == [None] * (len(values) - len(known))


@pytest.mark.parametrize("column", [column.key for column in PROCESSES_NOW.columns])
def test_every_column_sorts(column: str) -> None:
    session = session_of(on(0, user="b", command="x"), on(1, pid=9, user="a", command="y"))
    by = PROCESSES_NOW.column(column)
    assert {row.pid for row in sorted_rows(process_rows(session), by)} == {7, 9}


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("", [7, 9]),
        ("PYTHON", [7]),
        ("train gpu0", [7]),
        ("gpu1", [9]),
        ("bob", [9]),
        ("7", [7]),
        ("no such", []),
    ],
)
def test_rows_are_filtered_by_words(text: str, pids: list[int]) -> None:
    session = session_of(
        on(0, user="ann", command="python train.py"), on(1, pid=9, user="bob", command="serve")
    )
    assert [row.pid for row in filter_rows(process_rows(session), text)] == pids


def row(pid: int, parent: int | None = None) -> ProcessRow:
    return ProcessRow(pid=pid, parent_pid=parent)


def launcher(pid: int, parent: int | None = None) -> ProcessRow:
    return ProcessRow(pid=pid, parent_pid=parent, is_launcher=True)


def depth_of(row: ProcessRow) -> int:
    return len(row.ancestors_last) - 1


def shape(tree: list[ProcessRow]) -> list[tuple[int, int, bool]]:
    return [(entry.pid, depth_of(entry), entry.ancestors_last[-1]) for entry in tree]


def test_workers_hang_from_their_launcher_in_the_order_of_the_rows() -> None:
    """sshd (2) and a shell (3) lead to torchrun (4); 20 was started from another shell (5)."""
    rows = [row(12, 4), row(20, 5), row(11, 4), row(13, 12)]
    launchers = [launcher(2), launcher(3, 2), launcher(4, 3), launcher(5)]
    assert shape(tree_rows(rows, launchers)) == [
        (4, 0, False),
        (12, 1, False),
        (13, 2, True),
        (11, 1, True),
        (5, 0, True),
        (20, 1, True),
    ]


def test_a_session_gives_what_a_tree_is_made_of() -> None:
    session = session_of(
        on(0, parent_pid=3),
        launchers=(LauncherSample(pid=3, start_time_ns=at(1), command="torchrun"),),
    )
    (above,) = launcher_rows(session)
    assert (above.command, above.run_time_ns, above.uses) == ("torchrun", 9_000_000_000, ())
    tree = tree_rows(process_rows(session), [above])
    assert [(entry.pid, depth_of(entry)) for entry in tree] == [(3, 0), (7, 1)]


pids = st.integers(1, 12)


@given(st.dictionaries(pids, st.one_of(st.none(), pids)), st.sets(pids))
def test_any_parents_make_a_tree(parents: dict[int, int | None], launching: set[int]) -> None:
    rows = [row(pid, parents[pid]) for pid in parents if pid not in launching]
    above = [launcher(pid, parents[pid]) for pid in parents if pid in launching]
    tree = tree_rows(rows, above)
    told = [entry.pid for entry in tree]
    assert len(told) == len(set(told))

    def leads_to_a_loop(pid: int | None) -> bool:
        seen: set[int] = set()
        while pid in parents:
            if pid in seen:
                return True
            seen.add(pid)
            pid = parents[pid]
        return False

    assert set(told) >= {one.pid for one in rows if not leads_to_a_loop(one.pid)}
    depth = -1
    for entry in tree:
        assert depth_of(entry) <= depth + 1
        depth = depth_of(entry)
