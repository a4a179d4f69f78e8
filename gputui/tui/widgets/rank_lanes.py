"""A step of each rank, one lane each on one time axis: who computes, who waits in collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputui.model.events import StepLanes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration
from gputui.report.answer import clocks_of
from gputui.report.explain.rank_causes import RankTime
from gputui.report.explain.rank_waits import hosts
from gputui.state import Run, Session
from gputui.tui.widgets.canvas import Row, Span, heading
from gputui.tui.widgets.causes import look

LABEL = 12

EXACT = 20
"""How much finer than a step its clocks must be known for hosts to be drawn on one axis."""


@dataclass(frozen=True, slots=True)
class RankLane:
    """A rank's step, and where it begins on the axis."""

    rank: int
    step: StepLanes
    offset_ns: int


def aligned_by(session: Session, run: Run) -> tuple[dict[str, int] | None, str]:
    """How far each host's clock is ahead of the first's, None where that is not known well enough
    to draw a step of theirs on one axis; and that in words, "" of one host."""
    clocks = clocks_of(session, run)
    if not clocks:
        return {}, ""
    known = {one.host: clock for one in clocks if (clock := one.offset) is not None}
    if len(known) < len(clocks):
        return None, "each from its start: clocks of hosts are not compared"
    error_ns = max(clock.error_ns for clock in known.values())
    step_ns = max((lanes.duration_ns for lanes in run.step_lanes), default=0)
    if error_ns * EXACT > step_ns:
        return None, f"each from its start: clocks of hosts are known to ± {duration(error_ns)}"
    first = {min(hosts(run)): 0}
    offsets = first | {host: clock.offset_ns for host, clock in known.items()}
    return offsets, f"clocks of hosts aligned to ± {duration(error_ns)}"


def lanes_together(
    run: Run, ranks: Sequence[RankTime], offsets_ns: Mapping[str, int] | None
) -> list[RankLane]:
    """The newest step of the first rank, and of each other rank the one that lies beside it most.
    Ranks of several hosts begin together unless `offsets_ns` has how far their clocks are ahead."""

    def early_ns(one: RankTime) -> int:
        return (offsets_ns or {}).get(one.host or "", 0)

    of: dict[tuple[int, int], list[StepLanes]] = {}
    for lanes in run.step_lanes:
        of.setdefault((lanes.process, lanes.device), []).append(lanes)
    first: StepLanes | None = None
    first_early_ns = 0
    found: list[RankLane] = []
    for one in ranks:
        kept = of.get((one.process, -1 if one.device is None else one.device), [])
        if not kept:
            continue
        if first is None:
            first = max(kept, key=lambda lanes: lanes.start_ns)
            first_early_ns = early_ns(one)
            found.append(RankLane(one.rank, first, 0))
        elif one.host is not None and offsets_ns is None:
            found.append(RankLane(one.rank, kept[-1], 0))
        else:
            late_ns = first_early_ns - early_ns(one)
            beside = max(kept, key=lambda lanes: _overlap_ns(lanes, first, late_ns))
            if _overlap_ns(beside, first, late_ns) > 0:
                start_ns = beside.start_ns + late_ns - first.start_ns
                found.append(RankLane(one.rank, beside, start_ns))
    return found if len(found) > 1 else []


def _overlap_ns(one: StepLanes, other: StepLanes, late_ns: int) -> int:
    start_ns = one.start_ns + late_ns
    end_ns = min(start_ns + one.duration_ns, other.start_ns + other.duration_ns)
    return end_ns - max(start_ns, other.start_ns)


def together_rows(lanes: Sequence[RankLane], note: str, width: int) -> list[Row]:
    """A heading with a note, the lanes, and what their ink means."""
    start_ns = min(lane.offset_ns for lane in lanes)
    span_ns = max(lane.offset_ns + lane.step.duration_ns for lane in lanes) - start_ns
    columns = max(10, width - LABEL - 1)
    rows: list[Row] = [heading(f"A step of each rank  {duration(span_ns)}", width, note)]
    for lane in lanes:
        cells = [
            _cell(lane, start_ns + span_ns * at / columns, start_ns + span_ns * (at + 1) / columns)
            for at in range(columns)
        ]
        rows.append(((f" rank {lane.rank}".ljust(LABEL), "dim"), *_joined(cells)))
    work, alone = look(Leaf.MATMUL), look(Leaf.RANK)
    rows.append((
        (" " * LABEL, "text"), (work.texture, work.role), (" computing  ", "dim"),
        (alone.texture, alone.role), (" only collectives: transfer, or waiting for a rank", "dim"),
    ))  # fmt: skip
    return rows


def _cell(lane: RankLane, from_ns: float, to_ns: float) -> Span:
    """What leads in a stretch of the axis; blank beside the step, or where little is known."""
    step = lane.step
    middle = (from_ns + to_ns) / 2 - lane.offset_ns
    parts = len(step.busy)
    if not 0 <= middle < step.duration_ns or not parts:
        return (" ", "text")
    at = min(parts - 1, int(middle * parts / step.duration_ns))
    alone = step.alone[at] if len(step.alone) == parts else 0
    if step.busy[at] >= 500:
        leaf = Leaf.RANK if alone * 2 >= step.busy[at] else Leaf.MATMUL
        texture, role = look(leaf)
        return (texture, role)
    known = [
        (lane_of.parts[at], lane_of.leaf)
        for lane_of in step.idle
        if lane_of.leaf in LEAVES and len(lane_of.parts) == parts
    ]
    if not known:
        return (" ", "text")
    texture, role = look(Leaf(max(known)[1]))
    return (texture, role)


def _joined(cells: Sequence[Span]) -> list[Span]:
    """Neighbours that look alike as one."""
    found: list[Span] = []
    for text, role in cells:
        if found and found[-1][1] == role:
            found[-1] = (found[-1][0] + text, role)
        else:
            found.append((text, role))
    return found
