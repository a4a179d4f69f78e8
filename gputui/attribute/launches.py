"""Launches from call to the kernel's end: time in the call, in the queue, and running."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s, Slots, UInt32s, durations_ns
from gputui.attribute.calls import Calls
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import grouped
from gputui.model.events import Distribution, LaunchDelta
from gputui.model.sketch import EXACT_VALUES

_DTYPE = np.dtype([
    ("thread", "u4"), ("name", "u4"), ("place", "i8"), ("total", "i8"), ("call", "i8"),
    ("queue", "i8"), ("kernel", "i8"),
])  # fmt: skip
_KERNEL_BITS = 24
# A launch's key: thread (its index among launching threads) | call | device | kernel.
_NAME_SHIFT = 32
_THREAD_SHIFT = 48
_PLACE_MASK = (1 << _NAME_SHIFT) - 1
_NAME_MASK = (1 << (_THREAD_SHIFT - _NAME_SHIFT)) - 1

LAUNCHES_NS = 10_000_000_000
LAUNCHES_KEPT = 200_000
"""Launches, which only the summary shows, are reported this often, or when there are so many."""

EXACT_LAUNCHES = 50_000
FEW_VALUES = 32
"""How many distinct times are sent exactly after so many launches: each launch has four
distributions, and no two calls take equally long.
"""


class Launches:
    """The launches of one process since the last collection."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._parts: list[Slots] = []
        self._reported = 0
        self._collected_ns = 0

    def add(
        self,
        calls: Slots,
        devices: Int64s,
        kernels: Int64s,
        starts_ns: Int64s,
        durations: Int64s,
    ) -> None:
        """Add kernels with the calls that launched them; those without a call are left out."""
        part = np.empty(len(calls), _DTYPE)
        part["thread"] = calls["thread"]
        part["name"] = calls["name"]
        part["place"] = devices << _KERNEL_BITS | kernels
        part["call"] = durations_ns(calls["start"], calls["end"])
        part["queue"] = starts_ns - calls["end"]
        part["kernel"] = durations
        ends_ns = np.maximum(calls["end"], starts_ns + durations)
        part["total"] = durations_ns(calls["start"], ends_ns)
        known = (calls["sequence"] >= 0) & (starts_ns > 0)
        self._parts.append(part if known.all() else part[known])

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Launches since they were last reported, if that is LAUNCHES_NS ago, if there are more
        than LAUNCHES_KEPT, or at the end of the process."""
        now_ns = collection.now_ns
        self._collected_ns = self._collected_ns or now_ns
        is_due = now_ns - self._collected_ns >= LAUNCHES_NS
        if not (collection.ended or is_due or sum(map(len, self._parts)) > LAUNCHES_KEPT):
            return {}
        self._collected_ns = now_ns
        parts, self._parts = self._parts, []
        if not any(map(len, parts)):
            return {}
        launched = np.concatenate(parts)
        threads, thread_of = _numbered(launched["thread"])
        keys = (
            thread_of << _THREAD_SHIFT
            | launched["name"].astype(np.int64) << _NAME_SHIFT
            | launched["place"]
        )
        queued = launched["queue"] > 0
        limit = FEW_VALUES if self._reported >= EXACT_LAUNCHES else EXACT_VALUES
        self._reported += len(launched)
        queue = dict(grouped(keys[queued], launched["queue"][queued], limit))
        columns = (
            grouped(keys, launched[name].copy(), limit) for name in ("total", "call", "kernel")
        )
        deltas = tuple(
            self._delta(
                collection.process,
                int(threads[key >> _THREAD_SHIFT]),
                key >> _NAME_SHIFT & _NAME_MASK,
                key & _PLACE_MASK,
                (total, call, running),
                queue.get(key),
            )
            for (key, total), (_, call), (_, running) in zip(*columns, strict=True)
        )
        return {"launches": deltas}

    def _delta(
        self,
        process: int,
        thread: int,
        name: int,
        place: int,
        times: tuple[Distribution, Distribution, Distribution],
        queue: Distribution | None,
    ) -> LaunchDelta:
        total, call, running = times
        return LaunchDelta(
            process=process,
            thread=thread,
            device=place >> _KERNEL_BITS,
            name=self._calls.names[name],
            kernel=place & ((1 << _KERNEL_BITS) - 1),
            total=total,
            call=call,
            queue=queue,
            kernel_time=running,
        )


def _numbered(threads: UInt32s) -> tuple[UInt32s, Int64s]:
    """The distinct threads, and the index of each row's; most programs launch from one."""
    if (threads == threads[0]).all():
        return threads[:1], np.zeros(len(threads), np.int64)
    different, numbers = np.unique(threads, return_inverse=True)
    return different, numbers.astype(np.int64)
