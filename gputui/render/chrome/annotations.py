"""The program's annotations: ranges, on the CPU and on the GPU, and marks."""

from __future__ import annotations

import json

from gputui.model.events import MarkDefined, RangeDefined
from gputui.model.payloads import NO_PAYLOAD, payload_of
from gputui.render.chrome.notation import RANGES_ON_GPU, UNKNOWN, us
from gputui.state import Run


class Annotations:
    """Writes the ranges and marks of process `pid`, moments after `base_ns`."""

    def __init__(self, run: Run, pid: int, base_ns: int, devices: list[int]) -> None:
        self._run = run
        self._pid = pid
        self._base_ns = base_ns
        self._devices = devices
        self._ranges = {
            number: json.dumps(node.definition.name) for number, node in run.ranges.items()
        }
        self._marks = {
            number: json.dumps(known.name) for number, known in run.mark_definitions.items()
        }
        self._spans = 0

    def range(self, node: int, start: int, end: int, payload_kind: int, payload: int) -> str:
        """An instance of a range on the thread that opened it."""
        known = self._run.ranges.get(node)
        thread = known.definition.thread if known else 0
        more = _arguments(known.definition if known else None, payload_kind, payload)
        if known and known.definition.style == "StartEnd":
            return self._overlapping(node, "user_annotation", self._pid, thread, start, end, more)
        return (
            f'{{"ph":"X","cat":"user_annotation","name":{self._ranges.get(node, UNKNOWN)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{us(start - self._base_ns)},'
            f'"dur":{us(max(0, end - start))},"args":{more}}},\n'
        )

    def projection(self, node: int, start: int, end: int) -> str:
        """From the first operation of an instance to the last one's end.

        Nothing if there are several devices: a record does not say which one it belongs to.
        """
        if len(self._devices) != 1:
            return ""
        track = self._devices[0], RANGES_ON_GPU
        return self._overlapping(node, "gpu_user_annotation", *track, start, end)

    def mark(self, number: int, thread: int, at: int, payload_kind: int, payload: int) -> str:
        """A moment on its thread."""
        more = _arguments(self._run.mark_definitions.get(number), payload_kind, payload)
        return (
            f'{{"ph":"i","s":"t","cat":"nvtx_mark","name":{self._marks.get(number, UNKNOWN)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{us(at - self._base_ns)},"args":{more}}},\n'
        )

    def _overlapping(
        self, node: int, category: str, pid: int, tid: int, start: int, end: int, more: str = "{}"
    ) -> str:
        """A span of a range that need not nest with others of its track."""
        self._spans += 1
        same = (
            f'"cat":"{category}","id":{self._spans},"name":{self._ranges.get(node, UNKNOWN)},'
            f'"pid":{pid},"tid":{tid}'
        )
        return (
            f'{{"ph":"b",{same},"ts":{us(start - self._base_ns)},"args":{more}}},\n'
            f'{{"ph":"e",{same},"ts":{us(end - self._base_ns)}}},\n'
        )


def _arguments(known: RangeDefined | MarkDefined | None, kind: int, bits: int) -> str:
    """What a range or mark has beside its name: domain, category, payload."""
    if kind == NO_PAYLOAD and (known is None or not (known.domain or known.category_id)):
        return "{}"
    more: dict[str, str | int | float] = {}
    if known is not None:
        if known.domain:
            more["domain"] = known.domain
        if known.category_id is not None:
            more["category"] = known.category or known.category_id
    payload = payload_of(kind, bits)
    if payload is not None:
        more["payload"] = payload.value
        more["payload type"] = payload.type
    return json.dumps(more)
