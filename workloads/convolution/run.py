"""Times each layer of `convolution` in the four settings of cuDNN."""

from __future__ import annotations

import ctypes
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import nvtx
import torch
import torch.nn.functional as F
from torch import Tensor

from ..cuda.run import readable
from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import set_precision, synchronize
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells
from ..runner import Runner
from . import CONVOLUTION, LAYERS

FIRST = nvtx.annotate("first")


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every layer in every setting. Raises CannotRun for a missing device or precision."""
    run = Runner(CONVOLUTION, given, report)
    rows = run.rows(4 * len(LAYERS))
    kernels: list[Row] = []
    report.say(f"convolution: {len(LAYERS)} layers of ResNet-50 on {run.place.name}")
    with run:
        run.begin()
        for layer, deterministic, benchmark in run.until_stopped(
            product(LAYERS, (False, True), (False, True))
        ):
            label = f"{layer} benchmark {_on(benchmark)} deterministic {_on(deterministic)}"
            head: Cells = {"layer": layer, "benchmark": benchmark, "deterministic": deterministic}

            def measure(label: str = label, head: Cells = head, layer: str = layer) -> None:
                with (
                    rows.row(label, **head) as cells,
                    _cudnn(
                        benchmark=bool(head["benchmark"]), deterministic=bool(head["deterministic"])
                    ),
                ):
                    counts = _measure(layer, run, cells)
                    kernels.extend(
                        {**head, "kernel": readable(name), "calls": count}
                        for name, count in counts.items()
                    )

            # Of its own, the backward pass too: torch keeps the plans of a thread by their shapes,
            # whether a search or the heuristics chose them (Conv_v8.cpp, benchmark_cache), and a
            # search after a pass without one found that pass's plan.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(measure).result()
    plain = _total_ms(rows.measured, benchmark=False, deterministic=False)
    searched = _total_ms(rows.measured, benchmark=True, deterministic=False)
    repeatable = _total_ms(rows.measured, benchmark=False, deterministic=True)
    results: dict[str, FigureValue] = {
        "benchmark_speedup": plain / searched if plain and searched else None,
        "deterministic_percent": 100 * repeatable / plain if plain and repeatable else None,
    }
    tables: dict[str, Sequence[Row]] = {"convolution": rows.rows, "convolution_kernels": kernels}
    return run.outcome(results, tables, rows.why_none())


def _on(setting: bool) -> str:
    return "on" if setting else "off"


@contextmanager
def _cudnn(*, benchmark: bool, deterministic: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _measure(layer: str, run: Runner, cells: Cells) -> Counter[str]:
    """Fill a row; the kernels of a pass. On a thread without plans, as a new process is."""
    torch.autograd.set_multithreading_enabled(False)
    place, name = run.place, str(run.values["precision"])
    dtype = set_precision(name, place.device).dtype
    # Convolutions have a switch of their own, which is on by default.
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    inputs, outputs, size, width, stride = LAYERS[layer]
    generator = torch.Generator(place.device).manual_seed(run["seed"])

    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, device=place.device, generator=generator)
        return values.to(dtype).requires_grad_()

    images, weight = random(run["batch"], inputs, size, size), random(outputs, inputs, width, width)

    def once() -> tuple[Tensor, ...]:
        out = F.conv2d(images, weight, stride=stride, padding=width // 2)
        return torch.autograd.grad(out, (images, weight), torch.ones_like(out))

    # The thread's handle is made, which is no part of a search.
    F.conv2d(images[:1, :1, :8, :8].detach(), weight[:1, :1, :1, :1].detach())
    synchronize(place.device)
    began = time.perf_counter()
    with FIRST:
        gradient = once()[1]
        synchronize(place.device)
    cells["first_ms"] = 1e3 * (time.perf_counter() - began)
    times = run.timed(once, in_graph=True)
    positions = -(-size // stride)
    multiplied = run["batch"] * outputs * positions**2 * inputs * width**2
    rate = 3 * 2 * multiplied / times.best_ms * 1e3
    cells |= {
        "wall_ms": times.wall_ms,
        "gpu_ms": times.best_ms if place.on_gpu else None,
        "flops_per_s": rate,
        "peak_percent": share_percent(rate, place.flops_per_s(name)),
        "same_bits": torch.equal(gradient, once()[1]),
    }
    kernels = _kernels_of(once) if place.on_gpu else Counter[str]()
    cells["algorithm"] = algorithm(kernels)
    return kernels


_VERBOSE = 1  # CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE

# A kernel's node in CUDA's drawing of a graph: its name, before its launch shape.
_KERNEL_NODE = re.compile(r"\|\s*([A-Za-z_$][\w$]*)\s*\\?<\\?<\\?<")


def _kernels_of(once: Callable[[], object]) -> Counter[str]:
    """The kernels that a pass launches, by their linkage names: cuDNN does not say which algorithm
    it took, but the driver draws a CUDA graph, without a profiler. Empty where the pass cannot be
    captured, and before torch 2.8, which shows no graph.
    """
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            once()
        driver = ctypes.CDLL("libcuda.so.1")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "graph.dot")
            handle = ctypes.c_void_p(graph.raw_cuda_graph())
            if driver.cuGraphDebugDotPrint(handle, str(path).encode(), _VERBOSE):
                return Counter()
            drawn = path.read_text(encoding="utf-8", errors="replace")
    except (RuntimeError, OSError, AttributeError, TypeError):
        return Counter()
    return Counter(_KERNEL_NODE.findall(drawn))


# By words of a kernel's name, the first that fits: the algorithms of cuDNN (its developer guide,
# cudnnConvolutionFwdAlgo_t), what moves between layouts and adds up, and products of 1×1 kernels.
_ALGORITHMS = {
    "Winograd": "winograd",
    "FFT": "fft",
    "layout": "tonhwc|tonchw|transpose",
    "sums": "reduce|splitk",
    "": "at6native|at4cuda|init_device_workspace",  # PyTorch's, and what sets memory up
    "implicit GEMM": "implicit_?gemm",
    "GEMM": "gemm|nvjet|cutlass",
    "direct": "direct|conv|dgrad|wgrad",
}


def algorithm(kernels: Mapping[str, int]) -> str | None:
    """The algorithms of a pass by the names of its kernels, with the kernels of each; None where
    none is known."""
    counts = Counter[str]()
    for name, count in kernels.items():
        fits = (key for key, words in _ALGORITHMS.items() if re.search(words, name, re.IGNORECASE))
        counts[next(fits, "others")] += count
    del counts[""]
    return (
        ", ".join(f"{name} {counts[name]}" for name in (*_ALGORITHMS, "others") if counts[name])
        or None
    )


def _total_ms(rows: list[Cells], **settings: bool) -> float | None:
    """The time of all layers in a setting; None where one was not measured."""
    times = [
        float(row["gpu_ms"] or row["wall_ms"] or 0)
        for row in rows
        if all(row[name] == value for name, value in settings.items())
    ]
    return sum(times) if len(times) == len(LAYERS) else None
