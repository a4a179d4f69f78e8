"""The launches of one process in the order of their calls, which is where steps are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.main_stream import MainStream, until_next
from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns, Kernels
from gputui.attribute.accounting.repetition import Cues, Tokens
from gputui.attribute.arrays import Bools, Int64s, Slots, differences, distinct, median
from gputui.attribute.records import TimedOperations
from gputui.model.step_kinds import HELD_NS

HELD_LAUNCHES = 1 << 17
"""How many launches wait until it is clear where steps begin, for HELD_NS at most."""

FOLLOWS_NS = 1_000_000_000
"""For how long a launch waits for the next one on the stream that paces the program."""

_GRAPH = 1 << 24


class Launched(NamedTuple):
    """Launches: when each was called, when its first operation began on the device, its token, and
    the number of its stream."""

    called_ns: Int64s
    starts: Int64s
    tokens: Tokens
    lanes: Int64s

    def cut(self, first: int | np.intp, last: int | None = None) -> Launched:
        """Those from `first` to before `last`."""
        return Launched._make(column[first:last] for column in self)

    def pick(self, rows: npt.NDArray[np.intp]) -> Launched:
        """Some of them."""
        return Launched._make(column.take(rows) for column in self)


_EMPTY = np.empty(0, np.int64)
_NOTHING = Launched(_EMPTY, _EMPTY, np.empty(0, np.uint32), _EMPTY)


class LaunchOrder:
    """Launches in, in any order; sorted by their calls out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._main = MainStream()
        self._last_moment_ns: int | None = None
        self._parts = [_NOTHING]
        self._new: list[Launched] = []

    def add(
        self,
        operations: Columns,
        records: Slots,
        calls: Slots,
        found: TimedOperations,
        lanes: Int64s,
        is_graph: Bools | None,
    ) -> None:
        """The operations that were `found` and are the first of their call, which is known, of
        those that `columns` made of the others; `lanes` number their streams, `is_graph` is by the
        call's name, None where none is."""
        first = found.first
        self._main.add(lanes, operations.starts, operations.ends, operations.leaves)
        launched = Launched(operations.called_ns, operations.starts, operations.codes, lanes)
        if is_graph is not None and (graphs := np.flatnonzero(is_graph.take(calls["name"]))).size:
            tokens = launched.tokens.copy()
            tokens[graphs] = _GRAPH + (records["e"][graphs].astype(np.int64) & 0xFF_FFFF)
            launched = launched._replace(tokens=tokens)
        if not first.all():
            launched = launched.pick(np.flatnonzero(first))
        if len(launched.starts):
            self._new.append(launched)

    def starts_after(self, moments_ns: Int64s) -> Int64s:
        """When the first operation began that was launched at or after each moment: on the stream
        that paces the program, if one comes there before the next moment."""
        moments_ns = np.sort(moments_ns)
        self._settle()
        cuts = (part.cut(np.searchsorted(part.called_ns, moments_ns[0])) for part in self._parts)
        late = [part for part in cuts if len(part.starts)]
        if not late:
            return _EMPTY
        called_ns = np.concatenate([part.called_ns for part in late])
        starts = np.concatenate([part.starts for part in late])
        before_ns = moments_ns[0] if self._last_moment_ns is None else self._last_moment_ns
        self._last_moment_ns = int(moments_ns[-1])
        usual_ns = median(differences(moments_ns, before_ns))
        at = np.searchsorted(called_ns, moments_ns)
        following_ns = np.append(moments_ns[1:], moments_ns[-1] + int(usual_ns / 2))
        moments_ns, at = moments_ns[at < len(called_ns)], at[at < len(called_ns)]
        is_main = None
        if self._main.is_chosen:
            is_main = self._main.has(np.concatenate([part.lanes for part in late]))
        if is_main is not None:
            main = at + until_next(is_main, len(called_ns)).take(at)
            its = np.flatnonzero(main < len(called_ns))
            its = its[called_ns.take(main[its]) < following_ns.take(its)]
            at[its] = main[its]
        return distinct(starts.take(at))

    def keep_newest(self) -> None:
        """Steps come as ranges: the launches that they may begin with stay."""
        self._main.fade()
        self._settle()
        newest = self._parts[-1].called_ns
        if not len(newest):
            return
        horizon_ns = int(newest[-1]) - HELD_NS
        surplus = sum(len(part.starts) for part in self._parts) - HELD_LAUNCHES
        while True:
            oldest = self._parts[0]
            first = max(int(np.searchsorted(oldest.called_ns, horizon_ns)), surplus)
            if first < len(oldest.starts):
                self._parts[0] = oldest.cut(first)
                return
            surplus -= len(oldest.starts)
            del self._parts[0]

    def take(self, until_ns: int | None) -> tuple[Launched, Int64s]:
        """Those that were called before, in the order of their calls, and how many launches each is
        before the next one on the stream that paces the program."""
        self._settle()
        known = _joined(self._parts)
        ready = len(known.called_ns)
        is_main = self._main.has(known.lanes)
        self._main.fade()
        if until_ns is not None:
            ready = int(np.searchsorted(known.called_ns, until_ns))
            if is_main is not None:
                # The last ones are followed by one there that may not be known yet.
                mains = np.flatnonzero(is_main[:ready])
                last = int(mains[-1]) if len(mains) else -1
                old = int(np.searchsorted(known.called_ns[:ready], until_ns - FOLLOWS_NS))
                ready = min(ready, max(last + 1, old))
        self._parts = [known.cut(ready)]
        of_main = None if is_main is None else is_main[:ready]
        return known.cut(0, ready), until_next(of_main, ready)

    def meanings(self, tokens: Tokens) -> tuple[Tokens, Cues]:
        """The tokens of their families, and what they say of where they stand in a step."""
        numbers = tokens.astype(np.int64) - FIRST_KERNEL
        families = self._kernels.families.take(numbers, mode="clip")
        cues = self._kernels.cues.take(numbers, mode="clip")
        others = np.flatnonzero((tokens < FIRST_KERNEL) | (tokens >= _GRAPH))
        families[others], cues[others] = tokens[others], 0
        return families, cues

    def _settle(self) -> None:
        """Take in what is new: parts in order, one after the other."""
        if not self._new:
            return
        new, self._new = self._new, []
        if 4 * len(self._parts[-1].starts) < sum(len(part.starts) for part in new):
            new.insert(0, self._parts.pop())  # little is left, as a rule
        part = _joined(new)
        if (part.called_ns[1:] < part.called_ns[:-1]).any():
            part = part.pick(np.argsort(part.called_ns, kind="stable"))
        if self._parts and part.called_ns[0] < self._parts[-1].called_ns[-1]:
            part, self._parts = _joined([*self._parts, part]), []
            part = part.pick(np.argsort(part.called_ns, kind="stable"))
        self._parts.append(part)


def _joined(parts: list[Launched]) -> Launched:
    if len(parts) == 1:
        return parts[0]
    return Launched._make(np.concatenate(column) for column in zip(*parts, strict=True))
