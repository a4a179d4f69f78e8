"""Kernel names, and each one's number in this session."""

from __future__ import annotations

import numpy as np

from gputui.attribute.accounting.account import Accounting
from gputui.attribute.arrays import Int64s, KeyTable, Slots
from gputui.attribute.numbering import Numbering
from gputui.attribute.range_deltas import KernelsOfRanges
from gputui.attribute.records import Strings
from gputui.model.cuda_names import demangle
from gputui.model.events import KernelDefined
from gputui.model.events.definitions import OTHER_KERNELS
from gputui.model.naming import short_name
from gputui.ring.layout import RecordKind

MAX_KERNEL_NAMES = 20_000

_GRAPH = int(RecordKind.GRAPH)  # NumPy compares with an enum three times as slowly
_GRAPH_KEY = 1 << 33
"""Added to a graph's number, to distinguish it from kernel names in the same table."""


class KernelNames:
    """Kernels of one process by name. `defined` are those new to the session."""

    def __init__(
        self,
        strings: Strings,
        numbering: Numbering,
        range_kernels: KernelsOfRanges,
        accounting: Accounting,
    ) -> None:
        self._strings = strings
        self._numbering = numbering
        self.range_kernels = range_kernels
        self._accounting = accounting
        self._known = KeyTable(MAX_KERNEL_NAMES)
        self.defined: list[KernelDefined] = []

    def numbers(self, records: Slots, now_ns: int) -> Int64s:
        keys = np.where(
            records["kind"] == _GRAPH,
            records["e"].astype(np.int64) | _GRAPH_KEY,
            records["name"].astype(np.int64),
        )

        def define(key: int, _first: int) -> int:
            if key & _GRAPH_KEY:
                return self._define(f"[CUDA graph {key & 0xFFFFFFFF}]", now_ns)
            return self._define(self._strings.raw(key), now_ns)

        return self._known.lookup(keys, define, lambda: self._define(OTHER_KERNELS, now_ns))

    def _define(self, mangled: str, now_ns: int) -> int:
        number, mangled, is_new = self._numbering.kernel(mangled)
        name = demangle(mangled)
        self.range_kernels.define(number, short_name(name))
        self._accounting.define_kernel(number, name)
        if is_new:
            self.defined.append(
                KernelDefined(time_ns=now_ns, kernel=number, name=name, mangled=mangled)
            )
        return number
