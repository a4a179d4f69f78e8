"""Which range lies in which on a thread, where ranges of several stacks or none overlap there.

Within one stack the parent is the range below. Start/End ranges and other domains know no stack:
as nsys has it, the parent of a range is the shortest of those that its thread began before it and
ended after it, of any style and domain, and its level is how many parents stand above each other.
Start/End ranges that another thread ended are no one's parent.

How long the ranges around are is known when they end. What is inside waits for that only while
Start/End ranges leave it open, and not for long; the level of what is inside is settled link by
link, as the parents of its parents become known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s

if TYPE_CHECKING:
    from gputui.attribute.instances import Instances

UNDECIDED = -2
MAX_AROUND = 256
"""Ranges of other stacks around one range that are looked at, the newest."""


class Nesting:
    """The instances that began inside ranges of other stacks, and Start/End ranges."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._around: dict[int, list[int]] = {}
        self._inside: dict[int, set[int]] = {}
        self._below: dict[int, dict[int, int]] = {}
        self._levels: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._around)

    def cross(self, ids: Int64s, around: Int64s) -> None:
        """`ids`, each once a pair, began while the instance beside it was the innermost one open
        of another stack, or an open Start/End range."""
        found: dict[int, list[int]] = {}
        for number, other in zip(ids.tolist(), around.tolist(), strict=True):
            found.setdefault(number, []).append(other)
        for number, others in found.items():
            self._around.setdefault(number, []).extend(others[-MAX_AROUND:])
            for other in others[-MAX_AROUND:]:
                self._wait(other, number)
        own = np.fromiter(found, np.int64, len(found))
        self._instances.root[self._instances.rows(own)] = own

    def start_end(self, ids: Int64s) -> None:
        """These are Start/End ranges."""
        self._around.update((number, []) for number in ids.tolist())

    def outgrown(self, closed: Int64s) -> None:
        """Of instances that closed: what began inside one but goes on is not inside."""
        if not self._inside:
            return
        for other in self._inside.keys() & set(closed.tolist()):
            for number in list(self._inside[other]):
                self._outgrow(number, other)

    def _outgrow(self, number: int, other: int) -> None:
        """Look below on the other stack for what ends no earlier."""
        instances = self._instances
        end_ns = instances.end_ns[number & instances.ROW]
        below = other
        while instances.is_alive(below) and instances.end_ns[below & instances.ROW] < end_ns:
            below = int(instances.parent[below & instances.ROW])
        if below == other:
            return
        self._around[number].remove(other)
        if instances.is_alive(below) and below not in self._around[number]:
            self._around[number].append(below)
            self._wait(below, number)
        self._stop_waiting(other, number)

    def parent(self, number: int, now_ns: int, decide: bool) -> int:
        """The instance around a closed one, NO_INSTANCE, or UNDECIDED; `decide` forbids that."""
        instances = self._instances
        end_ns = instances.end_ns[number & instances.ROW]
        own = int(instances.parent[number & instances.ROW])
        closed: list[tuple[int, int, int]] = []
        still_open: list[tuple[int, int]] = []
        for other in {own, *self._around[number]}:
            if not instances.is_alive(other):
                continue
            row = other & instances.ROW
            other_end_ns = int(instances.end_ns[row])
            if instances.elsewhere[row] or other_end_ns < end_ns:
                continue
            start_ns = int(instances.start_ns[row])
            if other_end_ns == LATEST_NS:
                still_open.append((start_ns, other))
            else:
                closed.append((other_end_ns - start_ns, -start_ns, other))
        shortest = min(closed, default=(LATEST_NS, 0, -1))
        # What has been open for longer than a closed one lasted will be longer.
        still_open = [part for part in still_open if now_ns - part[0] < shortest[0]]
        if not still_open:
            return shortest[2]
        newest = max(still_open)[1]
        if decide or (len(still_open) == 1 and not closed):
            return newest
        # Pushes and pops nest, as a rule.
        is_sure = not closed and not instances.start_end[newest & instances.ROW]
        return newest if is_sure else UNDECIDED

    def settle(self, number: int, parent: int) -> None:
        """An instance is finalised, with this parent."""
        instances = self._instances
        row = number & instances.ROW
        for other in self._around.pop(number):
            self._stop_waiting(other, number)
        below = self._below.pop(number, {})
        counts = instances.last_ns[row] >= 0 and not instances.elsewhere[row]
        # Of what is inside a Start/End range the link to it is counted here: not until it ends
        # is it sure on which thread it does.
        link = int(instances.start_end[row] and not instances.elsewhere[row])
        above = 0
        root = -1
        if parent >= 0:
            at = parent & instances.ROW
            root = int(instances.root[at])
            if not instances.start_end[at]:
                above = int(instances.level[at])
                if root >= 0:
                    above += 1 - int(instances.level[root & instances.ROW])
            instances.busy_children[at] += counts
        node = int(instances.node[row])
        for name, count in below.items():
            self._add_levels(name, count * (link + above))
        if counts:
            self._add_levels(node, above)
            below[node] = below.get(node, 0) + 1
        if root >= 0:
            for name, count in below.items():
                self.wait_for_level(root, name, count)

    def wait_for_level(self, root: int, node: int, count: int) -> None:
        """So many instances of a node lie in `root`; their level grows with its own."""
        if root not in self._around:
            return  # finalised by force, before what is inside
        waiting = self._below.setdefault(root, {})
        waiting[node] = waiting.get(node, 0) + count

    def take_levels(self) -> dict[int, int]:
        """Node → levels settled since the last call."""
        levels, self._levels = self._levels, {}
        return levels

    def _add_levels(self, node: int, levels: int) -> None:
        if levels:
            self._levels[node] = self._levels.get(node, 0) + levels

    def _wait(self, other: int, number: int) -> None:
        """`other` is not finalised before `number` is."""
        waiting = self._inside.setdefault(other, set())
        if number not in waiting:
            waiting.add(number)
            self._instances.children[other & self._instances.ROW] += 1

    def _stop_waiting(self, other: int, number: int) -> None:
        waiting = self._inside.get(other)
        if waiting is None or number not in waiting:
            return
        waiting.remove(number)
        if not waiting:
            del self._inside[other]
        if self._instances.is_alive(other):
            self._instances.children[other & self._instances.ROW] -= 1
