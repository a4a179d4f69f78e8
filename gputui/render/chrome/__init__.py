"""A run as a trace for Perfetto, chrome://tracing and Holistic Trace Analysis: one file per
process.

Kernels are on one track per stream, ranges and calls on one track per thread, the GPU time of
ranges on separate tracks, NVML's readings as counters, all on one clock (`baseTimeNanoseconds`).
What Holistic Trace Analysis needs (version 0.5): `"rank": N` with a space, a call for each GPU
operation with a correlation, and no launch without its operation.
"""

from gputui.render.chrome.file import write_chrome
from gputui.render.chrome.survey import processes_of

__all__ = ["processes_of", "write_chrome"]
