"""What is worth jumping to in a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from gputui.model.events import (
    Alert,
    AnyEvent,
    CaptureDelta,
    MachineSample,
    OpenRange,
    ProcessDetached,
    RangeDefined,
    RunEnded,
    RunProgress,
    RunStarted,
)
from gputui.model.throttling import HARMLESS_THROTTLING


@dataclass(frozen=True, slots=True)
class Moment:
    """Something worth jumping to. `number` counts the events before it."""

    time_ns: int
    kind: Literal["phase", "run", "exit", "throttle", "memory", "process", "alert"]
    text: str
    number: int


class OpenRanges(msgspec.Struct):
    """The part of a capture event that concerns phases: the rest need not be decoded."""

    time_ns: int
    process: int
    open_ranges: tuple[OpenRange, ...] = ()


class Notes:
    """Finds the moments as events go by."""

    def __init__(self) -> None:
        self._stages: dict[int, str] = {}
        self._open: dict[int, int] = {}
        self._throttled: dict[int, frozenset[str]] = {}
        self._names: dict[int, str] = {}

    def see(self, event: AnyEvent | OpenRanges, number: int) -> Moment | None:
        """The moment of an event, None for most."""
        match event:
            case RunStarted():
                return Moment(event.time_ns, "run", f"{event.name} started", number)
            case RunEnded():
                reason = event.reason.lower()
                lacked = "out of memory" in reason
                return Moment(event.time_ns, "memory" if lacked else "exit", event.reason, number)
            case Alert(raised=True):
                text = f"alert on {event.subject}: {event.condition}"
                return Moment(event.time_ns, "alert", text, number)
            case ProcessDetached(clean=False):
                text = f"process {event.process} vanished"
                return Moment(event.time_ns, "process", text, number)
            case RangeDefined():
                self._names[event.range] = event.name
            case RunProgress():
                return self._stage(event, number)
            case CaptureDelta() | OpenRanges():
                return self._range(event, number)
            case MachineSample():
                return self._sample(event, number)
        return None

    def _stage(self, event: RunProgress, number: int) -> Moment | None:
        if self._stages.get(event.run) == event.stage:
            return None
        self._stages[event.run] = event.stage
        return Moment(event.time_ns, "phase", event.stage, number)

    def _range(self, event: CaptureDelta | OpenRanges, number: int) -> Moment | None:
        """A phase changes when the outermost open range does: the one open longest."""
        outermost = min(event.open_ranges, key=lambda entry: entry.since_ns, default=None)
        now = outermost.range if outermost else 0
        if self._open.get(event.process, 0) == now:
            return None
        self._open[event.process] = now
        text = self._names.get(now, "outside every range")
        return Moment(event.time_ns, "phase", text, number)

    def _sample(self, event: MachineSample, number: int) -> Moment | None:
        for sample in event.gpus:
            reasons = frozenset(sample.throttle_reasons or ()) - HARMLESS_THROTTLING
            before = self._throttled.get(sample.index, frozenset())
            self._throttled[sample.index] = reasons
            if reasons - before:
                words = ", ".join(sorted(reasons - before))
                text = f"GPU {sample.index} throttles: {words}"
                return Moment(event.time_ns, "throttle", text, number)
        return None
