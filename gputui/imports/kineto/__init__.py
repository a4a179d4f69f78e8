"""Chrome traces of torch.profiler (Kineto) as a source."""

from __future__ import annotations

from gputui.imports.kineto.trace import KinetoTrace

__all__ = ["KinetoTrace"]
