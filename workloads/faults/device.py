"""Programs that give the GPU more to do than is needed, and the same programs cured of it."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from .models import Block, Step, size, train_step, training


def pageable(cure: bool, device: torch.device) -> Step:
    """Batches are copied from pageable memory."""
    rows, width = size(device, 16384, 64), size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device).bfloat16()
    batches = [torch.randn(rows, width).bfloat16() for _ in range(4)]
    if cure and device.type == "cuda":
        return _prefetching([batch.pin_memory() for batch in batches], network, 1)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal number
        number += 1
        network(batches[number % 4].to(device))

    return step


def _prefetching(batches: list[Tensor], network: nn.Module, passes: int) -> Step:
    """Copies the next batch while the network goes over this one, so many times."""
    copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(copies):
        following = batches[0].to("cuda", non_blocking=True)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal number, following
        number += 1
        torch.cuda.current_stream().wait_stream(copies)
        x = following
        x.record_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            following = batches[number % len(batches)].to("cuda", non_blocking=True)
        for _ in range(passes):
            network(x)
        if number % 16 == 0:
            torch.cuda.synchronize()

    return step


def overlap(cure: bool, device: torch.device) -> Step:
    """Copies from pinned memory stand in the same stream as the work."""
    rows, width = size(device, 16384, 64), size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device).bfloat16()
    batches = [torch.randn(rows, width).bfloat16() for _ in range(4)]
    if device.type == "cuda":
        batches = [batch.pin_memory() for batch in batches]
        if cure:
            return _prefetching(batches, network, 2)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal number
        number += 1
        x = batches[number % 4].to(device, non_blocking=True)
        for _ in range(2):
            network(x)
        if number % 16 == 0 and device.type == "cuda":
            torch.cuda.synchronize()

    return step


def tensor_cores(cure: bool, device: torch.device) -> Step:
    """Matrix products in FP32 without TF32."""
    width = size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device)
    x = torch.randn(width, width, device=device)

    @torch.no_grad()
    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if cure else nullcontext():
            network(x)

    return step


def odd_shapes(cure: bool, device: torch.device) -> Step:
    """Dimensions that are no multiple of 8."""
    width = size(device, 4096 if cure else 4095, 64 if cure else 63)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device).bfloat16()
    x = torch.randn(width, width, device=device).bfloat16()

    @torch.no_grad()
    def step() -> None:
        network(x)

    return step


def chain(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    z = z + x
    z = z * torch.sigmoid(z)
    z = z + y
    z = torch.clamp(z, -4, 4)
    return z * 0.5 + x


def unfused(cure: bool, device: torch.device) -> Step:
    """A chain of elementwise operations, each over all of memory again."""
    count = size(device, 1 << 27, 1 << 12)
    x, y = torch.randn(count, device=device), torch.randn(count, device=device)
    compute = torch.compile(chain) if cure and device.type == "cuda" else chain

    @torch.no_grad()
    def step() -> None:
        compute(x, y)

    return step


def attention(cure: bool, device: torch.device) -> Step:
    """Attention written out, its scores in memory."""
    width, length = size(device, 1024, 64), size(device, 4096, 32)
    network = nn.Sequential(*(Block(width, width // 64, not cure) for _ in range(4))).to(device)
    network = network.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    x = torch.randn(2, length, width, device=device, dtype=next(network.parameters()).dtype)

    @torch.no_grad()
    def step() -> None:
        network(x)

    return step


def leak(cure: bool, device: torch.device) -> Step:
    """Outputs of every step are kept."""
    _, adamw, loss_of, tokens = training(device, layers=6, batch=8)
    kept: list[Tensor] = []

    def step() -> None:
        torch.autograd.backward(loss_of(tokens))
        if not cure:
            kept.append(torch.zeros(size(device, 16 << 20, 16), device=device))
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def _occupy() -> None:
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        x = (x @ x).clamp(-1, 1)
        torch.cuda.synchronize()


def shared_gpu(cure: bool, device: torch.device) -> Step:
    """Another process computes on the same GPU."""
    if not cure and device.type == "cuda":
        environment = {
            name: os.environ.pop(name)
            for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
            if name in os.environ
        }
        other = multiprocessing.get_context("spawn").Process(target=_occupy, daemon=True)
        other.start()
        os.environ.update(environment)
    return train_step(device, layers=6)


def logits(cure: bool, device: torch.device) -> Step:
    """All logits go to the CPU, which chooses the token."""
    vocabulary, batch = size(device, 128_256, 512), size(device, 64, 2)
    width = size(device, 2048, 64)
    head = nn.Linear(width, vocabulary, bias=False, device=device).bfloat16()
    x = torch.randn(batch, width, device=device).bfloat16()

    @torch.no_grad()
    def step() -> None:
        scores = head(x)
        chosen = scores.argmax(-1) if cure else scores.float().cpu().argmax(-1)
        chosen.tolist()

    return step
