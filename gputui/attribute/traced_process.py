"""One traced process: batches of ring records in, events out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gputui.attribute.accounting.account import Accounting, Parts
from gputui.attribute.allocation import keep_freed_memory
from gputui.attribute.api_calls import NESTED_NS, Calls
from gputui.attribute.arrays import Slots, times_ns
from gputui.attribute.deltas import (
    NOTHING_COUNTED,
    Counters,
    open_ranges,
    range_leaves,
    says_something,
)
from gputui.attribute.distributions import grouped
from gputui.attribute.gpu_activity import Operations
from gputui.attribute.gpu_time import GpuTime, Launched
from gputui.attribute.graph_nodes import GraphNodes
from gputui.attribute.instances import Finalised, Instances
from gputui.attribute.losses import Losses
from gputui.attribute.marks import Marks
from gputui.attribute.numbering import Numbering
from gputui.attribute.range_deltas import range_deltas
from gputui.attribute.range_tree import Nodes
from gputui.attribute.ranges import Ranges
from gputui.attribute.record_parts import by_use
from gputui.attribute.resources import Resources
from gputui.attribute.step_timeline import Steps
from gputui.attribute.streams import Streams
from gputui.attribute.strings import Strings
from gputui.attribute.threads import Threads
from gputui.attribute.trace_sink import TraceSink
from gputui.attribute.windows import Windows
from gputui.model.cuda_names import NOT_A_STEP
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    CollectiveDelta,
    OpenRange,
    PeerDelta,
    RangeDelta,
)
from gputui.ring.layout import SLOT
from gputui.ring.reader import NO_RING, RingHealth
from gputui.store.trace import TraceWriter

BATCH_RECORDS = 1 << 15
"""Records processed at once: 2 MiB, the size of a core's own cache."""


