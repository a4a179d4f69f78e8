"""What is known of a recording before all of it was folded, and of one that is not well."""

from __future__ import annotations

import io
import resource
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.base import JournalError
from gputui.model.events import AnyEvent, CaptureDelta, OpenRange, RunOutput
from gputui.playback.index import Index
from gputui.playback.line_index import LineKind
from gputui.playback.opening import load
from gputui.playback.player import Playback
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, attached, run_ended, run_started
from tests.playback.test_playback import LONG_S, View, session_events
from tests.sessions_for_tests import contents
from tests.store.test_journal_sums import BEGINNING, busy

TICKS: list[AnyEvent] = [
    event
    for second in range(3, 83)
    for event in (
        busy(second),
        RunOutput(time_ns=at(second), run=1, stream="stdout", lines=("x",)),
    )
]
EVENTS: list[AnyEvent] = [
    *BEGINNING,
    *TICKS,
    run_ended(),
    run_started(run=2),
    attached(process=2, run=2),
    *(msgspec.structs.replace(busy(second), process=2) for second in range(83, 90)),
]


def written(path: Path, events: list[AnyEvent]) -> Path:
    writer = JournalWriter(path)
    for event in events:
        writer.write([event])
    writer.close()
    return path


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz"])
def test_a_state_is_made_from_sums_before_and_after_all_was_folded(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that a fold without sums has kept go on without them: the next sum holds what they
    have already.
    """
    monkeypatch.setattr("gputui.store.journal.writer.LEAST_BYTES", 4096)
    path = written(tmp_path / f"x{suffix}", EVENTS)
    with closing(Index(JournalReader.open(path))) as index:
        index.line_index.read()
        assert list(index.line_index.numbers(LineKind.SUM, 0, len(index)))
        for is_folded, every in ((False, 11), (True, 23)):
            if is_folded:
                index.fold()
            place = 0
            for number in range(1, len(index) + 1):
                place += index.line_index.kind_of(number - 1) != LineKind.SUM
                if number % every == 0 or number == len(index):
                    state, is_exact = index.state(number)
                    assert is_exact
                    assert contents(state) == contents(Session.from_events(EVENTS[:place]))


def test_of_many_samples_the_newest_come_first_and_all_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.playback.index.SAMPLES_AT_ONCE", 60)
    monkeypatch.setattr("gputui.playback.index.HISTORY_SAMPLES", 50)
    events = session_events()
    with closing(Index(JournalReader.open(written(tmp_path / "x.gputui", events)))) as index:
        index.line_index.read()
        state, is_exact = index.state(len(index))
        whole = Session.from_events(events)
        assert not is_exact
        assert list(state.gpus[0].samples.history) == list(whole.gpus[0].samples.history)[-50:]
        assert state.run is not None
        assert whole.run is not None
        assert (state.run.ended, state.run.progress) == (whole.run.ended, whole.run.progress)
        assert not state.run.readings.gpus  # of a few samples they would be wrong
        index.fold()
        state, is_exact = index.state(len(index))
        assert is_exact
        assert contents(state) == contents(whole)


def test_a_replay_shows_the_newest_samples_first_and_all_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.playback.index.SAMPLES_AT_ONCE", 60)
    monkeypatch.setattr("gputui.playback.index.HISTORY_SAMPLES", 50)
    events = session_events()
    view = View()
    path = written(tmp_path / "x.gputui", events)
    view.playback = playback = Playback.open(str(path), view.notify)
    playback.is_paused = True
    playback.start()
    playback.seek(450.75)
    whole = contents(
        Session.from_events([event for event in events if event.time_ns <= at(450.75)])
    )

    def is_whole() -> bool:
        view.drain()
        return playback.is_exact and contents(view.session) == whole

    with view.changed:
        assert view.changed.wait_for(is_whole, LONG_S)
    assert playback.position_s == pytest.approx(450.5)
    playback.close()


@pytest.mark.parametrize("is_found", ["during the jump", "after it"])
def test_what_was_shown_beyond_a_damaged_line_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_found: str
) -> None:
    """The line is found only when all before it is folded."""
    if is_found == "during the jump":
        state, fold = Index.state, Index.fold
        jumping, folded = threading.Event(), threading.Event()

        def fold_and_say(index: Index) -> None:
            assert jumping.wait(LONG_S)
            fold(index)
            folded.set()

        def state_at_last(index: Index, number: int) -> tuple[Session, bool]:
            found = state(index, number)
            jumping.set()
            assert folded.wait(LONG_S)
            return found

        monkeypatch.setattr("gputui.playback.index._WORK_S", LONG_S)  # a jump delays no folding
        monkeypatch.setattr(Index, "fold", fold_and_say)
        monkeypatch.setattr(Index, "state", state_at_last)
    monkeypatch.setattr("gputui.playback.index.SAMPLES_AT_ONCE", 60)
    monkeypatch.setattr("gputui.playback.index.HISTORY_SAMPLES", 50)
    path = written(tmp_path / "x.gputui", session_events())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[300] = lines[300].replace(b'"gpus":[{', b'"gpus":[[')
    path.write_bytes(b"".join(lines))
    view = View()
    view.playback = playback = Playback.open(str(path), view.notify)
    playback.is_paused = True
    playback.seek(550)
    playback.start()
    held = Session.from_events(list(JournalReader.open(path)))
    view.until(held.samples)
    with view.changed:
        assert view.changed.wait_for(lambda: playback.remarks, LONG_S)
    assert "line 301 is damaged" in playback.remarks[0]
    playback.close()


def test_a_full_disk_ends_a_replay_where_it_is_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compressed is unpacked beside: here into a file that may not grow."""
    events = session_events()
    with closing(Index(JournalReader.open(written(tmp_path / "x.gputui.gz", events)))) as index:
        line_index = index.line_index
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would leave cut-off modules
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, usual[1]))
        try:
            line_index.read()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert line_index.is_complete
        assert line_index.failure is not None
        assert "x.gputui.gz: File too large (unpacked in " in line_index.failure


