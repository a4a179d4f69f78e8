"""The last complete step of a process, as a timeline small enough to draw."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, run_starts
from gputui.attribute.collection import Collection
from gputui.attribute.instances import Finalised
from gputui.attribute.range_tree import Nodes
from gputui.attribute.records import Launched
from gputui.model.cuda_names import NOT_A_STEP
from gputui.model.events import StepSpan, StepTimeline

MAX_SPANS = 300
MAX_ENTRIES = 400_000
"""Instances and operations remembered for an unfinished step, and those of one tick."""


GpuSpans = tuple[Int64s, Int64s, Int64s, Int64s]
"""Node, start, end, and how long something ran in between."""


class Steps:
    """Remembers what happened inside unfinished steps."""

    def __init__(self, process: int, nodes: Nodes) -> None:
        self._process = process
        self._nodes = nodes
        self._instances: list[Finalised] = []
        self._launched: list[Launched] = []

    def draw(self, collection: Collection) -> StepTimeline | None:
        """The newest step among the instances that just became complete, if there is one. What
        belongs to a later step is remembered, in a process with a range that looks like a step."""
        if self._nodes.likeliest_step == NOT_A_STEP:
            return None
        self._remember(collection.finalised, collection.launched)
        return self._timeline(collection.finalised, collection.now_ns)

    def _remember(self, finalised: Finalised, launched: Launched) -> None:
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
        parts = []
        for part in self._instances:
            mask = (part.starts_ns >= start_ns) & (part.ends_ns <= end_ns) & inside[part.nodes]
            parts.append(
                (part.nodes[mask], part.starts_ns[mask], part.ends_ns[mask], part.ids[mask])
            )
        nodes, starts, ends, ids = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        # The step itself is the timeline's frame.
        frame = nodes == node
        order = np.lexsort((starts, self._nodes.level[nodes]))
        order = order[~frame[order]]
        return nodes[order], starts[order], ends[order], ids[order]

    def _gpu_spans(self, inside: Bools, ids: Int64s, start_ns: int, duration_ns: int) -> GpuSpans:
        parts = [(np.empty(0, np.int64),) * 3]
        for part in self._launched:
            mask = (part.starts_ns >= start_ns) & inside[part.nodes]
            mask[mask] = np.isin(part.instances[mask], ids)
            parts.append((part.nodes[mask], part.starts_ns[mask], part.ends_ns[mask]))
        nodes, starts, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
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
    of = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(nodes))))
    # Of each group, the node with the most time.
    size = int(nodes.max()) + 1
    keys, rows = np.unique(of * size + nodes, return_inverse=True)
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
