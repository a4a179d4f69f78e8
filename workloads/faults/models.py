"""Models and steps that several faults have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

Step = Callable[[], None]


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
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
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
    """A decoder: token embedding, transformer blocks, final norm and language-model head."""

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


def size(device: torch.device, large: int, small: int) -> int:
    return large if device.type == "cuda" else small


def training(
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


def train_step(device: torch.device, **how: Any) -> Step:
    _, adamw, loss_of, tokens = training(device, **how)

    def step() -> None:
        torch.autograd.backward(loss_of(tokens))
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def decoder(device: torch.device) -> tuple[nn.Module, Tensor]:
    width = size(device, 768, 64)
    layers = [
        layer
        for _ in range(size(device, 36, 4))
        for layer in (nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
    ]
    network = nn.Sequential(*layers).to(device).bfloat16().eval()
    return network, torch.randn(4, width, device=device).bfloat16()


@torch.no_grad()
def graphed(network: nn.Module, x: Tensor, read_every: int = 1) -> Step:
    """Replays of a graph; the result is read back after so many."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = network(x)

    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        graph.replay()
        if number % read_every == 0:
            float(out[0, 0])

    return step


def wide(device: torch.device) -> tuple[nn.Module, Tensor]:
    """Layers that keep a GPU busy for longer than their launch."""
    width = size(device, 2048, 64)
    layers = [nn.Linear(width, width) for _ in range(size(device, 24, 4))]
    x = torch.randn(size(device, 8192, 64), width, device=device).bfloat16()
    return nn.Sequential(*layers).to(device).bfloat16().eval(), x
