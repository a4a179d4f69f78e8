"""gputui's kernels beside torch.profiler's, a kernel at a time, for any Python script.

    python tests/gpu/compare_kernels.py SCRIPT [ARG ...]

Runs SCRIPT twice: under `gputui --record`, and under torch.profiler. Prints kernels whose count
differs and the total time of both; status 1 where a count differs.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

_COMPARED = 4000
"""gputui cuts longer names."""

_UNDER_PROFILER = """
import json, runpy, sys
import torch
from torch.profiler import ProfilerActivity, profile
out, sys.argv = sys.argv[1], sys.argv[2:]
torch.cuda.init()
with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
    runpy.run_path(sys.argv[0], run_name="__main__")
profiler.export_chrome_trace(out)
"""


def main(script: list[str]) -> int:
    """Print the comparison; 0 where all counts agree."""
    with tempfile.TemporaryDirectory() as folder:
        ours, our_ns = _under_gputui(script, Path(folder, "run.gputui"))
        theirs, their_ns = _under_torch(script, Path(folder, "trace.json"))
    differing = {name for name in ours | theirs if ours[name] != theirs[name]}
    for name in sorted(differing):
        print(f"DIFFERS  gputui {ours[name]:>8}  torch {theirs[name]:>8}  {name[:100]}")
    print(
        f"{len(ours)} kernels, {sum(ours.values())} launches against torch's "
        f"{sum(theirs.values())}; {our_ns / 1e6:.3f} ms against {their_ns / 1e6:.3f} ms "
        f"({100 * (our_ns / their_ns - 1):+.1f} %)"
    )
    return 1 if differing else 0


def _under_gputui(script: list[str], path: Path) -> tuple[Counter[str], float]:
    gputui = [sys.executable, "-m", "gputui"]
    subprocess.run(
        [*gputui, "--record", "-o", str(path), "--", sys.executable, *script],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    text = subprocess.run(
        [*gputui, "summary", str(path), "--table", "cuda_gpu_kern_sum", "--format", "csv"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    counts = Counter({row["Name"][:_COMPARED]: int(row["Instances"]) for row in rows})
    return counts, sum(float(row["Total Time (ns)"]) for row in rows)


def _under_torch(script: list[str], path: Path) -> tuple[Counter[str], float]:
    command = [sys.executable, "-c", _UNDER_PROFILER, str(path), *script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return Counter(event["name"][:_COMPARED] for event in kernels), sum(
        float(event["dur"]) * 1e3 for event in kernels
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
