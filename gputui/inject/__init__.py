"""What runs inside the traced process, and how it gets there; here what to capture of a run."""

from __future__ import annotations

from typing import Literal

import msgspec

Annotate = Literal["modules", "autograd", "shapes"]
"""What to put ranges around in torch: module calls, or operators as well, or these with the shapes
of their inputs in their names."""

GraphTrace = Literal["node", "graph"]
"""Trace the kernels of CUDA graphs one by one, or each graph launch as a whole (cheaper)."""

WINDOW_NS = 500_000_000
"""How long kernels are traced at a time under a budget. Opening and closing stalls a program for
some 16 ms (H100, CUDA 13.0), which is then the smaller part of the cost."""

FIRST_EXCESS_NS = 0.3 * WINDOW_NS + 16_000_000
"""What a window is taken to cost before one was measured: a launch-bound program runs 1.15 to 1.36
times as long while it is traced."""

ATTACH_COST_PERCENT = 2.0
"""What attaching may cost where nothing else was asked for."""


class TraceSampling(msgspec.Struct, frozen=True):
    """Kernels are traced during `on` of every `period`: steps (pushes of the range `step`) or, if
    that is None, nanoseconds. Under a budget, `max_cost_percent`, both are nanoseconds, the
    period is where to begin, and `step` is where windows begin and end. Ranges are always traced.
    """

    on: int
    period: int
    step: str | None = None
    max_cost_percent: float | None = None

    def encode(self) -> str:
        """The form the capture library parses."""
        name = f" {self.step}" if self.step else ""
        if self.max_cost_percent is not None:
            return f"budget {self.on} {self.period}{name}"
        return f"{'steps' if name else 'time'} {self.on} {self.period}{name}"


def within_cost(percent: float, step: str | None = None) -> TraceSampling | None:
    """Windows of tracing that cost at most this much of the program's time; None if the cost does
    not matter (100 % and more), so that everything is traced."""
    if percent >= 100:
        return None
    period = max(FIRST_EXCESS_NS * 100 / percent, 2 * WINDOW_NS)
    return TraceSampling(WINDOW_NS, int(period), step, percent)


class CaptureRange(msgspec.Struct, frozen=True):
    """Kernels, copies and calls are recorded in a part of the program only: inside the ranges
    called `name`; during the first `steps` of them; or, without a name, from cudaProfilerStart to
    cudaProfilerStop. Ranges are always recorded.
    """

    name: str | None = None
    steps: int = 0

    def encode(self) -> str:
        """The form the capture library parses."""
        if self.name is None:
            return "profiler"
        return f"first {self.steps} {self.name}" if self.steps else f"range {self.name}"

    @property
    def words(self) -> str:
        """What is captured, as a person reads it."""
        if self.name is None:
            return "what runs from cudaProfilerStart to cudaProfilerStop"
        first = f"the first {self.steps:,} of " if self.steps else ""
        return f"what runs in {first}{self.name}"


class CaptureOptions(msgspec.Struct, frozen=True):
    """What the user asked for. `kernels=False` leaves CUDA alone."""

    kernels: bool = True
    graph_trace: GraphTrace = "node"
    annotate: Annotate | None = None
    line_rate_hz: int = 10
    """How often a second Python programs say at which line they are: what the CPU did while the
    GPU waited. 0: never."""
    step_marks: bool = True
    """Python programs say themselves where their steps are (hook/step_marks.py)."""
    library_calls: bool = False
    """Calls of cuBLAS, cuBLASLt and cuDNN are ranges: a library is preloaded."""
    counters: bool = False
    """Sample the hardware counters of the GPUs that are used (gputui.counters)."""
    trace_sampling: TraceSampling | None = None
    """When kernels are traced; None traces them all the time."""
    capture_range: CaptureRange | None = None
    """None captures the whole program. With one there is no sampling."""
    says_when: bool = False
    """Whether the user decided what is traced, and when. If not, a process that is attached to is
    traced within ATTACH_COST_PERCENT."""
