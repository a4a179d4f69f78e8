"""NVTX marks of one process: all are counted, the newest kept."""

from __future__ import annotations

from collections import deque

import numpy as np

from gputui.attribute.arrays import Slots, times_ns
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.numbering import Numbering
from gputui.attribute.records import Attributes, Strings
from gputui.attribute.trace_sink import TraceSink
from gputui.model.events import Mark, MarkDefined, MarkDelta, Payload
from gputui.model.merge import merge
from gputui.model.payloads import NO_PAYLOAD, payload_of
from gputui.ring.layout import payload_types

MARKS_KEPT = 1000
"""Marks kept per tick; of more, the newest stay."""

MAX_NAMES = 10_000
"""Distinct marks per process; any further ones share the name "(other marks)"."""

OTHER_MARKS = "(other marks)"

_Key = tuple[str, str]
"""Domain and name."""


class Marks:
    """Counts marks by domain and name. `newest` are marks to report one by one and `defined` are
    new names; the caller clears both. With `trace`, every mark goes there.
    """

    def __init__(
        self, process: int, strings: Strings, numbering: Numbering, trace: TraceSink | None
    ) -> None:
        self.newest: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self.defined: list[MarkDefined] = []
        self._process = process
        self._strings = strings
        self._numbering = numbering
        self._trace = trace
        self._numbers: dict[_Key, int] = {}
        self._new: dict[_Key, MarkDelta] = {}

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add MARK records, none later than `now_ns`."""
        if not len(records):
            return
        moments = np.minimum(times_ns(records["start"]), now_ns)
        keys = records["a"].astype(np.uint64) << np.uint64(32) | records["name"].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        starts = np.unique(keys[order], return_index=True)[1]
        firsts = np.minimum.reduceat(moments[order], starts)
        lasts = np.maximum.reduceat(moments[order], starts)
        counts = np.diff(starts, append=len(records))
        types = payload_types(records)
        numbers = np.zeros(len(records), np.int64)
        for start, count, first_ns, last_ns in zip(
            starts.tolist(), counts.tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            these = order[start : start + count]
            key = self._key(records[these[0]], now_ns)
            numbers[these] = self._numbers[key]
            valued = these[types[these] != NO_PAYLOAD][-1:]
            payload = [payload_of(int(types[at]), int(records["end"][at])) for at in valued]
            self._add(key, count, first_ns, last_ns, payload[0] if payload else None)
        if self._trace is not None:
            self._trace.marks(records, moments, numbers)
        kept = slice(-MARKS_KEPT, None)
        for record, time_ns, kind in zip(
            records[kept], moments[kept].tolist(), types[kept].tolist(), strict=True
        ):
            domain, name = self._label(record)
            self.newest.append(
                Mark(
                    time_ns=time_ns,
                    process=self._process,
                    thread=int(record["thread"]),
                    domain=domain,
                    name=name,
                    payload=payload_of(kind, int(record["end"])),
                )
            )

    def collect_parts(self, _: Collection) -> DeltaParts:
        """Marks by domain and name, with how many there were."""
        new, self._new = self._new, {}
        return {"marks": tuple(new.values())}

    def _label(self, record: np.void) -> _Key:
        return self._strings.domain(int(record["a"])), self._strings.label(int(record["name"]))

    def _key(self, record: np.void, now_ns: int) -> _Key:
        """The key of a mark, which is defined if new."""
        attributes = self._strings.range_attributes(record)
        key = self._strings.domain(int(record["a"])), attributes.name
        if key not in self._numbers and len(self._numbers) >= MAX_NAMES:
            key, attributes = ("", OTHER_MARKS), Attributes(OTHER_MARKS)
        if key not in self._numbers:
            self._numbers[key] = number = self._numbering.mark()
            self.defined.append(
                MarkDefined(
                    time_ns=now_ns,
                    mark=number,
                    process=self._process,
                    domain=key[0],
                    name=key[1],
                    color=attributes.color,
                    category=attributes.category,
                    category_id=attributes.category_id,
                )
            )
        return key

    def _add(
        self, key: _Key, count: int, first_ns: int, last_ns: int, payload: Payload | None
    ) -> None:
        known = self._new.get(key)
        new = MarkDelta(*key, count, first_ns, last_ns, payload)
        self._new[key] = new if known is None else merge(known, new)
