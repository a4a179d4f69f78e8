"""One rank of the variant `straggler`, started by torchrun."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from ..ranked import Ranked
from .variants import VARIANTS

# Steps after which the ranks agree on whether to go on.
_TOGETHER = 16


def main() -> None:
    """Makes steps until the time is over."""
    with Ranked(sys.argv[1]) as rank:
        step = VARIANTS["straggler"].make(bool(rank.spec["cure"]), rank.device)
        step()
        rank.synchronize()
        rank.report({"ready": True})
        began = reported_s = time.perf_counter()
        seconds, steps, is_over = float(rank.spec["seconds"]), 0, False
        while not is_over:
            for _ in range(_TOGETHER):
                step()
            steps += _TOGETHER
            now = time.perf_counter()
            over = torch.tensor(float(now - began >= seconds), device=rank.device)
            dist.all_reduce(over)
            is_over = bool(over)
            if is_over or now - reported_s >= 0.5:
                reported_s = now
                rank.report({"steps": steps, "took_s": now - began})


if __name__ == "__main__":
    main()
