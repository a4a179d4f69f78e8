"""The time of one traced process: its steps, and what each device did in them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.device import OPERATION, DeviceTime, Segments
from gputui.attribute.accounting.host import WAITED_NS, Doing, HostThreads, is_copy, kind_of_call
from gputui.attribute.accounting.repetition import cue_of, family
from gputui.attribute.accounting.scopes import Classified, Step, StepScopes
from gputui.attribute.accounting.tracker import WINDOW, StepTracker
from gputui.attribute.arrays import Bools, Int64s, Slots, grouped
from gputui.model.events import LeafTime, LineSamples, LoopDelta, Scope
from gputui.model.leaves import Leaf, leaf_of_kernel
from gputui.ring.layout import RecordKind

Part = LeafTime | LineSamples | LoopDelta

MAX_DEVICES = 64
HELD_SEGMENTS = 1 << 17
HELD_NS = 10_000_000_000
HELD_LAUNCHES = 1 << 17
"""How much of the time axis waits for steps to be found in it, and for how long."""

NEWEST_STEPS = 64
"""Lengths of the newest steps that a delta carries one by one."""

_FIRST_KERNEL = 64
_MEMSET = 32
_GRAPH = 1 << 24

_PAGEABLE = 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class Parts(NamedTuple):
    """What a collection came to."""

    leaf_times: list[LeafTime]
    loops: list[LoopDelta]
    lines: list[LineSamples]


class _Kernels:
    """By kernel number: leaf, number of the family, cues."""

    def __init__(self) -> None:
        self.leaves = np.full(256, Leaf.OTHER, np.uint8)
        self.families = np.zeros(256, np.uint32)
        self.cues = np.zeros(256, np.uint8)
        self.fused = np.zeros(256, np.bool_)
        self._numbers: dict[str, int] = {}

    def define(self, number: int, name: str) -> None:
        while number >= len(self.leaves):
            self.leaves = np.concatenate((self.leaves, np.full_like(self.leaves, Leaf.OTHER)))
            self.families = np.concatenate((self.families, np.zeros_like(self.families)))
            self.cues = np.concatenate((self.cues, np.zeros_like(self.cues)))
            self.fused = np.concatenate((self.fused, np.zeros_like(self.fused)))
        self.leaves[number] = leaf_of_kernel(name)
        known = self._numbers.setdefault(family(name), len(self._numbers))
        self.families[number] = _FIRST_KERNEL + known
        self.cues[number] = cue_of(name)
        self.fused[number] = name.startswith("triton_")


class _Device:
    """One device: its time axis, the part of it that waits for steps, its steps."""

    def __init__(self, process: int, device: int, threads: HostThreads, main_thread: int) -> None:
        self._process = process
        self._device = device
        self.time = DeviceTime(threads, main_thread)
        self._held = Segments.join([])
        self._starts: list[Int64s] = []
        self._held_since_ns = 0
        self._boundaries: list[int] = []
        self._open_ns: int | None = None
        self._scopes = StepScopes()
        self._restarts_ns: int | None = None

    def add(self, operations: npt.NDArray[np.void]) -> None:
        self.time.add(operations)
        self._starts.append(operations["start"].copy())

    def mark(self, boundaries: list[int], renewed: bool) -> None:
        """Moments at which steps begin; `renewed` ones stand for those known from there on."""
        if renewed and boundaries:
            self._boundaries = [ns for ns in self._boundaries if ns < boundaries[0]]
            self._restarts_ns = boundaries[0]
        least = self._open_ns if self._open_ns is not None else -1
        known = set(self._boundaries)
        self._boundaries += [ns for ns in boundaries if ns > least and ns not in known]
        self._boundaries.sort()

    def collect(self, until_ns: int | None, may_wait: bool) -> list[Part]:
        """What is known up to `until_ns`; steps may wait for a better idea of what a step is."""
        new = self.time.account(until_ns)
        if len(new.starts):
            self._held = Segments.join([self._held, new]) if len(self._held.starts) else new
            self._held_since_ns = self._held_since_ns or int(new.starts.min())
        ended = until_ns is None
        held_ns = self.time.accounted_ns - self._held_since_ns
        too_much = len(self._held.starts) > HELD_SEGMENTS or held_ns > HELD_NS
        deltas: list[Part] = []
        if ended or too_much or not may_wait:
            deltas += self._take_steps()
        if ended or (too_much and self._held_long()):
            deltas += self._give_up()
        if ended:
            deltas += self._sum_up(self._scopes.end())
        return deltas

    def _held_long(self) -> bool:
        if not len(self._held.starts):
            return False
        held_ns = self.time.accounted_ns - int(self._held.starts.min())
        return len(self._held.starts) > HELD_SEGMENTS or held_ns > HELD_NS

    def _take_steps(self) -> list[Part]:
        passed = [ns for ns in self._boundaries if ns <= self.time.accounted_ns]
        if not passed or not len(self._held.starts):
            return []
        self._boundaries = self._boundaries[len(passed) :]
        taken, self._held = _split(self._held, passed[-1])
        self._held_since_ns = passed[-1]
        starts = np.sort(np.concatenate(self._starts)) if self._starts else np.empty(0, np.int64)
        cut = int(np.searchsorted(starts, passed[-1]))
        self._starts = [starts[cut:]]
        moments = np.array(passed, np.int64)
        rows = taken.sums(moments[:-1]) if len(passed) > 1 else taken.sums(moments[:0])
        counts = np.diff(
            np.concatenate(([0], np.searchsorted(starts, moments))),
        )
        deltas: list[Part] = []
        steps: list[Step] = []
        for row, (count, end_ns) in enumerate(zip(counts.tolist(), passed, strict=True)):
            if self._open_ns is None:
                # Up to the first boundary: loading, set-up, whatever came before the loop.
                if rows[row].any():
                    deltas += self._without_steps(Scope.SETUP, rows[row], count)
            else:
                steps.append(Step(self._open_ns, end_ns, count, rows[row]))
            self._open_ns = end_ns
        known: list[Classified] = []
        if self._restarts_ns is not None:
            # What repeated before is another loop than what does from here on.
            before = [step for step in steps if step.start_ns < self._restarts_ns]
            known += self._scopes.add(before)
            if len(before) < len(steps):
                known += self._scopes.restart()
                self._restarts_ns = None
            steps = steps[len(before) :]
        return deltas + self._sum_up(known + self._scopes.add(steps))

    def _give_up(self) -> list[Part]:
        """What is held has no steps."""
        if not len(self._held.starts):
            return []
        sums = self._held.sums(np.empty(0, np.int64))[0]
        count = sum(map(len, self._starts))
        scope = Scope.UNSTEPPED if self._open_ns is None else Scope.TAIL
        self._held, self._starts = Segments.join([]), []
        self._held_since_ns = 0
        self._open_ns = None
        return self._without_steps(scope, sums, count)

    def _sum_up(self, known: list[Classified]) -> list[Part]:
        deltas: list[Part] = []
        for loop, scope in dict.fromkeys((entry.loop, entry.scope) for entry in known):
            steps = [entry for entry in known if entry.loop == loop and entry.scope is scope]
            leaves = np.sum([entry.step.leaves for entry in steps], axis=0)
            deltas += self._leaves(scope, loop, leaves)
            if scope is Scope.STEADY:
                deltas += self._lines_of([entry.step for entry in steps], loop)
            lengths = np.array([entry.step.length_ns for entry in steps], np.int64)
            [(_, times)] = grouped(np.zeros(len(lengths), np.int64), lengths)
            slow = [entry.step.length_ns for entry in steps if entry.slow]
            newest = lengths[-NEWEST_STEPS:].tolist() if scope is Scope.STEADY else []
            deltas.append(
                LoopDelta(
                    self._process,
                    self._device,
                    scope,
                    loop,
                    len(steps),
                    sum(entry.step.operations for entry in steps),
                    steps[0].step.start_ns,
                    steps[-1].step.end_ns,
                    times,
                    len(slow),
                    sum(slow),
                    tuple(newest),
                )
            )
        return deltas

    def _lines_of(self, steps: list[Step], loop: int) -> list[Part]:
        """At which lines the program was while the device idled in these steps."""
        hits = sorted(self.time.line_hits)
        counts = Counter(
            line
            for step in steps
            for _, line in hits[
                bisect_left(hits, (step.start_ns,)) : bisect_left(hits, (step.end_ns,))
            ]
        )
        self.time.line_hits = hits[bisect_left(hits, (steps[-1].end_ns,)) :]
        return [
            LineSamples(self._process, self._device, loop, line, count)
            for line, count in sorted(counts.items())
        ]

    def _without_steps(
        self, scope: Scope, leaves: npt.NDArray[np.float64], operations: int
    ) -> list[Part]:
        end_ns = self.time.accounted_ns
        start_ns = max(0, end_ns - int(leaves.sum()))
        loop = self._scopes.loop
        return [
            *self._leaves(scope, loop, leaves),
            LoopDelta(self._process, self._device, scope, loop, 0, operations, start_ns, end_ns),
        ]

    def _leaves(self, scope: Scope, loop: int, sums: npt.NDArray[np.float64]) -> list[Part]:
        rounded = np.round(sums).astype(np.int64)
        return [
            LeafTime(self._process, self._device, scope, loop, int(leaf), int(rounded[leaf]))
            for leaf in np.flatnonzero(rounded).tolist()
        ]


class Accounting:
    """Calls and operations of one process in; its time by scope and leaf out."""

    def __init__(self, process: int, main_thread: int, *, live: bool) -> None:
        """`live` bounds what finding steps may cost by the time that passes."""
        self._process = process
        self._main_thread = main_thread
        self._threads = HostThreads()
        self._kernels = _Kernels()
        self._tracker = StepTracker(measured=live)
        self._devices: dict[int, _Device] = {}
        self._sequence: list[npt.NDArray[np.void]] = []
        self._kinds = np.zeros(1, np.int8)
        self._copies = np.zeros(1, np.bool_)
        self._graph_calls = np.zeros(1, np.bool_)

    @property
    def launching(self) -> list[int]:
        """The threads that made CUDA calls."""
        return self._threads.launching

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """A reading of a thread: what it ran and waited for a core so far."""
        self._threads.add_state(thread, time_ns, run_ns, delay_ns, asleep_in)

    def add_line(self, time_ns: int, thread: int, line: int, kind: Leaf | None) -> None:
        """Where a Python thread was."""
        self._threads.add_line(time_ns, thread, line, kind)

    def define_kernel(self, number: int, name: str) -> None:
        """A kernel's demangled name."""
        self._kernels.define(number, name)

    def define_call(self, name: str) -> None:
        """The next number of a CUDA call's name."""
        self._kinds = np.append(self._kinds, np.int8(kind_of_call(name)))
        self._copies = np.append(self._copies, is_copy(name))
        self._graph_calls = np.append(self._graph_calls, "GraphLaunch" in name)

    def add_calls(self, calls: Slots) -> None:
        """Calls of the window (correlation.CALL)."""
        if not len(calls):
            return
        kinds = self._kinds[calls["name"]]
        took = calls["end"] - calls["start"]
        blocked = self._copies[calls["name"]] & (kinds == Doing.LAUNCHING) & (took > WAITED_NS)
        kinds = np.where(blocked, np.int8(Doing.WAITING), kinds)
        self._threads.add(
            calls["thread"].astype(np.int64), calls["start"].copy(), calls["end"].copy(), kinds
        )

    def add_operations(
        self,
        records: Slots,
        calls: Slots,
        kernels: Int64s,
        devices: Int64s,
        starts: Int64s,
        ends: Int64s,
        first: Bools,
        threads: Int64s,
    ) -> None:
        """Operations with their calls; `kernels` numbers them where `records` hold kernels, which
        were launched with so many `threads`."""
        kinds = records["kind"]
        is_kernel = (kinds == RecordKind.KERNEL) | (kinds == RecordKind.GRAPH)
        is_copy_record = kinds == RecordKind.MEMCPY
        leaves = np.full(len(records), Leaf.COPY_DEVICE, np.uint8)
        leaves[is_kernel] = self._kernels.leaves[kernels[is_kernel]]
        direction = records["sub"]
        over_bus = is_copy_record & (
            (direction == _HOST_TO_DEVICE) | (direction == _DEVICE_TO_HOST)
        )
        pageable = (records["source_kind"] == _PAGEABLE) | (
            records["destination_kind"] == _PAGEABLE
        )
        leaves[over_bus] = np.where(pageable[over_bus], Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED)
        operations = np.zeros(len(records), OPERATION)
        operations["start"], operations["end"] = starts, ends
        operations["call_start"] = np.where(calls["sequence"] >= 0, calls["start"], 0)
        operations["call_end"] = calls["end"]
        operations["thread"] = calls["thread"]
        operations["stream"] = records["b"]
        # A kernel that a compiler made of several is no link of a chain.
        links = is_kernel & ~self._kernels.fused[np.where(is_kernel, kernels, 0)]
        operations["width"] = np.where(links, threads, 0)
        operations["leaf"] = leaves
        for device in np.unique(devices).tolist():
            if device not in self._devices:
                if len(self._devices) >= MAX_DEVICES:
                    continue
                self._devices[device] = _Device(
                    self._process, device, self._threads, self._main_thread
                )
            self._devices[device].add(operations[devices == device])
        self._remember_sequence(records, calls, kernels, is_kernel, starts, first)

    def _remember_sequence(
        self,
        records: Slots,
        calls: Slots,
        kernels: Int64s,
        is_kernel: Bools,
        starts: Int64s,
        first: Bools,
    ) -> None:
        at = np.flatnonzero(first & (calls["sequence"] >= 0))
        if not len(at):
            return
        entries = np.zeros(len(at), _LAUNCH)
        entries["called"], entries["start"] = calls["start"][at], starts[at]
        tokens = np.where(
            records["kind"][at] == RecordKind.MEMCPY, records["sub"][at].astype(np.int64), _MEMSET
        )
        families = tokens.copy()
        of = is_kernel[at]
        numbers = kernels[at][of]
        tokens[of] = _FIRST_KERNEL + numbers
        families[of] = self._kernels.families[numbers]
        entries["cue"][of] = self._kernels.cues[numbers]
        graph = self._graph_calls[calls["name"][at]]
        graph_tokens = _GRAPH + (records["e"][at].astype(np.int64) & 0xFF_FFFF)
        entries["token"] = np.where(graph, graph_tokens, tokens)
        entries["family"] = np.where(graph, graph_tokens, families)
        entries["cue"][graph] = 0
        self._sequence.append(entries)

    def mark_steps(self, started_ns: Int64s) -> None:
        """Moments at which ranges began that name themselves steps: they win over what is found.

        On a device a step begins with the first operation that was launched after.
        """
        if not len(started_ns) or not self._sequence:
            return
        known = np.concatenate(self._sequence)
        known = known[np.argsort(known["called"], kind="stable")]
        at = np.searchsorted(known["called"], np.sort(started_ns))
        moments = np.unique(known["start"][at[at < len(known)]]).tolist()
        for device in self._devices.values():
            device.mark(moments, renewed=False)

    def collect(self, until_ns: int | None, steps_named: bool) -> Parts:
        """The deltas up to `until_ns`, None at the end. `steps_named` tells that the program has
        ranges that name themselves steps."""
        sequence = np.concatenate(self._sequence) if self._sequence else np.empty(0, _LAUNCH)
        sequence = sequence[np.argsort(sequence["called"], kind="stable")]
        if steps_named:
            # The newest launches stay: steps come when they are complete.
            horizon = (int(sequence["called"][-1]) - HELD_NS) if len(sequence) else 0
            kept = sequence[sequence["called"] >= horizon] if len(sequence) else sequence
            self._sequence = [kept[-HELD_LAUNCHES:]]
        else:
            ready = len(sequence)
            if until_ns is not None:
                ready = int(np.searchsorted(sequence["called"], until_ns))
            self._sequence = [sequence[ready:]]
            marks, renewed = self._tracker.feed(
                sequence["token"][:ready].astype(np.uint32),
                sequence["family"][:ready].astype(np.uint32),
                sequence["cue"][:ready].copy(),
                sequence["start"][:ready].copy(),
            )
            for device in self._devices.values():
                device.mark(marks, renewed)
        may_wait = until_ns is not None and not steps_named and self._tracker.seen < WINDOW
        parts = [
            part for device in self._devices.values() for part in device.collect(until_ns, may_wait)
        ]
        accounted = [device.time.accounted_ns for device in self._devices.values()]
        if accounted:
            self._threads.forget(min(accounted))
        return Parts(
            [part for part in parts if isinstance(part, LeafTime)],
            [part for part in parts if isinstance(part, LoopDelta)],
            [part for part in parts if isinstance(part, LineSamples)],
        )


_LAUNCH = np.dtype(
    [("called", "i8"), ("start", "i8"), ("token", "u4"), ("family", "u4"), ("cue", "u1")]
)
"""A launch: when it was called and when its first operation began."""


def _split(segments: Segments, at_ns: int) -> tuple[Segments, Segments]:
    """What lies before a moment, and what after."""
    before = segments.ends <= at_ns
    after = segments.starts >= at_ns
    across = ~before & ~after
    left = Segments(*(column[before] for column in segments))
    right = Segments(*(column[after] for column in segments))
    if across.any():
        starts, ends, leaves, amounts = (column[across] for column in segments)
        parts = np.round(amounts * ((at_ns - starts) / (ends - starts))).astype(np.int64)
        moment = np.full(len(starts), at_ns)
        left = Segments.join([left, Segments(starts, moment, leaves, parts)])
        right = Segments.join([right, Segments(moment, ends, leaves, amounts - parts)])
    return left, right