def test_lines_written_by_others_are_understood(tmp_path: Path) -> None:
    """With spaces, in another order, of kinds unknown."""
    lines = [msgspec.json.encode(event) for event in session_events(5)]
    loose = [msgspec.json.format(line, indent=0).replace(b"\n", b"") for line in lines]
    turned = [
        msgspec.json.encode(dict(reversed(msgspec.json.decode(line).items()))) for line in lines
    ]
    unknown = b'{"event":"dream","time_ns":1}'
    for variant in (loose, turned):
        path = tmp_path / "x.gputui"
        path.write_bytes(b"\n".join([*variant[:3], unknown, *variant[3:], b""]))
        reader = JournalReader.open(path)
        with closing(Index(reader)) as index:
            index.build()
            assert list(index.events(0, len(index))) == session_events(5)
            assert reader.skipped == 1
            assert contents(index.state(len(index))[0]) == contents(
                Session.from_events(session_events(5))
            )


OPEN = CaptureDelta(time_ns=at(3), process=1, open_ranges=(OpenRange(1, at(2)),))
SOME = b"".join(msgspec.json.encode(event) + b"\n" for event in [*BEGINNING, *TICKS[:8], OPEN])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_recordings_are_replayed_as_far_as_they_are_read(data: st.DataObject) -> None:
    content = bytearray(SOME)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, len(content))) :]

    def opened() -> JournalReader | None:
        try:
            return JournalReader(io.BytesIO(bytes(content)), "x")
        except JournalError:
            return None

    plain, outlined = opened(), opened()
    if plain is None or outlined is None:
        assert plain is outlined
        return
    expected = list(plain)
    with closing(Index(outlined)) as index:
        index.build()
        assert list(index.events(0, len(index))) == expected
        assert outlined.damage == plain.damage
        assert outlined.skipped == plain.skipped or plain.damage
        assert contents(index.state(len(index))[0]) == contents(Session.from_events(expected))


@pytest.mark.parametrize("suffix", [".gputui", ".gputui.gz"])
def test_of_two_recordings_joined_the_first_is_read_and_the_second_named(
    tmp_path: Path, suffix: str
) -> None:
    first = written(tmp_path / f"a{suffix}", EVENTS)
    joined = tmp_path / f"joined{suffix}"
    joined.write_bytes(first.read_bytes() + written(tmp_path / f"b{suffix}", EVENTS).read_bytes())
    reader = JournalReader.open(joined)
    assert list(reader) == EVENTS
    assert "another recording begins at line" in (reader.damage or "")
    outlined = JournalReader.open(joined)
    with closing(Index(outlined)) as index:
        index.build()
        assert list(index.events(0, len(index))) == EVENTS
        assert outlined.damage == reader.damage
        assert load(str(joined)).remarks == (reader.damage,)


def test_damage_before_a_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    lines = written(tmp_path / "whole.gputui", EVENTS).read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-5])
    loaded = load(str(path))
    assert loaded.run is None
    assert "line 2 is truncated" in loaded.remarks[0]
