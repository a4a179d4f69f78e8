"""The workload `saxpy`: y = a x + y over growing arrays.

Change what is declared, and what `run` measures:
- The declaration imports nothing heavy: it is read whenever workloads are listed.
- `run` names the function in this module that runs it.
- Every declared figure is in the outcome; one without a value is None with its reason in
  `unavailable`, never 0. Names end in their unit.
- Refuse what cannot fit before allocating, and show the sum (`CannotRun`, `WrongUsage`).
- Warm up before timing. Put every phase in an NVTX range, and every step in the range that
  `step_range` names.
- Give the CPU a size that takes seconds: `cpu_default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from gputui_workloads.declaration import Figure, Outcome, Preset, Table, Value, Workload
from gputui_workloads.parameters import DEVICE, DEVICE_NAME, STATUS, repeats, warmup, whole

if TYPE_CHECKING:
    from gputui_workloads.report import Report

SAXPY = Workload(
    name="saxpy",
    summary="y = a x + y over growing arrays",
    description="Adds a scaled array to another again and again, in growing sizes.",
    parameters=(
        whole(
            "largest",
            2**28,
            1024,
            2**40,
            "elements of the last arrays; the first have 1024, each next 16 times more",
            cpu_default=2**20,
        ),
        warmup(3, "passes"),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
    ),
    presets=(Preset("quick", "only small arrays", {"largest": 1024}),),
    phases=("step",),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure("best_bytes_per_s", "of the fastest size"),
        Figure("peak_percent", "share of the data sheet's bandwidth"),
    ),
    tables=(
        Table(
            "saxpy",
            "y = a x + y",
            (
                Figure("elements", "elements of each array"),
                Figure("gpu_ms", "between CUDA events, a pass"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("bytes_per_s", "two reads and a write", unit="bytes/s"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}:run",
)


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Measure every size. `given` are values of the declared parameters, already parsed."""
    import torch
    from gputui_workloads.peaks import share_percent
    from gputui_workloads.rows import best
    from gputui_workloads.runner import Runner

    # Inside, a first Ctrl-C asks for the end, and what was measured is still reported.
    with Runner(SAXPY, given, report) as run:
        place, largest = run.place, run["largest"]
        place.refuse_unless_fits(
            2 * 4 * largest, f"2 arrays × 4 bytes × {largest}", "use a smaller largest"
        )
        sizes = [1024 * 16**power for power in range(7) if 1024 * 16**power <= largest]
        rows = run.rows(len(sizes))
        for size in run.until_stopped(sizes):
            with rows.row(f"saxpy {size}", elements=size) as cells:
                x, y = (torch.ones(size, device=place.device) for _ in range(2))
                times = run.timed(partial(y.add_, x, alpha=2.0))
                cells |= {
                    "gpu_ms": times.gpu_ms,
                    "wall_ms": times.wall_ms,
                    "bytes_per_s": 3 * 4 * size / times.best_ms * 1e3,
                }
    rate = best(rows.rows, "bytes_per_s")
    results = {
        "best_bytes_per_s": rate,
        "peak_percent": share_percent(rate, place.bytes_per_s),
    }
    why = place.why_no_peak if rate else rows.why_none()
    return run.outcome(results, {"saxpy": rows.rows}, why)
