"""Times each case of `graphs` launched eagerly and replayed as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import nvtx
import torch

from ..declaration import FigureValue, Outcome, Value
from ..inference.network import make_network
from ..inference.parts import KVCache
from ..inference.shapes import CONTEXT, SHAPES
from ..place import Place
from ..report import Report
from ..rows import Cells, Unsupported
from ..runner import Runner
from ..timing import repeat
from . import GRAPHS, WORK

CAPTURE = nvtx.annotate("capture")

# The position of the decode step: half of the context is in its cache.
_POSITION = CONTEXT // 2

_NO_GRAPHS = "CUDA graphs need a GPU"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Each work eagerly and as a graph. Raises CannotRun if the device is unavailable."""
    run = Runner(GRAPHS, given, report)
    place = run.place
    rows = run.rows(2 * len(WORK))
    report.say(f"graphs: {' and '.join(WORK)} on {place.name}")
    with run, torch.inference_mode():
        for case in run.until_stopped(WORK):
            once, kernels = _case(case, run)
            for mode in run.until_stopped(("eager", "graph")):
                with rows.row(f"{case} {mode}", work=case, mode=mode, kernels=kernels) as cells:
                    _measure(once, mode, run, cells)
    for case in WORK:
        pair = [row for row in rows.rows if row["work"] == case]
        if len(pair) == 2:
            _compare(*pair)
    figures = {(row["work"], row["mode"]): row for row in rows.rows}
    results: dict[str, FigureValue] = {
        "host_us_per_launch": _cell(figures, "chain", "eager", "host_us_per_launch"),
        "chain_speedup": _cell(figures, "chain", "graph", "speedup"),
        "decode_speedup": _cell(figures, "decode", "graph", "speedup"),
        "decode_gpu_idle_percent": _cell(figures, "decode", "eager", "gpu_idle_percent"),
    }
    reason = rows.why_none() if place.on_gpu else _NO_GRAPHS
    return run.outcome(results, {"graphs": rows.rows}, reason)


def _case(name: str, run: Runner) -> tuple[Callable[[], object], int | None]:
    """A pass of the work, and its kernels if the work itself knows them."""
    if name == "chain":
        count = run["kernels"]
        numbers = torch.zeros(run["elements"], device=run.place.device)

        def chain() -> None:
            for _ in range(count):
                numbers.add_(1.0)

        return chain, count
    shape = SHAPES[str(run.values["size"])]
    place = run.place
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    model = make_network(
        shape, dtype, place.device, seed=run["seed"], positions=CONTEXT,
        attention="auto", compiled=False,
    )  # fmt: skip
    cache = KVCache(shape, 1, CONTEXT, dtype, place.device)
    for layer in cache.layers:
        layer.zero_()
    token = torch.zeros((1, 1), dtype=torch.int64, device=place.device)

    def decode() -> None:
        cache.length = _POSITION
        model.forward(token, cache)

    return decode, None


def _measure(once: Callable[[], object], mode: str, run: Runner, cells: Cells) -> None:
    if mode == "graph":
        repeat(once, run["warmup"], run.place.device)
        once = _captured(once, run.place, cells)
    times = run.timed(once)
    cells |= {
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.gpu_ms,
        "p99_ms": times.percentile(99),
    }
    kernels = cells["kernels"]
    if isinstance(kernels, int):
        cells["host_us_per_launch"] = times.host_ms * 1e3 / kernels


def _captured(once: Callable[[], object], place: Place, cells: Cells) -> Callable[[], object]:
    """A graph of `once`, which has run before: libraries must not initialise themselves in it."""
    if not place.on_gpu:
        raise Unsupported(_NO_GRAPHS)
    graph = torch.cuda.CUDAGraph()
    started_ns = time.perf_counter_ns()
    with CAPTURE, torch.cuda.graph(graph):
        once()
    cells["capture_ms"] = (time.perf_counter_ns() - started_ns) / 1e6
    return graph.replay


def _compare(eager: Cells, graph: Cells) -> None:
    before, after = eager.get("wall_ms"), graph.get("wall_ms")
    if isinstance(before, float) and isinstance(after, float):
        graph["speedup"] = before / after
        eager["gpu_idle_percent"] = max(0.0, 100 * (1 - after / before))


def _cell(
    figures: Mapping[tuple[FigureValue, FigureValue], Cells], case: str, mode: str, name: str
) -> FigureValue:
    return figures.get((case, mode), {}).get(name)
