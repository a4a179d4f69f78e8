"""Several ways at once: matrices over pairs of ranks, their parts and the data over the pairs, and
from eight ranks on two stages of a pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ..ranked import Ranked
from .engines import LOAD, Trainer
from .model import Block, Sizes, Stage, gpt_of, loss_of
from .pipeline import scheduled
from .plans import layout


class Mesh(Trainer):
    """Data x tensor x pipeline: FSDP2 over tensor parallel blocks, in stages."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        dimensions = layout(rank.count)
        self._layout = dimensions
        mesh = init_device_mesh(
            rank.device.type, tuple(dimensions), mesh_dim_names=dimensions._fields
        )
        stage, self._part, _ = mesh.get_coordinate() or [0, 0, 0]
        self.loss_from = rank.count - rank.count // dimensions.pipeline
        self._is_first, self._is_last = stage == 0, stage == dimensions.pipeline - 1
        if dimensions.pipeline > 1:
            self.model = Stage(gpt_of(self.model), stage, dimensions.pipeline)
            self.modules = [self.model]
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {"mlp.w1": ColwiseParallel()}
        rows = {"attention.wo": RowwiseParallel(), "mlp.w2": RowwiseParallel()}
        for block in self.model.modules():
            if isinstance(block, Block):
                parallelize_module(block, mesh["tensor"], {**plan, **rows})
                fully_shard(block, mesh=mesh["data"])
        fully_shard(self.model, mesh=mesh["data"])
        self.optimizer = self.adam(self.model.parameters(), foreach=False)
        self._schedule: Any = None
        if dimensions.pipeline > 1:
            group = mesh["pipeline"].get_group()
            made = pipelining.PipelineStage(
                self.model, stage, dimensions.pipeline, rank.device, group=group
            )
            self._schedule = pipelining.ScheduleGPipe(made, sizes.microbatches, loss_fn=loss_of)

    def _own(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        each = len(x) // self._layout.data
        part = slice(self._part * each, (self._part + 1) * each)
        return super()._own(x[part], y[part])

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        if self._schedule is None:
            return super().step(x, y)
        with LOAD:
            x, y = self._own(x, y)
            self._late(x, y)
        first, last = x if self._is_first else None, y if self._is_last else None
        return scheduled(self, self._schedule, first, last)
