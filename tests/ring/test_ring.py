"""Rings with hostile contents: reading them gives records or one clear line, never a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.inject.target import LAYOUT_VERSION
from gputui.ring import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    STRING_BYTES_MAX,
    RecordKind,
)
from gputui.ring.reader import RingError, RingFolder, RingReader, StringDefinitions

pytestmark = pytest.mark.usefixtures("library")

CAPACITY = 16
DEAD_PID = 2**22 + 1  # above any pid that Linux gives


def ring_bytes(slots: np.ndarray, **header: int | bytes) -> bytes:
    page = np.zeros(1, HEADER)
    page["magic"], page["layout_version"] = MAGIC, LAYOUT_VERSION
    page["header_bytes"], page["slot_bytes"] = HEADER_BYTES, SLOT_BYTES
    page["capacity"], page["pid"] = CAPACITY, DEAD_PID
    for name, value in header.items():
        page[name] = value
    return page.tobytes() + slots.tobytes()


def published(count: int, first: int = 0) -> np.ndarray:
    slots = np.zeros(CAPACITY, SLOT)
    for number in range(first, first + count):
        slots[number % CAPACITY]["published"] = (number + 1) & 0xFFFFFFFF
        slots[number % CAPACITY]["kind"] = RecordKind.RANGE_POP
        slots[number % CAPACITY]["start"] = number
    return slots


def write(folder: Path, content: bytes) -> Path:
    path = folder / "1-1.ring"
    path.write_bytes(content)
    return path


def read_all(reader: RingReader) -> np.ndarray:
    batches = []
    while len(batch := reader.read(5, process_gone=reader.gone)):
        batches.append(batch)
    return np.concatenate(batches) if batches else np.empty(0, SLOT)


@pytest.mark.parametrize("first", [0, 5, 2**32 - 4, 2**40])
def test_records_come_in_order_where_numbers_wrap(tmp_path, first):
    path = write(tmp_path, ring_bytes(published(10, first), head=first + 10, tail=first))
    reader = RingReader(path)
    assert read_all(reader)["start"].tolist() == list(range(first, first + 10))
    assert reader.gone
    again = np.frombuffer(path.read_bytes(), HEADER, 1)
    assert int(again["tail"][0]) == first + 10
    reader.close()


def test_a_slot_that_its_writer_never_filled_waits_until_the_process_is_gone(tmp_path):
    slots = published(10)
    slots[4]["published"] = 0
    reader = RingReader(write(tmp_path, ring_bytes(slots, head=10)))
    assert reader.read(100)["start"].tolist() == [0, 1, 2, 3]
    assert len(reader.read(100)) == 0
    assert reader.read(100, process_gone=True)["start"].tolist() == [5, 6, 7, 8, 9]
    reader.close()


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(min_size=CAPACITY * SLOT_BYTES, max_size=CAPACITY * SLOT_BYTES),
    alike=st.lists(st.integers(0, CAPACITY - 1), min_size=CAPACITY, max_size=CAPACITY),
    count=st.integers(0, CAPACITY),
    steps=st.lists(st.integers(0, 7), max_size=8),
)
def test_what_is_held_is_read_as_it_was(tmp_path_factory, content, alike, count, steps):
    slots = np.frombuffer(content, SLOT)[alike].copy()
    slots["published"] = np.where(np.arange(CAPACITY) < count, np.arange(1, CAPACITY + 1), 0)
    reader = RingReader(write(tmp_path_factory.mktemp("ring"), ring_bytes(slots, head=count)))
    batches = []
    for step in [*steps, CAPACITY, 0, CAPACITY]:
        if step:
            batches.append(reader.read(step))
        else:
            reader.hold(8 << 20)
    assert reader.waiting == 0
    assert np.concatenate(batches).tobytes() == slots[:count].tobytes()
    reader.close()


def test_what_finds_no_room_stays_in_the_ring(tmp_path):
    path = write(tmp_path, ring_bytes(published(10), head=10))
    reader = RingReader(path)
    assert reader.hold(0) == 0
    assert int(np.frombuffer(path.read_bytes(), HEADER, 1)["tail"][0]) == 0
    assert reader.hold(1 << 20) == reader.waiting == 10
    assert int(np.frombuffer(path.read_bytes(), HEADER, 1)["tail"][0]) == 10
    other = RingReader(write(tmp_path, ring_bytes(published(10), head=10)))
    assert other.hold(1 << 20) == 0  # all rings together
    reader.close()
    assert other.hold(1 << 20) == 10
    other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": 1}, "not a gputui ring"),
        ({"layout_version": 99}, "layout 99, this gputui reads 2: rebuild"),
        ({"capacity": 0}, "sizes do not fit"),
        ({"capacity": 3}, "sizes do not fit"),
        ({"capacity": 2**63}, "sizes do not fit"),
        ({"capacity": CAPACITY * 2}, "sizes do not fit"),
        ({"slot_bytes": 32}, "sizes do not fit"),
        ({"header_bytes": 0}, "sizes do not fit"),
    ],
)
def test_a_wrong_header_is_refused_in_one_line(tmp_path, change, message):
    path = write(tmp_path, ring_bytes(published(3), **change))
    with pytest.raises(RingError, match=message) as caught:
        RingReader(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_rings_are_refused(tmp_path):
    missing, short, fifo, link = (tmp_path / name for name in "abcd")
    short.write_bytes(b"x" * 100)
    os.mkfifo(fifo)
    link.symlink_to(write(tmp_path, ring_bytes(published(3))))
    for path in (missing, short, fifo, link, tmp_path):
        with pytest.raises(RingError, match=str(path)):
            RingReader(path)


words = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, CAPACITY, 2**63, 2**64 - 1])


@settings(max_examples=150, deadline=None)
@given(
    slots=st.binary(max_size=CAPACITY * SLOT_BYTES),
    header=st.fixed_dictionaries(
        dict.fromkeys(("head", "tail", "dropped", "start_ns", "heartbeat_ns"), words)
    ),
    text=st.binary(max_size=600),
    small=st.integers(0, 2**31 - 1),
    first=st.integers(0, 2**33),
    numbered=st.booleans(),
    cut=st.sampled_from([0, 0, 0, 1, 64, 5000]),
)
def test_fuzzed_rings_never_crash_the_reader(
    tmp_path_factory, slots, header, text, small, first, numbered, cut
):
    raw = np.frombuffer(slots.ljust(CAPACITY * SLOT_BYTES, b"\1"), SLOT).copy()
    if numbered:  # so that the random contents are also read
        header |= {"head": first + CAPACITY, "tail": first}
        for number in range(first, first + CAPACITY):
            raw[number % CAPACITY]["published"] = (number + 1) & 0xFFFFFFFF
    content = ring_bytes(
        raw, cuda_text=text, command=text, pid=small, cuda_state=small, rank=-small, **header
    )
    path = write(tmp_path_factory.getbasetemp(), content[: len(content) - cut])
    if cut:
        with pytest.raises(RingError):
            RingReader(path)
        return
    reader = RingReader(path)
    records, strings = StringDefinitions().split(read_all(reader))
    assert len(records) <= CAPACITY
    assert all(value.isprintable() or " " in value for value in strings.values())
    assert "\n" not in reader.facts.command + reader.facts.cuda_text
    assert reader.health().dropped == header["dropped"]
    assert reader.exited in (True, False)
    reader.close()


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=3 * 4096))
def test_random_files_are_refused(tmp_path_factory, content):
    with pytest.raises(RingError):
        RingReader(write(tmp_path_factory.getbasetemp(), content))


def definition(string_id: int, text: bytes, first: int) -> np.ndarray:
    parts = -(-len(text) // 60)
    slots = np.zeros(1 + parts, SLOT)
    raw = slots.view(np.uint8).reshape(-1, SLOT_BYTES)
    raw[1:, :60] = np.frombuffer(text.ljust(parts * 60, b"\0"), np.uint8).reshape(parts, 60)
    slots[0]["kind"], slots[0]["name"], slots[0]["value"] = RecordKind.STRING, string_id, len(text)
    slots["published"] = np.arange(first + 1, first + 2 + parts, dtype=np.uint64) & 0xFFFFFFFF
    return slots


def plain(first: int) -> np.ndarray:
    slots = np.zeros(1, SLOT)
    slots["kind"], slots["start"], slots["published"] = RecordKind.MARK, first, (first + 1) % 2**32
    return slots


texts = st.text(max_size=200) | st.sampled_from(["\x01" * 300, "x" * 60, "é" * 30, ""])


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(texts | st.none(), max_size=12),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    first=st.sampled_from([0, 2**32 - 6]),
)
def test_definitions_are_found_however_batches_are_cut(items, cuts, first):
    pieces, expected, marks, number = [np.empty(0, SLOT)], {}, [], first
    for at, item in enumerate(items):
        piece = plain(number) if item is None else definition(at + 1, item.encode(), number)
        if item is None:
            marks.append(number)
        else:
            expected[at + 1] = item
        pieces.append(piece)
        number += len(piece)
    whole = np.concatenate(pieces)
    definitions = StringDefinitions(cleaner=lambda text, _: text)
    found: dict[int, str] = {}
    records: list[int] = []
    for batch in np.split(whole, sorted(min(cut, len(whole)) for cut in cuts)):
        rest, strings = definitions.split(batch)
        found |= strings
        records += rest["start"].tolist()
    assert found == expected
    assert records == marks


def test_a_string_whose_writer_was_killed_swallows_nothing():
    broken = definition(7, b"a" * 150, 0)[:2]  # two of three parts never came
    after = np.concatenate([plain(4), definition(8, b"whole", 5)])
    records, strings = StringDefinitions().split(np.concatenate([broken, after]))
    assert records["start"].tolist() == [4]
    assert strings == {8: "whole"}


def test_an_absurd_length_swallows_nothing():
    slots = definition(1, b"text", 0)
    slots[0]["value"] = STRING_BYTES_MAX + 1
    slots[1]["kind"] = RecordKind.MARK
    records, strings = StringDefinitions().split(np.concatenate([slots, plain(2)]))
    assert len(records) == 2
    assert strings == {}


def test_texts_are_cleaned_where_they_enter():
    _, strings = StringDefinitions().split(definition(1, b"\x1b[2J\xff\n", 0))
    assert strings == {1: "\ufffd[2J\ufffd\ufffd"}


def test_a_folder_gives_each_ring_once_and_names_what_it_cannot_read(tmp_path):
    folder = RingFolder(tmp_path)
    assert folder.discover() == ([], [])
    (tmp_path / "12-34.ring").write_bytes(ring_bytes(published(3), head=3))
    (tmp_path / "13-34.ring").write_bytes(b"nothing")
    (tmp_path / ".14-34.new").write_bytes(ring_bytes(published(3)))
    (tmp_path / "notes.txt").write_text("x")
    (reader,), (problem,) = folder.discover()
    assert "13-34.ring" in problem
    assert reader.facts.pid == DEAD_PID
    assert len(reader.read(10)) == 3
    assert folder.discover() == ([], [])
    assert not (tmp_path / "12-34.ring").exists()
    reader.close()


def test_a_folder_that_vanished_is_a_problem_not_a_crash(tmp_path):
    readers, problems = RingFolder(tmp_path / "gone").discover()
    assert readers == []
    assert len(problems) == 1


def test_a_reused_pid_counts_as_gone(tmp_path):
    sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    ring = ring_bytes(published(1), head=1, pid=sleeper.pid, start_ticks=1)
    reader = RingReader(write(tmp_path, ring))
    assert reader.gone
    reader.close()
    sleeper.communicate()


@pytest.mark.parametrize("exited", [0, 1])
def test_a_process_of_another_namespace_is_gone_when_it_says_so(tmp_path, exited):
    ring = ring_bytes(published(1), head=1, pid_namespace=1, exited=exited)
    reader = RingReader(write(tmp_path, ring))
    assert reader.gone is bool(exited)
    reader.close()


CUT = """
import os, sys
from pathlib import Path
from gputui.ring.reader import RingReader

