"""What each rank of a launch begins with: its device, its process group, where it reports."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WATCH_S = 0.5


class Ranked:
    """One rank of a launch; in `with Ranked(...) as rank:` its process group exists."""

    def __init__(self, words: str) -> None:
        self.spec: dict[str, Any] = json.loads(words)
        self.rank = int(os.environ["RANK"])
        self.count = int(os.environ["WORLD_SIZE"])
        self.on_gpu = self.spec["device"] != "cpu"
        local = int(os.environ["LOCAL_RANK"])
        # Ranks may share a GPU, which NCCL does not support.
        gpus = torch.cuda.device_count() if self.on_gpu else 0
        self.backend = "nccl" if 0 < self.count <= gpus else "gloo"
        self.device = torch.device("cuda", local % gpus) if self.on_gpu else torch.device("cpu")
        self._steps, self._steps_s = 0, 0.0

    def __enter__(self) -> Ranked:
        _end_with_launcher()
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            torch.set_float32_matmul_precision(
                "high" if self.spec.get("precision") == "tf32" else "highest"
            )
        dist.init_process_group(
            self.backend,
            timeout=timedelta(seconds=float(self.spec["timeout_s"])),
            device_id=self.device if self.backend == "nccl" else None,
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            dist.barrier()
            dist.destroy_process_group()

    def synchronize(self) -> None:
        """Wait until the device has done all work submitted to it."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def count_steps(self, count: int, seconds: float) -> None:
        """Add `count` measured steps of this rank, which took so long together."""
        self._steps += count
        self._steps_s += seconds

    def report(self, line: Mapping[str, object]) -> None:
        """Rank 0's lines are those that count; each says how many steps it measured since the
        line before, and their mean: `steps`, `own_step_ms`.
        """
        if self.rank == 0:
            mean_ms = 1e3 * self._steps_s / max(1, self._steps)
            counted = {"steps": self._steps, "own_step_ms": mean_ms}
            self._steps, self._steps_s = 0, 0.0
            with open(self.spec["reports"], "a", encoding="utf-8") as file:
                file.write(json.dumps({**line, **counted}) + "\n")

    def everywhere(self, value: float) -> list[float]:
        """The value of each rank."""
        own = torch.tensor([value], dtype=torch.float64, device=self.device)
        all_of_them = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(all_of_them, own)
        return [float(value) for value in all_of_them]


def _end_with_launcher() -> None:
    """A rank whose torchrun was killed would wait for its peers until the time-out."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(WATCH_S)
        sys.stderr.flush()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
