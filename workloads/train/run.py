"""Runs `train`: each configuration in turn, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import nvtx
import torch

from ..ceilings import NOT_MEASURED
from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import (
    free_bytes,
    out_of_memory_explained,
    peak_memory,
    release_memory,
    set_precision,
    synchronize,
)
from ..errors import CannotRun, OutOfMemory
from ..place import Place
from ..report import Report
from ..stopping import StopRequest
from . import TRAIN
from .forecast import refuse_unless_in_context
from .memory import Footprint
from .settings import Settings
from .step import Trainer
from .tables import bound_of, clock_row, memory_rows, phase_rows, step_figures

LOAD = nvtx.annotate("load")
GRAPH = nvtx.annotate("graph")
OF_EACH_ROW = "one of each row: in the table headline"

WARMUP = nvtx.annotate("warmup")
MEASURE_LOOP = nvtx.annotate("measure_loop")


@dataclass
class _Results:
    """The results of the rows. `figures` and `timeline` are of the newest row measured."""

    figures: dict[str, FigureValue] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    headline: list[dict[str, FigureValue]] = field(default_factory=list)
    phases: list[Row] = field(default_factory=list)
    clocks: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    timeline: list[Row] = field(default_factory=list)
    out_of_memory_rows: int = 0


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Train. `given` are values of the declared parameters, already parsed.

    Raises WrongUsage for what exceeds a context, and CannotRun for a single configuration that
    cannot fit or has no such precision; in a sweep that is a row's status.
    """
    place = Place.find(given)
    device = place.device
    values: dict[str, Any] = place.fill(TRAIN, given)
    settings = Settings(**values)
    rows = settings.rows()
    for row in rows:
        refuse_unless_in_context(row.size, row.ctx)
    results = _Results()
    stopped_by = None
    with StopRequest(is_late=True) as stop:
        # Only the first row of a process loads the libraries: what no warm-up costs shows there.
        for number, row in enumerate(sorted(rows, key=lambda row: row.warmup > 0), 1):
            release_memory(device)
            with _named(row, len(rows) > 1):
                where = f"{number}/{len(rows)} " if len(rows) > 1 else ""
                _row(row, place, results, report, stop, where, alone=len(rows) == 1)
            if stop.signal is not None:
                stopped_by = stop.signal
                break
    order = [row.label for row in rows]
    results.headline.sort(key=lambda row: order.index(str(row.pop("label"))))
    if not results.figures:
        raise CannotRun(f"no configuration ran: {results.headline[-1]['status']}")
    if place.peak is None:
        shares = dict.fromkeys(("mfu_percent", "hfu_percent"), place.why_no_peak)
        results.unavailable |= shares
    if results.figures["ceiling_percent"] is None:
        results.unavailable["ceiling_percent"] = NOT_MEASURED
    if len(rows) > 1:
        results.unavailable |= dict.fromkeys(results.figures, OF_EACH_ROW)
        results.figures = dict.fromkeys(results.figures)
    return Outcome(
        parameters=asdict(settings),
        results={
            "device_name": place.name,
            **results.figures,
            "out_of_memory_rows": results.out_of_memory_rows,
        },
        unavailable=results.unavailable,
        tables={
            "headline": results.headline,
            "train_phases": results.phases,
            "train_clocks": results.clocks,
            "train_memory": results.memory,
            "train_memory_timeline": results.timeline,
        },
        stopped_by=stopped_by,
    )


def _named(settings: Settings, is_one_of_many: bool) -> AbstractContextManager[object]:
    return nvtx.annotate(settings.label) if is_one_of_many else nullcontext()


def _row(
    settings: Settings,
    place: Place,
    results: _Results,
    report: Report,
    stop: StopRequest,
    where: str,
    *,
    alone: bool,
) -> None:
    """Measure one configuration into `results`; an impossible one is a row with its reason."""
    row: dict[str, FigureValue] = {
        "label": settings.label,
        "size": settings.size,
        "parameters": settings.shape.parameters,
        "ctx": settings.ctx,
        "mode": settings.mode,
        "precision": settings.precision,
        "warmup": settings.warmup,
        "checkpoint": settings.checkpoint,
        "optimizer": settings.optimizer,
    }
    try:
        precision = set_precision(settings.precision, place.device)
        effective = _effective(settings, precision.effective)
        row["precision"] = effective
        element_bytes = precision.dtype.itemsize
        footprint = Footprint.estimate(
            settings.shape,
            settings.batch,
            settings.ctx,
            mode=settings.mode,
            naive=settings.attention == "naive",
            checkpoint=settings.checkpoint,
            element_bytes=element_bytes,
            optimizer=settings.optimizer,
        )
        footprint.refuse_unless_fits(free_bytes(place.device), settings.device)
        report.say(
            f"train: {where}{settings.size} ({settings.shape}), "
            f"batch {settings.accumulate} × {settings.batch}, ctx {settings.ctx}, "
            f"{settings.mode} in {effective} on {place.name}"
        )
        with out_of_memory_explained():
            _measure(settings, place, row, results, report, stop, effective, footprint)
    except (CannotRun, OutOfMemory) as refusal:
        if alone:
            raise
        is_memory = isinstance(refusal, OutOfMemory) or "needs at least" in str(refusal)
        results.out_of_memory_rows += is_memory
        row["status"] = ("OOM: " if is_memory else "") + str(refusal)
        report.say(f"train: {where}{row['status']}")
    results.headline.append(row)


