"""Runs `inference`: load, warm up, prefill, decode, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import nvtx
import torch
from torch import Tensor

from ..ceilings import NOT_MEASURED
from ..declaration import FigureValue, Outcome, Value
from ..devices import free_bytes, out_of_memory_explained, peak_memory, set_precision, synchronize
from ..errors import CannotRun
from ..peaks import share_percent
from ..place import Place
from ..report import Report
from ..stopping import StopRequest
from . import INFERENCE
from .checkpoint import Folder, gpt2_into, llama_weights
from .forecast import refuse_what_does_not_fit
from .generation import Generator
from .gguf import is_gguf
from .gguf_run import GgufGenerator
from .memory import Footprint, decode_step_bytes, forward_flops, parameter_count
from .model import Model
from .network import Forward, make_network
from .results import ONE_TOKEN, Latency, recent_pace
from .settings import Settings
from .shapes import SHAPES, Shape

LOAD = nvtx.annotate("load")
WARMUP = nvtx.annotate("warmup")
PREFILL = nvtx.annotate("prefill")
DECODE = nvtx.annotate("decode")

_TEXT_LIMIT = 400
_NO_TEXT = "without a text to answer, tokens are only numbers"


@dataclass(frozen=True)
class Subject:
    """What is run: a shape and, if a folder was named, its weights and text."""

    shape: Shape
    folder: Folder | None
    tokenizer: Any | None
    prompt: Tensor
    """[batch, length], on the host."""

    @classmethod
    def read(cls, settings: Settings) -> Subject:
        """Read the small files of the folder. Raises CannotRun if it is not a model's."""
        if not settings.model:
            shape = SHAPES[settings.size]
            return cls(shape, None, None, _random_prompt(settings, shape))
        folder = Folder(settings.model)
        tokenizer = folder.tokenizer() if settings.text else None
        if not settings.text:
            return cls(folder.shape, folder, None, _random_prompt(settings, folder.shape))
        if tokenizer is None:
            raise CannotRun(f"text: {settings.model[:200]!r} has no tokenizer.json")
        words = tokenizer.encode(settings.text).ids
        if not words or max(words) >= folder.shape.vocabulary:
            raise CannotRun("text: the tokenizer gives no tokens that the model knows")
        prompt = torch.tensor([words] * settings.batch, dtype=torch.int64)
        return cls(folder.shape, folder, tokenizer, prompt)


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """One answer to one prompt. `given` are values of the declared parameters, already parsed.

    Refuses before it allocates: WrongUsage for what exceeds the context, CannotRun for a missing
    device, precision or memory. Raises OutOfMemory if an allocation fails all the same.
    """
    place = Place.find(given)
    device = place.device
    settings = Settings.from_values(INFERENCE.fill(given, on_cpu=not place.on_gpu), device)
    if settings.model and is_gguf(Path(settings.model).expanduser()):
        return _run_gguf(GgufGenerator(settings, place), place, report)
    subject = Subject.read(settings)
    shape = subject.shape
    settings = replace(settings, prompt=subject.prompt.shape[1])
    refuse_what_does_not_fit(asdict(settings), shape)
    precision = set_precision(settings.precision, device)
    footprint = Footprint.estimate(
        shape,
        settings.batch,
        settings.prompt,
        settings.tokens,
        precision.dtype.itemsize,
        naive=settings.attention == "naive",
    )
    footprint.refuse_unless_fits(free_bytes(device), settings.device)

    figures_so_far: dict[str, FigureValue] = {
        "device_name": place.name,
        "effective_precision": precision.effective,
        "parameter_count": parameter_count(shape),
        "weight_bytes": footprint.weight_bytes,
        "kv_cache_bytes": footprint.kv_cache_bytes,
    }
    report.metrics(figures_so_far)
    what = subject.folder.path.name if subject.folder else settings.size
    report.say(
        f"inference: {what} ({shape}), {figures_so_far['parameter_count']:,} parameters "
        f"in {precision.effective} on {figures_so_far['device_name']} ({settings.device})"
    )
    with out_of_memory_explained(), torch.inference_mode(), _kernels_explained(settings):
        started_ns = time.perf_counter_ns()
        generator = _load(settings, subject, precision.dtype, device, report)
        figures_so_far["load_ms"] = (time.perf_counter_ns() - started_ns) / 1e6
        figures_so_far["prepare_ms"] = _warm_up(generator, settings, report)
        _prefill(generator, report)
        stopped_by = _decode(generator, settings, report)

    latency = Latency.from_times(generator.started_ns, generator.arrived_ns, settings.batch)
    figures, unavailable = _derived(latency, settings, shape, precision.dtype, place)
    figures_so_far["output_text"] = _text_of(generator, subject.tokenizer)
    if figures_so_far["output_text"] is None:
        unavailable["output_text"] = _NO_TEXT
    return Outcome(
        parameters=asdict(settings),
        results={**figures_so_far, **latency.figures(), **figures},
        unavailable=unavailable,
        stopped_by=stopped_by,
    )


