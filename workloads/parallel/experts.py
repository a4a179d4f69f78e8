"""A mixture of experts, two a rank: tokens travel to their expert and back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranked import Ranked
from .engines import OwnBatch, all_to_all, average
from .model import Mlp, Sizes

A_RANK = 2


class Mixture(nn.Module):
    """Tokens, one layer of experts, a head. `experts` are those kept here, from `first` on, of
    `count`."""

    def __init__(self, sizes: Sizes, count: int, first: int, kept: int, ranks: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.gate = nn.Linear(sizes.hidden, count, bias=False)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        everyone = [Mlp(sizes.hidden) for _ in range(count)]
        self.experts = nn.ModuleList(everyone[first : first + kept])
        self._count, self._ranks = count, ranks

    @property
    def shared(self) -> list[nn.Parameter]:
        """Parameters that every rank holds a copy of: all but the experts."""
        return [*self.tokens.parameters(), *self.gate.parameters(), *self.head.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        flat = self.tokens(x).flatten(0, 1)
        weight, expert = self.gate(flat).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        back = self._through(flat[order], torch.bincount(expert, minlength=self._count))
        out = torch.empty_like(back).index_copy(0, order, back) * weight[:, None]
        logits: Tensor = self.head(flat + out)
        return logits.view(*x.shape, -1)

    def _through(self, sorted_tokens: Tensor, counts: Tensor) -> Tensor:
        if self._ranks == 1:
            by_expert = sorted_tokens.split(counts.tolist())  # type: ignore[no-untyped-call]
            return torch.cat([f(part) for f, part in zip(self.experts, by_expert, strict=True)])
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(self._ranks, -1).sum(1).tolist()
        received = theirs.view(self._ranks, -1).sum(1).tolist()
        arrived = all_to_all(sorted_tokens, received, sent)
        # By rank, then by expert: each expert takes its tokens of all ranks.
        own = torch.arange(len(self.experts), device=arrived.device).repeat(self._ranks)
        whose = own.repeat_interleave(theirs)
        out = torch.zeros_like(arrived)
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(whose == number).flatten()
            out = out.index_copy(0, rows, expert(arrived[rows]))
        return all_to_all(out, sent, received)


class ExpertParallel(OwnBatch):
    """Experts divided among the ranks; the rest as in data parallelism."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        count, ranks = A_RANK * rank.count, rank.count
        torch.manual_seed(seed)
        with rank.device:
            self.mixture = Mixture(sizes, count, A_RANK * rank.rank, A_RANK, ranks)
        self.model, self.modules = self.mixture, [self.mixture]
        self.optimizer = self.adam(self.model.parameters())

    def _sync(self) -> None:
        average(self.mixture.shared, self.rank.count)
        for parameter in self.mixture.experts.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.rank.count


class WholeMixture(ExpertParallel):
    """The same mixture on one rank: what its loss has to be."""

    def __init__(self, rank: Ranked, sizes: Sizes, seed: int) -> None:
        super().__init__(rank, sizes, seed)
        count = A_RANK * rank.count
        torch.manual_seed(seed)
        with rank.device:
            self.mixture = Mixture(sizes, count, 0, count, 1)
        self.model, self.modules = self.mixture, [self.mixture]
        self.optimizer = self.adam(self.model.parameters())

    def _own(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(self.rank.device), y.to(self.rank.device)

    def _sync(self) -> None:
        pass
