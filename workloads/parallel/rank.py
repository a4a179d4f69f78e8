"""One rank of `parallel`: every engine in turn, measured. Started by torchrun."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import AbstractContextManager, nullcontext

import nvtx
import torch
import torch._dynamo  # the first optimizer needs it, and would keep the other ranks waiting
import torch.distributed as dist

from ..collectives import collectives
from ..ranked import Ranked
from .engines import Build, Trainer, builders
from .experts import WholeMixture
from .model import Sizes, batch_of

STEP = nvtx.annotate("step")


def _sizes(rank: Ranked) -> Sizes:
    return Sizes(**{name: int(rank.spec[name]) for name in Sizes.__dataclass_fields__})


class Measured:
    """Steps of one trainer: how long, the share of it that this rank's stage of a pipeline computed
    nothing, what they moved, the loss after the last."""

    def __init__(self, rank: Ranked, sizes: Sizes, build: Build, ranks: int) -> None:
        spec = rank.spec
        self._rank, self._sizes, self._ranks = rank, sizes, ranks
        self.trainer: Trainer = build(rank, sizes, int(spec["seed"]))
        self._number = 0
        if rank.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        # On the CPU every step has ranges; on a GPU counting would cost steps their time.
        with collectives(ranges=not rank.on_gpu, counts=False) as mode:
            for _ in range(int(spec["warmup"])):
                self._step(nullcontext())
            rank.synchronize()
            self.trainer.busy_s()
            began = time.perf_counter()
            for _ in range(int(spec["steps"])):
                mode.reset()
                loss = self._step(STEP)
            rank.synchronize()
            took_s = time.perf_counter() - began
        busy_s = self.trainer.busy_s()
        self.step_s = took_s / int(spec["steps"])
        self.idle_share = None if busy_s is None else 1 - busy_s / took_s
        rank.count_steps(int(spec["steps"]), self.step_s * int(spec["steps"]))
        self.loss = float(loss)
        if rank.on_gpu and ranks > 1:
            with collectives(ranges=False, counts=True) as mode:
                self._step(nullcontext())
        self.count, self.sent_bytes = mode.count, mode.sent_bytes
        self.peak_bytes = torch.cuda.max_memory_allocated() if rank.on_gpu else None

    def _step(self, step_range: AbstractContextManager[object]) -> torch.Tensor:
        x, y = batch_of(self._sizes, self._ranks, self._number, int(self._rank.spec["seed"]))
        self._number += 1
        with step_range:
            return self.trainer.step(x, y)


def measure(rank: Ranked, name: str) -> dict[str, object]:
    """The figures of one engine, as rank 0 has them."""
    sizes, build = _sizes(rank), builders()[name]
    if name == "single":
        return _single(rank, sizes, build)
    with nvtx.annotate(name):
        measured = Measured(rank, sizes, build, rank.count)
    steps = rank.everywhere(measured.step_s)
    losses = rank.everywhere(measured.loss)
    of_model = losses[measured.trainer.loss_from :]
    idle = {}
    if measured.idle_share is not None:
        shares = rank.everywhere(measured.idle_share)
        idle = {"bubble": sum(shares) / len(shares)}
    figures: dict[str, object] = {
        "step_s": max(steps),
        **idle,
        "loss": sum(of_model) / len(of_model),
        "collectives": measured.count,
        "sent_bytes": measured.sent_bytes,
        "state_bytes": measured.trainer.state_bytes(),
        "peak_bytes": measured.peak_bytes,
    }
    if name == "ep":
        reference = None
        if rank.rank == 0:
            reference = Measured(rank, sizes, WholeMixture, rank.count).loss
        figures["reference_loss"] = reference
        dist.barrier()
    return figures


def _single(rank: Ranked, sizes: Sizes, build: Build) -> dict[str, object]:
    """Rank 0 by itself, with the whole batch and with that of one rank; the others wait."""
    figures: dict[str, object] = {}
    if rank.rank == 0:
        with nvtx.annotate("single"):
            whole = Measured(rank, sizes, build, rank.count)
        figures = {
            "step_s": whole.step_s,
            "loss": whole.loss,
            "state_bytes": whole.trainer.state_bytes(),
            "peak_bytes": whole.peak_bytes,
            "parameters": sum(p.numel() for p in whole.trainer.model.parameters()),
        }
        del whole
        gc.collect()
        with nvtx.annotate("single, one rank's batch"):
            figures["own_step_s"] = Measured(rank, sizes, build, 1).step_s
    dist.barrier()
    return figures


def main() -> None:
    """All engines of the launch."""
    gc.freeze()  # torch's own objects stay: looking through them takes as long as a small engine
    with Ranked(sys.argv[1]) as rank:
        rank.report({"ready": True})
        for name in rank.spec["engines"]:
            figures = measure(rank, name)
            gc.collect()
            if rank.on_gpu:
                torch.cuda.empty_cache()
            dist.barrier()
            rank.report({"engine": name, **figures})


if __name__ == "__main__":
    main()
