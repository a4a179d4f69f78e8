"""What a Python program says itself that it does: garbage collections, and calls that copy, wait or
free, by line. The start-up hook writes it (inject/hook/python_facts) beside the lines that it
samples.

For `reader`, which reads it, and `traced_process`, which collects it. The file is written by the
program that is looked at: anything may stand in it.
"""

from __future__ import annotations

import re

from gputui.attribute.collection import Collection, DeltaParts
from gputui.model.events import GarbageCollections, LineCalls

MOST_PLACES = 2000
"""Lines and calls of a process that are kept apart; further ones are left out."""

_CALL = re.compile(r"[a-z_.]{1,40}")
_SHAPE = re.compile(r"[\w:.,x]{1,120}|-")
_MOST = 1 << 60


class ProgramFacts:
    """Adds up lines of the hook's file until they are collected."""

    def __init__(self) -> None:
        self._collections: dict[tuple[int, int], list[int]] = {}
        self._calls: dict[tuple[int, str], tuple[int, int, str]] = {}
        self._places: set[tuple[int, int | str]] = set()

    def add(self, text: str, has_launched: bool) -> int:
        """Add one line of the file; returns the number of the program's line that it is about, 0 if
        none. Garbage that is collected before anything was launched, as while modules are imported,
        is left out. ValueError where it is none of the lines that the hook writes."""
        kind, name, *fields = text.split(" ")
        if kind == "g":
            generation = int(name)
            line, count, total_ns, longest_ns, objects = (_amount(field) for field in fields)
            if not has_launched or not 0 <= generation <= 2 or not self._has_room(generation, line):
                return 0
            sums = self._collections.setdefault((generation, line), [0, 0, 0, 0])
            sums[0] += count
            sums[1] += total_ns
            sums[2] = max(sums[2], longest_ns)
            sums[3] += objects
            return line
        line, count, moved_bytes = (_amount(field) for field in fields[:3])
        [shape] = fields[3:]
        if not _CALL.fullmatch(name) or not _SHAPE.fullmatch(shape):
            raise ValueError(text)
        if not self._has_room(name, line):
            return 0
        calls, size, _ = self._calls.get((line, name), (0, 0, ""))
        self._calls[line, name] = calls + count, size + moved_bytes, shape
        return line

    def _has_room(self, what: int | str, line: int) -> bool:
        place = line, what
        if place not in self._places and len(self._places) >= MOST_PLACES:
            return False
        self._places.add(place)
        return True

    def collect_parts(self, _collection: Collection) -> DeltaParts:
        """What is new of both."""
        collections = tuple(
            GarbageCollections(generation, line, *sums)
            for (generation, line), sums in self._collections.items()
        )
        calls = tuple(
            LineCalls(line, name, count, size, "" if shape == "-" else shape)
            for (line, name), (count, size, shape) in self._calls.items()
        )
        self._collections.clear()
        self._calls.clear()
        return {"garbage_collections": collections, "line_calls": calls}


def _amount(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _MOST:
        raise ValueError(text)
    return value
