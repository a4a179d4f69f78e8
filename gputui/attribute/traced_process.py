"""One traced process: batches of ring records in, events out.

`TracedProcess` attributes and sums up records wherever they come from: `reader` feeds it from a
ring, `imports` from a file. Here are also the parts that only it needs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from gputui.attribute import LaunchedOperations, RecordsByUse, Strings, separate_by_use
from gputui.attribute.accounting import Accounting
from gputui.attribute.accounting.program_steps import ProgramSteps
from gputui.attribute.arrays import (
    Bools,
    Holes,
    Int64s,
    Slots,
    keep_freed_memory,
    run_starts,
    times_ns,
)
from gputui.attribute.calls import NESTED_NS, CudaCalls
from gputui.attribute.collection import (
    Collection,
    Collector,
    DeltaParts,
    KeptOperations,
    TraceSink,
    has_news,
    merge_parts,
)
from gputui.attribute.definitions import (
    KernelNames,
    MarkCounts,
    ProgramFacts,
    Resources,
    Shapes,
    ThreadNames,
)
from gputui.attribute.distributions import DELTA_VALUES
from gputui.attribute.graph_nodes import GraphNodes
from gputui.attribute.instances import SETTLED_FLUSHES, Finalised, RangeInstances
from gputui.attribute.operation_sums import Streams
from gputui.attribute.operations import GpuOperations
from gputui.attribute.range_deltas import KernelsOfRanges, RangeDeltas
from gputui.attribute.range_stacks import Nodes
from gputui.attribute.ranges import PushPopRanges
from gputui.attribute.windows import Windows
from gputui.counters import CountedOperations
from gputui.model.events import AnyEvent, CaptureDelta, Loss, OpenRange, StepSpan, StepTimeline
from gputui.model.events.distributions import EXACT_VALUES
from gputui.model.hub import Numbering
from gputui.model.naming import NOT_A_STEP
from gputui.ring import REFUSED_DEFERRED, SLOT
from gputui.ring.reader import NO_RING, RingHealth
from gputui.store.trace import TraceWriter

# --- What was lost of a process, by cause.

MAX_DOMAINS = 64
"""Domains whose refused ranges are counted separately; further ones share a name."""

OTHER_DOMAINS = "(other domains)"

MOST_EVENTS = 1 << 32
"""More deferred events than any call submits: a bound for a corrupted ring."""


class Losses:
    """Counts what the library refused, by domain, and adds the other causes."""

    def __init__(self, strings: Strings, unknown: Holes) -> None:
        """What was lost of the devices is added to `unknown`."""
        self._strings = strings
        self._unknown = unknown
        self._flushed_ns = 0
        self.holes = Holes()
        """The intervals of time in which records were lost."""
        self._domains: set[str] = set()
        self._refused: Counter[tuple[Literal["domains", "deferred"], str]] = Counter()
        self._unplaced = 0

    def refuse(self, records: Slots) -> None:
        """Count REFUSED records: what the library did not take, by cause and domain."""
        deferred = records["sub"] == REFUSED_DEFERRED
        counts = np.where(deferred, np.clip(records["value"], 1, MOST_EVENTS), 1)
        keys, rows = np.unique(records["a"].astype(np.int64) << 1 | deferred, return_inverse=True)
        sums = np.bincount(rows, counts, len(keys)).astype(np.int64)
        for key, count in zip(keys.tolist(), sums.tolist(), strict=True):
            # Deferred events were once left out in silence: they are lost, by domain.
            domain = self._strings.domain(key >> 1)
            if domain not in self._domains and len(self._domains) >= MAX_DOMAINS:
                domain = OTHER_DOMAINS
            self._domains.add(domain)
            self._refused["deferred" if key & 1 else "domains", domain] += count

    def lose(self, records: Slots, flushes: Slots) -> None:
        """Add LOST records. What ran on the devices is written at the next flush: since the one
        before it may be missing."""
        asked = times_ns(flushes["start"])
        records = records[records["value"] > 0]  # of 0, another thread's said it
        for start, end in zip(
            times_ns(records["start"]).tolist(), times_ns(records["end"]).tolist(), strict=True
        ):
            before = int(asked[asked < start].max(initial=self._flushed_ns))
            self.holes.add(start, end)
            self._unknown.add(min(before or start, start), end)
        if len(asked):
            self._flushed_ns = max(self._flushed_ns, int(asked.max()))

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """Losses of every cause, and how many records they are."""
        ring = collection.ring
        losses = [
            Loss("ring", "", ring.dropped),
            Loss("unread", "", collection.unread),
            Loss("cupti", "", ring.cupti_dropped),
            Loss("places", "", collection.unplaced - self._unplaced),
            *(Loss(cause, domain, count) for (cause, domain), count in self._refused.items()),
        ]
        self._refused.clear()
        self._unplaced = collection.unplaced
        return {
            "losses": tuple(loss for loss in losses if loss.records),
            "dropped": sum(loss.records for loss in losses),
        }


# --- The last complete step of a process, as a timeline small enough to draw.

# Chosen, not measured: more spans than a strip of the screen has columns.
MAX_SPANS = 300
MAX_ENTRIES = 400_000
"""The most instances and operations that are remembered for an unfinished step, and in one tick."""


GpuSpans = tuple[Int64s, Int64s, Int64s, Int64s]
"""Node, start, end, and how long something ran in between."""


class StepTimelines:
    """Remembers what happened inside unfinished steps."""

    def __init__(self, process: int, nodes: Nodes) -> None:
        self._process = process
        self._nodes = nodes
        self._instances: list[Finalised] = []
        self._launched: list[LaunchedOperations] = []

    def draw(self, collection: Collection) -> StepTimeline | None:
        """The newest step among the instances that just became complete, if there is one. What
        belongs to a later step is remembered, in a process with a range that looks like a step."""
        if self._nodes.likeliest_step == NOT_A_STEP:
            return None
        self._remember(collection.finalised, collection.launched)
        return self._timeline(collection.finalised, collection.now_ns)

    def _remember(self, finalised: Finalised, launched: LaunchedOperations) -> None:
        if len(finalised.ids):
            self._instances.append(finalised)
        if len(launched.nodes):
            self._launched.append(launched)
        # The newest part stays, however large: a step that ended in it is drawn from it.
        while len(self._instances) > 1 and sum(len(p.ids) for p in self._instances) > MAX_ENTRIES:
            del self._instances[0]
        while len(self._launched) > 1 and sum(len(p.nodes) for p in self._launched) > MAX_ENTRIES:
            del self._launched[0]

    def _timeline(self, finalised: Finalised, now_ns: int) -> StepTimeline | None:
        is_step = self._nodes.step_rank[finalised.nodes] == self._nodes.likeliest_step
        steps = np.flatnonzero(is_step)
        if not len(steps):
            return None
        step = steps[np.argmax(finalised.ends_ns[steps])]
        node = int(finalised.nodes[step])
        start_ns, end_ns = int(finalised.starts_ns[step]), int(finalised.ends_ns[step])
        inside = self._descendants(node)
        nodes, starts, ends, ids = self._host_spans(inside, node, start_ns, end_ns)
        gpu = self._gpu_spans(
            inside, np.append(ids, finalised.ids[step]), start_ns, max(1, end_ns - start_ns)
        )
        half = MAX_SPANS // 2
        gpu = _thinned(gpu, max(half, MAX_SPANS - len(nodes)))
        host_room = MAX_SPANS - len(gpu[0])
        self._forget(start_ns)
        number = self._nodes.number
        spans = [
            StepSpan("cpu", *span)
            for span in zip(
                number[nodes[:host_room]].tolist(),
                (starts[:host_room] - start_ns).tolist(),
                (ends - starts)[:host_room].tolist(),
                strict=True,
            )
        ] + [
            StepSpan("gpu", *span)
            for span in zip(
                number[gpu[0]].tolist(),
                (gpu[1] - start_ns).tolist(),
                (gpu[2] - gpu[1]).tolist(),
                gpu[3].tolist(),
                strict=True,
            )
        ]
        return StepTimeline(
            time_ns=now_ns,
            process=self._process,
            range=int(number[node]),
            start_ns=start_ns,
            duration_ns=max(0, end_ns - start_ns),
            spans=tuple(spans),
            spans_left_out=max(0, len(nodes) - host_room),
        )

    def _descendants(self, node: int) -> Bools:
        count = len(self._nodes)
        parent = self._nodes.parent[:count]
        inside = np.zeros(count, np.bool_)
        inside[node] = True
        size = 0
        while size != (size := int(np.count_nonzero(inside))):
            inside |= inside[parent]
        return inside

    def _host_spans(
        self, inside: Bools, node: int, start_ns: int, end_ns: int
    ) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        pieces = []
        for part in self._instances:
            mask = (part.starts_ns >= start_ns) & (part.ends_ns <= end_ns) & inside[part.nodes]
            pieces.append(
                (part.nodes[mask], part.starts_ns[mask], part.ends_ns[mask], part.ids[mask])
            )
        nodes, starts, ends, ids = (
            np.concatenate(columns) for columns in zip(*pieces, strict=True)
        )
        # The step itself is the timeline's frame.
        frame = nodes == node
        order = np.lexsort((starts, self._nodes.level[nodes]))
        order = order[~frame[order]]
        return nodes[order], starts[order], ends[order], ids[order]

    def _gpu_spans(self, inside: Bools, ids: Int64s, start_ns: int, duration_ns: int) -> GpuSpans:
        pieces = [(np.empty(0, np.int64),) * 3]
        for part in self._launched:
            mask = (part.starts_ns >= start_ns) & inside[part.nodes]
            mask[mask] = np.isin(part.instances[mask], ids)
            pieces.append((part.nodes[mask], part.starts_ns[mask], part.ends_ns[mask]))
        nodes, starts, ends = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        if not len(nodes):
            return nodes, starts, ends, ends
        order = np.argsort(starts, kind="stable")
        nodes, starts, ends = nodes[order], starts[order], ends[order]
        reach = np.maximum.accumulate(ends)
        # Merge gaps too small to draw: a strip has fewer columns than spans.
        gap = np.zeros(len(nodes), np.bool_)
        gap[1:] = starts[1:] > reach[:-1] + duration_ns // MAX_SPANS
        firsts = run_starts(np.cumsum(gap) * len(self._nodes) + nodes)
        # What each covers beyond those that began before it adds up to the time something ran.
        before = np.concatenate((starts[:1], reach[:-1]))
        exposed = np.maximum(0, ends - np.maximum(starts, before))
        busy = np.add.reduceat(exposed, firsts)
        return nodes[firsts], starts[firsts], np.maximum.reduceat(ends, firsts), busy

    def _forget(self, before_ns: int) -> None:
        self._instances = [p for p in self._instances if int(p.ends_ns.max()) >= before_ns]
        self._launched = [p for p in self._launched if int(p.ends_ns.max()) >= before_ns]


def _thinned(spans: GpuSpans, most: int) -> GpuSpans:
    """At most so many spans: neighbours become one, of the node that ran longest in it, so that no
    part of the step looks idle for want of room."""
    nodes, starts, ends, busy = spans
    if len(nodes) <= most:
        return spans
    passed = starts - starts[0]
    groups = passed * most // (passed[-1] + 1)
    firsts = run_starts(groups)
    group_of = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(nodes))))
    # Of each group, the node with the most time.
    size = int(nodes.max()) + 1
    keys, rows = np.unique(group_of * size + nodes, return_inverse=True)
    spent = np.bincount(rows, busy, len(keys))
    group = keys // size
    order = np.lexsort((spent, group))
    longest = keys[order[np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)]]
    return (
        longest % size,
        starts[firsts],
        np.maximum.reduceat(ends, firsts),
        np.add.reduceat(busy, firsts),
    )


# --- One traced process: batches of ring records in, events out.
#
# `TracedProcess` attributes and sums up records wherever they come from: a ring, or a file that is
# imported. `AttachedProcess` reads the ring of a process that runs, and how its threads fare.

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
        *,
        summed: bool = False,
        counted: Callable[[CountedOperations], None] | None = None,
        keeps_operations: bool = False,
        thread_priority: Callable[[int], int | None] | None = None,
    ) -> None:
        """`trace` also receives every range, call and operation. `thread_name` returns the
        operating system's name of a thread, `thread_priority` its priority. A driver call is held
        back for at most `nested_ns`, until a runtime call around it arrives; 0 if calls come in the
        order of their starts. `summed` is for callers that look only at the sum of all events: sums
        that only tables show are then collected once, at the end. `counted` receives every GPU
        operation. With `keeps_operations`, all operations of some steps are returned as events."""
        keep_freed_memory()
        self._summed = summed
        self.number = number
        self._strings = strings = Strings()
        self._nodes = nodes = Nodes(number, pid, numbering, step_range)
        self._instances = instances = RangeInstances()
        self._kept = KeptOperations() if keeps_operations else None
        self._trace = TraceSink(trace, self._kept, number, lambda: nodes.number)
        self.ranges = PushPopRanges(nodes, instances, strings)
        stacks, start_end = self.ranges.stacks, self.ranges.start_end
        self.program_steps = ProgramSteps(number, strings)
        self.accounting = Accounting(
            number,
            pid,
            stacks,
            self.program_steps,
            live=nested_ns > 0,
            declares_step=step_range is not None,
        )
        """The time of the process by device, step and leaf."""
        holes = self.accounting.holes
        self.calls = CudaCalls(
            pid, stacks, start_end, instances, strings, nested_ns, self.accounting
        )
        self.graph_nodes = GraphNodes(nodes, stacks, pid)
        self.streams = Streams(holes)
        self.losses = Losses(strings, holes)
        self.range_deltas = RangeDeltas(instances, self.losses.holes)
        self.names = KernelNames(strings, numbering, KernelsOfRanges(instances), self.accounting)
        self.operations = GpuOperations(
            instances,
            self.calls,
            self.names,
            self.streams,
            self.accounting,
            self.graph_nodes,
            self.range_deltas.gpu_time,
            Shapes(numbering, self.accounting.define_shape),
            self._trace,
            None
            if counted is None
            else lambda those: counted(those._replace(ranges=nodes.number[those.ranges])),
        )
        self.threads = ThreadNames(number, strings, thread_name, thread_priority)
        self.resources = Resources(number, strings)
        self.steps = StepTimelines(number, nodes)
        self.windows = Windows(nodes, holes)
        """Windows of tracing, in runs whose kernels are traced part of the time."""
        self.facts = ProgramFacts()
        self.marks = MarkCounts(number, strings, numbering, self._trace)
        # Any order will do: what must come before or after is in `collect`.
        self.collectors: tuple[Collector, ...] = (
            self.range_deltas,
            self.ranges,
            self.calls,
            self.calls.intervals,
            *self.operations.collectors,
            self.streams,
            self.accounting,
            self.marks,
            self.losses,
            self.windows,
            self.facts,
        )
        self._records = 0
        self._sees_gpu = False
        self._open: tuple[OpenRange, ...] = ()
        self._flushed_ns = 0
        self._settling = deque[tuple[int, int]]()
        """The newest flushes that were read: the number of each, and the time before which
        everything that had ended had arrived with it."""
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
        for start in range(0, max(1, len(records)), BATCH_RECORDS):
            batch = separate_by_use(records[start : start + BATCH_RECORDS])
            self._note_progress(batch)
            # Ranges come before the calls inside them, calls before the operations they launched,
            # shapes before the kernels that have them.
            self.ranges.start_end.feed(batch.start_ends, now_ns)
            self.accounting.collectives.add_ranges(batch.ranges, self._strings)
            self.ranges.feed(batch.ranges, now_ns)
            self.ranges.start_end.link()
            self.graph_nodes.feed(batch.graphs)
            new_calls = self.calls.feed(batch.calls, now_ns)
            if self._trace.is_open:
                self._trace.calls(new_calls, self.calls.names)
            self.operations.shapes.define(batch.shapes)
            self.threads.define(batch.threads)
            self.resources.define(batch.resources)
            self.resources.define_devices(batch.devices)
            self.losses.refuse(batch.refused)
            self.losses.lose(batch.lost, batch.flushes)
            self.windows.feed(batch.windows)
            self.operations.feed(batch.operations, new_calls, now_ns)
            self.marks.feed(batch.marks, now_ns)
            self.program_steps.feed(batch.steps, now_ns)
            self.program_steps.feed_ranges(batch.ranges, now_ns)

    def complete(self) -> None:
        """Says that everything that has happened until now was fed: no flush will bring more of it.

        This is for sources that read in order of time. A ring says the same with its FLUSH records.
        """
        self._instances.flushes += 1

    def _note_progress(self, batch: RecordsByUse) -> None:
        """Notes how many records came, how far the flushes reach, and whether CUDA was used."""
        self._records += sum(map(len, batch))
        flushes = len(batch.flushes)
        if flushes or len(batch.calls) or len(batch.operations):
            self._sees_gpu = True
        self._instances.flushes += flushes
        if flushes:
            asked_ns = int(times_ns(batch.flushes["start"].max(keepdims=True))[0])
            self._flushed_ns = max(self._flushed_ns, asked_ns)
            self._settling.append((self._instances.flushes, self._flushed_ns))
        for moments in (batch.ranges, batch.start_ends, batch.marks):
            if len(moments):
                newest_ns = int(times_ns(moments["start"].max(keepdims=True))[0])
                self._instances.now_ns = max(self._instances.now_ns, newest_ns)

    def complete_until_ns(self, now_ns: int, ended: bool) -> int | None:
        """The time before which everything that had ended has arrived; None if everything has."""
        return None if ended else self._flushed_ns or now_ns

    def _settled_ns(self, until_ns: int | None) -> int | None:
        """The time before which nothing that was over waits for a flush any more; None if nothing
        waits."""
        if not self._settling:
            return until_ns
        settled = self._instances.flushes - SETTLED_FLUSHES
        while len(self._settling) > 1 and self._settling[1][0] <= settled:
            self._settling.popleft()
        flushes, complete_ns = self._settling[0]
        return complete_ns if flushes <= settled else 0

    def collect(
        self,
        now_ns: int,
        *,
        ended: bool = False,
        due: bool = False,
        open_until_ns: int = 0,
        added: RingHealth = NO_RING,
        unread: int = 0,
        more: DeltaParts | None = None,
    ) -> list[AnyEvent]:
        """The events since the last call: definitions first, then what happened.

        `ended` means that nothing more will arrive, so that nothing is waited for. As in nsys,
        ranges that are still open then last until the program's last record, or until
        `open_until_ns` if that is later. `due` asks for the sums that `summed` otherwise holds back
        until the end. `added` is what was added to the ring's counters since the last call; the
        `unread` records in the ring count as lost; `more` has further fields for the CaptureDelta.
        """
        collection = self._finish_instances(now_ns, ended, open_until_ns, added, unread, due)
        fields = merge_parts(collector.collect_parts(collection) for collector in self.collectors)
        fields |= more or {}
        step = self.steps.draw(collection)
        # Not before: accounting finds the ranges of past moments in the stacks' timelines.
        self.ranges.stacks.forget(self.accounting.accounted_ns if self._summed else 0)
        if len(collection.finalised.ids):
            self.ranges.start_end.forget()
        threads = [row.thread for row in fields["launching_threads"]]
        events = self._take_definitions(now_ns, threads, ended)
        opened: tuple[OpenRange, ...] = fields["open_ranges"]
        if ended or self._records or has_news(fields) or opened != self._open:
            events.append(
                CaptureDelta(
                    time_ns=now_ns,
                    process=self.number,
                    records=self._records,
                    callback_ns=added.callback_ns,
                    traced_ns=added.traced_ns,
                    paused_ns=added.paused_ns,
                    **fields,
                )
            )
        self._open, self._records = opened, 0
        if step is not None:
            events.append(step)
        return events

    def _finish_instances(
        self,
        now_ns: int,
        ended: bool,
        open_until_ns: int,
        added: RingHealth,
        unread: int,
        due: bool,
    ) -> Collection:
        """Find the instances that are complete. What they launched is counted first: afterwards
        their rows are used again."""
        self.feed(np.empty(0, SLOT), {}, now_ns)  # whatever has waited long enough waits no more
        if ended:
            self.operations.give_up_waiting(now_ns)
            self.ranges.close_open(max(open_until_ns, self._instances.now_ns), now_ns)
        until_ns = self.complete_until_ns(now_ns, ended)
        self.operations.count_waiting(until_ns, now_ns)
        self.operations.gather()
        wrong_since_ns = self.operations.wrong_calls.since_ns
        sees_gpu = self._sees_gpu and wrong_since_ns is None
        finalised = self._instances.finalise(now_ns, sees_gpu, ended)
        if self._trace.is_open:
            self._trace.ranges(finalised)
        return Collection(
            process=self.number,
            nodes=self._nodes,
            now_ns=now_ns,
            ended=ended,
            until_ns=until_ns,
            settled_ns=None if ended else self._settled_ns(until_ns),
            finalised=finalised,
            launched=self.operations.take_launched(),
            known_until_ns=wrong_since_ns,
            ring=added,
            unread=unread,
            unplaced=self.ranges.refused + self.ranges.start_end.refused,
            due=due or ended or not self._summed,
            exact_values=EXACT_VALUES if self._summed else DELTA_VALUES,
        )

    def _take_definitions(self, now_ns: int, launching: list[int], ended: bool) -> list[AnyEvent]:
        """What the delta's numbers stand for, marks one by one, and steps in parts. `launching` are
        threads whose names are wanted."""
        self.threads.see(node.thread for node in self._nodes.defined)
        self.threads.see([*launching, *self.accounting.sampled])
        events: list[AnyEvent] = [*self.threads.collect(now_ns)]
        events += self.resources.collect(now_ns)
        for defined in (
            self._nodes.defined,
            self.names.defined,
            self.operations.shapes.defined,
            self.marks.defined,
            self.marks.newest,
        ):
            events += defined
            defined.clear()
        steps = self.accounting.take_lanes(now_ns)
        events += steps
        if self._kept is not None:
            events += self._kept.collect(steps, now_ns, ended)
        events += self.program_steps.collect()
        return events
