"""Processes the pieces serially and overlapped, and computes the share of overlap achieved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import nvtx
import torch
from torch import Tensor

from ..declaration import FigureValue, Outcome, Value
from ..devices import synchronize
from ..report import Report
from ..rows import Unsupported
from ..runner import Runner
from . import STREAMS

ALLOCATE = nvtx.annotate("allocate")
COPY = nvtx.annotate("copy")
CONVERT = nvtx.annotate("convert")
COMPUTE = nvtx.annotate("compute")

SERIAL, PINNED, OVERLAPPED = "serial", "pinned, one stream", "pinned, overlapped"
COPIES, PRODUCTS = "copies only", "products only"

_NO_STREAMS = "streams need a GPU"


class Pipeline:
    """The pieces on the host, and the ways to copy them to the device and use them."""

    def __init__(self, run: Runner) -> None:
        place = run.place
        self._device = place.device
        size, self._products = run["size"], run["products"]
        generator = torch.Generator().manual_seed(run["seed"])
        self.pageable = [torch.randn(size, size, generator=generator) for _ in range(run["pieces"])]
        self.pinned = [piece.pin_memory() for piece in self.pageable] if place.on_gpu else []
        self._streams = (
            [_stream(place.device) for _ in range(run["streams"])] if place.on_gpu else []
        )
        self._resident = self.pageable[0].to(place.device)

    @property
    def copied_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pageable)

    def serial(self) -> None:
        """Each piece by itself, the host waiting after every stage, like a program without
        streams.
        """
        for piece in self.pageable:
            self._through(piece, waits=True)

    def one_stream(self) -> None:
        """Pinned memory and no waiting, but one operation at a time on the device."""
        for piece in self.pinned:
            self._through(piece, waits=False)

    def overlapped(self) -> None:
        """Piece by piece on the next stream: some are copied while others are multiplied."""
        current = torch.cuda.current_stream(self._device)
        for stream in self._streams:
            stream.wait_stream(current)
        for number, piece in enumerate(self.pinned):
            with torch.cuda.stream(self._streams[number % len(self._streams)]):
                self._through(piece, waits=False)
        for stream in self._streams:
            current.wait_stream(stream)

    def copies(self) -> None:
        """Only the copies of a pass."""
        for piece in self.pinned or self.pageable:
            with COPY:
                piece.to(self._device, non_blocking=True)

    def products(self) -> None:
        """The conversions and products of a pass, on data already on the device."""
        for _ in self.pageable:
            self._compute(self._resident)

    def _through(self, piece: Tensor, *, waits: bool) -> None:
        with ALLOCATE:
            arrived = torch.empty(piece.shape, device=self._device)
        with COPY:
            arrived.copy_(piece, non_blocking=not waits)
            if waits:
                synchronize(self._device)
        self._compute(arrived, waits=waits)

    def _compute(self, arrived: Tensor, *, waits: bool = False) -> None:
        with CONVERT:
            half = arrived.half()
            if waits:
                synchronize(self._device)
        with COMPUTE:
            for _ in range(self._products):
                torch.mm(half, half)
            if waits:
                synchronize(self._device)


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every way to process the pieces. Raises CannotRun for what cannot fit."""
    run = Runner(STREAMS, given, report)
    place = run.place
    pieces, size = run["pieces"], run["size"]
    # fp32, fp16 and a product of every piece may exist at once.
    place.refuse_unless_fits(
        8 * pieces * size**2,
        f"8 bytes × {pieces} pieces × {size}²",
        "use fewer pieces or a smaller size",
    )
    report.say(f"streams: {pieces} pieces of {size} × {size} on {place.name}")
    pipeline = Pipeline(run)
    ways: dict[str, tuple[int, Callable[[], None], bool]] = {
        SERIAL: (1, pipeline.serial, False),
        PINNED: (1, pipeline.one_stream, True),
        OVERLAPPED: (run["streams"], pipeline.overlapped, True),
        COPIES: (1, pipeline.copies, False),
        PRODUCTS: (1, pipeline.products, False),
    }
    rows = run.rows(len(ways))
    with run:
        for way, (streams, once, needs_gpu) in run.until_stopped(ways.items()):
            copied = 0 if way == PRODUCTS else pipeline.copied_bytes
            with rows.row(way, way=way, streams=streams, copied_bytes=copied) as cells:
                if needs_gpu and not place.on_gpu:
                    raise Unsupported(_NO_STREAMS)
                times = run.timed(once)
                cells |= {"wall_ms": times.wall_ms, "host_ms": times.host_ms}
    results = _results({str(row["way"]): row.get("wall_ms") for row in rows.rows})
    serial_ms = results["serial_ms"]
    for row in rows.rows:
        own = row.get("wall_ms")
        if isinstance(own, float) and isinstance(serial_ms, float) and row["copied_bytes"]:
            row["speedup"] = serial_ms / own
    reason = rows.why_none() if place.on_gpu else _NO_STREAMS
    return run.outcome(results, {"streams": rows.rows}, reason)


def _results(times: Mapping[str, FigureValue]) -> dict[str, FigureValue]:
    """The figures; the overlap is (one stream - overlapped) / (one stream - longest stage)."""

    def time_of(way: str) -> float | None:
        value = times.get(way)
        return value if isinstance(value, float) else None

    serial, pinned, overlapped = time_of(SERIAL), time_of(PINNED), time_of(OVERLAPPED)
    stages = [value for way in (COPIES, PRODUCTS) if (value := time_of(way)) is not None]
    longest = max(stages) if len(stages) == 2 else None
    overlap = speedup = None
    if pinned and overlapped and longest is not None and pinned > longest:
        overlap = 100 * (pinned - overlapped) / (pinned - longest)
    if serial and overlapped:
        speedup = serial / overlapped
    return {
        "serial_ms": serial,
        "overlapped_ms": overlapped,
        "longest_stage_ms": longest,
        "overlap_percent": overlap,
        "speedup": speedup,
    }


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
