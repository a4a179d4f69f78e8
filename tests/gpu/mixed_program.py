"""A program with all that is hard to attribute: autograd's threads, a CUDA graph, two streams.

    python tests/gpu/mixed_program.py [STEPS]

Deterministic: every run launches the same kernels.
"""

from __future__ import annotations

import sys

import torch
from torch import nn


def main(steps: int) -> None:
    """Train for some steps, replay a graph in each, and copy on a stream of its own."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256))
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    side = torch.cuda.Stream()
    still = torch.randn(64, 256, device="cuda")
    pinned = torch.empty(64, 256).pin_memory()

    # The graph's own warm-up, on a side stream as PyTorch asks for.
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            (still @ still.T).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        score = (still @ still.T).relu().sum()

    for _ in range(steps):
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.range_push("forward")
        loss = model(torch.full((64, 256), 0.5, device="cuda")).square().mean()
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push("backward")
        loss.backward()
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push("graph")
        graph.replay()
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push("side stream")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            pinned.copy_(still, non_blocking=True)
            still.add_(0.001)
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_pop()
        torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    print(f"{steps} steps, loss {loss.item():.6f}, score {score.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
