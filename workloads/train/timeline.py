"""What holds the memory during one step, from layer to layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType

import torch
from torch import Tensor, nn

from ..declaration import Row


class MemoryTimeline:
    """In `with`: looks at the memory after each block's forward and backward pass, and wherever
    `note` is called. `rows` has a row for each look.

    What is allocated beyond weights, gradients and optimizer state when it begins is the libraries'
    workspaces, and what more there is later, but autocast's copies of weights, activations.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[nn.Module],
        optimizer: torch.optim.Optimizer | None,
        allocated: Callable[[], int],
        weight_copies: Callable[[], int] = lambda: 0,
    ) -> None:
        """`allocated` and `weight_copies` are bytes at this moment."""
        self.rows: list[Row] = []
        self._weights = list(model.parameters())
        self._blocks, self._optimizer, self._allocated = blocks, optimizer, allocated
        self._weight_copies = weight_copies
        self._workspaces: int | None = None
        self._model_bytes = sum(weight.nbytes for weight in self._weights)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._started_ns = 0

    def __enter__(self) -> MemoryTimeline:
        self._started_ns = time.perf_counter_ns()
        self._hooks = [block.register_forward_hook(self._passed) for block in self._blocks]
        self.note()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.note()
        for hook in self._hooks:
            hook.remove()

    def note(self) -> None:
        """Look now: by the host's clock, which runs ahead of the device as its allocations do."""
        gradients = sum(weight.grad.nbytes for weight in self._weights if weight.grad is not None)
        state = self._optimizer.state.values() if self._optimizer is not None else ()
        optimizer = sum(
            part.nbytes
            for moments in state
            for part in moments.values()
            if isinstance(part, Tensor)
        )
        rest = self._allocated() - self._model_bytes - gradients - optimizer
        copies = self._weight_copies()
        if self._workspaces is None:
            self._workspaces = max(0, rest - copies)
        self.rows.append(
            {
                "time_ms": (time.perf_counter_ns() - self._started_ns) / 1e6,
                "model_bytes": self._model_bytes,
                "optimizer_bytes": optimizer,
                "gradients_bytes": gradients,
                "workspaces_bytes": self._workspaces,
                "weight_copies_bytes": copies,
                "activations_bytes": max(0, rest - copies - self._workspaces),
            }
        )

    def _passed(self, _block: nn.Module, _inputs: object, output: Tensor) -> None:
        self.note()
        if output.requires_grad:
            output.register_hook(self._came_back)  # type: ignore[no-untyped-call]

    def _came_back(self, _gradient: Tensor) -> None:
        self.note()