path, left = Path(sys.argv[1]), int(sys.argv[2])
ring = RingReader(path)
print(len(ring.read(100)))
os.truncate(path, left)
print(ring.hold(1 << 30), len(ring.read(100_000)), len(ring.read(100_000, process_gone=True)))
print(ring.gone, ring.health().dropped)
ring.close()
os.kill(os.getpid(), 7)
"""


@pytest.mark.parametrize("left", [0, HEADER_BYTES, HEADER_BYTES + (1 << 20)])
def test_a_ring_that_is_cut_while_it_is_read_ends_no_monitor(tmp_path, left):
    capacity = 1 << 16
    slots = np.zeros(capacity, SLOT)
    slots["published"] = np.arange(1, capacity + 1)
    slots["kind"] = RecordKind.RANGE_POP
    page = ring_bytes(slots, capacity=capacity, head=capacity, dropped=3)
    path = write(tmp_path, page)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(path), str(left)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = done.stdout.split()
    # What was cut is not read; a bus error that is none of a ring's still ends the process.
    assert done.returncode == -signal.SIGBUS, done.stderr
    whole = str(max(0, (left - HEADER_BYTES) // SLOT_BYTES - 100))
    assert words[:4] == ["100", whole, whole, "0"]
    assert words[4:] == ["True", "3" if left else "0"]


CUT_AT_ONCE = """
import os, sys
from pathlib import Path
from gputui.ring import reader

map_file = reader._map_file

def map_and_cut(path):
    mapped = map_file(path)
    os.truncate(path, 0)
    return mapped

reader._map_file = map_and_cut
try:
    reader.RingReader(Path(sys.argv[1]))
except reader.RingError as error:
    print(error)
"""


def test_a_ring_that_is_cut_while_it_is_opened_ends_no_monitor(tmp_path):
    path = write(tmp_path, ring_bytes(published(1), head=1))
    done = subprocess.run(
        [sys.executable, "-c", CUT_AT_ONCE, str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{path}: not a gputui ring\n"), done.stderr


def test_a_folder_that_is_gone_is_told_of_once(tmp_path):
    folder = RingFolder(tmp_path / "gone")
    rings, problems = folder.discover()
    assert (len(rings), len(problems)) == (0, 1)
    assert folder.discover() == ([], [])
