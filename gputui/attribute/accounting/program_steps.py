"""The steps that a program marks itself: reported as events, and as the moments at which the steps
of its devices begin. Python programs mark them by STEP records (hook/step_marks.py); XLA puts an
NVTX range around each call of a jitted function, which is as good.

For `traced_process`. Not in `tracker`, which seeks steps in what a program launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s, Slots, times_ns
from gputui.attribute.records import Strings
from gputui.model.events import ITEM_UNITS, MARKED_LENGTHS, STEP_SOURCES, StepMarks, StepSource
from gputui.ring.layout import RecordKind

MOST_SITES = 256
"""Threads and sites of a process whose marks are reported; those of further ones are left out."""


MOST_NAMES = 100_000
"""Names of ranges that are looked at for XLA's calls."""

_PUSH = int(RecordKind.RANGE_PUSH)


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
        self.seen = 0
        """Marks that had no ordinal of their own."""
        self.items = 0
        self.unit = 0


_XLA_DOMAIN = "TSL"
_XLA_CALL = re.compile(r"XlaModule:#.*?hlo_module=(jit_[^,#]*)")
"""XLA's range around a call of a compiled module: `XlaModule:#hlo_module=jit_step,program_id=7#`
(xla/service/gpu/gpu_executable.cc, ModuleAnnotations). The number is new for each compilation."""


class ProgramSteps:
    """STEP records and ranges of one process in, in order; StepMarks out."""

    def __init__(self, process: int, strings: Strings) -> None:
        self._process = process
        self._strings = strings
        self._sites: dict[Site, _Marks] = {}
        self._jitted: dict[int, str | None] = {}
        """The functions that XLA's ranges are of, by the number of their names."""

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
            marks = self._marks_of(site)
            if marks is None:
                continue
            if not marks.new_ns:
                marks.first = int(its["value"][0])
            marks.new_ns.append(np.minimum(times_ns(its["start"]), now_ns))
            if 0 < newest["source_kind"] <= len(ITEM_UNITS):
                marks.unit = int(newest["source_kind"])
                marks.items += int(np.minimum(its["end"], 1 << 40).sum())

    def feed_ranges(self, records: Slots, now_ns: int) -> None:
        """Add records of ranges: those of XLA are calls of jitted functions."""
        pushes = records[(records["kind"] == _PUSH) & (records["a"] != 0)]
        if not len(pushes):
            return
        names = pushes["name"]
        for number in np.unique(names).tolist():
            its = pushes[names == number]
            if number not in self._jitted and len(self._jitted) < MOST_NAMES:
                is_xla = self._strings.domain(int(its["a"][0])) == _XLA_DOMAIN
                call = _XLA_CALL.match(self._strings.label(number)) if is_xla else None
                self._jitted[number] = call[1] if call else None
            function = self._jitted.get(number)
            if function is None:
                continue
            for thread in np.unique(its["thread"]).tolist():
                marks = self._marks_of(Site(thread, "jax", function))
                if marks is None:
                    continue
                if not marks.new_ns:
                    marks.first = marks.seen + 1
                moments = np.minimum(times_ns(its["start"][its["thread"] == thread]), now_ns)
                marks.new_ns.append(moments)
                marks.seen += len(moments)

    def _marks_of(self, site: Site) -> _Marks | None:
        marks = self._sites.get(site)
        if marks is None and len(self._sites) < MOST_SITES:
            marks = self._sites[site] = _Marks()
        return marks

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
