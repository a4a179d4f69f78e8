"""Single moments of a program: marks, and its last step."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gputui.model.events.base import (
    About,
    Amount,
    Event,
    Index,
    Integer,
    Moment,
    ProcessNumber,
    RangeNumber,
)
from gputui.model.events.deltas_work import Payload


class Mark(Event, frozen=True, kw_only=True, tag="mark"):
    """An NVTX mark: an instant with a name."""

    about = About.PROCESS

    process: ProcessNumber
    thread: Integer
    domain: str = ""
    name: str
    payload: Payload | None = None


class StepSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span of a step's timeline, relative to its start. `lane` is "cpu" or "gpu".

    On the "gpu" lane a span is a stretch of GPU work launched by `range`, with gaps too small to
    draw; `busy_ns` is the time in it in which something ran, None where that was not recorded.
    """

    lane: Literal["cpu", "gpu"]
    range: RangeNumber
    start_ns: Amount
    duration_ns: Amount
    busy_ns: Amount | None = None


class IdleLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of each part of a step a device idled for one cause, in thousandths of the part.
    `leaf` is its number in model.leaves."""

    leaf: Integer
    parts: tuple[Index, ...]


Letters = Annotated[str, msgspec.Meta(max_length=200)]
"""Parts of a step as letters, packed (gputui.model.lane_letters)."""


class ThreadLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a thread of the process was at in each part of a step; `line` is the newest that it was
    seen at, a LineDefined, None if it was not."""

    thread: Integer
    doing: Letters
    line: Integer | None = None


class StreamLane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of each part of a step a stream of the device was busy, in eighths, and in all."""

    stream: Integer
    busy_ns: Amount
    ink: Letters


class StepLanes(Event, frozen=True, kw_only=True, tag="step_lanes"):
    """One steady step of a device in equal parts: how much of each it was busy, in thousandths, and
    why it idled in the rest. It is a usual step of its delta, or one that stands out by its
    length. `device` is the process's. `alone` is the part of `busy` in which only collectives ran,
    empty where none did. Of threads and streams there are as many as fit 150 bytes;
    streams only where the device had several."""

    about = About.PROCESS

    process: ProcessNumber
    device: Integer
    start_ns: Moment
    duration_ns: Amount
    busy: tuple[Index, ...]
    idle: tuple[IdleLane, ...] = ()
    threads: tuple[ThreadLane, ...] = ()
    streams: tuple[StreamLane, ...] = ()
    alone: tuple[Index, ...] = ()


class StepTimeline(Event, frozen=True, kw_only=True, tag="step"):
    """The last complete step: the spans of its ranges, outermost first, and of its GPU work.

    `spans_left_out` counts the spans beyond the limit.
    """

    about = About.PROCESS

    process: ProcessNumber
    range: RangeNumber
    start_ns: Moment
    duration_ns: Amount
    spans: tuple[StepSpan, ...] = ()
    spans_left_out: Amount = 0
