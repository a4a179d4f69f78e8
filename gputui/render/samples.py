"""The samples of a recording, read while it is folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gputui.model.events import AnyEvent, GpuSample, HostSample, MachineSample
from gputui.model.metrics import metrics_of
from gputui.render.errors import ExportError
from gputui.render.formats import Source
from gputui.render.typed_columns import as_float
from gputui.state import Session

Span = tuple[int, int]
"""First and last moment of a run, in ns since the epoch."""


_GPU_FIELDS = tuple(name for name in metrics_of(GpuSample) if name != "throttle_reasons")
_HOST_FIELDS = tuple(metrics_of(HostSample))

SAMPLE_COLUMNS: dict[str, Any] = {
    "time_ns": int,
    "gpu": int,
    **dict.fromkeys(_GPU_FIELDS, float),
    "throttle_reasons": list[str],
    **{f"host_{name}": float for name in _HOST_FIELDS},
}
"""The columns of `sample_rows` with their types: the figures of GpuSample, then the host's."""


def sample_rows(samples: Iterable[MachineSample]) -> Iterator[dict[str, Any]]:
    """A row for each GPU of a sample; where there is none one, whose `gpu` is None. Missing figures
    are None."""
    for sample in samples:
        host = {f"host_{name}": as_float(getattr(sample.host, name)) for name in _HOST_FIELDS}
        for gpu in sample.gpus or (GpuSample(index=-1),):
            yield {
                "time_ns": sample.time_ns,
                "gpu": gpu.index if sample.gpus else None,
                **{name: as_float(getattr(gpu, name)) for name in _GPU_FIELDS},
                "throttle_reasons": (
                    None if gpu.throttle_reasons is None else list(gpu.throttle_reasons)
                ),
                **host,
            }


def samples_of(
    events: Iterable[AnyEvent], span: Span | None, session: Session
) -> Iterator[MachineSample]:
    """The samples within `span`, or all if None; `session` has folded what was read."""
    for event in events:
        session.apply((event,))
        if isinstance(event, MachineSample) and (
            span is None or span[0] <= event.time_ns <= span[1]
        ):
            yield event


def span_of(source: Source) -> Span | None:
    """The span of the run with this number; None if none is requested. Raises ExportError and
    JournalError.
    """
    if source.number is None:
        return None
    if source.name == "-":
        raise ExportError(
            "--run reads a recording twice, which standard input cannot do: give a file"
        )
    run = source.load().needed_run()
    return run.started.time_ns, run.started.time_ns + run.duration_ns
