"""Tokens from the model, and when each arrived on the host."""

from __future__ import annotations

import time
from contextlib import nullcontext

import nvtx
import torch
from torch import Tensor

from .network import Forward, Network
from .parts import KVCache

STEP = nvtx.annotate("step")
SAMPLE = nvtx.annotate("sample")
COPY_BACK = nvtx.annotate("copy_back")
REPLAY = nvtx.annotate("replay")
CAPTURE = nvtx.annotate("capture")


class Generator:
    """Writes up to `tokens` tokens for each sequence of `prompt` [batch, length], greedily.

    Allocates all its memory here: cache, the next token on the device, and the text on the host,
    pinned if the device is a GPU, so that the copy needs no staging. `forward` is the network's own
    unless it is a compiled one.

    `started_ns` is when the prompt was given and `arrived_ns` when each token was on the host, by
    the performance counter. The copy waits for the GPU, so the host's clock is accurate.
    """

    def __init__(
        self, model: Network, prompt: Tensor, tokens: int, forward: Forward | None = None
    ) -> None:
        batch, length = prompt.shape
        table = model.token_table
        self._model = model
        self._forward = model.forward if forward is None else forward
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._prompt = prompt
        self._cache = KVCache(model.shape, batch, length + tokens, table.dtype, table.device)
        self._next = torch.empty((batch, 1), dtype=torch.int64, device=table.device)
        self._text = torch.empty(
            (tokens, batch, 1), dtype=torch.int64, pin_memory=table.device.type == "cuda"
        )
        self.started_ns = 0
        self.arrived_ns: list[int] = []

    @property
    def text(self) -> Tensor:
        """The tokens written so far, [batch, tokens], on the host."""
        return self._text[: len(self.arrived_ns), :, 0].T

    def prefill(self, *, counted: bool = True) -> None:
        """Process the prompt in one pass, which gives the first token. Discards earlier output.
        Without `counted`, in a warm-up, it is in no range `step`.
        """
        self._cache.length = 0
        self.arrived_ns = []
        self.started_ns = time.perf_counter_ns()
        self._step(self._prompt, counted)

    def decode_step(self, *, counted: bool = True) -> None:
        """The token after the newest one; `counted` as in `prefill`."""
        self._step(self._next, counted)

    def capture(self) -> None:
        """Capture a CUDA graph of every decode step: each attends to one position more than the
        previous one, and a graph's shapes are fixed. Run a decode step before.
        """
        pool = torch.cuda.graph_pool_handle()
        for number in range(1, len(self._text)):
            self._cache.length = self._prompt.shape[1] + number - 1
            graph = torch.cuda.CUDAGraph()
            with CAPTURE, torch.cuda.graph(graph, pool=pool):
                logits = self._forward(self._next, self._cache)
                with SAMPLE:
                    self._sample(logits)
            self._graphs.append(graph)

    def _step(self, tokens: Tensor, counted: bool) -> None:
        done = len(self.arrived_ns)
        with STEP if counted else nullcontext():
            if done and self._graphs:
                with REPLAY:
                    self._graphs[done - 1].replay()
            else:
                logits = self._forward(tokens, self._cache)
                with SAMPLE:
                    self._sample(logits)
            with COPY_BACK:
                self._text[done].copy_(self._next)
        self.arrived_ns.append(time.perf_counter_ns())

    def _sample(self, logits: Tensor) -> None:
        # Padding has weights too, but stands for no word.
        words = logits[:, : self._model.shape.vocabulary]
        torch.argmax(words, dim=-1, keepdim=True, out=self._next)
