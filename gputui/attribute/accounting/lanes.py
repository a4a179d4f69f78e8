"""Steps of a device in parts, for the timeline: how busy each was, and why it idled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from gputui.attribute.accounting.device import LEAVES, DeviceTime
from gputui.attribute.accounting.step_rows import bounds_of
from gputui.attribute.arrays import Int64s, median
from gputui.model.events import IdleLane, StepLanes
from gputui.model.leaves import LEAVES as LEAF_MEANINGS
from gputui.model.leaves import Leaf

LANE_PARTS = 96
"""Parts of a step that is kept for the timeline."""

LEAST_PART_NS = 200
"""Shorter parts say nothing: a step below 19 µs is not kept."""

STANDS_OUT = 1.5
"""Length over the median of its delta from which the longest step is kept beside a usual one."""

_IS_BUSY = np.zeros(LEAVES, np.bool_)
_IS_BUSY[[leaf for leaf, meaning in LEAF_MEANINGS.items() if not meaning.is_idle]] = True


class Lanes:
    """Steps of one device in; in parts a usual one out, and the longest if it stands out."""

    def __init__(self, process: int, device: int) -> None:
        self._process = process
        self._device = device
        self._kept: list[StepLanes] = []

    def take_steps(
        self, time: DeviceTime, open_ns: int | None, moments: Int64s
    ) -> npt.NDArray[np.int64]:
        """Time by leaf up to each moment, taken from the device's; of the steps that end at the
        moments, the first of which began at `open_ns`, some are kept in parts on the way."""
        drawn = _drawn(open_ns, moments) if len(time.tracks) else []
        if not drawn:
            return time.tracks.take(moments)
        # The parts are cut with the steps: what ends a step ends its last part.
        every = np.sort(np.concatenate((moments, *(_parts(*step)[:-1] for step in drawn))))
        rows = time.tracks.take(every)
        self._kept = []
        for start_ns, end_ns in drawn:
            last = int(np.searchsorted(every, end_ns))
            self._kept.append(
                self._in_parts(time, start_ns, end_ns, rows[last + 1 - LANE_PARTS : last + 1])
            )
        ends = np.searchsorted(every, moments)
        return np.add.reduceat(rows, np.concatenate(([0], ends[:-1] + 1)))

    def take(self, time_ns: int) -> list[StepLanes]:
        """The steps that were kept since the last call, the usual one last."""
        kept, self._kept = self._kept, []
        return [replace(step, time_ns=time_ns) for step in kept]

    def _in_parts(
        self, time: DeviceTime, start_ns: int, end_ns: int, rows: npt.NDArray[np.int64]
    ) -> StepLanes:
        lengths = np.diff(_parts(start_ns, end_ns))
        some = np.flatnonzero(rows[:, :LEAVES].any(axis=0))
        held = rows[:, some]
        shares = _thousandths(held, lengths[:, None])
        of = dict(zip(some.tolist(), map(tuple, shares.T.tolist()), strict=True))
        busy = _thousandths(held[:, _IS_BUSY[some]].sum(axis=1), lengths)
        idle = [part for part in of.items() if not _IS_BUSY[part[0]] and any(part[1])]
        alone = of.get(Leaf.COMMUNICATION, ())
        threads, streams = time.rows(bounds_of(start_ns, end_ns))
        return StepLanes(
            time_ns=0,
            process=self._process,
            device=self._device,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            busy=tuple(busy.tolist()),
            idle=tuple(IdleLane(*part) for part in idle),
            threads=threads,
            streams=streams,
            alone=alone if any(alone) else (),
        )


def _drawn(open_ns: int | None, moments: Int64s) -> list[tuple[int, int]]:
    """The steps to keep in parts: one that is longer, then the newest of those nearest to the
    median; none that is too short."""
    begins = moments[:-1] if open_ns is None else np.concatenate(([open_ns], moments[:-1]))
    lengths = moments[len(moments) - len(begins) :] - begins
    if not len(lengths):
        return []
    middle = median(lengths)
    usual = len(lengths) - 1 - int(np.abs(lengths - middle)[::-1].argmin())
    longest = int(lengths.argmax())
    stands_out = longest != usual and lengths[longest] > STANDS_OUT * middle
    chosen = [longest, usual] if stands_out else [usual]
    return [
        (int(begins[at]), int(begins[at] + lengths[at]))
        for at in chosen
        if lengths[at] >= LEAST_PART_NS * LANE_PARTS
    ]


def _parts(start_ns: int, end_ns: int) -> Int64s:
    """The bounds of its parts."""
    # A step may have any length in a damaged file: no product of it.
    each, rest = divmod(end_ns - start_ns, LANE_PARTS)
    numbers = np.arange(LANE_PARTS + 1, dtype=np.int64)
    bounds: Int64s = start_ns + each * numbers + rest * numbers // LANE_PARTS
    return bounds


def _thousandths(amounts: Int64s, lengths: Int64s) -> Int64s:
    shares: Int64s = np.rint(1000 * amounts / lengths).clip(0, 1000).astype(np.int64)
    return shares
