"""Kernels by range of a workload, as torch.profiler sees them: the judge of gputui's capture.

    python tests/gpu/torch_profile.py OUT.json NAME [--KEY VALUE ...]

Runs the workload in this process under torch.profiler with its NVTX ranges turned into
profiler annotations, and writes {path: {"kernels": count, "kernel_ns": total, "names": {…}}}:
each kernel counts in every range around the CUDA call that launched it, on the same thread.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import nvtx
import torch
from torch.profiler import ProfilerActivity, profile, record_function


class _Annotation:
    """Stands for nvtx.annotate: the same ranges, as the profiler's own annotations."""

    def __init__(self, message: str) -> None:
        self._name = f"range:{message}"
        self._open: list[record_function] = []

    def __enter__(self) -> _Annotation:
        entered = record_function(self._name)
        entered.__enter__()
        self._open.append(entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)


def main(out: str, arguments: list[str]) -> int:
    """Profile the workload and write the counts; its exit status."""
    # Before the workload is imported: it makes its ranges at import.
    nvtx.annotate = _Annotation
    from workloads.__main__ import main as run_workload

    torch.cuda.init()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        status = run_workload(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    Path(out).write_text(json.dumps(by_range(events), indent=1))
    return status


def by_range(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sum kernels up by the path of the ranges around their launch."""
    spans: dict[Any, list[tuple[float, float, str]]] = {}
    calls: dict[Any, list[tuple[float, int]]] = {}
    launched: dict[int, tuple[str, ...]] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        if event.get("cat") == "user_annotation" and event["name"].startswith("range:"):
            spans.setdefault(event["tid"], []).append((start, end, event["name"][6:]))
        elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
            correlation = event["args"].get("correlation")
            calls.setdefault(event["tid"], []).append((start, correlation))
    for thread, entries in calls.items():
        waiting = sorted(spans.get(thread, []), key=lambda span: (span[0], -span[1]))[::-1]
        stack: list[tuple[float, float, str]] = []
        for moment, correlation in sorted(entries):
            while waiting and waiting[-1][0] <= moment:
                span = waiting.pop()
                while stack and stack[-1][1] <= span[0]:
                    stack.pop()
                stack.append(span)
            while stack and stack[-1][1] < moment:
                stack.pop()
            launched.setdefault(correlation, tuple(name for _, _, name in stack))
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            path = launched.get(event["args"]["correlation"], ())
            for depth in range(len(path) + 1):
                entry = found.setdefault(
                    "/".join(path[:depth]), {"kernels": 0, "kernel_ns": 0.0, "names": {}}
                )
                entry["kernels"] += 1
                entry["kernel_ns"] += float(event["dur"]) * 1e3
                entry["names"][event["name"]] = entry["names"].get(event["name"], 0) + 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
