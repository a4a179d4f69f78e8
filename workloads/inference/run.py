"""Runs `inference`: load, warm up, prefill, decode, report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import nvtx
import torch

from workloads.declaration import FigureValue, Outcome, Value
from workloads.devices import (
    device_name,
    find_device,
    free_bytes,
    out_of_memory_explained,
    peak_memory,
    set_precision,
    synchronize,
)
from workloads.errors import WrongUsage
from workloads.inference import INFERENCE
from workloads.inference.generation import Generator
from workloads.inference.memory import Footprint, decode_step_bytes, parameter_count
from workloads.inference.model import Model
from workloads.inference.results import ONE_TOKEN, Latency, recent_pace
from workloads.inference.shapes import CONTEXT, SHAPES, Shape
from workloads.report import Report
from workloads.stopping import StopRequest

LOAD = nvtx.annotate("load")
WARMUP = nvtx.annotate("warmup")
PREFILL = nvtx.annotate("prefill")
DECODE = nvtx.annotate("decode")


@dataclass(frozen=True)
class Settings:
    """The parameters as they take effect: nothing is "auto" any more."""

    size: str
    batch: int
    prompt: int
    tokens: int
    precision: str
    device: str
    seed: int
    warmup: int

    @classmethod
    def of(cls, values: Mapping[str, Value], device: torch.device) -> Settings:
        return cls(
            size=str(values["size"]),
            batch=int(values["batch"]),
            prompt=int(values["prompt"]),
            tokens=int(values["tokens"]),
            precision=str(values["precision"]),
            device=str(device),
            seed=int(values["seed"]),
            warmup=int(values["warmup"]),
        )

    @property
    def shape(self) -> Shape:
        return SHAPES[self.size]

    def refuse_unless_in_context(self) -> None:
        """Raises WrongUsage when prompt and answer are longer than the model's context."""
        length = self.prompt + self.tokens
        if length > CONTEXT:
            raise WrongUsage(
                f"prompt + tokens = {self.prompt} + {self.tokens} = {length} is more than "
                f"the context of {CONTEXT}"
            )


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """One answer to one prompt. `given` are values of the declared parameters, already read.

    Refuses before it allocates: WrongUsage for what exceeds the context, CannotRun for what
    this machine has no device, precision or memory for. Raises OutOfMemory when an allocation
    fails all the same.
    """
    device = find_device(str(given.get("device", "auto")))
    settings = Settings.of(INFERENCE.fill(given, on_cpu=device.type == "cpu"), device)
    settings.refuse_unless_in_context()
    precision = set_precision(settings.precision, device)
    # cuDNN's attention plans anew for every length, 2 ms each on an H200, and a cache grows by
    # one every step: decode spent 90 % of its time planning.
    torch.backends.cuda.enable_cudnn_sdp(False)
    footprint = Footprint.of(
        settings.shape, settings.batch, settings.prompt, settings.tokens, precision.dtype.itemsize
    )
    footprint.refuse_unless_fits(free_bytes(device), settings.device)

    known: dict[str, FigureValue] = {
        "device_name": device_name(device),
        "effective_precision": precision.effective,
        "parameter_count": parameter_count(settings.shape),
        "weight_bytes": footprint.weight_bytes,
        "kv_cache_bytes": footprint.kv_cache_bytes,
    }
    report.metrics(known)
    report.say(
        f"inference: {settings.size} ({settings.shape}), {known['parameter_count']:,} parameters "
        f"in {precision.effective} on {known['device_name']} ({settings.device})"
    )
    with out_of_memory_explained(), torch.inference_mode():
        started_ns = time.perf_counter_ns()
        generator = _load(settings, precision.dtype, device, report)
        known["load_ms"] = (time.perf_counter_ns() - started_ns) / 1e6
        _warm_up(generator, settings, report)
        _prefill(generator, report)
        stopped_by = _decode(generator, settings, report)

    latency = Latency.of(generator.started_ns, generator.arrived_ns, settings.batch)
    figures, unavailable = _derived(latency, settings, precision.dtype, device)
    return Outcome(
        parameters=asdict(settings),
        results={**known, **latency.figures(), **figures},
        unavailable=unavailable,
        stopped_by=stopped_by,
    )


def _load(
    settings: Settings, dtype: torch.dtype, device: torch.device, report: Report
) -> Generator:
    """Model, prompt and cache. The prompt is drawn on the host, so it is every device's."""
    report.progress("load", 0, 1, "model")
    shape = settings.shape
    with LOAD:
        model = Model(shape, dtype, device, settings.seed)
        random = torch.Generator().manual_seed(settings.seed)
        size = (settings.batch, settings.prompt)
        prompt = torch.randint(shape.vocabulary, size, generator=random).to(device)
        generator = Generator(model, prompt, settings.tokens)
        synchronize(device)
    report.progress("load", 1, 1, "model")
    return generator


def _warm_up(generator: Generator, settings: Settings, report: Report) -> None:
    """Lets libraries load their kernels and torch its memory before anything is timed."""
    rounds = settings.warmup
    if not rounds:
        return
    report.progress("warmup", 0, rounds, "rounds")
    with WARMUP:
        for done in range(1, rounds + 1):
            generator.prefill()
            if settings.tokens > 1:
                generator.decode_step()
            report.progress("warmup", done, rounds, "rounds")


def _prefill(generator: Generator, report: Report) -> None:
    report.progress("prefill", 0, 1, "prompt")
    with PREFILL:
        generator.prefill()
    report.progress("prefill", 1, 1, "prompt")


def _decode(generator: Generator, settings: Settings, report: Report) -> int | None:
    """The tokens after the first. Gives the signal that ended it early, None for none."""
    arrived_ns, total = generator.arrived_ns, settings.tokens
    if total == 1:
        return None
    reported = 1
    with DECODE, StopRequest() as stop:
        report.progress("decode", 1, total, "tokens")
        while len(arrived_ns) < total and stop.signal is None:
            generator.decode_step()
            done = len(arrived_ns)
            report.progress("decode", done, total, "tokens")
            if report.metrics_due:
                pace = recent_pace(arrived_ns, reported, settings.batch)
                report.metrics({"output_tokens": done, **pace})
                reported = done
    return stop.signal


def _derived(
    latency: Latency, settings: Settings, dtype: torch.dtype, device: torch.device
) -> tuple[dict[str, FigureValue], dict[str, str]]:
    """The figures that need more than times, and why those that are None are."""
    figures: dict[str, FigureValue] = {
        "model_bytes_per_step": None,
        "model_bandwidth_bytes_per_s": None,
    }
    peaks, unavailable = peak_memory(device)
    if latency.itl_p50_ms is None:
        gaps = ("tpot_ms", "itl_p50_ms", "itl_p99_ms")
        of_decode = ("model_bytes_per_step", "model_bandwidth_bytes_per_s")
        unavailable |= dict.fromkeys(gaps + of_decode, ONE_TOKEN)
    else:
        # Decode step i of n - 1 attends to prompt + i positions: prompt + n / 2 on average.
        positions = settings.prompt + latency.output_tokens / 2
        step_bytes = decode_step_bytes(settings.shape, settings.batch, positions, dtype.itemsize)
        figures["model_bytes_per_step"] = round(step_bytes)
        figures["model_bandwidth_bytes_per_s"] = step_bytes / (latency.itl_p50_ms / 1e3)
    return figures | peaks, unavailable
