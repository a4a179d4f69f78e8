"""The recording: what is written is read, and damage costs no more than what is damaged."""

from __future__ import annotations

import gzip
import io
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base import JournalError
from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    AnyEvent,
    GpuUnavailable,
    KernelDefined,
    ReferredTo,
    RunOutput,
    StepOperations,
)
from gputui.state import Session
from gputui.store import default_path, numbered_path
from gputui.store.journal import Limits
from gputui.store.journal.reader import JournalReader, open_journal
from gputui.store.journal.writer import JournalWriter, RunRecorder
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started
from tests.sessions_for_tests import contents

DATA = Path(__file__).parents[1] / "data"
SUFFIXES = [".gputui", ".gputui.gz", ".gputui.zst"]


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
        (lines_of(header()).replace(b'"schema":3', b'"schema":99'), "newer gputui"),
        (
            lines_of(header()).replace(b'"schema":3', b'"schema":2'),
            r"x.gputui was recorded by an earlier gputui \(schema 2, this one reads 3\); record",
        ),
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


def test_packed_bytes_are_whole_beside_names_beyond_ascii() -> None:
    """They were cut as a name is, and the recording was damaged from there on."""
    step = StepOperations(
        time_ns=at(1), process=1, start_ns=1, duration_ns=1, records=0,
        refers=(ReferredTo(call="cuLaunch\N{LATIN SMALL LETTER E WITH ACUTE}"),),
        packed=random.Random(1).randbytes(9000),
    )  # fmt: skip
    assert read(lines_of(header(), step, run_ended()))[0] == [header(), step, run_ended()]


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import header, run_started
from tests.store.test_journal import output
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
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
        cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert "file too large" in done.stdout
    found = list(JournalReader.open(tmp_path / "x.gputui"))
    assert found[:2] == [header(), run_started()]
    assert len(found) > 10


@pytest.mark.parametrize(
    "bad",
    [
        output("half a \ud800 pair"),
        RunOutput(time_ns=at(3), run=1, stream="stdout", lines=("a",), dropped_lines=-1),
    ],
)
def test_what_cannot_be_written_and_read_is_said_counted_and_left_out(
    tmp_path: Path, bad: AnyEvent
) -> None:
    writer = JournalWriter(tmp_path / "x.gputui")
    writer.write([header(), run_started(), bad, output("a")])
    writer.write([bad, run_ended()])
    writer.close()
    assert (writer.failure, writer.left_out) == (None, 2)
    assert "was left out of the recording" in writer.notices[0]
    assert writer.notices[1:] == ["2 events in all were left out of the recording"]
    assert list(JournalReader.open(tmp_path / "x.gputui")) == [
        header(), run_started(), output("a"), run_ended()
    ]  # fmt: skip


def test_a_header_that_cannot_be_encoded_ends_the_recording(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "x.gputui")
    writer.write([msgspec.structs.replace(header(), arguments=("\ud800",))])
    writer.write([run_started()])
    writer.close()
    assert writer.failure is not None
    assert "its header cannot be written" in writer.failure


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


def test_each_run_of_a_screen_has_a_file_with_all_that_it_needs(tmp_path: Path) -> None:
    recorder = RunRecorder(lambda _: tmp_path / f"{len(list(tmp_path.iterdir()))}.gputui")
    kernel = KernelDefined(time_ns=at(1), kernel=1, name="gemm", mangled="_Z4gemm")
    recorder.write([header(gpu()), run_started(), kernel, run_ended(), run_started()])
    recorder.write([run_ended()])
    recorder.close()
    first, second = (list(JournalReader.open(tmp_path / f"{n}.gputui")) for n in range(2))
    assert first == [header(gpu()), run_started(), kernel, run_ended()]
    assert second == [header(gpu()), kernel, run_started(), run_ended()]


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


# --- the page, and old versions ----------------------------------------------------------------


def test_a_recording_of_schema_3_is_read_to_its_end_with_and_without_its_sums() -> None:
    path = DATA / "schema-3.gputui"
    reader = JournalReader.open(path)
    events = list(reader)
    assert (len(events), reader.skipped, reader.damage) == (21, 0, None)
    sessions = []
    for found in (events, list(JournalReader.open(path, summed=True))):
        session = Session.from_events(found)
        assert session.unknown_references == 0
        sessions.append(contents(session))
        run = session.run
        assert run is not None
        assert run.ranges[1].cpu.freeze().values == (500, 32, -3, 64, 404)
        assert run.ranges[1].cpu.median == 532
        assert [times.total.total for times in run.launches.values()] == [9000]
    assert sessions[0] == sessions[1]


# --- compression -------------------------------------------------------------------------------


