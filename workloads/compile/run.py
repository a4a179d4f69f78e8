"""Times each case of `compile` eagerly and compiled, and lists the generated kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import nvtx
import torch
from torch import Tensor

from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import peak_memory, release_memory, set_precision, synchronize
from ..report import Report
from ..rows import Cells, Unsupported
from ..runner import Runner
from ..train.model import Decoder
from ..train.shapes import SHAPES
from . import COMPILE, WORK
from .generated import CountOperations, calls, ptx_file, source_files, source_lines

COMPILING = nvtx.annotate("compile")

Function = Callable[..., Any]

MOST_LINES = 100
"""Of a generated kernel that a recording keeps: most have 20 to 60."""

# Tokens of attention and model, on a GPU and on the CPU.
_LENGTH = {True: 512, False: 32}


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Each work both ways. Raises CannotRun if the device is unavailable."""
    run = Runner(COMPILE, given, report)
    place = run.place
    asked = [name for name in WORK if run.values["work"] in ("all", name)]
    # What a model is compiled for: tensor cores, if there are any.
    set_precision("bf16" if place.on_gpu else "fp32", place.device)
    rows = run.rows(len(asked))
    kernels: list[Row] = []
    lines: dict[str, list[str]] = {}
    report.say(f"compile: {', '.join(asked)} on {place.name}")
    with run:
        for case in run.until_stopped(asked):
            with rows.row(case, work=case) as cells:
                _measure(case, run, cells, kernels, lines)
    by_work = {row["work"]: row for row in rows.rows}
    results: dict[str, FigureValue] = {}
    for case in WORK:
        row = by_work.get(case, {})
        results[f"{case}_speedup"] = row.get("gpu_speedup") or row.get("speedup")
    took = [row["compile_s"] for row in rows.rows if isinstance(row.get("compile_s"), float)]
    results["compile_s"] = sum(cast(list[float], took)) if took else None
    tables: dict[str, Sequence[Row]] = {
        "compile": rows.rows,
        "fused_kernels": kernels,
        "generated_code": [
            {"kernel": kernel, "line": number, "text": text}
            for kernel, source in lines.items()
            for number, text in enumerate(source, 1)
        ],
    }
    return run.outcome(results, tables, "not measured, or it did not compile")


def _measure(
    case: str, run: Runner, cells: Cells, kernels: list[Row], lines: dict[str, list[str]]
) -> None:
    from torch._inductor.utils import run_and_get_code

    place = run.place
    function, once = _case(case, run)
    once(function)
    with CountOperations() as operations:
        once(function)
    cells["eager_operations"] = operations.count
    release_memory(place.device)
    eager = run.timed(lambda: once(function))
    cells["eager_ms"] = eager.wall_ms
    cells["eager_peak_bytes"] = peak_memory(place.device)[0]["peak_memory_allocated_bytes"]
    cells["eager_gpu_ms"] = run.in_graph(lambda: once(function), eager).gpu_only_ms
    torch._dynamo.reset()
    release_memory(place.device)
    compiled: Function = torch.compile(function, dynamic=False)
    started_ns = time.perf_counter_ns()
    try:
        with COMPILING, run.interruptible():
            _, code = run_and_get_code(once, compiled)
            synchronize(place.device)
    except (torch._dynamo.exc.BackendCompilerFailed, torch._inductor.exc.InductorError) as error:
        line = " ".join(str(error).split())[:200]
        raise Unsupported(f"it does not compile here: {line}") from error
    compile_s = cells["compile_s"] = (time.perf_counter_ns() - started_ns) / 1e9
    release_memory(place.device)
    shorter = run.timed(lambda: once(compiled))
    cells["compiled_ms"] = shorter.wall_ms
    cells["compiled_peak_bytes"] = peak_memory(place.device)[0]["peak_memory_allocated_bytes"]
    cells["compiled_gpu_ms"] = run.in_graph(lambda: once(compiled), shorter).gpu_only_ms
    cells["speedup"] = eager.wall_ms / shorter.wall_ms
    before, after = cells["eager_gpu_ms"], cells["compiled_gpu_ms"]
    if isinstance(before, float) and isinstance(after, float):
        cells["gpu_speedup"] = before / after
    if (saved_ms := eager.wall_ms - shorter.wall_ms) > 0:
        cells["break_even_passes"] = math.ceil(compile_s * 1e3 / saved_ms)
    calls_by_name = calls(code)
    cells["compiled_kernels"] = calls_by_name.total()
    files = source_files()
    for name in calls_by_name:
        if source := source_lines(name, code):
            lines.setdefault(name, source[:MOST_LINES])
    kernels += [
        {
            "work": case,
            "kernel": name,
            "calls": count,
            "source": next((files.get(text) for text in code if name in text), None),
            "ptx": ptx_file(name) if name.startswith("triton") else None,
        }
        for name, count in calls_by_name.most_common()
    ]


def _case(name: str, run: Runner) -> tuple[Function, Callable[[Function], object]]:
    """A function to compile, and how to run one pass of it."""
    place = run.place
    device, length = place.device, _LENGTH[place.on_gpu]
    generator = torch.Generator(device).manual_seed(run["seed"])
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    if name == "pointwise":
        x, y = (torch.randn(run["elements"], device=device, generator=generator) for _ in range(2))

        def foo(x: Tensor, y: Tensor) -> Tensor:
            return x * y + x

        return foo, lambda function: function(x, y)
    if name == "attention":
        q, k, v = (
            torch.randn(8, 16, length, 64, device=device, generator=generator).to(dtype)
            for _ in range(3)
        )
        mask = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            return torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v

        return attention, lambda function: function(q, k, v)
    shape = SHAPES[str(run.values["model"])]
    with device:
        model = Decoder(shape, length, naive=True)
    model.initialise(run["seed"])
    model.to(dtype)
    tokens = torch.zeros((4, length), dtype=torch.int64, device=device)

    def step(function: Function) -> object:
        loss = function(tokens).float().mean()
        torch.autograd.backward(loss)
        model.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step
