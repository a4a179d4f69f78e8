"""The program's annotations: ranges, on the CPU and on the GPU, and marks."""

from __future__ import annotations

import json
import re

from gputui.model.events import MarkDefined, RangeDefined
from gputui.model.naming import OPERATOR_CATEGORY, PROFILER_STEP
from gputui.model.payloads import NO_PAYLOAD, payload_of
from gputui.render.chrome.notation import UNKNOWN, us
from gputui.render.chrome.streams import Placed
from gputui.state import Run

_OPERATOR = re.compile(
    r"(aten|autograd|c10d\w*|_c10d_functional|prims|quantized|torch\w*|xformers|flash_attn\w*|vllm"
    r"|sgl_kernel|fbgemm|triton\w*)::|\w+Backward\d+\b"
)
"""Names of a framework's operators, as torch's profilers spell them."""


class Annotations:
    """Writes the ranges and marks of process `pid`, moments after `base_ns`."""

    def __init__(self, run: Run, pid: int, base_ns: int) -> None:
        self._run = run
        self._pid = pid
        self._base_ns = base_ns
        self._ranges = {
            number: json.dumps(node.definition.name) for number, node in run.ranges.items()
        }
        self._marks = {
            number: json.dumps(known.name) for number, known in run.mark_definitions.items()
        }
        self._operators = {
            number for number, node in run.ranges.items() if _is_operator(node.definition)
        }
        self._spans = 0
        self._instances = 0

    def threads(self, process: int) -> dict[int, int]:
        """Range → thread, of those whose time on the GPU is shown: not of operators."""
        return {
            number: node.definition.thread
            for number, node in self._run.ranges.items()
            if node.definition.process == process and number not in self._operators
        }

    def range(self, node: int, start: int, end: int, payload_kind: int, payload: int) -> str:
        """An instance of a range on the thread that opened it."""
        self._instances += 1
        known = self._run.ranges.get(node)
        thread = known.definition.thread if known else 0
        more = _arguments(
            known.definition if known else None, payload_kind, payload, self._instances
        )
        if known and known.definition.style == "StartEnd":
            return self._overlapping(node, "user_annotation", self._pid, thread, start, end, more)
        category = "cpu_op" if node in self._operators else "user_annotation"
        return (
            f'{{"ph":"X","cat":"{category}","name":{self._name(node, payload_kind, payload)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{us(start - self._base_ns)},'
            f'"dur":{us(max(0, end - start))},"args":{more}}},\n'
        )

    def captured_in(self, node: int) -> str:
        """The argument of what a CUDA graph replayed: the path of the phase that captured it."""
        known = self._run.ranges.get(node) if node else None
        return f',"captured in":{json.dumps(known.path)}' if known else ""

    def on_stream(self, placed: Placed) -> str:
        """An instance on a stream, as Kineto writes it."""
        known = self._run.ranges.get(placed.range)
        track = placed.device, placed.stream
        more = f'{{"External id":{placed.number}}}'
        if known and known.definition.style == "StartEnd":
            return self._overlapping(
                placed.range, "gpu_user_annotation", *track, placed.start_ns, placed.end_ns, more
            )
        name = self._name(placed.range, placed.payload_kind, placed.payload)
        took_ns = max(0, placed.end_ns - placed.start_ns)
        return (
            f'{{"ph":"X","cat":"gpu_user_annotation","name":{name},"pid":{placed.device},'
            f'"tid":{placed.stream},"ts":{us(placed.start_ns - self._base_ns)},'
            f'"dur":{us(took_ns)},"args":{more}}},\n'
        )

    def _name(self, node: int, payload_kind: int, payload: int) -> str:
        """As Kineto spells it: with its number, where it is a step of torch.profiler."""
        known = self._run.ranges.get(node)
        if known and known.definition.name == PROFILER_STEP and payload_kind != NO_PAYLOAD:
            return json.dumps(f"{PROFILER_STEP}#{payload}")
        return self._ranges.get(node, UNKNOWN)

    def mark(self, number: int, thread: int, at: int, payload_kind: int, payload: int) -> str:
        """A moment on its thread."""
        more = _arguments(self._run.mark_definitions.get(number), payload_kind, payload, None)
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


def _is_operator(known: RangeDefined) -> bool:
    if known.style != "PushPop":
        return False
    return known.category == OPERATOR_CATEGORY or bool(_OPERATOR.match(known.name))


def _arguments(
    known: RangeDefined | MarkDefined | None, kind: int, bits: int, external: int | None
) -> str:
    """What a range or mark has beside its name: domain, category, payload; and of a range the
    number that its projections share."""
    more: dict[str, str | int | float] = {} if external is None else {"External id": external}
    if known is not None:
        if known.domain:
            more["domain"] = known.domain
        if known.category_id is not None:
            more["category"] = known.category or known.category_id
    if kind != NO_PAYLOAD:
        payload = payload_of(kind, bits)
        if payload is not None:
            more["payload"] = payload.value
            more["payload type"] = payload.type
    return json.dumps(more)
