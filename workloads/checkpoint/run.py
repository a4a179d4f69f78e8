"""Copies the tensors of a checkpoint to the device in each way of `checkpoint`, and times them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import nvtx
import torch
from safetensors import safe_open
from torch import Tensor

from ..declaration import FigureValue, Outcome, Value
from ..devices import synchronize
from ..link import NO_LINK, link_bytes_per_s
from ..peaks import share_percent
from ..place import Place
from ..report import Report
from ..rows import Rows, Unsupported
from ..runner import Runner
from ..timing import measure
from ..train.shapes import SHAPES
from . import CHECKPOINT
from .files import checked_path, flat, made_checkpoint, read_tensors

_NEEDS_GPU = "pinned memory and copies to a device need a GPU"


@dataclass(frozen=True)
class Way:
    """One way to move the bytes, and whether they go through the link."""

    name: str
    kind: str
    source: str
    copies: int
    copied_bytes: int
    once: Callable[[], object]

    @property
    def uses_link(self) -> bool:
        return self.kind in ("HtoD", "DtoH")


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every way in turn. Raises CannotRun for an invalid file, and for what cannot fit."""
    run = Runner(CHECKPOINT, given, report)
    place = run.place
    with run, _file(run) as path:
        with nvtx.annotate("read"):
            report.progress("read", 0, 1, "file")
            tensors = read_tensors(path)
            report.progress("read", 1, 1, "file")
        total = sum(tensor.nbytes for tensor in tensors.values())
        # Two copies on the device at once: the flat one and the one made of it.
        place.refuse_unless_fits(2 * total, "2 × the file's tensors", "use a smaller file or size")
        report.say(f"checkpoint: {len(tensors)} tensors, {total:,} bytes to {place.name}")
        link = link_bytes_per_s(place.device)
        ways = _ways(path, tensors, place)
        rows = run.rows(len(ways))
        for way in run.until_stopped(ways):
            _measure(way, link, rows, run)
    results = _results(tensors, rows, link)
    reasons = {"link_bytes_per_s": NO_LINK if place.on_gpu else _NEEDS_GPU}
    why = "the run was stopped" if place.on_gpu else _NEEDS_GPU
    return run.outcome(results, {"checkpoint": rows.rows}, why, reasons)


def _file(run: Runner) -> AbstractContextManager[Path]:
    name, size = str(run.values["file"]), str(run.values["size"])
    if name:
        return nullcontext(checked_path(name))
    run.report.say(f"checkpoint: writing a file of {size}'s weights")
    run.begin()  # ended by a signal, it would leave the file
    return made_checkpoint(SHAPES[size], run["seed"])


def _measure(way: Way, link: float | None, rows: Rows, run: Runner) -> None:
    with rows.row(
        way.name,
        way=way.name,
        kind=way.kind,
        source=way.source,
        copies=way.copies,
        copied_bytes=way.copied_bytes,
    ) as cells:
        if way.kind != "disk" and not run.place.on_gpu:
            raise Unsupported(_NEEDS_GPU)
        way.once()
        if way.kind == "disk":  # no work for a GPU, and no step of its
            times = measure(way.once, run.place.device, run["passes"], lambda: run.is_stopped)
        else:
            times = run.timed(way.once)
        # A copy from pageable memory, and one that reads a file, are timed by the host's clock.
        took_ms = times.wall_ms
        rate = way.copied_bytes / took_ms * 1e3
        cells |= {
            "wall_ms": took_ms,
            "host_ms": times.host_ms,
            "gpu_ms": times.gpu_ms if way.kind != "disk" else None,
            "gib_per_s": rate / 2**30,
            "gb_per_s": rate / 1e9,
            "link_percent": share_percent(rate, link) if way.uses_link else None,
        }