def some_events(count: int) -> list[AnyEvent]:
    return [header(gpu()), run_started(), *(output(f"line {i}") for i in range(count)), run_ended()]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_write_of_every_kind_of_file_can_be_read_at_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path)
    events = some_events(50)
    for i, event in enumerate(events):
        writer.write([event])
        reader = JournalReader.open(path)
        assert list(reader) == events[: i + 1]
        assert reader.damage is None
    writer.close()
    assert list(JournalReader.open(path)) == events
    assert path.stat().st_size == writer.bytes_written


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_compressed_files_are_smaller_and_known_by_their_first_bytes(
    tmp_path: Path, suffix: str
) -> None:
    sizes = {}
    for name in ("plain.gputui", f"small{suffix}"):
        writer = JournalWriter(tmp_path / name)
        writer.write(some_events(2000))
        writer.close()
        sizes[name] = (tmp_path / name).stat().st_size
    assert sizes[f"small{suffix}"] < sizes["plain.gputui"] / 5
    data = (tmp_path / f"small{suffix}").read_bytes()
    assert read(data)[0] == some_events(2000)


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_a_compressed_file_cut_anywhere_gives_what_was_flushed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path)
    events = some_events(30)
    ends = []
    for event in events:
        writer.write([event])
        ends.append(writer.bytes_written)
    writer.close()
    data = path.read_bytes()
    for cut in range(len(data)):
        committed = sum(end <= cut for end in ends)
        try:
            found, _ = read(data[:cut])
        except JournalError:
            assert committed == 0
        else:
            assert found == events[: len(found)]
            assert len(found) >= committed


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
@given(st.data())
def test_a_flipped_bit_in_a_compressed_file_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("x") / f"x{suffix}"
    writer = JournalWriter(path)
    writer.write(some_events(20))
    writer.close()
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _ = read(bytes(raw))
    except JournalError:
        return
    Session().apply(found)


def test_several_streams_in_one_file_are_read_one_after_the_other() -> None:
    data = gzip.compress(lines_of(header(), run_started())) + gzip.compress(lines_of(run_ended()))
    assert read(data)[0] == [header(), run_started(), run_ended()]


BOMB = """
import io, resource, sys, zlib
from gputui.store.journal.reader import JournalReader
from tests.store.test_journal import lines_of, output
from tests.events_for_tests import header
head = lines_of(header())
kind = sys.argv[1]
body = b"0" * (1 << 20) if kind == "one line" else lines_of(output("x" * 2000)) * 500
if sys.argv[2] == "zst":
    import zstandard
    packer = zstandard.ZstdCompressor(level=3).compressobj()
else:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
data = packer.compress(head) + b"".join(packer.compress(body) for _ in range(100)) + packer.flush()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reader = JournalReader(io.BytesIO(data), "bomb")
count = sum(1 for _ in reader)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(reader.damage)
assert grown < 200_000, grown
"""


@pytest.mark.parametrize(
    ("kind", "packing", "words"),
    [
        ("one line", "gzip", "is too long"),
        ("one line", "zst", "is too long"),
        ("many lines", "zst", "expands more than 1000-fold"),
    ],
)
def test_a_bomb_is_put_down_in_bounded_memory(kind: str, packing: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB, kind, packing],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


@pytest.mark.parametrize(
    ("suffix", "rotation"), [*((suffix, []) for suffix in SUFFIXES), (".gputui", ["150000"])]
)
def test_killed_writers_lose_no_committed_tick(
    tmp_path: Path, suffix: str, rotation: list[str]
) -> None:
    # Of a seed of their own each; others by hand, with the module.
    words = ["tests.killed_writers", str(tmp_path), suffix, "40", f"7{len(rotation)}", *rotation]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env=os.environ,
    )  # fmt: skip
    assert done.stdout == "ok 40\n", done.stdout + done.stderr


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_recording_cut_within_a_line_says_so(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path)
    writer.write([header(), run_started()])
    begun = path.stat().st_size
    writer.write([run_ended()])
    ended = path.stat().st_size
    content = path.read_bytes()
    writer.close()
    path.write_bytes(content[:begun])  # between two ticks, as a killed writer leaves it
    reader = JournalReader.open(path)
    assert (list(reader), reader.damage) == ([header(), run_started()], None)
    path.write_bytes(content[: ended - 20])
    reader = JournalReader.open(path)
    assert list(reader) == [header(), run_started()]
    assert "is truncated" in (reader.damage or "")


# --- rotation and limits -----------------------------------------------------------------------


def test_rotated_files_can_each_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path, Limits(rotate_bytes=2000))
    start = [header(gpu()), run_started(), attached(), defined(1, "step"), defined(2, "a", 1)]
    writer.write(start)
    written = [output(f"line {i} " + "y" * 100) for i in range(60)]
    for event in written:
        writer.write([event])
    writer.write([run_ended()])
    writer.close()
    files = sorted(tmp_path.iterdir(), key=lambda file: (len(file.name), file.name))
    assert files[:3] == [path, tmp_path / "x.2.gputui", tmp_path / "x.3.gputui"]
    lines: list[str] = []
    for file in files:
        events = list(JournalReader.open(file))
        session = Session.from_events(events)
        assert session.unknown_references == 0
        assert session.run is not None
        assert [node.path for node in session.run.ranges.values()] == ["step", "step/a"]
        lines += [line for event in events if isinstance(event, RunOutput) for line in event.lines]
    assert lines == [line for event in written for line in event.lines]


