"""Every way to divide the model among ranks. Each gives a trainer of the same steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ..ranges import Range
from ..ranked import Ranked
from .model import Block, Gpt, Sizes, gpt_of, loss_of

MOST_RATE, RATE_AT_WIDTH = 1e-3, 0.25
"""A wide model learns at a rate as its width allows: at more, losses differ by how sums round."""

LOAD, FORWARD, BACKWARD = Range("load"), Range("forward"), Range("backward")
SYNC, OPTIMIZER, SCHEDULE = Range("sync"), Range("optimizer"), Range("schedule")


class Trainer:
    """One rank's part. `step` takes the whole batch and gives the loss of this rank's part; the
    mean over the ranks from `loss_from` on is the model's."""

    loss_from = 0

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        self.rank, self.sizes = rank, sizes
        torch.manual_seed(seed)
        with rank.device:  # one core of the host would take seconds to make the weights
            self.model: nn.Module = Gpt(sizes)
        self.modules: list[nn.Module] = [self.model]
        self.rate = min(MOST_RATE, RATE_AT_WIDTH / sizes.hidden)
        self.optimizer: torch.optim.Optimizer

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with LOAD:
            x, y = self._own(x, y)
            x, y = self._late(x, y)
        with FORWARD:
            loss = loss_of(self.model(x), y)
        with BACKWARD:
            loss.backward()  # type: ignore[no-untyped-call]
        with SYNC:
            self._sync()
        with OPTIMIZER:
            self.update()
        return loss.detach()

    def update(self) -> None:
        """Change the weights by their gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def busy_s(self) -> float | None:
        """Seconds that this rank computed since the last call; None where that is not looked at."""
        return None

    def state_bytes(self) -> int:
        """Of the weights, their gradients, and the optimizer's state here."""
        weights = sum(
            _local(parameter).nbytes for module in self.modules for parameter in module.parameters()
        )
        inner = getattr(self.optimizer, "optim", self.optimizer)
        kept = sum(
            _local(value).nbytes
            for state in inner.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        return 2 * weights + kept

    def _own(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(self.rank.device), y.to(self.rank.device)

    def _late(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What makes this rank late, if it is to be."""
        spec = self.rank.spec
        if spec["late"] == "none" or self.rank.rank != spec["late_rank"]:
            return x, y
        if spec["late"] == "sleep":
            time.sleep(spec["late_ms"] / 1e3)
            return x, y
        # The same sequences twice: more work, the same loss.
        return torch.cat((x, x)), torch.cat((y, y))

    def _sync(self) -> None:
        pass

    def adam(
        self, parameters: Iterable[nn.Parameter], foreach: bool | None = None
    ) -> torch.optim.AdamW:
        """The optimizer of all engines."""
        return torch.optim.AdamW(parameters, lr=self.rate, foreach=foreach)


class Single(Trainer):
    """The whole batch on one rank."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        self.optimizer = self.adam(self.model.parameters())


class OwnBatch(Trainer):
    """Each rank takes its sequences."""

    def _own(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        each = len(x) // self.rank.count
        part = slice(self.rank.rank * each, (self.rank.rank + 1) * each)
        return super()._own(x[part], y[part])


class Naive(OwnBatch):
    """An all-reduce for each gradient."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        self.optimizer = self.adam(self.model.parameters())

    def _sync(self) -> None:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.rank.count


class Flat(Naive):
    """One all-reduce for all gradients."""

    def _sync(self) -> None:
        average(self.model.parameters(), self.rank.count)


class Ddp(OwnBatch):
    """DistributedDataParallel: buckets, while the backward pass goes on."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        # None: torch's own size, 25 MiB; a small model is to have several, too.
        bucket_mb = None if rank.on_gpu else 0.1
        self.model = nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=bucket_mb)
        self.optimizer = self.adam(self.model.parameters())


class Zero1(Ddp):
    """DDP whose optimizer state is divided among the ranks (ZeRO stage 1)."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), optimizer_class=torch.optim.AdamW, lr=self.rate
        )


class FullyShard(OwnBatch):
    """FSDP2: gradients and state divided, and with `reshard` the weights again after use."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int, *, reshard: bool) -> None:
        super().__init__(rank, sizes, seed)
        mesh = init_device_mesh(rank.device.type, (rank.count,))
        for block in gpt_of(self.model).blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=reshard)
        self.optimizer = self.adam(self.model.parameters())


class TensorParallel(Trainer):
    """Each matrix divided; with `sequence` the parts between them along the sequence."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int, *, sequence: bool) -> None:
        super().__init__(rank, sizes, seed)
        mesh = init_device_mesh(rank.device.type, (rank.count,))
        rows = partial(RowwiseParallel, output_layouts=Shard(1)) if sequence else RowwiseParallel
        whole = partial(
            PrepareModuleInput, input_layouts=Shard(1), desired_input_layouts=Replicate()
        )
        for block in gpt_of(self.model).blocks:
            plan: dict[str, Any] = {
                f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")
            }
            plan |= {"mlp.w1": ColwiseParallel(), "attention.wo": rows(), "mlp.w2": rows()}
            if sequence:
                plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
                plan |= {"attention": whole(), "mlp": whole()}
            parallelize_module(block, mesh, plan)
        if sequence:
            ends = {
                "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            }
            parallelize_module(self.model, mesh, ends)
        self.optimizer = self.adam(self.model.parameters(), foreach=False)


class Ulysses(Trainer):
    """Each rank has a part of every sequence; for attention, parts of the heads."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        self.optimizer = self.adam(self.model.parameters())
        model = gpt_of(self.model)
        self._length = sizes.ctx // rank.count
        model.first = rank.rank * self._length
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attention.exchange = self._exchange

    def _own(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = self.rank.rank * self._length
        part = slice(first, first + self._length)
        return super()._own(x[:, part].contiguous(), y[:, part].contiguous())

    def _exchange(self, x: Tensor, to_heads: bool) -> Tensor:
        ranks = self.rank.count
        rows, heads, length, head = x.shape
        if to_heads:
            x = x.view(rows, ranks, heads // ranks, length, head).transpose(0, 1)
            x = all_to_all(x).permute(1, 2, 0, 3, 4)
            return x.reshape(rows, heads // ranks, ranks * length, head)
        x = x.view(rows, heads, ranks, length // ranks, head).permute(2, 0, 1, 3, 4)
        x = all_to_all(x).transpose(0, 1)
        return x.reshape(rows, ranks * heads, length // ranks, head)

    def _sync(self) -> None:
        average(self.model.parameters(), self.rank.count)


def all_to_all(x: Tensor, out: list[int] | None = None, into: list[int] | None = None) -> Tensor:
    """Each rank's parts along the first dimension to the others, with its gradient."""
    x = x.contiguous()
    group = dist.distributed_c10d._get_default_group()
    moved: Tensor = all_to_all_single_autograd(x, out, into, group)
    # An asynchronous tensor: a view of it waits.
    return moved.view(moved.shape)


def average(parameters: Iterable[nn.Parameter], ranks: int) -> None:
    """All gradients in one all-reduce."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks
    sizes = [gradient.numel() for gradient in gradients]
    averaged = flat.split(sizes)  # type: ignore[no-untyped-call]
    for gradient, mean in zip(gradients, averaged, strict=True):
        gradient.copy_(mean.view_as(gradient))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


Build = Callable[[Ranked, Sizes, int], Trainer]


def builders() -> dict[str, Build]:
    """The engines by name, as in plans.ENGINES."""
    from .experts import ExpertParallel
    from .mesh import Mesh
    from .pipeline import Pipeline

    return {
        "single": Single,
        "naive": Naive,
        "flat": Flat,
        "ddp": Ddp,
        "zero1": Zero1,
        "zero2": partial(FullyShard, reshard=False),
        "zero3": partial(FullyShard, reshard=True),
        "tp": partial(TensorParallel, sequence=False),
        "tp_sp": partial(TensorParallel, sequence=True),
        "gpipe": partial(Pipeline, schedule="ScheduleGPipe"),
        "1f1b": partial(Pipeline, schedule="Schedule1F1B"),
        "interleaved": partial(Pipeline, schedule="ScheduleInterleaved1F1B", chunks=2),
        "ulysses": Ulysses,
        "mesh": Mesh,
        "ep": ExpertParallel,
    }
