"""The recording: what is written is read, and damage costs no more than what is damaged."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.events import AnyEvent, GpuUnavailable, RunOutput
from gputui.journal import JournalError, JournalReader, JournalWriter, RunRecorder, default_path
from gputui.session import Session
from tests.events_for_tests import at, gpu, header, run_ended, run_started


def output(text: str) -> RunOutput:
    return RunOutput(time_ns=at(3), run=1, stream="stdout", lines=(text,))


def lines_of(*events: AnyEvent) -> bytes:
    return msgspec.json.Encoder().encode_lines(events)


def read(data: bytes) -> tuple[list[AnyEvent], JournalReader]:
    reader = JournalReader(io.BytesIO(data), "x.gputui")
    return list(reader), reader


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = [header(gpu()), run_started(), output("hello"), run_ended()]
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    writer.write(events[:2])
    writer.write(events[2:])
    writer.close()
    reader = JournalReader.open(path)
    assert list(reader) == events
    assert reader.damage is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert writer.bytes_written == path.stat().st_size


def test_every_write_is_readable_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    writer.write([header()])
    assert list(JournalReader.open(path)) == [header()]
    writer.close()


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    path.write_text("precious")
    with pytest.raises(JournalError, match="already exists"):
        JournalWriter(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/x.gputui", "no such file or directory"),
        (".", "already exists"),
    ],
)
def test_an_unwritable_path_is_one_line(tmp_path: Path, path: str, words: str) -> None:
    with pytest.raises(JournalError, match=words) as caught:
        JournalWriter(tmp_path / path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"root:x:0:0\n", "not a gputui session"),
        (b"\x00\xff" * 100, "not a gputui session"),
        (b"[" * 100_000 + b"\n", "not a gputui session"),
        (b'{"event":"run_ended","time_ns":1,"run":1,"reason":"x"}\n', "not a gputui session"),
        (lines_of(header()).replace(b'"schema":1', b'"schema":99'), "newer gputui"),
    ],
)
def test_what_is_no_session_is_refused_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(JournalError, match=words) as caught:
        read(data)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 400))
def test_a_cut_recording_gives_all_but_the_cut_line(cut: int) -> None:
    events = [header(), run_started(), output("a"), run_ended()]
    data = lines_of(*events)
    kept = data[: len(data) - cut]
    whole = kept.count(b"\n")
    if whole == 0:
        with pytest.raises(JournalError):
            read(kept)
        return
    found, reader = read(kept)
    assert found == events[:whole]
    assert (reader.damage is None) == kept.endswith(b"\n")


@given(st.data())
def test_a_flipped_bit_never_crashes(data: st.DataObject) -> None:
    raw = bytearray(lines_of(header(gpu()), run_started(), output("a"), run_ended()))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _ = read(bytes(raw))
    except JournalError:
        return
    Session().apply(found)


def test_damage_in_the_middle_gives_the_part_before_it() -> None:
    data = lines_of(header(), run_started()) + b"{broken\n" + lines_of(run_ended())
    found, reader = read(data)
    assert found == [header(), run_started()]
    assert reader.damage is not None
    assert "line 3 is damaged" in reader.damage


def test_wrong_types_and_absurd_figures_are_damage() -> None:
    for line in (
        b'{"event":"run_ended","time_ns":"soon","run":1,"reason":"x"}\n',
        b'{"event":"run_ended","time_ns":9999999999999999999,"run":1,"reason":"x"}\n',
        b'{"event":"run_ended","time_ns":-1,"run":1,"reason":"x"}\n',
        b'{"event":"run_ended","time_ns":NaN,"run":1,"reason":"x"}\n',
    ):
        found, reader = read(lines_of(header()) + line)
        assert found == [header()]
        assert reader.damage is not None


def test_events_of_a_later_version_are_skipped_and_counted() -> None:
    later = b'{"event":"teleported","time_ns":1,"where":"Mars"}\n'
    found, reader = read(lines_of(header()) + later + lines_of(run_started()))
    assert found == [header(), run_started()]
    assert (reader.skipped, reader.damage) == (1, None)


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = lines_of(header(), run_ended()).replace(b'"run":1,', b'"run":1,"later":[1,2],')
    assert read(data)[0] == [header(), run_ended()]


@given(st.text(max_size=50))
def test_strings_from_a_file_carry_no_control_characters(text: str) -> None:
    hostile = "\x1b]0;owned\x07" + text + "\u202e\x9b31m"
    line = msgspec.json.encode({"event": "run_output", "time_ns": 1, "run": 1,
                                "stream": "stdout", "lines": [hostile]})  # fmt: skip
    found, _ = read(lines_of(header()) + line + b"\n")
    event = found[1]
    assert isinstance(event, RunOutput)
    for character in event.lines[0]:
        assert ord(character) >= 32
        assert not 0x7F <= ord(character) < 0xA0
        assert character != "\u202e"


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from pathlib import Path
from gputui.journal import JournalWriter
from tests.events_for_tests import header, run_started
from tests.test_journal import output
writer = JournalWriter(Path({str(tmp_path / "x.gputui")!r}))
writer.write([header(), run_started()])
for i in range(100):
    writer.write([output("y" * 100)])
print(writer.failure)
writer.close()
"""
    assert resource.RLIMIT_FSIZE
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parent.parent, env=os.environ,
    )  # fmt: skip
    assert "file too large" in done.stdout
    found = list(JournalReader.open(tmp_path / "x.gputui"))
    assert found[:2] == [header(), run_started()]
    assert len(found) > 10


def test_a_screen_records_from_its_first_run_with_the_header_before_it(tmp_path: Path) -> None:
    recorder = RunRecorder(lambda name: tmp_path / "deep" / f"{name}.gputui")
    reasons = GpuUnavailable(time_ns=at(0.5), gpu=0, reasons={"a": "b"})
    recorder.write([header(gpu()), reasons])
    assert recorder.path is None
    assert not list(tmp_path.iterdir())
    recorder.write([run_started(), run_ended()])
    recorder.close()
    assert recorder.path == tmp_path / "deep" / "inference.gputui"
    assert list(JournalReader.open(recorder.path)) == [
        header(gpu()),
        reasons,
        run_started(),
        run_ended(),
    ]


def test_a_recorder_that_may_not_write_says_so_and_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = RunRecorder(lambda _: tmp_path / "file" / "x.gputui")
    recorder.write([header(), run_started()])
    assert recorder.failure is not None
    assert str(tmp_path) in recorder.failure


def test_default_names_are_plain_and_never_taken(tmp_path: Path) -> None:
    first = default_path("../../etc/passwd; rm", 0.0)
    assert first.parent == tmp_path / "xdg-data" / "gputui" / "sessions"
    assert first.name == "19700101-000000-etc-passwd-rm.gputui"
    first.parent.mkdir(parents=True)
    first.write_text("")
    assert default_path("../../etc/passwd; rm", 0.0).name.endswith("-2.gputui")