class TracedProcess:
    """Attribution and statistics of one process.

    Batches come in ring order. Times in records are CLOCK_REALTIME; `now_ns` is when the batch was
    read, on the same clock.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        numbering: Numbering,
        step_range: str | None = None,
        trace: TraceWriter | None = None,
        thread_name: Callable[[int], str | None] | None = None,
        nested_ns: int = NESTED_NS,
    ) -> None:
        """`trace` also receives every range, call and operation; `thread_name` returns the
        operating system's name of a thread; a driver call waits at most `nested_ns` for the runtime
        call around it, which is 0 if calls come in the order of their starts.
        """
        keep_freed_memory()
        self.number = number
        self._trace: TraceSink | None = None
        self._strings = Strings()
        self._nodes = Nodes(number, pid, numbering, step_range)
        self._instances = Instances()
        self._ranges = Ranges(self._nodes, self._instances, self._strings)
        self._start_end = self._ranges.start_end
        self.accounting = Accounting(number, pid, self._ranges.stacks, live=nested_ns > 0)
        """Where its time goes."""
        self._calls = Calls(
            pid,
            self._ranges.stacks,
            self._start_end,
            self._instances,
            self._strings,
            nested_ns,
            self.accounting,
        )
        self._graph_nodes = GraphNodes(self._nodes, self._ranges.stacks, pid)
        self._streams = Streams(number, self.accounting.holes)
        self._operations = Operations(
            number,
            self._nodes,
            self._instances,
            self._calls,
            self._strings,
            numbering,
            self._streams,
            self.accounting,
            self._graph_nodes,
        )
        if trace is not None:
            self._trace = TraceSink(trace, number, lambda: self._nodes.number)
            self._operations.trace = self._trace
        self._threads = Threads(number, self._strings, thread_name)
        self._resources = Resources(number, self._strings)
        self._losses = Losses(self._strings, self.accounting.holes)
        self._gpu_time = GpuTime()
        self._steps = Steps(number, self._nodes)
        self.windows = Windows(self._nodes, self.accounting.holes)
        """Where kernels are traced part of the time."""
        self._marks = Marks(number, self._strings, numbering, self._trace)
        self._records = 0
        self._sees_gpu = False
        self._open: tuple[OpenRange, ...] = ()
        self._open_changed = False
        self._flushed_ns = 0
        self._step_string = 0

    @property
    def uncollected(self) -> int:
        """Records added since the last `collect`."""
        return self._records

    @property
    def step_string(self) -> int:
        """The number of the string that names the range whose turns are compared; 0 if none is."""
        step = self.windows.costs.step
        if not self._step_string and step is not None:
            self._step_string = self._strings.number(self._nodes.attributes[step].name)
        return self._step_string

    def feed(self, records: Slots, strings: dict[int, str], now_ns: int) -> None:
        """Add a batch, without its STRING slots, and the strings they defined."""
        self._strings.add(strings)
        for start in range(0, len(records), BATCH_RECORDS):
            self._feed(records[start : start + BATCH_RECORDS], now_ns)

    def _feed(self, records: Slots, now_ns: int) -> None:
        self._records += len(records)
        parts = by_use(records)
        flushes = len(parts.flushes)
        if flushes or len(parts.calls) or len(parts.operations):
            self._sees_gpu = True
        self._instances.flushes += flushes
        if flushes:
            asked_ns = int(times_ns(parts.flushes["start"].max(keepdims=True))[0])
            self._flushed_ns = max(self._flushed_ns, asked_ns)
        for moments in (parts.ranges, parts.start_ends, parts.marks):
            if len(moments):
                newest_ns = int(times_ns(moments["start"].max(keepdims=True))[0])
                self._instances.now_ns = max(self._instances.now_ns, newest_ns)
        self._open_changed |= bool(len(parts.ranges) or len(parts.start_ends))
        self._start_end.feed(parts.start_ends, now_ns)
        self.accounting.collectives.add_ranges(parts.ranges, self._strings)
        self._ranges.feed(parts.ranges, now_ns)
        self._start_end.link()
        self._graph_nodes.feed(parts.graphs)
        new_calls = self._calls.feed(parts.calls, now_ns)
        if self._trace is not None:
            self._trace.calls(new_calls, self._calls.names)
        self._operations.shapes.define(parts.shapes)
        self._threads.define(parts.threads)
        self._resources.define(parts.resources)
        self._resources.define_devices(parts.devices)
        self._losses.refuse(parts.refused)
        self._losses.lose(parts.lost, parts.flushes)
        self.windows.feed(parts.windows)
        self._operations.feed(parts.operations, new_calls, now_ns)
        self._marks.feed(parts.marks, now_ns)

    def collect(
        self,
        now_ns: int,
        *,
        added: RingHealth = NO_RING,
        unread: int = 0,
        counters: Counters = NOTHING_COUNTED,
        ended: bool = False,
        open_until_ns: int = 0,
        collectives: tuple[CollectiveDelta, ...] = (),
        peers: tuple[PeerDelta, ...] = (),
    ) -> list[AnyEvent]:
        """The events since the last call: definitions first, then what happened.

        `ended` means that nothing more will arrive, so nothing is waited for: as in nsys, open
        ranges then last until the program's last record, or until `open_until_ns` if that is later.
        The other arguments are passed on in the CaptureDelta: what was `added` to the ring's
        counters since the last call; the records `unread` in the ring are among its losses.
        """
        self._feed(np.empty(0, SLOT), now_ns)  # whatever has waited long enough waits no more
        if ended:
            self._operations.give_up_waiting(now_ns)
            end_ns = max(open_until_ns, self._instances.now_ns)
            self._ranges.close_open(end_ns, now_ns)
            self._open_changed = True
        self._operations.count_waiting(self.complete_until_ns(now_ns, ended), now_ns)
        range_kernels = self._operations.range_kernels()
        launched = self._operations.take_launched()
        sees_gpu = self._sees_gpu and self._operations.wrong_calls.since_ns is None
        finalised = self._instances.finalise(now_ns, sees_gpu, ended)
        if self._trace is not None:
            self._trace.ranges(finalised)
        self._steps.remember(finalised, launched)
        self.windows.add(finalised, launched, self._operations.wrong_calls.since_ns)
        window_work, window_costs = self.windows.collect(now_ns, ended)
        step = self._steps.timeline(finalised, now_ns)
        work = self._streams.collect(self._operations.take_ran())
        places = self._ranges.refused + self._start_end.refused
        losses = self._losses.collect(added.dropped, unread, added.cupti_dropped, places)
        secondary, start_end_instances = self._operations.secondary_domain_kernels(finalised)
        time = self._time(finalised, now_ns, ended)
        delta = CaptureDelta(
            time_ns=now_ns,
            process=self.number,
            ranges=self._range_deltas(finalised, launched),
            kernels=self._operations.kernels(),
            secondary_domain_kernels=secondary,
            range_kernels=(*range_kernels, *start_end_instances),
            launches=self._operations.launches(now_ns, ended),
            shapes=self._operations.shapes.collect(),
            memory_operations=self._operations.memory_operations(),
            api=self._calls.collect(self.number, self._nodes, ended),
            devices=work.devices,
            streams=work.streams,
            launching_threads=self._calls.launching_threads(),
            range_leaves=range_leaves(self._nodes, self.accounting.take_phases()),
            leaf_times=tuple(time.leaf_times),
            loops=tuple(time.loops),
            step_blocks=tuple(time.blocks),
            line_samples=tuple(time.lines),
            line_launches=tuple(time.line_launches),
            stretches=tuple(time.stretches),
            marks=self._marks.collect(),
            open_ranges=self._open_ranges() if self._open_changed else self._open,
            records=self._records,
            collectives=collectives,
            peers=peers,
            losses=losses,
            dropped=sum(loss.records for loss in losses),
            unattributed=self._operations.take_unattributed(),
            contradicted=self._operations.wrong_calls.take_count(),
            wrong_times=self._operations.take_wrong_times(),
            callback_ns=added.callback_ns,
            traced_ns=added.traced_ns,
            paused_ns=added.paused_ns,
            **counters._asdict(),
            window_work=tuple(window_work),
            window_costs=tuple(window_costs),
            windows=self.windows.take_closed(),
            standing_ppm=self.windows.costs.standing_ppm,
        )
        self._ranges.stacks.forget()
        if len(finalised.ids):
            self._start_end.forget()
        self._records = 0
        self._threads.see(node.thread for node in self._nodes.defined)
        launching = [part.thread for part in delta.launching_threads]
        self._threads.see([*launching, *self.accounting.sampled])
        events: list[AnyEvent] = [*self._threads.collect(now_ns)]
        events += self._resources.collect(now_ns)
        for found in (
            self._nodes.defined,
            self._operations.defined,
            self._operations.shapes.defined,
            self._marks.defined,
            self._marks.newest,
        ):
            events += found
            found.clear()
        events += self.accounting.take_lanes(now_ns)
        if ended or says_something(delta) or delta.open_ranges != self._open:
            events.append(delta)
        self._open, self._open_changed = delta.open_ranges, False
        if step is not None:
            events.append(step)
        return events

    def _time(self, finalised: Finalised, now_ns: int, ended: bool) -> Parts:
        """What the steps and leaves came to."""
        likeliest = self._nodes.likeliest_step
        named = likeliest != NOT_A_STEP
        if named:
            steps = self._nodes.step_rank[finalised.nodes] == likeliest
            self.accounting.mark_steps(finalised.starts_ns[steps])
        return self.accounting.collect(self.complete_until_ns(now_ns, ended), named)

    def _open_ranges(self) -> tuple[OpenRange, ...]:
        opened = np.concatenate((self._ranges.open(), self._start_end.open()))
        return open_ranges(self._nodes, self._instances, opened)

    def complete_until_ns(self, now_ns: int, ended: bool) -> int | None:
        """Before which everything that had ended has come; None where all has."""
        return None if ended else self._flushed_ns or now_ns

    def _range_deltas(self, finalised: Finalised, launched: Launched) -> tuple[RangeDelta, ...]:
        busy_ns, total_ns = self._gpu_time.ranges(
            self._nodes, launched, self._operations.take_secondary()
        )
        return range_deltas(
            self._nodes.number,
            len(self._nodes),
            finalised,
            dict(grouped(*self._instances.take_counted())),
            self._instances.nesting.take_levels(),
            busy_ns,
            total_ns,
            self._losses.holes.touch(finalised.starts_ns, finalised.ends_ns),
        )