def _run_gguf(generator: GgufGenerator, place: Place, report: Report) -> Outcome:
    """The same answer by llama.cpp. Raises CannotRun for what it cannot load."""
    settings = generator.settings
    figures_so_far: dict[str, FigureValue] = {
        "device_name": place.name,
        "effective_precision": generator.precision,
        "parameter_count": generator.file.parameter_count,
        "weight_bytes": generator.weight_bytes,
        "kv_cache_bytes": generator.kv_cache_bytes,
    }
    report.metrics(figures_so_far)
    report.say(
        f"inference: {generator.file.words}, by llama.cpp on {place.name} ({settings.device})"
    )
    report.progress("load", 0, 1, "model")
    started_ns = time.perf_counter_ns()
    with LOAD:
        generator.load()
    figures_so_far["load_ms"] = (time.perf_counter_ns() - started_ns) / 1e6
    report.progress("load", 1, 1, "model")
    figures_so_far["prepare_ms"] = _warm_up(generator, settings, report)
    _prefill(generator, report)
    stopped_by = _decode(generator, settings, report)
    latency = Latency.from_times(generator.started_ns, generator.arrived_ns, 1)
    figures, unavailable = generator.derived(latency)
    figures_so_far["output_text"] = (generator.text() or "")[:_TEXT_LIMIT] or None
    if figures_so_far["output_text"] is None:
        unavailable["output_text"] = _NO_TEXT
    if figures_so_far["kv_cache_bytes"] is None:
        unavailable["kv_cache_bytes"] = "the file does not say its heads"
    return Outcome(
        parameters=asdict(settings),
        results={**figures_so_far, **latency.figures(), **figures},
        unavailable=unavailable,
        stopped_by=stopped_by,
    )


@contextmanager
def _kernels_explained(settings: Settings) -> Iterator[None]:
    """Turn PyTorch's refusal to attend with only one back end into one line."""
    try:
        yield
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise CannotRun(
            f"attention: {settings.attention} has no kernel for {settings.precision} and this "
            "shape here; use auto"
        ) from error


def _random_prompt(settings: Settings, shape: Shape) -> Tensor:
    """Drawn on the host, so it is the same on every device."""
    random = torch.Generator().manual_seed(settings.seed)
    return torch.randint(shape.vocabulary, (settings.batch, settings.prompt), generator=random)


def _load(
    settings: Settings, subject: Subject, dtype: torch.dtype, device: torch.device, report: Report
) -> Generator:
    """Put the model, the prompt and an empty KV cache on the device, inside the range `load`."""
    report.progress("load", 0, 1, "model")
    shape, folder = subject.shape, subject.folder
    with LOAD:
        is_llama = shape.family == "llama"
        weights = llama_weights(folder, dtype, device) if folder and is_llama else None
        model = make_network(
            shape,
            dtype,
            device,
            seed=settings.seed,
            positions=settings.prompt + settings.tokens,
            attention=settings.attention,
            compiled=settings.compile,
            weights=weights,
        )
        if folder and isinstance(model, Model):
            gpt2_into(model, folder)
        prompt = subject.prompt.to(device)
        forward: Forward | None = torch.compile(model.forward) if settings.compile else None
        generator = Generator(model, prompt, settings.tokens, forward)
        synchronize(device)
    report.progress("load", 1, 1, "model")
    return generator


def _text_of(generator: Generator, tokenizer: Any | None) -> str | None:
    """The first sequence's answer as text."""
    if tokenizer is None:
        return None
    return str(tokenizer.decode(generator.text[0].tolist()))[:_TEXT_LIMIT]


