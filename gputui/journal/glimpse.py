"""What the beginning and the end of a recording tell of its run: what lies between is not read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from gputui.events import AnyEvent, Header, RunEnded, RunStarted
from gputui.journal.reader import JournalReader, decode

FIRST_EVENTS = 2000
"""Events at the beginning in which a recording's run is looked for."""

TAIL_BYTES = 256 << 10
"""Bytes at the end of a plain recording in which its newest event is looked for."""

SEARCHED_BYTES = 32 << 20
"""Bytes at the end of a plain recording in which its run's end is looked for: the screen goes on
recording the machine after a run, a day of one GPU in as much."""

WHOLE_BYTES = 4 << 20
"""A compressed recording is read to its end up to this size: its end cannot be jumped to."""

_RUN_STARTED, _RUN_ENDED = b'\n{"event":"run_started"', b'\n{"event":"run_ended"'


@dataclass(slots=True)
class Glimpse:
    """`started` is the first run's start, `ended` the end of the last run that began.

    `newest_ns` is None where the end of the file was not looked at; `ended` means something only
    where `knows_end`.
    """

    started: RunStarted | None = None
    ended: RunEnded | None = None
    newest_ns: int | None = None
    knows_end: bool = False

    def add(self, events: Iterable[AnyEvent]) -> int:
        """Take in events in order; how many they were."""
        count = 0
        for count, event in enumerate(events, 1):  # noqa: B007
            self.newest_ns = max(self.newest_ns or 0, event.time_ns)
            if isinstance(event, RunStarted):
                self.started = self.started or event
                self.ended = None
            elif isinstance(event, RunEnded):
                self.ended = event
        return count


def glimpse(path: Path, reader: JournalReader, size_bytes: int) -> Glimpse:
    """Look at the beginning of what `reader` has open and, where it can be had, at its end."""
    seen = Glimpse(newest_ns=reader.header.time_ns)
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


def _look_at_end(path: Path, seen: Glimpse) -> None:
    end = _end_of(path)
    seen.add(_events(end[-TAIL_BYTES:].partition(b"\n")[2]))
    ended, started = end.rfind(_RUN_ENDED), end.rfind(_RUN_STARTED)
    if max(ended, started) >= 0:
        lines = end[max(ended, started) + 1 :].partition(b"\n")
        seen.ended = next((e for e in _events(lines[0]) if isinstance(e, RunEnded)), None)
        seen.knows_end = True
    else:
        seen.knows_end = len(end) < SEARCHED_BYTES


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - SEARCHED_BYTES))
            return file.read(SEARCHED_BYTES)
    except OSError:
        return b""


def _events(lines: bytes) -> Iterator[AnyEvent]:
    """What reads as an event; the rest is passed over."""
    for line in lines.split(b"\n"):
        try:
            event = decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            continue
        if not isinstance(event, Header):
            yield event
