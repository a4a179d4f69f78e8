"""Programs whose CPU keeps the GPU waiting, and the same programs cured of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .device import chain
from .models import Model, Step, decoder, graphed, size, train_step, training, wide


def launch(cure: bool, device: torch.device) -> Step:
    """Many kernels of a few microseconds, each launched on its own."""
    network, x = decoder(device)
    if cure and device.type == "cuda":
        return graphed(network, x, read_every=8)

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
    def __init__(self, shape: tuple[int, int], values_decoded: int) -> None:
        self.shape, self.values_decoded = shape, values_decoded

    def __iter__(self) -> Iterator[Tensor]:
        seed = os.getpid()
        while True:
            seed += 1
            values = torch.tensor(_slow_sample(seed, self.values_decoded))
            yield values.repeat(self.shape[0] * self.shape[1] // self.values_decoded + 1)[
                : self.shape[0] * self.shape[1]
            ].view(self.shape)


def _batches(
    device: torch.device, values_decoded: int, workers: int, cure: bool
) -> Callable[[], Tensor]:
    """The next batch, on the device, in the views that a step goes over."""
    rows, width = size(device, 512, 64), size(device, 4096, 64)
    loader = torch.utils.data.DataLoader(
        _Samples((rows, width), values_decoded),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=cure and device.type == "cuda",
    )
    batches = iter(loader)
    # One thread pins all batches: they are small, and the GPU goes over many views of each.
    views = size(device, 32, 2)
    return lambda: next(batches).to(device, non_blocking=cure).repeat(views, 1)


def input_(cure: bool, device: torch.device) -> Step:
    """Batches are decoded in the main process while the GPU waits."""
    workers = size(device, 8, 1) if cure else 0
    width = size(device, 4096, 64)
    following = _batches(device, size(device, 200_000, 1000), workers, cure)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(12))).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            torch.autograd.backward(network(following()).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def workers(cure: bool, device: torch.device) -> Step:
    """Too few workers: the main process waits for the next batch."""
    count = size(device, 12, 2) if cure else 1
    width = size(device, 4096, 64)
    following = _batches(device, size(device, 150_000, 1000), count, cure)
    # A step takes the GPU longer than a few workers need for its batch, and one worker longer.
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(24))).to(device)

    @torch.no_grad()
    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            network(following())

    return step


def sync(cure: bool, device: torch.device) -> Step:
    """A value is read back after every layer."""
    network, x = wide(device)
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


def allocator(cure: bool, device: torch.device) -> Step:
    """Memory is given back to the driver in every step."""
    network, x = wide(device)

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
    # So large that the cured one keeps the GPU busy: launching the rest takes some 40 ms.
    return train_step(device, width=512, layers=24, batch=48, length=512, **how)


def recompiling(cure: bool, device: torch.device) -> Step:
    """Every step compiles again, since its shape is new."""
    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    compiled = torch.compile(chain, dynamic=False)
    number = 0
    least = size(device, 1 << 26, 1 << 8)

    @torch.no_grad()
    def step() -> None:
        nonlocal number
        number += 1
        count = least if cure else least + 16 * number
        x = torch.ones(count, device=device)
        compiled(x, x)

    return step


def _spin() -> None:
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
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
    return train_step(device, layers=6, batch=4)


def straggler(cure: bool, device: torch.device) -> Step:
    """The last of two ranks prepares each of its steps for longer."""
    network, optimizer, loss_of, tokens = training(device, layers=6, batch=4)
    # Ranks that share a GPU have Gloo, through which all gradients take longer than the step.
    shared = network.get_parameter("blocks.0.out.weight")
    is_alone = not dist.is_initialized()
    is_late = not cure and not is_alone and dist.get_rank() == dist.get_world_size() - 1
    values_decoded = size(device, 200_000, 1000)

    def step() -> None:
        if is_late:
            _slow_sample(0, values_decoded)
        torch.autograd.backward(loss_of(tokens))
        if not is_alone:
            dist.all_reduce(shared.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def no_cache(cure: bool, device: torch.device) -> Step:
    """Every token is computed from the whole text again."""
    width, layers, heads = size(device, 1024, 64), size(device, 12, 2), size(device, 16, 2)
    model = Model(width, layers, heads, size(device, 50304, 512)).to(device).eval()
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    first = torch.randint(0, 500, (size(device, 8, 1), size(device, 512, 8)), device=device)
    text = first[:, -1:] if cure else first
    # cuDNN's attention plans each new length anew, some 70 ms each: another fault.
    torch.backends.cuda.enable_cudnn_sdp(False)
    longest = size(device, 2048, 64)

    @torch.no_grad()
    def step() -> None:
        nonlocal text
        scores = model(text)[:, -1]
        chosen = scores.argmax(-1, keepdim=True)
        chosen.tolist()
        if not cure:
            text = torch.cat((text, chosen), dim=1) if text.shape[1] < longest else first

    return step