def _ways(path: Path, tensors: dict[str, Tensor], place: Place) -> list[Way]:
    """The rows, in order. On the CPU, those of the GPU are listed with the reason for their
    absence.
    """
    device, count = place.device, len(tensors)
    total = sum(tensor.nbytes for tensor in tensors.values())
    pageable = flat(tensors)
    pinned = pageable.pin_memory() if place.on_gpu else pageable
    pinned_tensors = [
        tensor.pin_memory() if place.on_gpu else tensor for tensor in tensors.values()
    ]
    target = torch.empty_like(pageable, device=device)
    other = torch.empty_like(target)

    def each(sources: list[Tensor], *, non_blocking: bool) -> Callable[[], object]:
        return lambda: [tensor.to(device, non_blocking=non_blocking) for tensor in sources]

    def whole(source: Tensor, to: Tensor) -> Callable[[], object]:
        return lambda: to.copy_(source, non_blocking=True)

    def convert_there() -> object:
        target.copy_(pinned, non_blocking=True)
        return target.view(torch.float32).to(torch.bfloat16)

    def convert_here() -> object:
        half = pageable.view(torch.float32).to(torch.bfloat16)
        return half.to(device)

    ways = [
        Way("read the file", "disk", "file", count, total, lambda: read_tensors(path)),
        Way(
            "pageable, per tensor", "HtoD", "pageable", count, total,
            each(list(tensors.values()), non_blocking=False),
        ),
        Way("pageable, one buffer", "HtoD", "pageable", 1, total, whole(pageable, target)),
        Way(
            "pinned, per tensor, waiting", "HtoD", "pinned", count, total,
            each(pinned_tensors, non_blocking=False),
        ),
        Way(
            "pinned, per tensor, async", "HtoD", "pinned", count, total,
            each(pinned_tensors, non_blocking=True),
        ),
        Way("pinned, one buffer", "HtoD", "pinned", 1, total, whole(pinned, target)),
        Way(
            "file to GPU, one after the other", "HtoD", "file", count, total,
            lambda: [tensor.to(device) for tensor in read_tensors(path).values()],
        ),
        Way(
            "file to GPU, read and copy overlapped", "HtoD", "file", count, total,
            lambda: _overlapped(path, device),
        ),
    ]  # fmt: skip
    if total % 4 == 0:
        ways += [
            Way("pinned, converted to bf16 on the GPU", "HtoD", "pinned", 1, total, convert_there),
            Way("converted to bf16 on the host", "HtoD", "pageable", 1, total // 2, convert_here),
        ]
    return [
        *ways,
        Way("back to pinned memory", "DtoH", "device", 1, total, whole(target, pinned)),
        Way("within the GPU", "DtoD", "device", 1, total, whole(target, other)),
        Way("memset", "memset", "device", 1, total, target.zero_),
    ]


def _overlapped(path: Path, device: torch.device) -> list[Tensor]:
    """Tensor by tensor into pinned memory, each copied while the next one is read."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    arrived, staged = [], []
    with safe_open(path, framework="pt") as file, torch.cuda.stream(stream):
        for name in file.keys():  # noqa: SIM118
            # Pinned blocks come from torch's cache after the first pass.
            staged.append(file.get_tensor(name).pin_memory())
            arrived.append(staged[-1].to(device, non_blocking=True))
    synchronize(device)
    return arrived


def _results(tensors: dict[str, Tensor], rows: Rows, link: float | None) -> dict[str, FigureValue]:
    measured = {str(row["way"]): row for row in rows.measured}

    def rate(way: str) -> float | None:
        value = measured.get(way, {}).get("gb_per_s")
        return value * 1e9 if isinstance(value, float) else None

    overlapped = measured.get("file to GPU, read and copy overlapped", {})
    return {
        "file_bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "tensors": len(tensors),
        "read_bytes_per_s": rate("read the file"),
        "pageable_bytes_per_s": rate("pageable, one buffer"),
        "pinned_bytes_per_s": rate("pinned, one buffer"),
        "load_ms": overlapped.get("wall_ms"),
        "link_bytes_per_s": link,
    }
