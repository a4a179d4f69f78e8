"""NVTX marks of one process: all are counted, the newest kept."""

from __future__ import annotations

from collections import deque

import numpy as np

from gputui.events import Mark, MarkDelta
from gputui.sources.capture.arrays import Slots, times_ns
from gputui.sources.capture.strings import Strings

MARKS_KEPT = 1000
"""Marks a tick; of more the newest stay."""

MAX_NAMES = 10_000
"""Different marks a process; what comes after shares the name "(other marks)"."""

OTHER_MARKS = "(other marks)"


class Marks:
    """Counts marks by domain and name. `newest` are those to be told one by one, to be cleared."""

    def __init__(self, process: int, strings: Strings) -> None:
        self.newest: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self._process = process
        self._strings = strings
        self._names: set[tuple[str, str]] = set()
        self._new: dict[tuple[str, str], MarkDelta] = {}

    def feed(self, records: Slots, now_ns: int) -> None:
        """Take in MARK records, none of which is later than `now_ns`."""
        if not len(records):
            return
        moments = np.minimum(times_ns(records["start"]), now_ns)
        keys = records["a"].astype(np.uint64) << np.uint64(32) | records["name"].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        starts = np.unique(keys[order], return_index=True)[1]
        firsts = np.minimum.reduceat(moments[order], starts)
        lasts = np.maximum.reduceat(moments[order], starts)
        counts = np.diff(starts, append=len(records))
        for first, count, first_ns, last_ns in zip(
            order[starts].tolist(), counts.tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            self._add(self._label(records[first]), count, first_ns, last_ns)
        for record, time_ns in zip(
            records[-MARKS_KEPT:], moments[-MARKS_KEPT:].tolist(), strict=True
        ):
            domain, name = self._label(record)
            self.newest.append(
                Mark(
                    time_ns=time_ns,
                    process=self._process,
                    thread=int(record["thread"]),
                    domain=domain,
                    name=name,
                )
            )

    def collect(self) -> tuple[MarkDelta, ...]:
        """What was counted since the last call."""
        new, self._new = self._new, {}
        return tuple(new.values())

    def _label(self, record: np.void) -> tuple[str, str]:
        name, _, _ = self._strings.range_attributes(record)
        return self._strings.domain(int(record["a"])), name

    def _add(self, key: tuple[str, str], count: int, first_ns: int, last_ns: int) -> None:
        if key not in self._names:
            if len(self._names) < MAX_NAMES:
                self._names.add(key)
            else:
                key = "", OTHER_MARKS
        known = self._new.get(key)
        if known is not None:
            count += known.marks
            first_ns, last_ns = min(first_ns, known.first_ns), max(last_ns, known.last_ns)
        self._new[key] = MarkDelta(*key, count, first_ns, last_ns)
