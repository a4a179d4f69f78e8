"""Times each layer of `convolution` in the four settings of cuDNN."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product

import nvtx
import torch
import torch.nn.functional as F
from torch import Tensor

from ..declaration import FigureValue, Outcome, Value
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
    report.say(f"convolution: {len(LAYERS)} layers of ResNet-50 on {run.place.name}")
    with run:
        for layer, deterministic, benchmark in run.until_stopped(
            product(LAYERS, (False, True), (False, True))
        ):
            label = f"{layer} benchmark {_on(benchmark)} deterministic {_on(deterministic)}"
            head: Cells = {"layer": layer, "benchmark": benchmark, "deterministic": deterministic}
            with (
                rows.row(label, **head) as cells,
                _cudnn(benchmark=benchmark, deterministic=deterministic),
            ):
                _measure(layer, run, cells)
    plain = _total_ms(rows.measured, benchmark=False, deterministic=False)
    searched = _total_ms(rows.measured, benchmark=True, deterministic=False)
    repeatable = _total_ms(rows.measured, benchmark=False, deterministic=True)
    results: dict[str, FigureValue] = {
        "benchmark_speedup": plain / searched if plain and searched else None,
        "deterministic_percent": 100 * repeatable / plain if plain and repeatable else None,
    }
    return run.outcome(results, {"convolution": rows.rows}, rows.why_none())


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


def _measure(layer: str, run: Runner, cells: Cells) -> None:
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


def _total_ms(rows: list[Cells], **settings: bool) -> float | None:
    """The time of all layers in a setting; None where one was not measured."""
    times = [
        float(row["gpu_ms"] or row["wall_ms"] or 0)
        for row in rows
        if all(row[name] == value for name, value in settings.items())
    ]
    return sum(times) if len(times) == len(LAYERS) else None
