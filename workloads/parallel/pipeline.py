"""Consecutive blocks of the model on each rank, and how long each rank computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from ..ranked import Ranked
from .engines import LOAD, OPTIMIZER, SCHEDULE, Trainer
from .model import Sizes, Stage, gpt_of, loss_of


class Pipeline(Trainer):
    """Consecutive blocks on each rank, parts of the batch one after another."""

    def __init__(
        self, rank: Ranked, sizes: Sizes, seed: int, *, schedule: str, chunks: int = 1
    ) -> None:
        super().__init__(rank, sizes, seed)
        self.loss_from = rank.count - 1
        total = rank.count * chunks
        sleep_s = float(rank.spec["stage_ms"]) / 1e3 / chunks
        stage_indices = [rank.rank + rank.count * chunk for chunk in range(chunks)]
        model = gpt_of(self.model)
        with rank.device:
            self.modules = [
                SleepingStage(sleep_s) if sleep_s else Stage(model, index, total)
                for index in stage_indices
            ]
        self.model = nn.ModuleList(self.modules)
        busy = self.busy = Busy(on_gpu=rank.on_gpu, sleeps=sleep_s > 0)
        stages = [
            TimedStage(busy, module, index, total, rank.device)
            for module, index in zip(self.modules, stage_indices, strict=True)
        ]
        self._sleeps = sleep_s > 0
        self._schedule = getattr(pipelining, schedule)(
            stages if chunks > 1 else stages[0],
            sizes.microbatches,
            loss_fn=busy.timed(_squares if self._sleeps else loss_of),
        )
        self.optimizer = self.adam(self.model.parameters())

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        with LOAD:
            x, y = self._own(x, y)
            if self._sleeps:
                x = y = torch.ones(len(x), WIDTH, device=self.rank.device)
            self._late(x, y)
        first, last = self.rank.rank == 0, self.rank.rank == self.rank.count - 1
        return scheduled(self, self._schedule, x if first else None, y if last else None)

    def update(self) -> None:
        self.busy.timed(super().update)()

    def busy_s(self) -> float:
        return self.busy.take_s()


def scheduled(trainer: Trainer, schedule: Any, x: Tensor | None, y: Tensor | None) -> Tensor:
    """A step by a schedule of `pipelining`: the first stage has `x`, the last `y` and the loss."""
    losses: list[Tensor] = []
    with SCHEDULE:
        schedule.step(
            *(() if x is None else (x,)),
            **({} if y is None else {"target": y, "losses": losses}),
        )
    with OPTIMIZER:
        trainer.update()
    return torch.stack(losses).mean().detach() if losses else torch.zeros(())


class Busy:
    """How long a rank computes for its stages. What it waits for comes before each part: on a GPU
    the events of a part are recorded after the wait for what was sent. Where the host sleeps
    instead, it waits itself: else it would sleep while the GPU does."""

    def __init__(self, *, on_gpu: bool, sleeps: bool) -> None:
        self._by_events = on_gpu and not sleeps
        self._waits = on_gpu and sleeps
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def timed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """`compute`, whose time is counted."""

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._waits:
                torch.cuda.current_stream().synchronize()
            began = time.perf_counter()
            before = after = None
            if self._by_events:
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                before.record()
            result = compute(*arguments, **named)
            if before is not None and after is not None:
                after.record()
                self._events.append((before, after))
            else:
                self._seconds += time.perf_counter() - began
            return result

        return timed

    def take_s(self) -> float:
        """Seconds since the last call; the device has done all work."""
        seconds = self._seconds
        for before, after in self._events:
            seconds += before.elapsed_time(after) / 1e3
        self._seconds, self._events = 0.0, []
        return seconds


class TimedStage(pipelining.PipelineStage):
    """A stage whose parts of the batch are timed, forward and backward."""

    def __init__(self, busy: Busy, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._busy = busy

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        return self._busy.timed(super().forward_one_chunk)(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        return self._busy.timed(super().backward_one_chunk)(*arguments, **named)


WIDTH = 8


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class SleepingStage(nn.Module):
    """A stage that takes its time and no core: bubbles show on any machine."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weights = nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Sleep.apply(  # type: ignore[no-untyped-call]
            self.weights(x), self.seconds
        )
        return out


def _squares(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).pow(2).mean()
