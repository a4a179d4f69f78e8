"""Which range lies in which, where ranges of several stacks (or of none) overlap on a thread.

Within one stack the parent is the range below. Start/End ranges and other domains have no common
stack: as in nsys, a range's parent is the shortest range that its thread began before it and ended
after it, of any style and domain, and its level is the length of its chain of parents. A Start/End
range ended by another thread is nobody's parent.

The length of enclosing ranges is known only when they end. Inner ranges wait for that only while
Start/End ranges leave it open, and not for long; their level is settled link by link, as the
parents of their parents become known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s

if TYPE_CHECKING:
    from gputui.attribute.instances import Instances

UNDECIDED = -2
MAX_AROUND = 256
"""Ranges of other stacks examined around one range, newest first."""


class Nesting:
    """Instances that began inside ranges of other stacks, and Start/End ranges."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._around: dict[int, list[int]] = {}
        self._inside: dict[int, set[int]] = {}
        self._below: dict[int, dict[int, int]] = {}
        self._levels: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._around)

    def cross(self, ids: Int64s, around: Int64s) -> None:
        """These `ids` (one per pair) began while the instance beside each was the innermost open
        one of another stack, or an open Start/End range.
        """
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
        """Register Start/End ranges."""
        self._around.update((number, []) for number in ids.tolist())

    def outgrown(self, closed: Int64s) -> None:
        """For closed instances: whatever began inside one but outlasts it is not inside it."""
        if not self._inside:
            return
        for other in self._inside.keys() & set(closed.tolist()):
            for number in list(self._inside[other]):
                self._outgrow(number, other)

    def _outgrow(self, number: int, other: int) -> None:
        """Look further down the other stack for a range that ends no earlier."""
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
        """The parent of a closed instance, NO_INSTANCE, or UNDECIDED, which `decide` rules out."""
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
        # What has already been open for longer than a closed one lasted is longer.
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
        """Record a finalised instance with its parent."""
        instances = self._instances
        row = number & instances.ROW
        for other in self._around.pop(number):
            self._stop_waiting(other, number)
        below = self._below.pop(number, {})
        counts = instances.last_ns[row] >= 0 and not instances.elsewhere[row]
        # The link to a Start/End range is counted here: only its end shows on which thread that
        # happens.
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
        """This many instances of a node lie in `root`; their level grows with its own."""
        if root not in self._around:
            return  # finalised early, before its inner ranges
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
        """Keep `other` from being finalised before `number`."""
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
