"""gputui's counts beside torch.profiler's, a phase at a time.

    python tests/gpu/compare_with_torch.py SUMMARY.json TORCH.json

SUMMARY.json is `gputui summary FILE --format json` of a run, TORCH.json what torch_profile.py
wrote of the same workload with the same parameters. Prints a table; status 1 where a count
differs, or a phase's total kernel time differs by more than 5 % and more than 20 µs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(summary_path: str, torch_path: str) -> int:
    """Print the comparison; 0 where they agree."""
    summary = json.loads(Path(summary_path).read_text())
    judge = json.loads(Path(torch_path).read_text())
    phases = {row["path"]: row for row in summary["phases"]}
    agree = True
    print(f"{'phase':<28}{'kernels':>9}{'torch':>9}{'ms':>11}{'torch':>11}  difference")
    for path, expected in judge.items():
        if path:
            row = phases.get(path, {"kernels": 0, "kernel_total_ns": 0})
            kernels, time_ns = row["kernels"], row["kernel_total_ns"]
        else:
            kernels = sum(row["instances"] for row in summary["kernels"])
            time_ns = sum(row["total_ns"] for row in summary["kernels"])
        difference = time_ns - expected["kernel_ns"]
        share = 100 * difference / expected["kernel_ns"] if expected["kernel_ns"] else 0.0
        fine = kernels == expected["kernels"] and (abs(share) <= 5 or abs(difference) <= 20_000)
        agree &= fine
        print(
            f"{path or '(all)':<28}{kernels:>9}{expected['kernels']:>9}"
            f"{time_ns / 1e6:>11.3f}{expected['kernel_ns'] / 1e6:>11.3f}  {share:+.1f} %"
            f"{'' if fine else '   DIFFERS'}"
        )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
