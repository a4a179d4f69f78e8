"""The recordings of a folder: listed, renamed, removed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gputui.events import AnyEvent, HostSample, MachineSample, RunOutput
from gputui.journal import JournalError, JournalWriter
from gputui.journal.folder import delete, describe, recordings, rename
from gputui.journal.places import trace_path
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
    writer.write([*events, *([run_ended(exit_code=3)] if ended else []), *after])
    writer.close()
    return path


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz", ".gputui.zst"])
@pytest.mark.parametrize("outputs", [3, 9000])
def test_a_recording_is_described_by_its_beginning_and_its_end(
    tmp_path: Path, suffix: str, outputs: int
) -> None:
    entry = describe(record(tmp_path / f"x{suffix}", outputs))
    assert (entry.kind, entry.name, entry.hostname) == ("workload", "inference", "testhost")
    assert (entry.started_ns, entry.length_ns) == (at(0), 9_000_000_000)
    assert (entry.result, entry.gpus) == ("ended with status 3", ("NVIDIA Test",))
    assert entry.problem is None
    assert not entry.has_trace


def test_a_run_whose_end_is_missing_says_so(tmp_path: Path) -> None:
    assert describe(record(tmp_path / "x.gputui", ended=False)).result == "no end was recorded"


def samples(count: int) -> list[AnyEvent]:
    return [MachineSample(time_ns=at(10 + i), host=HostSample()) for i in range(count)]


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz", ".gputui.zst"])
@pytest.mark.parametrize("later", [10, 9000])
def test_the_screen_goes_on_recording_after_a_run_has_ended(
    tmp_path: Path, suffix: str, later: int
) -> None:
    path = record(tmp_path / f"x{suffix}", after=samples(later))
    entry = describe(path)
    assert (entry.result, entry.succeeded) == ("ended with status 3", False)
    assert entry.length_ns == (9 + later) * 1_000_000_000


@pytest.mark.parametrize("later", [10, 9000])
def test_a_second_run_without_an_end_is_not_taken_for_the_first(tmp_path: Path, later: int) -> None:
    after = [run_started(2), *samples(later)]
    entry = describe(record(tmp_path / "x.gputui", after=after))
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
    assert describe(path).has_trace
    new = rename(path, "baseline")
    assert new == tmp_path / "baseline.gputui.gz"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "baseline.gputui-trace",
        "baseline.gputui.gz",
    ]


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", ".hidden", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = record(tmp_path / "x.gputui")
    with pytest.raises(JournalError, match="no name for a file"):
        rename(path, name)
    assert path.exists()


def test_nothing_is_overwritten_by_renaming(tmp_path: Path) -> None:
    path, other = record(tmp_path / "x.gputui"), record(tmp_path / "y.gputui")
    with pytest.raises(JournalError, match="already exists"):
        rename(path, "y")
    assert path.exists()
    assert other.exists()


def test_removing_takes_the_trace_along(tmp_path: Path) -> None:
    path = record(tmp_path / "x.gputui")
    trace_path(path).write_text("trace")
    delete(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JournalError, match="cannot remove"):
        delete(path)
