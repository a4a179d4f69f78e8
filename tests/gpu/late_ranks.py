"""Who is late among ranks on real GPUs: nobody, a rank that sleeps, one with longer sequences.

    python tests/gpu/late_ranks.py [--steps 60]

Needs torch and two GPUs or more. Prints a line a check; status 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODEL = ("layers=8", "hidden=1024", "heads=16", "ctx=512", "batch=8", "warmup=5")
LATE = 1


def recorded(folder: Path, late: str, steps: int) -> dict[str, Any]:
    """`gputui summary --format json` of a job whose rank LATE is late in this way."""
    path = folder / f"{late}.gputui"
    values = ("engine=ddp", f"late={late}", f"late_rank={LATE}", f"steps={steps}", *MODEL)
    words = [word for value in values for word in ("-p", value)]
    gputui = [sys.executable, "-m", "gputui"]
    command = [*gputui, "--record", "-o", str(path), "--workload", "parallel", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=170)
    summary = [*gputui, "summary", str(path), "--format", "json"]
    found: dict[str, Any] = json.loads(
        subprocess.run(summary, check=True, capture_output=True).stdout
    )
    return found


def checks(late: str, document: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    """What was looked at, what it should be, what it is."""
    found = [one for one in document["findings"] if one["cause"] in ("idle.rank", "late_rank")]
    named = [one["word"].upper() for one in found if "LATE" in one["word"].upper()]
    yield f"{late}: named", [] if late == "none" else [f"RANK {LATE} IS LATE"], named
    cause = {"sleep": "its GPU waits for its CPU", "longer": "its GPU computes"}.get(late)
    if cause and found:
        yield f"{late}: {found[0]['evidence']}", True, cause in found[0]["evidence"][0]
    reduced = [row for row in document["collectives"] if row["kind"] == "all_reduce"]
    yield f"{late}: communicators known", True, all(row["communicator"] for row in reduced)
    yield f"{late}: bytes known", True, all(row["message_bytes"] for row in reduced)
    matched = [row["matched_percent"] for row in reduced if row["matched_percent"] is not None]
    yield f"{late}: matched", True, bool(matched) and min(matched) >= 90


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for late in ("none", "sleep", "longer"):
            for what, expected, seen in checks(late, recorded(Path(name), late, steps)):
                wrong += expected != seen
                verdict = "ok" if expected == seen else "WRONG"
                print(f"{verdict:<6} {what}: expected {expected}, found {seen}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
