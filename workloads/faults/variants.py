"""Programs with one known fault each, and the same programs cured of it.

They are written as users write them, without NVTX: what is wrong has to be found from outside.
Each variant makes a step; the run calls it until its time is over.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

Step = Callable[[], None]


@dataclass(frozen=True)
class Variant:
    """A fault: what it is, the leaf of the time tree that should lead, and how to make it."""

    title: str
    cause: str
    make: Callable[[bool, torch.device], Step]


class Block(nn.Module):
    """A transformer block; `by_hand` writes attention out."""

    def __init__(self, width: int, heads: int, by_hand: bool = False) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
            mixed = torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v
        else:
            mixed = nnf.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(nnf.gelu(self.up(self.norm2(x))))
        return out


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(
        self, width: int, layers: int, heads: int, vocabulary: int = 50304, by_hand: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, by_hand) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _size(device: torch.device, large: int, small: int) -> int:
    return large if device.type == "cuda" else small


def _training(
    device: torch.device,
    *,
    width: int = 1024,
    layers: int = 12,
    batch: int = 8,
    length: int = 1024,
    vocabulary: int = 50304,
    by_hand: bool = False,
    **optimizer: Any,
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[Tensor], Tensor], Tensor]:
    if device.type != "cuda":
        width, layers, batch, length, vocabulary = 64, 2, 2, 32, 512
    torch.manual_seed(0)
    model = Model(width, layers, max(1, width // 64), vocabulary, by_hand).to(device)
    # Tensors of 16 bits and no autocast: one cast less to look at.
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    settings = {"fused": device.type == "cuda", **optimizer}
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-5, **settings)
    tokens = torch.randint(0, vocabulary, (batch, length + 1), device=device)

    def loss_of(inputs: Tensor) -> Tensor:
        logits = model(inputs[:, :-1])
        return nnf.cross_entropy(logits.reshape(-1, logits.shape[-1]), inputs[:, 1:].reshape(-1))

    return model, adamw, loss_of, tokens


def _train_step(device: torch.device, **how: Any) -> Step:
    _, adamw, loss_of, tokens = _training(device, **how)

    def step() -> None:
        torch.autograd.backward(loss_of(tokens))
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def _decoder(device: torch.device) -> tuple[nn.Module, Tensor]:
    width = _size(device, 768, 64)
    layers = [
        layer
        for _ in range(_size(device, 36, 4))
        for layer in (nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
    ]
    network = nn.Sequential(*layers).to(device).bfloat16().eval()
    return network, torch.randn(4, width, device=device).bfloat16()


@torch.no_grad()
def _graphed(network: nn.Module, x: Tensor) -> Step:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = network(x)

    def step() -> None:
        graph.replay()
        float(out[0, 0])

    return step


def launch(cure: bool, device: torch.device) -> Step:
    """Many kernels of a few microseconds, each launched on its own."""
    network, x = _decoder(device)
    if cure and device.type == "cuda":
        return _graphed(network, x)

    @torch.no_grad()
    def step() -> None:
        float(network(x)[0, 0])

    return step


def _slow_sample(seed: int, count: int) -> list[float]:
    # Python that decodes: as slow as parsing JSON or JPEG in one thread.
    value, out = seed, []
    for _ in range(count):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(value / 0x7FFFFFFF)
    return out


class _Samples(torch.utils.data.IterableDataset[Tensor]):
    def __init__(self, shape: tuple[int, int], work: int) -> None:
        self.shape, self.work = shape, work

    def __iter__(self) -> Iterator[Tensor]:
        seed = os.getpid()
        while True:
            seed += 1
            values = torch.tensor(_slow_sample(seed, self.work))
            yield values.repeat(self.shape[0] * self.shape[1] // self.work + 1)[
                : self.shape[0] * self.shape[1]
            ].view(self.shape)


def input_(cure: bool, device: torch.device) -> Step:
    """Batches are decoded in the main process while the GPU waits."""
    rows, width = _size(device, 4096, 64), _size(device, 4096, 64)
    work = _size(device, 200_000, 1000)
    loader = torch.utils.data.DataLoader(
        _Samples((rows, width), work),
        batch_size=None,
        num_workers=_size(device, 8, 1) if cure else 0,
        prefetch_factor=4 if cure else None,
        pin_memory=cure and device.type == "cuda",
    )
    batches = iter(loader)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(12))).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        x = next(batches).to(device, non_blocking=cure)
        with torch.autocast(device.type, torch.bfloat16):
            torch.autograd.backward(network(x).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def workers(cure: bool, device: torch.device) -> Step:
    """Too few workers: the main process waits for the next batch."""
    rows, width = _size(device, 4096, 64), _size(device, 4096, 64)
    loader = torch.utils.data.DataLoader(
        _Samples((rows, width), _size(device, 400_000, 1000)),
        batch_size=None,
        num_workers=_size(device, 12, 2) if cure else 1,
        prefetch_factor=4,
    )
    batches = iter(loader)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(12))).to(device)

    @torch.no_grad()
    def step() -> None:
        x = next(batches).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            network(x)

    return step


def _wide(device: torch.device) -> tuple[nn.Module, Tensor]:
    """Layers that keep a GPU busy for longer than their launch."""
    width = _size(device, 2048, 64)
    layers = [nn.Linear(width, width) for _ in range(_size(device, 24, 4))]
    x = torch.randn(_size(device, 8192, 64), width, device=device).bfloat16()
    return nn.Sequential(*layers).to(device).bfloat16().eval(), x


def sync(cure: bool, device: torch.device) -> Step:
    """A value is read back after every layer."""
    network, x = _wide(device)
    seen: list[float] = []

    @torch.no_grad()
    def step() -> None:
        y = x
        for layer in network.children():
            y = layer(y)
            if not cure:
                seen.append(y[0, 0].item())
        seen.append(y[0, 0].item())
        seen.clear()

    return step


def pageable(cure: bool, device: torch.device) -> Step:
    """Batches are copied from pageable memory."""
    rows, width = _size(device, 16384, 64), _size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device).bfloat16()
    batches = [torch.randn(rows, width).bfloat16() for _ in range(4)]
    if cure and device.type == "cuda":
        return _prefetching([batch.pin_memory() for batch in batches], network, device)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal number
        number += 1
        network(batches[number % 4].to(device))

    return step


def _prefetching(batches: list[Tensor], network: nn.Module, device: torch.device) -> Step:
    copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(copies):
        following = batches[0].to(device, non_blocking=True)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal number, following
        number += 1
        torch.cuda.current_stream().wait_stream(copies)
        x = following
        x.record_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            following = batches[number % len(batches)].to(device, non_blocking=True)
        for _ in range(2):
            network(x)
        if number % 16 == 0:
            torch.cuda.synchronize()

    return step


def overlap(cure: bool, device: torch.device) -> Step:
    """Copies from pinned memory stand in the same stream as the work."""
    rows, width = _size(device, 16384, 64), _size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device).bfloat16()
    batches = [torch.randn(rows, width).bfloat16() for _ in range(4)]
    if device.type == "cuda":
        batches = [batch.pin_memory() for batch in batches]
        if cure:
            return _prefetching(batches, network, device)
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
    width = _size(device, 4096, 64)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device)
    x = torch.randn(width, width, device=device)

    @torch.no_grad()
    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if cure else nullcontext():
            network(x)

    return step


def odd_shapes(cure: bool, device: torch.device) -> Step:
    """Dimensions that are no multiple of 8."""
    width = _size(device, 4096 if cure else 4095, 64 if cure else 63)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device).bfloat16()
    x = torch.randn(width, width, device=device).bfloat16()

    @torch.no_grad()
    def step() -> None:
        network(x)

    return step


def _chain(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    z = z + x
    z = z * torch.sigmoid(z)
    z = z + y
    z = torch.clamp(z, -4, 4)
    return z * 0.5 + x


def unfused(cure: bool, device: torch.device) -> Step:
    """A chain of elementwise operations, each over all of memory again."""
    count = _size(device, 1 << 27, 1 << 12)
    x, y = torch.randn(count, device=device), torch.randn(count, device=device)
    work = torch.compile(_chain) if cure and device.type == "cuda" else _chain

    @torch.no_grad()
    def step() -> None:
        work(x, y)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def attention(cure: bool, device: torch.device) -> Step:
    """Attention written out, its scores in memory."""
    width, length = _size(device, 1024, 64), _size(device, 4096, 32)
    network = nn.Sequential(*(Block(width, width // 64, not cure) for _ in range(4))).to(device)
    network = network.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    x = torch.randn(2, length, width, device=device, dtype=next(network.parameters()).dtype)

    @torch.no_grad()
    def step() -> None:
        network(x)

    return step


def allocator(cure: bool, device: torch.device) -> Step:
    """Memory is given back to the driver in every step."""
    network, x = _wide(device)

    @torch.no_grad()
    def step() -> None:
        y = x
        for number, layer in enumerate(network.children()):
            y = layer(y)
            if not cure and number % 4 == 3 and device.type == "cuda":
                torch.cuda.empty_cache()

    return step


def optimizer(cure: bool, device: torch.device) -> Step:
    """The optimizer launches several kernels for every parameter."""
    how = {"fused": True} if cure and device.type == "cuda" else {"foreach": False, "fused": False}
    return _train_step(device, width=512, layers=24, batch=4, length=256, **how)


def recompiling(cure: bool, device: torch.device) -> Step:
    """Every step compiles again, since its shape is new."""
    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    work = torch.compile(_chain, dynamic=False)
    number = 0
    least = _size(device, 1 << 20, 1 << 8)

    @torch.no_grad()
    def step() -> None:
        nonlocal number
        number += 1
        count = least if cure else least + 16 * number
        x = torch.ones(count, device=device)
        work(x, x)

    return step


def leak(cure: bool, device: torch.device) -> Step:
    """Outputs of every step are kept."""
    _, adamw, loss_of, tokens = _training(device, layers=6, batch=4)
    kept: list[Tensor] = []

    def step() -> None:
        torch.autograd.backward(loss_of(tokens))
        if not cure:
            kept.append(torch.zeros(_size(device, 16 << 20, 16), device=device))
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def _spin() -> None:
    while True:
        pass


def starved(cure: bool, device: torch.device) -> Step:
    """The launching thread shares its core with two programs that never sleep."""
    if not cure:
        core = {min(os.sched_getaffinity(0))}
        for _ in range(2):
            other = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
            other.start()
            os.sched_setaffinity(other.pid or 0, core)
        os.sched_setaffinity(0, core)
    return _train_step(device, layers=6, batch=4)


def _occupy() -> None:
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
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
    return _train_step(device, layers=6, batch=4)


def logits(cure: bool, device: torch.device) -> Step:
    """All logits go to the CPU, which chooses the token."""
    vocabulary, batch = _size(device, 128_256, 512), _size(device, 64, 2)
    width = _size(device, 2048, 64)
    head = nn.Linear(width, vocabulary, bias=False, device=device).bfloat16()
    x = torch.randn(batch, width, device=device).bfloat16()

    @torch.no_grad()
    def step() -> None:
        scores = head(x)
        chosen = scores.argmax(-1) if cure else scores.float().cpu().argmax(-1)
        chosen.tolist()

    return step


def no_cache(cure: bool, device: torch.device) -> Step:
    """Every token is computed from the whole text again."""
    width, layers, heads = _size(device, 1024, 64), _size(device, 12, 2), _size(device, 16, 2)
    model = Model(width, layers, heads, _size(device, 50304, 512)).to(device).eval()
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    first = torch.randint(0, 500, (_size(device, 8, 1), _size(device, 512, 8)), device=device)
    text = first[:, -1:] if cure else first
    # cuDNN's attention plans each new length anew, some 70 ms each: another fault.
    torch.backends.cuda.enable_cudnn_sdp(False)
    longest = _size(device, 2048, 64)

    @torch.no_grad()
    def step() -> None:
        nonlocal text
        scores = model(text)[:, -1]
        chosen = scores.argmax(-1, keepdim=True)
        chosen.tolist()
        if not cure:
            text = torch.cat((text, chosen), dim=1) if text.shape[1] < longest else first

    return step


def healthy_training(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """A training step near the limits of the GPU."""
    if device.type != "cuda":
        return _train_step(device)
    return _train_step(device, width=2048, layers=16, batch=16, length=1024)


def healthy_decode(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """Decoding by CUDA graphs."""
    if device.type != "cuda":
        return launch(False, device)
    network = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(32))).to(device).bfloat16()
    return _graphed(network, torch.randn(8, 4096, device=device).bfloat16())


def healthy_copy(cure: bool, device: torch.device) -> Step:  # noqa: ARG001 - nothing to cure
    """Copies at the bandwidth of the GPU's memory."""
    count = _size(device, 1 << 30, 1 << 12)
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
    work = healthy_decode(True, device)

    def step() -> None:
        time.sleep(0.2)
        for _ in range(8):
            work()

    return step


