"""The files of a rotated recording, read as one session."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gputui.base import JournalError
from gputui.cli.declaration import UsageError
from gputui.cli.dispatch import run as gputui
from gputui.cli.recordings import one_recording
from gputui.model.events import AnyEvent, LineDefined, RunOutput
from gputui.playback.index import Index
from gputui.playback.opening import open_recording
from gputui.state import Session
from gputui.store.journal import Limits
from gputui.store.journal.reader import RotatedReader, open_journal
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, defined, header, run_ended, run_started
from tests.sessions_for_tests import contents
from tests.store.test_journal_sums import BEGINNING, busy


def output(text: str) -> RunOutput:
    return RunOutput(time_ns=at(3), run=1, stream="stdout", lines=(text,))


TICKS: list[AnyEvent] = [
    event for second in range(3, 63) for event in (busy(second), output(f"line {second}"))
]
EVENTS = [*BEGINNING, *TICKS, run_ended()]


def record(path: Path, limits: Limits, events: list[AnyEvent] = EVENTS) -> list[Path]:
    writer = JournalWriter(path, limits)
    for event in events:
        writer.write([event])
    writer.close()
    assert writer.failure is None
    return sorted(path.parent.iterdir(), key=lambda file: (len(file.name), file.name))


def folded(path: Path, *, summed: bool) -> Session:
    return Session.from_events(open_recording(str(path), summed=summed))


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz"])
def test_the_first_file_stands_for_all(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    files = record(path, Limits(rotate_bytes=40_000 if suffix == ".gputui" else 4_000))
    assert len(files) > 3
    reader = open_journal(path)
    assert list(reader) == EVENTS
    assert (reader.damage, reader.skipped) == (None, 0)
    whole = Session.from_events(EVENTS)
    assert contents(folded(path, summed=False)) == contents(whole)
    sums = folded(path, summed=True).run
    assert sums is not None
    assert whole.run is not None
    for key, kernels in whole.run.kernels.items():
        times, part = kernels.time, sums.kernels[key].time
        assert (part.count, part.total, part.median) == (times.count, times.total, times.median)
        assert part.deviation == pytest.approx(times.deviation)


def test_a_line_that_a_later_file_repeats_is_recognized_however_it_is_read(tmp_path: Path) -> None:
    """The repeated definitions behind it, too: they were counted as unknown references."""
    path = tmp_path / "x.gputui"
    line = LineDefined(time_ns=at(2), process=1, line=1, path="t.py", number=7, function="main")
    events = [*BEGINNING, line, defined(9, "eval"), *TICKS, run_ended()]
    assert len(record(path, Limits(rotate_bytes=40_000), events)) > 1
    assert list(open_journal(path)) == events
    with closing(Index(open_recording(str(path)))) as index:
        index.build()
        session, is_exact = index.state(len(index))
    assert is_exact
    assert session.unknown_references == 0


def test_a_numbered_file_is_read_alone(tmp_path: Path) -> None:
    files = record(tmp_path / "x.gputui", Limits(rotate_bytes=40_000))
    lines = [e for e in open_journal(files[1]) if isinstance(e, RunOutput)]
    assert 0 < len(lines) < len(TICKS) / 4


def test_a_pattern_stands_for_the_recording_that_it_matches(tmp_path: Path) -> None:
    record(tmp_path / "x.gputui", Limits(rotate_bytes=40_000))
    for pattern in ("x*.gputui", "x.*.gputui", "*"):
        assert list(open_journal(tmp_path / pattern)) == EVENTS
    record(tmp_path / "y.gputui", Limits())
    with pytest.raises(JournalError, match="matches several recordings") as caught:
        open_journal(tmp_path / "*.gputui")
    assert "\n" not in str(caught.value)
    with pytest.raises(JournalError, match="no such file"):
        open_journal(tmp_path / "z*.gputui")


def test_missing_files_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gputui"
    files = record(path, Limits(rotate_bytes=40_000))
    files[2].unlink()
    reader = open_journal(path)
    found = list(reader)
    assert found[0] == EVENTS[0]
    assert found[-1] == run_ended()
    assert reader.damage == "x.3.gputui is missing: what happened in that time is left out"
    for file in files[:2] + files[3:5]:
        file.unlink()
    assert gputui(["summary", str(path)]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "x.gputui to x.5.gputui are missing" in said


def test_room_made_by_a_limit_leaves_a_recording_that_opens_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    record(path, Limits(rotate_bytes=40_000, max_bytes=200_000))
    assert not path.exists()
    session = folded(path, summed=True)
    assert session.unknown_references == 0
    assert session.run is not None
    assert list(session.run.log)[-2].text == "line 62"


def test_damage_in_one_file_costs_that_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    files = record(path, Limits(rotate_bytes=40_000))
    with files[1].open("ab") as file:
        file.write(b"{broken\n")
    files[2].write_bytes(b"nothing")
    reader = open_journal(path)
    assert list(reader)[-1] == run_ended()
    assert reader.damage is not None
    assert "x.2.gputui" in reader.damage
    assert "x.3.gputui is not a gputui session" in reader.damage
    assert "\n" not in reader.damage


def test_another_recording_of_such_a_name_is_none_of_it(tmp_path: Path) -> None:
    record(tmp_path / "x.gputui", Limits(), [header(), run_started(), run_ended()])
    other = msgspec.structs.replace(header(), time_ns=at(100))
    record(tmp_path / "x.2.gputui", Limits(), [other, run_started(), run_ended()])
    reader = open_journal(tmp_path / "x.gputui")
    assert isinstance(reader, RotatedReader)
    assert list(reader) == [header(), run_started(), run_ended()]
    assert reader.damage is None


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz"])
def test_a_recording_is_followed_into_the_files_it_goes_on_in(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path, Limits(rotate_bytes=40_000 if suffix == ".gputui" else 4_000))
    writer.write(EVENTS[:3])
    stop = threading.Event()
    reader = iter(open_journal(path, stop=stop))
    followed = [next(reader) for _ in range(3)]
    for event in EVENTS[3:]:
        writer.write([event])
        followed.append(next(reader))
    writer.close()
    assert len(list(tmp_path.iterdir())) > 3
    stop.set()
    assert followed + list(reader) == EVENTS


def test_all_files_of_one_recording_may_be_named(tmp_path: Path) -> None:
    files = record(tmp_path / "x.gputui", Limits(rotate_bytes=40_000))
    assert len(files) > 2
    assert one_recording([str(file) for file in files]) == str(tmp_path / "x.gputui")
    assert one_recording([str(files[1])]) == str(files[1])
    with pytest.raises(UsageError, match="not the files of one recording"):
        one_recording([str(files[0]), str(tmp_path / "y.gputui")])


def test_a_rotated_recording_is_replayed_as_one(tmp_path: Path) -> None:
    record(tmp_path / "x.gputui", Limits(rotate_bytes=40_000))
    with closing(Index(open_recording(str(tmp_path / "x.gputui")))) as index:
        index.build()
        assert list(index.events(0, len(index))) == EVENTS
        for number in range(1, len(index), 23):
            whole = Session.from_events(index.events(0, number))
            state, is_exact = index.state(number)
            assert is_exact
            assert contents(state) == contents(whole)
