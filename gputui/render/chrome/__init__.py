"""A run as a trace for Perfetto, chrome://tracing and Holistic Trace Analysis: one file per
process.

As Kineto writes them: kernels are on one track per stream, with the ranges that launched them
around them; ranges and calls on one track per thread, a framework's operators as `cpu_op`; NVML's
readings are counters; all on one clock (`baseTimeNanoseconds`). What Holistic Trace Analysis needs
(version 0.5): `"rank": N` with a space, and on every call and operation a correlation that no other
call or operation has unless one launched the other.
"""

from gputui.render.chrome.file import write_chrome
from gputui.render.chrome.survey import processes_of

__all__ = ["processes_of", "write_chrome"]