VARIANTS: dict[str, Variant] = {
    "launch": Variant("launch-bound", "idle.launch", launch),
    "input": Variant("input-bound, decoded in the main process", "idle.input", input_),
    "workers": Variant("input-bound, too few workers", "idle.input", workers),
    "sync": Variant("a sync in every layer", "idle.sync", sync),
    "pageable": Variant("copies from pageable memory", "busy.copy_pageable", pageable),
    "overlap": Variant("copies that are not overlapped", "busy.copy_pinned", overlap),
    "tensor_cores": Variant("no tensor cores", "busy.matmul_simt", tensor_cores),
    "odd_shapes": Variant("odd shapes", "busy.matmul_unaligned", odd_shapes),
    "unfused": Variant("an unfused chain", "busy.elementwise_chain", unfused),
    "attention": Variant("attention by hand", "busy.attention_unfused", attention),
    "allocator": Variant("allocator thrash", "idle.alloc", allocator),
    "optimizer": Variant("a slow optimizer", "idle.launch", optimizer),
    "recompiling": Variant("recompiling", "idle.compile", recompiling),
    "leak": Variant("a leak", "memory_grows", leak),
    "starved": Variant("a starved thread", "idle.scheduler", starved),
    "shared_gpu": Variant("a shared GPU", "busy.shared", shared_gpu),
    "logits": Variant("logits to the CPU", "busy.copy_pageable", logits),
    "no_cache": Variant("no KV cache", "idle.host", no_cache),
    "healthy_training": Variant("healthy: training", "", healthy_training),
    "healthy_decode": Variant("healthy: decoding by graphs", "", healthy_decode),
    "healthy_copy": Variant("healthy: copies", "", healthy_copy),
    "healthy_server": Variant("healthy: an idle server", "", healthy_server),
}
"""Every variant by name."""
