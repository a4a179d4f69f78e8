"""The steps that a program marks itself (STEP records): reported as events, and as the moments at
which the steps of its devices begin.

For `traced_process`. Not in `tracker`, which seeks steps in what a program launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s, Slots, times_ns
from gputui.attribute.records import Strings
from gputui.model.events import ITEM_UNITS, MARKED_LENGTHS, STEP_SOURCES, StepMarks, StepSource

MOST_SITES = 256
"""Threads and sites of a process whose marks are reported; those of further ones are left out."""


class Site(NamedTuple):
    """Where a program marks its steps: on one thread, at one source and name."""

    thread: int
    source: StepSource
    name: str


class _Marks:
    """The marks of one site since the last report."""

    def __init__(self) -> None:
        self.before_ns: int | None = None
        self.new_ns: list[Int64s] = []
        self.first = 0
        self.items = 0
        self.unit = 0


class ProgramSteps:
    """STEP records of one process in, in order; StepMarks out."""

    def __init__(self, process: int, strings: Strings) -> None:
        self._process = process
        self._strings = strings
        self._sites: dict[Site, _Marks] = {}

    def feed(self, records: Slots, now_ns: int) -> None:
        """Add STEP records, none later than `now_ns`. Unknown sources are ignored."""
        if not len(records):
            return
        records = records[(records["sub"] > 0) & (records["sub"] <= len(STEP_SOURCES))]
        # A key a site; kinds of sources are few, so they fit beside the name's number.
        keys = (
            records["thread"].astype(np.uint64) << np.uint64(40)
            | records["sub"].astype(np.uint64) << np.uint64(32)
            | records["name"].astype(np.uint64)
        )
        for key in np.unique(keys):
            its = records[keys == key]
            newest = its[-1]
            site = Site(
                int(newest["thread"]),
                STEP_SOURCES[int(newest["sub"]) - 1],
                self._strings.label(int(newest["name"])) if newest["name"] else "",
            )
            marks = self._sites.get(site)
            if marks is None:
                if len(self._sites) >= MOST_SITES:
                    continue
                marks = self._sites[site] = _Marks()
            if not marks.new_ns:
                marks.first = int(its["value"][0])
            marks.new_ns.append(np.minimum(times_ns(its["start"]), now_ns))
            if 0 < newest["source_kind"] <= len(ITEM_UNITS):
                marks.unit = int(newest["source_kind"])
                marks.items += int(np.minimum(its["end"], 1 << 40).sum())

    def collect(self) -> Iterable[StepMarks]:
        """An event for each site that was marked since the last call."""
        for site, marks in self._sites.items():
            if not marks.new_ns:
                continue
            moments = np.concatenate(marks.new_ns)
            known = moments if marks.before_ns is None else np.append(marks.before_ns, moments)
            lengths = np.maximum(0, np.diff(known[-MARKED_LENGTHS - 1 :]))
            yield StepMarks(
                time_ns=int(moments[-1]),
                process=self._process,
                thread=site.thread,
                source=site.source,
                site=site.name,
                first=max(1, min(marks.first, 1 << 62)),
                marks=len(moments),
                span_ns=max(0, int(moments[-1] - moments[0])),
                lengths_ns=tuple(lengths.tolist()),
                items=marks.items if marks.unit else None,
                unit=ITEM_UNITS[marks.unit - 1] if marks.unit else None,
            )
            marks.before_ns, marks.new_ns, marks.items = int(moments[-1]), [], 0
