"""What the beginning and the end of a recording reveal about its run; the middle is not read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from gputui.model.events import AnyEvent, Header, RunEnded, RunStarted
from gputui.store.journal.reader import LINE_LIMIT, JournalReader, decode

FIRST_EVENTS = 2000
"""Events at the beginning searched for the recording's run."""

TAIL_BYTES = 256 << 10
"""Bytes at the end of a plain recording searched for its newest event."""

SEARCHED_BYTES = 32 << 20
"""Bytes at the end of a plain recording searched for its run's end: the screen goes on recording
the machine after a run; a day of one GPU takes as much.
"""

WHOLE_BYTES = 4 << 20
"""A compressed recording is read to its end up to this size: seeking to its end is impossible."""

_RUN_STARTED, _RUN_ENDED = b'\n{"event":"run_started"', b'\n{"event":"run_ended"'


@dataclass(slots=True)
class Probe:
    """`started` is the first run's start, `ended` the end of the last run that began.

    `newest_ns` is None if the end of the file was not read; `ended` is valid only with `knows_end`.
    """

    started: RunStarted | None = None
    ended: RunEnded | None = None
    newest_ns: int | None = None
    knows_end: bool = False

    def add(self, events: Iterable[AnyEvent]) -> int:
        """Add events in order; how many they were."""
        count = 0
        for count, event in enumerate(events, 1):  # noqa: B007
            self.newest_ns = max(self.newest_ns or 0, event.time_ns)
            if isinstance(event, RunStarted):
                self.started = self.started or event
                self.ended = None
            elif isinstance(event, RunEnded):
                self.ended = event
        return count


def probe(path: Path, reader: JournalReader, size_bytes: int) -> Probe:
    """Read the beginning of the recording open in `reader` and, if possible, its end."""
    seen = Probe(newest_ns=reader.header.time_ns)
    events = iter(reader)
    if seen.add(islice(events, FIRST_EVENTS)) < FIRST_EVENTS:
        seen.knows_end = True
    elif path.suffix == ".gputui":
        _look_at_end(path, seen)
    elif size_bytes <= WHOLE_BYTES:
        seen.add(events)
        seen.knows_end = True
    else:
        seen.newest_ns = None
    return seen


def _look_at_end(path: Path, seen: Probe) -> None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            seen.add(_events(_read(file, size - TAIL_BYTES, size).partition(b"\n")[2]))
            line = _last_of_run(file, size)
    except OSError:
        return
    if line is not None:
        seen.ended = next((e for e in _events(line) if isinstance(e, RunEnded)), None)
    seen.knows_end = line is not None or size < SEARCHED_BYTES


def _last_of_run(file: BinaryIO, size: int) -> bytes | None:
    """The line on which the last run ended, or began: searched backwards, in growing portions."""
    end, step = size, TAIL_BYTES
    while end > max(0, size - SEARCHED_BYTES):
        start = max(0, end - step)
        # The keyword may straddle the part already searched.
        data = _read(file, start, min(size, end + len(_RUN_STARTED)))
        found = max(data.rfind(_RUN_ENDED), data.rfind(_RUN_STARTED))
        if found >= 0:
            file.seek(start + found + 1)
            return file.readline(LINE_LIMIT)
        end, step = start, 2 * step
    return None


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    start = max(0, start)
    file.seek(start)
    return file.read(end - start)


def _events(lines: bytes) -> Iterator[AnyEvent]:
    """The events that decode; the rest is skipped."""
    for line in lines.split(b"\n"):
        try:
            event = decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            continue
        if not isinstance(event, Header):
            yield event