def test_files_rotate_by_time(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "x.gputui", Limits(rotate_ns=10_000_000_000))
    writer.write([header()])
    for second in (1, 5, 9, 11, 15, 22):
        event = RunOutput(time_ns=at(second), run=1, stream="stdout", lines=(str(second),))
        writer.write([event])
    writer.close()
    found = {
        file.name: [event.lines[0] for event in JournalReader.open(file)
                    if isinstance(event, RunOutput)]
        for file in tmp_path.iterdir()
    }  # fmt: skip
    assert found == {
        "x.gputui": ["1", "5", "9"], "x.2.gputui": ["11", "15"], "x.3.gputui": ["22"]
    }  # fmt: skip


def test_a_run_that_ended_is_not_carried_on(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "x.gputui", Limits(rotate_bytes=100))
    writer.write([header(), run_started()])
    writer.write([run_ended()])
    writer.write([run_started(2)])
    writer.close()
    assert list(JournalReader.open(tmp_path / "x.2.gputui")) == [
        header(), run_started(), run_ended()
    ]  # fmt: skip
    assert list(JournalReader.open(tmp_path / "x.3.gputui")) == [header(), run_started(2)]


def test_the_oldest_files_make_room(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "x.gputui", Limits(rotate_bytes=2000, max_bytes=6000))
    writer.write([header(), run_started()])
    for i in range(200):
        writer.write([output(f"line {i} " + "y" * 100)])
    writer.close()
    assert writer.failure is None
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 6000
    assert not (tmp_path / "x.gputui").exists()
    assert str(tmp_path / "x.gputui") in writer.notices[0]
    newest = max(tmp_path.iterdir(), key=lambda file: int(file.name.split(".")[1]))
    assert list(JournalReader.open(newest))[-1] == output("line 199 " + "y" * 100)


def test_a_file_that_may_not_grow_further_ends_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path, Limits(max_bytes=3000))
    writer.write([header(), run_started()])
    for _ in range(100):
        writer.write([output("y" * 100)])
    assert writer.failure is not None
    assert "reached its size limit (3000 bytes)" in writer.failure
    reader = JournalReader.open(path)
    assert len(list(reader)) > 10
    assert reader.damage is None
    assert path.stat().st_size <= 3000


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "rotate", [Limits(), Limits(rotate_ns=3600 * 10**9), Limits(rotate_bytes=10**9)]
)
def test_no_recording_is_ever_larger_than_it_may_be(
    tmp_path: Path, suffix: str, rotate: Limits
) -> None:
    """Whatever a file was to become before the next one: an hour may be far over the limit."""
    limits = msgspec.structs.replace(rotate, max_bytes=20_000)
    writer = JournalWriter(tmp_path / f"x{suffix}", limits)
    noise = random.Random(1)
    writer.write([header(), run_started()])
    for number in range(300):
        writer.write([output(f"{number} {noise.randbytes(200).hex()}")])
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    writer.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    if rotate.rotates:
        assert writer.failure is None
        reader = open_journal(tmp_path / f"x{suffix}")
        numbers = [int(e.lines[0].split()[0]) for e in reader if isinstance(e, RunOutput)]
        assert numbers == list(range(numbers[0], 300))
        assert len(numbers) > 10
    else:
        assert "reached its size limit" in (writer.failure or "")


def test_numbers_go_before_the_suffix() -> None:
    assert numbered_path(Path("a/x.gputui.zst"), 3) == Path("a/x.3.gputui.zst")
    assert numbered_path(Path("x.jsonl"), 2) == Path("x.jsonl.2")
    assert numbered_path(Path("x.gputui"), 1) == Path("x.gputui")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_grows_can_be_followed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    writer = JournalWriter(path)
    writer.write([header()])
    stop = threading.Event()
    events = iter(JournalReader.open(path, stop))
    assert next(events) == header()
    for event in (run_started(), output("a"), run_ended()):
        writer.write([event])
        assert next(events) == event
    stop.set()
    assert list(events) == []
    writer.close()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--record", "-o", "-", "--rotate", "1h"], "standard output has no size"),
        (["--record", "-o", "-", "--trace"], "give -o FILE"),
        (["--record", "--rotate", "often"], "give a size like 500k, 100M or 2G"),
        (["--record", "--max-size", "0"], "give a size like 500k, 100M or 2G"),
        (["--record", "--trace-limit", "1G"], "--trace-limit needs --trace"),
        (["--once", "--rotate", "1h"], "--rotate needs a recording"),
        (["--demo", "--follow"], "--follow needs --replay"),
    ],
)
def test_limits_that_make_no_sense_are_refused_in_one_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gputui(words) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert said.count("\n") == 1
