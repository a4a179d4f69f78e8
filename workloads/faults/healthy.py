"""Programs with nothing to find."""

from __future__ import annotations

import time

import torch
from torch import nn

from .host import launch
from .models import Step, graphed, size, train_step


def healthy_training(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """A training step near the limits of the GPU."""
    if device.type != "cuda":
        return train_step(device)
    return train_step(device, width=2048, layers=16, batch=16, length=1024)


def healthy_decode(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """Decode steps replayed as one CUDA graph each."""
    if device.type != "cuda":
        return launch(False, device)
    network = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(32))).to(device).bfloat16()
    return graphed(network, torch.randn(8, 4096, device=device).bfloat16())


def healthy_copy(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """Copies at the bandwidth of the GPU's memory."""
    count = size(device, 1 << 30, 1 << 12)
    x = torch.ones(count, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)

    def step() -> None:
        for _ in range(20):
            y.copy_(x)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def healthy_server(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """A server that waits for requests most of the time."""
    decode = healthy_decode(True, device)

    def step() -> None:
        time.sleep(0.2)
        for _ in range(8):
            decode()

    return step
