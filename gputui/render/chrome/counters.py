"""NVML's readings as counter tracks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from gputui.model.events import MachineSample
from gputui.render.chrome.notation import us
from gputui.state import Run

COUNTERS = {
    "GPU utilization (%)": "utilization_percent",
    "SM active (%)": "sm_active_percent",
    "Tensor active (%)": "tensor_active_percent",
    "Memory used (bytes)": "memory_used_bytes",
    "Memory bandwidth (bytes/s)": "memory_bandwidth_bytes_per_s",
    "Power (W)": "power_watts",
    "Temperature (C)": "temperature_celsius",
    "SM clock (MHz)": "sm_clock_mhz",
}
"""Counter tracks, and the field of GpuSample that each shows."""


def counter_lines(run: Run, base_ns: int, samples: Iterable[MachineSample]) -> Iterator[str]:
    """The readings during the run."""
    first = run.started.time_ns
    last = first + run.duration_ns
    for sample in samples:
        if not first <= sample.time_ns <= last:
            continue
        for gpu in sample.gpus:
            for label, field in COUNTERS.items():
                value = getattr(gpu, field)
                if value is not None:
                    yield (
                        f'{{"ph":"C","name":{json.dumps(label)},"pid":{gpu.index},"tid":0,'
                        f'"ts":{us(sample.time_ns - base_ns)},'
                        f'"args":{{"value":{json.dumps(value)}}}}},\n'
                    )
