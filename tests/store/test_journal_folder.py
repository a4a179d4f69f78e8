"""The recordings of a folder: listed, renamed, removed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.base import JournalError
from gputui.model.events import AnyEvent, HostSample, MachineSample, RunOutput
from gputui.store import snapshot_path, trace_path
from gputui.store.journal import Limits
from gputui.store.journal.reader import open_journal
from gputui.store.journal.writer import JournalWriter
from gputui.store.recordings import (
    RecordingEntry,
    belongings,
    delete_recording,
    describe_recording,
    recordings_in,
    rename_recording,
)
from tests.events_for_tests import at, gpu, header, run_ended, run_started


def record(
    path: Path, outputs: int = 3, ended: bool = True, after: Sequence[AnyEvent] = ()
) -> Path:
    events: list[AnyEvent] = [header(gpu()), run_started()]
    events += [
        RunOutput(time_ns=at(2), run=1, stream="stdout", lines=(f"line {i} " + "y" * 60,))
        for i in range(outputs)
    ]
    writer = JournalWriter(path)
    # A second later everything captured of the program was read: that is not its length.
    end = replace(run_ended(exit_code=3), child_ended_ns=run_ended().time_ns - 10**9)
    writer.write([*events, *([end] if ended else []), *after])
    writer.close()
    return path


def recordings(folder: Path) -> list[RecordingEntry]:
    return [describe_recording(found.path) for found in recordings_in(folder)]


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz", ".gputui.zst"])
@pytest.mark.parametrize("outputs", [3, 9000])
def test_a_recording_is_described_by_its_beginning_and_its_end(
    tmp_path: Path, suffix: str, outputs: int
) -> None:
    entry = describe_recording(record(tmp_path / f"x{suffix}", outputs))
    assert (entry.kind, entry.name, entry.hostname) == ("workload", "inference", "testhost")
    assert (entry.started_ns, entry.length_ns, entry.run_ns) == (at(1), 9 * 10**9, 7 * 10**9)
    assert (entry.result, entry.gpus) == ("ended with status 3", ("NVIDIA Test",))
    assert entry.problem is None
    assert not entry.has_trace


def test_a_run_whose_end_is_missing_says_so(tmp_path: Path) -> None:
    assert (
        describe_recording(record(tmp_path / "x.gputui", ended=False)).result
        == "no end was recorded"
    )


def samples(count: int) -> list[AnyEvent]:
    return [MachineSample(time_ns=at(10 + i), host=HostSample()) for i in range(count)]


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz", ".gputui.zst"])
@pytest.mark.parametrize("later", [10, 9000])
def test_the_screen_goes_on_recording_after_a_run_has_ended(
    tmp_path: Path, suffix: str, later: int
) -> None:
    path = record(tmp_path / f"x{suffix}", after=samples(later))
    entry = describe_recording(path)
    assert (entry.result, entry.succeeded) == ("ended with status 3", False)
    assert entry.length_ns == (9 + later) * 1_000_000_000


@pytest.mark.parametrize("later", [10, 9000])
def test_a_second_run_without_an_end_is_not_taken_for_the_first(tmp_path: Path, later: int) -> None:
    after = [run_started(2), *samples(later)]
    entry = describe_recording(record(tmp_path / "x.gputui", after=after))
    assert (entry.result, entry.succeeded) == ("no end was recorded", None)


def test_the_newest_comes_first_and_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    record(tmp_path / "a.gputui")
    (tmp_path / "b.gputui").write_text("hello\n")
    (tmp_path / "notes.txt").write_text("not listed")
    (tmp_path / "folder.gputui").mkdir()
    for number, name in enumerate(("a.gputui", "b.gputui")):
        os.utime(tmp_path / name, (number, number))
    entries = recordings(tmp_path)
    assert [entry.path.name for entry in entries] == ["b.gputui", "a.gputui"]
    assert "not a gputui session" in (entries[0].problem or "")
    assert recordings(tmp_path / "nowhere") == []


def test_renaming_takes_the_trace_along(tmp_path: Path) -> None:
    path = record(tmp_path / "x.gputui.gz")
    trace_path(path).write_text("trace")
    assert describe_recording(path).has_trace
    new = rename_recording(path, "baseline")
    assert new == tmp_path / "baseline.gputui.gz"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "baseline.gputui-trace",
        "baseline.gputui.gz",
    ]


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", ".hidden", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = record(tmp_path / "x.gputui")
    with pytest.raises(JournalError, match="not a file name"):
        rename_recording(path, name)
    assert path.exists()


def test_nothing_is_overwritten_by_renaming(tmp_path: Path) -> None:
    path, other = record(tmp_path / "x.gputui"), record(tmp_path / "y.gputui")
    with pytest.raises(JournalError, match="already exists"):
        rename_recording(path, "y")
    assert path.exists()
    assert other.exists()


def test_removing_takes_the_trace_along(tmp_path: Path) -> None:
    path = record(tmp_path / "x.gputui")
    trace_path(path).write_text("trace")
    delete_recording(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JournalError, match="cannot remove"):
        delete_recording(path)


def rotated(path: Path, later: int = 0) -> list[Path]:
    """A recording of several files, with a trace and a memory snapshot."""
    outputs: list[AnyEvent] = [
        RunOutput(
            time_ns=at(3 + i),
            run=1,
            stream="stdout",
            lines=(random.Random(i).randbytes(900).hex(),),
        )
        for i in range(5)
    ]
    writer = JournalWriter(path, Limits(rotate_bytes=900))
    for event in [header(gpu()), run_started(), *outputs, run_ended(), *samples(later)]:
        writer.write([event])
    writer.close()
    trace_path(path).write_text("trace")
    snapshot_path(path, 1).write_text("snapshot")
    return sorted(path.parent.iterdir())


@pytest.mark.parametrize("later", [0, 60])
@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz"])
def test_a_rotated_recording_is_one(tmp_path: Path, suffix: str, later: int) -> None:
    path = tmp_path / f"x{suffix}"
    written = rotated(path, later)
    [entry] = recordings(tmp_path)
    assert entry.path == path
    assert entry.file_count == len(written) - 2 > 2
    assert sorted(belongings(path)) == written
    assert entry.size_bytes == sum(
        file.stat().st_size for file in written if file.name.endswith(suffix)
    )
    assert (entry.name, entry.result, entry.succeeded) == ("inference", "ended with status 0", True)
    assert entry.length_ns == (max(at(9), at(9 + later)) - at(0))


def test_a_rotated_recording_whose_oldest_files_went_is_one(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    rotated(path)
    path.unlink()
    [entry] = recordings(tmp_path)
    assert (entry.path, entry.result) == (path, "ended with status 0")
    assert rename_recording(path, "y") == tmp_path / "y.gputui"
    assert {file.name[:2] for file in tmp_path.iterdir()} == {"y."}
    delete_recording(tmp_path / "y.gputui")
    assert list(tmp_path.iterdir()) == []


def test_another_recording_that_is_called_so_is_another(tmp_path: Path) -> None:
    record(tmp_path / "x.gputui")
    writer = JournalWriter(tmp_path / "x.2.gputui")
    writer.write([header(), run_started()])
    writer.close()
    (tmp_path / "x.3.gputui").write_text("hello\n")
    assert len(recordings(tmp_path)) == 3
    delete_recording(tmp_path / "x.gputui")
    assert len(recordings(tmp_path)) == 2


def test_all_of_a_rotated_recording_is_renamed(tmp_path: Path) -> None:
    written = rotated(tmp_path / "x.gputui")
    events = list(open_journal(tmp_path / "x.gputui"))
    new = rename_recording(tmp_path / "x.gputui", "y")
    assert sorted(tmp_path.iterdir()) == [
        file.with_name("y" + file.name.removeprefix("x")) for file in written
    ]
    assert list(open_journal(new)) == events


@pytest.mark.parametrize("taken", ["y.gputui", "y.3.gputui", "y.gputui-trace"])
def test_renaming_that_cannot_be_whole_changes_nothing(tmp_path: Path, taken: str) -> None:
    rotated(tmp_path / "x.gputui")
    (tmp_path / taken).write_text("somebody else's")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(JournalError, match="already exists"):
        rename_recording(tmp_path / "x.gputui", "y")
    assert sorted(tmp_path.iterdir()) == before


def test_all_of_a_rotated_recording_is_removed(tmp_path: Path) -> None:
    written = rotated(tmp_path / "x.gputui")
    assert delete_recording(tmp_path / "x.gputui") == len(written)
    assert list(tmp_path.iterdir()) == []


def test_removing_that_fails_half_way_says_what_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    written = rotated(path)
    trace_path(path).unlink()
    trace_path(path).mkdir()  # no file that could be removed
    with pytest.raises(JournalError, match=rf"-trace: .*; \d of its {len(written)} files are gone"):
        delete_recording(path)
    assert path.exists()


def test_a_file_that_vanishes_meanwhile_takes_no_other_from_the_list(tmp_path: Path) -> None:
    record(tmp_path / "stays.gputui")
    end = threading.Event()

    def come_and_go() -> None:
        while not end.is_set():
            (tmp_path / "brief.gputui").touch()
            (tmp_path / "brief.gputui").unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(300):
            assert "stays.gputui" in [entry.path.name for entry in recordings(tmp_path)]
    finally:
        end.set()
        thread.join()


def test_the_end_of_a_run_is_found_far_from_the_end_of_the_file(tmp_path: Path) -> None:
    """The machine is recorded on after a run: more than is read at once lies behind its end."""
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    lines = tuple("x" * 900 for _ in range(100))
    after = [RunOutput(time_ns=at(10 + n), run=1, stream="stdout", lines=lines) for n in range(30)]
    writer.write([header(), run_started(), *after, run_ended(), *after])
    writer.write([run_started(run=2)])
    writer.write(after)
    assert describe_recording(path).result == "no end was recorded"
    writer.write([run_ended(run=2), *after])
    writer.close()
    assert path.stat().st_size > 8 << 20
    assert describe_recording(path).result == "ended with status 0"


def test_an_nsys_export_is_listed_and_renamed(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    [entry] = recordings(tmp_path)
    assert (entry.path, entry.is_nsys, entry.problem) == (path, True, None)
    assert rename_recording(path, "other") == tmp_path / "other.sqlite"


def test_what_is_no_file_takes_no_recording_from_the_list(tmp_path: Path) -> None:
    record(tmp_path / "good.gputui")
    (tmp_path / "loop.gputui").symlink_to("loop.gputui")
    (tmp_path / "away.gputui").symlink_to("nowhere.gputui")
    (tmp_path / "folder.gputui").mkdir()
    os.mkfifo(tmp_path / "pipe.gputui")
    assert [entry.path.name for entry in recordings(tmp_path)] == ["good.gputui"]
