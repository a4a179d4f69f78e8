"""One rank of `comm`: every operation and size, timed. Started by torchrun."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import nvtx
import torch
import torch.distributed as dist
from torch import Tensor

from ..collectives import collectives
from ..ranked import Ranked

STEP = nvtx.annotate("step")
WORD = 4
WARM_S, WARM_BYTES = 1.5, 1 << 26


def operation(rank: Ranked, name: str, size: int) -> Callable[[], object]:
    """One operation on a buffer of about `size` bytes, the whole as nccl-tests counts it."""
    ranks = rank.count
    part = max(1, size // WORD // ranks)

    def numbers(count: int) -> Tensor:
        return torch.ones(count, device=rank.device)

    if name == "all_reduce":
        buffer = numbers(part * ranks)
        return lambda: dist.all_reduce(buffer)
    if name == "broadcast":
        buffer = numbers(part * ranks)
        return lambda: dist.broadcast(buffer, 0)
    if name == "all_gather":
        whole, own = numbers(part * ranks), numbers(part)
        return lambda: dist.all_gather_into_tensor(whole, own)
    if name == "reduce_scatter":
        whole, own = numbers(part * ranks), numbers(part)
        return lambda: dist.reduce_scatter_tensor(own, whole)
    if name == "all_to_all":
        given, incoming = numbers(part * ranks), numbers(part * ranks)
        return lambda: dist.all_to_all_single(incoming, given)
    given, incoming = numbers(part * ranks), numbers(part * ranks)
    to, source = (rank.rank + 1) % ranks, (rank.rank - 1) % ranks

    def around() -> None:
        sent = dist.P2POp(dist.isend, given, to)
        received = dist.P2POp(dist.irecv, incoming, source)
        for request in dist.batch_isend_irecv([sent, received]):
            request.wait()

    return around


def measure(rank: Ranked, name: str, size: int) -> dict[str, object]:
    """Seconds a pass, the slowest rank's."""
    once = operation(rank, name, size)
    passes = int(rank.spec["passes"])
    with collectives(ranges=not rank.on_gpu, counts=False):
        for _ in range(int(rank.spec["warmup"])):
            once()
        rank.synchronize()
        dist.barrier()
        rank.synchronize()
        began = time.perf_counter()
        for _ in range(passes):
            with STEP:
                once()
        launched_s = (time.perf_counter() - began) / passes
        rank.synchronize()
    took_s = (time.perf_counter() - began) / passes
    rank.count_steps(passes, passes * took_s)
    whole = max(1, size // WORD // rank.count) * rank.count * WORD
    return {
        "size_bytes": whole,
        "seconds": max(rank.everywhere(took_s)),
        "launch_seconds": max(rank.everywhere(launched_s)),
    }


def warm_up(rank: Ranked) -> None:
    """Let clocks rise and connections be made: the first row is to be as the others."""
    once = operation(rank, "all_reduce", WARM_BYTES)

    def latest_s() -> float:
        """The same on every rank, so that all leave after the same pass: one more would hang."""
        return max(rank.everywhere(time.perf_counter()))

    until_s = latest_s() + WARM_S
    while latest_s() < until_s:
        once()


def main() -> None:
    """All rows of the launch: "operation size"."""
    with Ranked(sys.argv[1]) as rank:
        if rank.on_gpu:
            warm_up(rank)
        rank.report({"ready": True})
        for label in rank.spec["rows"]:
            name, _, size = label.partition(" ")
            with nvtx.annotate(label):
                measured = measure(rank, name, int(size))
            rank.report({"row": label, **measured})


if __name__ == "__main__":
    main()
