"""Data-parallel training under torchrun, a rank a GPU: what gputui says of each rank.

    python tests/gpu/two_ranks.py [--steps 40]

Needs torch and two GPUs or more. The program counts what it does itself: its steps, and the
buckets that it hands to NCCL. Prints a line a check; status 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WARM_UP = 3
BUCKETS = 4


def work(steps: int) -> None:
    """A rank: forward, backward, an all-reduce a bucket, optimizer, each in its range."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    layers = [torch.nn.Linear(2048, 2048) for _ in range(BUCKETS)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(256, 2048, device="cuda")
    span = torch.cuda.nvtx.range
    for number in range(WARM_UP + steps):
        with span("step" if number >= WARM_UP else "warmup"):
            with span("forward"):
                loss = model(inputs).square().mean()
            with span("backward"):
                loss.backward()
            with span("all_reduce"):
                for layer in layers:
                    assert layer.weight.grad is not None
                    dist.all_reduce(layer.weight.grad)
            with span("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def record(folder: Path, ranks: int, steps: int) -> Path:
    """The recording of one run."""
    path = folder / "ranks.gputui"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [f"--nproc-per-node={ranks}", __file__, "--steps", str(steps)]
    subprocess.run(
        [
            *(sys.executable, "-m", "gputui", "--record", "--trace", "-o", str(path), "--"),
            *launcher,
            *program,
        ],
        check=True,
    )
    return path


def found(path: Path) -> dict[str, Any]:
    """`gputui summary --format json` of it."""
    words = [sys.executable, "-m", "gputui", "summary", str(path), "--format", "json"]
    document: dict[str, Any] = json.loads(
        subprocess.run(words, check=True, capture_output=True).stdout
    )
    return document


def checks(
    document: dict[str, Any], ranks: int, steps: int
) -> Iterator[tuple[str, object, object]]:
    """What was looked at, what it should be, what it is."""
    by_rank: dict[int, dict[str, Any]] = {}
    for row in document["phases"]:
        by_rank.setdefault(row["rank"], {})[row["path"]] = row
    yield "ranks", list(range(ranks)), sorted(rank for rank in by_rank if rank is not None)
    for rank in range(ranks):
        phases = by_rank[rank]
        yield f"rank {rank}: steps", steps, phases["step"]["instances"]
        for name in ("forward", "backward", "all_reduce", "optimizer"):
            yield f"rank {rank}: {name}", steps, phases[f"step/{name}"]["instances"]
        reduced = phases["step/all_reduce"]["kernels"]
        yield f"rank {rank}: kernels of all_reduce", steps * BUCKETS, reduced
        same = phases["step"]["kernels"] == by_rank[0]["step"]["kernels"]
        yield f"rank {rank}: as many kernels a step as rank 0", True, same
    yield "GPUs with work", ranks, len({row["gpu"] for row in document["timing"]["devices"]})
    yield "dropped", 0, document["dropped_events"]


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    if "LOCAL_RANK" in os.environ:
        work(steps)
        return 0
    import torch

    ranks = torch.cuda.device_count()
    if ranks < 2:
        sys.exit("two GPUs or more are needed")
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        path = record(Path(name), ranks, steps)
        for what, expected, seen in checks(found(path), ranks, steps):
            verdict = "ok" if expected == seen else "WRONG"
            wrong += expected != seen
            print(f"{verdict:<6} {what}: expected {expected}, found {seen}")
        command = [sys.executable, "-m", "gputui", "export", str(path), "--format", "chrome"]
        subprocess.run([*command, "-o", str(Path(name, "trace.json"))], check=True)
        files = sorted(entry.name for entry in Path(name).iterdir() if "trace" in entry.name)
        print(f"chrome: {', '.join(files)}")
        subprocess.run([sys.executable, "-m", "gputui", "summary", str(path)], check=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
