"""NVML's readings as counter tracks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from gputui.model.events import GpuSample, MachineSample
from gputui.model.metrics import metrics_of
from gputui.render.chrome.notation import us
from gputui.state import Run


def counter_lines(run: Run, base_ns: int, samples: Iterable[MachineSample]) -> Iterator[str]:
    """The readings during the run."""
    tracks = {
        field: json.dumps(f"{metric.title} ({metric.unit.symbol})")
        for field, metric in metrics_of(GpuSample).items()
        if metric.counter_track
    }
    first = run.started.time_ns
    last = first + run.duration_ns
    for sample in samples:
        if not first <= sample.time_ns <= last:
            continue
        for gpu in sample.gpus:
            for field, label in tracks.items():
                value = getattr(gpu, field)
                if value is not None:
                    yield (
                        f'{{"ph":"C","name":{label},"pid":{gpu.index},"tid":0,'
                        f'"ts":{us(sample.time_ns - base_ns)},'
                        f'"args":{{"value":{json.dumps(value)}}}}},\n'
                    )
