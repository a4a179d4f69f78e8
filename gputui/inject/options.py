"""What to capture of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Annotate = Literal["modules", "autograd"]
"""What to put ranges around in torch: module calls, or operators as well."""

GraphTrace = Literal["node", "graph"]
"""Trace the kernels of CUDA graphs one by one, or each graph launch as a whole (cheaper)."""


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Kernels are traced during `on` of every `period`: steps (pushes of the range `step`) or, if
    that is None, nanoseconds. Ranges are always traced.
    """

    on: int
    period: int
    step: str | None = None

    def encode(self) -> str:
        """The form the capture library parses."""
        if self.step is None:
            return f"time {self.on} {self.period}"
        return f"steps {self.on} {self.period} {self.step}"


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What the user asked for. `kernels=False` leaves CUDA alone."""

    kernels: bool = True
    graph_trace: GraphTrace = "node"
    annotate: Annotate | None = None
    lines: bool = True
    """Where Python programs are, 10 times a second: what the CPU did while the GPU waited."""
    trace_sampling: TraceSampling | None = None
