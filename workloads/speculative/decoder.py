"""A target, its draft, and the tokens they agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import nvtx
import torch
from torch import Tensor

from ..inference.llama import LlamaModel, random_weights
from ..inference.network import choose_back_end
from ..inference.shapes import Shape
from ..serve.engine import Engine
from ..serve.requests import Request
from ..serve.scheduler import Piece

PREFILL, STEP, DRAFT, VERIFY, ACCEPT = map(
    nvtx.annotate, ("prefill", "step", "draft", "verify", "accept")
)
_PAGE = 16


def models(
    shape: Shape, draft: int, later: float, positions: int, dtype: torch.dtype,
    device: torch.device, seed: int,
) -> tuple[LlamaModel, LlamaModel]:  # fmt: skip
    """The target, and its first `draft` layers with the same embedding and head. What the target's
    other layers add to the residual is `later` times that of random ones.
    """
    choose_back_end("auto")
    weights = random_weights(shape, dtype, device, seed)
    for layer in weights.layers[draft:]:
        layer.out.mul_(later)
        layer.down.mul_(later)
    own = replace(shape, layers=draft)
    return (
        LlamaModel(shape, weights, positions),
        LlamaModel(own, weights._replace(layers=weights.layers[:draft]), positions),
    )


class Decoder:
    """Answers `prompts` greedily, `ahead` tokens proposed before each pass of the target.

    `passes`, `drafts` count passes of the two models, `proposed`, `accepted` the tokens that were
    looked at and kept: what comes after one that is refused is not looked at. Times are the host's,
    which reads each token.
    """

    def __init__(
        self, target: LlamaModel, draft: LlamaModel, prompts: Sequence[Sequence[int]],
        tokens: int, ahead: int,
    ) -> None:  # fmt: skip
        self._tokens, self._ahead = tokens, ahead
        each = -(-(len(prompts[0]) + tokens + ahead) // _PAGE)
        self.requests = [
            Request(number, 0, len(prompt), tokens, list(prompt),
                    pages=list(range(number * each, (number + 1) * each)))
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip
        self._target = Engine(target, each * len(prompts), _PAGE)
        self._draft = Engine(draft, each * len(prompts), _PAGE)
        self._words = target.shape.vocabulary
        self._drafted = [0] * len(prompts)
        """Positions of each request whose keys and values the draft has."""
        self.passes = self.drafts = self.proposed = self.accepted = 0
        self.draft_ns = self.verify_ns = self.decode_ns = 0

    def run(self, is_stopped: Callable[[], bool], *, counted: bool = True) -> None:
        """Read the prompts and write the answers; ends early if asked to. Its passes are steps if
        they are `counted`."""
        with PREFILL:
            for request in self.requests:
                first = self._choices(self._target, [Piece(request, 0, request.prompt)])
                request.tokens.append(first[-1])
        began_ns = time.perf_counter_ns()
        while (left := [request for request in self.requests if self._missing(request) > 0]) and (
            not is_stopped()
        ):
            with STEP if counted else nullcontext():
                self._step(left)
        self.decode_ns = time.perf_counter_ns() - began_ns

    @property
    def texts(self) -> list[list[int]]:
        """What was written after each prompt."""
        return [
            request.tokens[request.prompt : request.prompt + self._tokens]
            for request in self.requests
        ]

    def _missing(self, request: Request) -> int:
        return request.prompt + self._tokens - len(request.tokens)

    def _step(self, requests: list[Request]) -> None:
        lengths = [len(request.tokens) for request in requests]
        if self._ahead:
            with DRAFT:
                self._propose(requests)
        began_ns = time.perf_counter_ns()
        with VERIFY:
            # The last token that is known, and every proposal.
            pieces = [
                Piece(request, length - 1, len(request.tokens) - length + 1)
                for request, length in zip(requests, lengths, strict=True)
            ]
            choices = self._choices(self._target, pieces)
        self.verify_ns += time.perf_counter_ns() - began_ns
        self.passes += 1
        with ACCEPT:
            for request, length in zip(requests, lengths, strict=True):
                mine, choices = choices[: self._ahead + 1], choices[self._ahead + 1 :]
                self._accept(request, length, mine)

    def _propose(self, requests: list[Request]) -> None:
        began_ns = time.perf_counter_ns()
        for _ in range(self._ahead):
            pieces = [
                Piece(request, self._drafted[request.number],
                      len(request.tokens) - self._drafted[request.number])
                for request in requests
            ]  # fmt: skip
            choices = self._choices(self._draft, pieces, only_last=True)
            for request, choice in zip(requests, choices, strict=True):
                self._drafted[request.number] = len(request.tokens)
                request.tokens.append(choice)
            self.drafts += 1
        self.draft_ns += time.perf_counter_ns() - began_ns

    def _accept(self, request: Request, length: int, choices: list[int]) -> None:
        """Keep the proposals that the target would have written, and its next token."""
        proposals = request.tokens[length:]
        kept = 0
        while kept < len(proposals) and proposals[kept] == choices[kept]:
            kept += 1
        self.accepted += kept
        self.proposed += min(kept + 1, len(proposals))
        request.tokens[length + kept :] = [choices[kept]]
        # Keys and values of refused proposals are written over.
        number = request.number
        self._drafted[number] = min(self._drafted[number], length + kept)

    def _choices(
        self, engine: Engine, pieces: list[Piece], *, only_last: bool = False
    ) -> list[int]:
        """The likeliest token after every row of `pieces`, or after the last of each."""
        batch = engine.batch(pieces)
        if not only_last:
            rows = torch.arange(len(batch.tokens), device=batch.tokens.device)
            batch = replace(batch, last=rows)
        logits: Tensor = engine.forward(batch)[:, : self._words]
        return logits.argmax(dim=-1).tolist()