def _warm_up(generator: Generator | GgufGenerator, settings: Settings, report: Report) -> float:
    """Let libraries load their kernels and torch its memory before anything is timed; compile and
    capture as configured. Returns the milliseconds it took.
    """
    started_ns = time.perf_counter_ns()
    # A graph must not be the first to run a kernel, and compiling takes a pass of each kind and one
    # more decode step, which makes the length a variable.
    least = 2 if settings.compile else 1 if settings.graphs else 0
    rounds = max(settings.warmup, least)
    if rounds:
        report.progress("warmup", 0, rounds, "rounds")
        with WARMUP:
            for done in range(1, rounds + 1):
                generator.prefill(counted=False)
                for _ in range(min(settings.tokens - 1, 2 if settings.compile else 1)):
                    generator.decode_step(counted=False)
                report.progress("warmup", done, rounds, "rounds")
            if settings.graphs and isinstance(generator, Generator):
                generator.capture()
    return (time.perf_counter_ns() - started_ns) / 1e6


def _prefill(generator: Generator | GgufGenerator, report: Report) -> None:
    report.progress("prefill", 0, 1, "prompt")
    with PREFILL:
        generator.prefill()
    report.progress("prefill", 1, 1, "prompt")


def _decode(generator: Generator | GgufGenerator, settings: Settings, report: Report) -> int | None:
    """Generate the tokens after the first. Returns the signal that ended it early, or None."""
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
    latency: Latency, settings: Settings, shape: Shape, dtype: torch.dtype, place: Place
) -> tuple[dict[str, FigureValue], dict[str, str]]:
    """The figures that need more than times, and the reasons for those that are None."""
    prefill_s = latency.ttft_ms / 1e3
    flops = forward_flops(shape, settings.batch, settings.prompt)
    whole_s = latency.latency_ms / 1e3
    tokens = settings.prompt + latency.output_tokens
    figures: dict[str, FigureValue] = {
        "input_tokens_per_s": settings.batch * settings.prompt / prefill_s,
        "total_tokens_per_s": settings.batch * tokens / whole_s,
        "prefill_mfu_percent": share_percent(
            flops / prefill_s, place.flops_per_s(settings.precision)
        ),
        "prefill_ceiling_percent": share_percent(
            flops / prefill_s, place.ceiling_flops_per_s(settings.precision)
        ),
        "tokens_per_step": settings.batch,
        "model_bytes_per_step": None,
        "model_bandwidth_bytes_per_s": None,
        "mbu_percent": None,
        "mbu_ceiling_percent": None,
    }
    peaks, unavailable = peak_memory(place.device)
    if figures["prefill_ceiling_percent"] is None:
        unavailable["prefill_ceiling_percent"] = NOT_MEASURED
    if place.peak is None:
        shares = ("prefill_mfu_percent", "mbu_percent")
        unavailable |= dict.fromkeys(shares, place.why_no_peak)
    elif figures["prefill_mfu_percent"] is None:
        unavailable["prefill_mfu_percent"] = f"this GPU has no peak for {settings.precision}"
    if latency.itl_p50_ms is None:
        gaps = ("tpot_ms", "itl_p50_ms", "itl_p99_ms")
        of_decode = (
            "model_bytes_per_step",
            "model_bandwidth_bytes_per_s",
            "mbu_percent",
            "mbu_ceiling_percent",
        )
        unavailable |= dict.fromkeys(gaps + of_decode, ONE_TOKEN)
    else:
        # Decode step i of n - 1 attends to prompt + i positions: prompt + n / 2 on average.
        positions = settings.prompt + latency.output_tokens / 2
        step_bytes = decode_step_bytes(shape, settings.batch, positions, dtype.itemsize)
        rate = step_bytes / (latency.itl_p50_ms / 1e3)
        figures["model_bytes_per_step"] = round(step_bytes)
        figures["model_bandwidth_bytes_per_s"] = rate
        figures["mbu_percent"] = share_percent(rate, place.bytes_per_s)
        figures["mbu_ceiling_percent"] = share_percent(rate, place.ceiling_bytes_per_s)
        if figures["mbu_ceiling_percent"] is None:
            unavailable["mbu_ceiling_percent"] = NOT_MEASURED
    return figures | peaks, unavailable