def _measure(
    settings: Settings,
    place: Place,
    row: dict[str, FigureValue],
    results: _Results,
    report: Report,
    stop: StopRequest,
    effective: str,
    footprint: Footprint,
) -> None:
    device = place.device
    report.progress("load", 0, 1, "model")
    with LOAD:
        trainer = Trainer(
            settings.shape,
            settings.batch,
            settings.ctx,
            mode=settings.mode,
            naive=settings.attention == "naive",
            checkpoint=settings.checkpoint,
            compiled=settings.compile,
            optimizer=settings.optimizer,
            lr=settings.lr,
            autocast=settings.autocast,
            device=device,
            seed=settings.seed,
            accumulate=settings.accumulate,
        )
        synchronize(device)
    report.progress("load", 1, 1, "model")
    first_ns, first_loss = 0, 0.0
    tokens = settings.global_batch * settings.ctx
    if settings.warmup:
        report.progress("warmup", 0, settings.warmup, "steps")
        with WARMUP:
            for done in range(settings.warmup):
                step = trainer.step if done else trainer.first_step
                wall_ns = step(counted=False)
                if not done:
                    first_ns, first_loss = wall_ns, trainer.loss
                report.progress("warmup", done + 1, settings.warmup, "steps")
                if stop.signal is not None:
                    break
        trainer.reset()
        stop.begin()
    walls_ns: list[int] = []
    report.progress("measure", 0, settings.steps, "steps")
    with MEASURE_LOOP:
        for done in range(settings.steps):
            is_first = not first_ns
            wall_ns = trainer.first_step() if is_first else trainer.step()
            if is_first:
                first_ns, first_loss = wall_ns, trainer.loss
            walls_ns.append(wall_ns)
            stop.begin()
            figures = step_figures([wall_ns], tokens, settings.flops, place, settings.precision)
            _tell_step(settings, done + 1, trainer.loss, figures, report)
            if settings.sweep == "none":
                _tell_figures(done + 1, trainer.loss, figures, report)
            if stop.signal is not None:
                break
    peaks, no_peaks = peak_memory(device)
    figures = step_figures(walls_ns, tokens, settings.flops, place, settings.precision)
    if settings.sweep == "none":
        report.metrics({"step_ms": figures["avg_ms"]})  # of all, after that of each
    figures |= {"first_step_ms": first_ns / 1e6, "final_loss": trainer.loss, **peaks}
    row |= figures | {"status": "ok" if stop.signal is None else "stopped"}
    results.unavailable = dict(no_peaks)
    if figures["std_ms"] is None:
        results.unavailable["std_ms"] = "one step has no deviation"
    retries = _alloc_retries(device)
    if retries is None:
        results.unavailable["alloc_retries"] = next(iter(no_peaks.values()))
    results.figures = {
        "effective_precision": effective,
        "parameter_count": settings.shape.parameters,
        "global_batch": settings.global_batch,
        "tokens_per_step": tokens,
        "model_flops_per_step": settings.flops.model,
        "matrix_products_per_step": settings.shape.products(backward=settings.mode != "fwd"),
        "first_loss": first_loss,
        "alloc_retries": retries,
        **figures,
    }
    results.phases += phase_rows(settings.label, trainer, len(walls_ns))
    results.clocks.append(clock_row(settings.label, trainer, walls_ns))
    on_gpu = device.type == "cuda"
    results.timeline = trainer.timeline if on_gpu else []
    results.memory += memory_rows(settings.label, footprint, trainer, peaks, on_gpu=on_gpu)
    # Checkpoints keep the state of random numbers, which a capture does not allow.
    if settings.sweep != "none" and not settings.checkpoint:
        with GRAPH:
            busy_ms = row["gpu_busy_ms"] = trainer.graph_ms()
        row["bound"] = bound_of(sum(walls_ns) / len(walls_ns) / 1e6, busy_ms)


def _tell_step(
    settings: Settings, done: int, loss: float, figures: dict[str, FigureValue], report: Report
) -> None:
    """Print llm.c's line, and report how far it is."""
    report.progress("measure", done, settings.steps, "steps")
    mfu = figures["mfu_percent"]
    share = "MFU n/a" if mfu is None else f"{mfu:.1f}% {settings.precision} MFU"
    report.say(
        f"step {done:4d}/{settings.steps} | loss {loss:9.6f} | lr {settings.lr:.2e} | "
        f"{figures['avg_ms']:.2f} ms | {share} | {figures['tokens_per_s']:.0f} tok/s"
    )


def _tell_figures(done: int, loss: float, figures: dict[str, FigureValue], report: Report) -> None:
    """The live figures: of a sweep they would be those of its last row."""
    report.metrics(
        {
            "steps": done,
            "loss": loss,
            "step_ms": figures["avg_ms"],
            "tokens_per_s": figures["tokens_per_s"],
            "mfu_percent": figures["mfu_percent"],
        }
    )


def _effective(settings: Settings, effective: str) -> str:
    match settings.precision:
        case "bf16":
            return "bf16 autocast"
        case "fp16":
            return "fp16 autocast" + ("" if settings.mode == "fwd" else " + scaler")
        case _:
            return effective


def _alloc_retries(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))
