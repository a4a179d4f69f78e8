"""What each step computes: running requests first, then the queue, within a budget of tokens.

As serving engines do it (Yu et al., 2022, Orca; Kwon et al., 2023, PagedAttention; Agrawal et al.,
2024, Sarathi-Serve): a batch is made anew at each step, prompts may be cut into pieces, and keys
and values lie in pages that are given out as they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .requests import Request

Kind = Literal["prefill", "decode", "mixed"]


class Piece(NamedTuple):
    """`length` tokens of a request from position `first` on."""

    request: Request
    first: int
    length: int

    @property
    def writes(self) -> bool:
        """Whether a token follows: all that was known of the request is computed then."""
        return self.first + self.length == len(self.request.tokens)


class Scheduler:
    """The queue, the running requests and the pages.

    `preemptions` counts how often a request was put back to the head of the queue, its pages taken:
    the one that came last, where a running one finds no page free.
    """

    def __init__(
        self, pages: int, page: int, sequences: int, budget: int, *, chunked: bool
    ) -> None:
        self.pages, self.page = pages, page
        self.sequences, self.budget, self.chunked = sequences, budget, chunked
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._free = list(range(pages - 1, -1, -1))

    @property
    def used_pages(self) -> int:
        """Pages of the KV cache that requests hold now."""
        return self.pages - len(self._free)

    def add(self, requests: Iterable[Request]) -> None:
        """Append requests to the end of the waiting queue."""
        self.waiting.extend(requests)

    def plan(self) -> list[Piece]:
        """What to compute now, with its pages; empty if there is nothing."""
        left, preemptions = self.budget, self.preemptions
        pieces: list[Piece] = []
        for request in list(self.running):
            if request not in self.running:
                break  # put back for one before it, as all after it
            count = min(request.missing, left)
            if count and self._give_pages(request, request.computed + count):
                pieces.append(Piece(request, request.computed, count))
                left -= count
        if self.preemptions > preemptions:
            return pieces  # the pages are needed here
        while self.waiting and len(self.running) < self.sequences and left:
            request = self.waiting[0]
            count = min(request.missing, left)
            if not self.chunked and count < request.missing and pieces:
                break
            if not self.chunked:
                count = request.missing  # even over the budget, where it is alone
            if self._needed(request, count) > len(self._free):
                break
            self.waiting.popleft()
            self.running.append(request)
            self._give_pages(request, count)
            pieces.append(Piece(request, 0, count))
            left = max(0, left - count)
        return pieces

    def done(self, pieces: Sequence[Piece]) -> None:
        """Take note that a plan was computed, and release those that are complete."""
        for request, first, count in pieces:
            request.computed = first + count
        for request in [running for running in self.running if running.is_done]:
            self.running.remove(request)
            self._release_pages(request)

    def _needed(self, request: Request, positions: int) -> int:
        return max(0, -(-positions // self.page) - len(request.pages))

    def _give_pages(self, request: Request, positions: int) -> bool:
        """Pages for so many positions; puts others back for them. False if it was put back."""
        while self._needed(request, positions) > len(self._free):
            last = self.running[-1]
            self._put_back(last)
            if last is request:
                return False
        request.pages += [self._free.pop() for _ in range(self._needed(request, positions))]
        return True

    def _put_back(self, request: Request) -> None:
        self.running.remove(request)
        self._release_pages(request)
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _release_pages(self, request: Request) -> None:
        self._free += reversed(request.pages)
        request.pages = []


def kind_of(pieces: Sequence[Piece]) -> Kind:
    """What a step is: prompts, single tokens, or both."""
    prompts = sum(piece.request.is_prefill for piece in pieces)
    if not prompts:
        return "decode"
    return "prefill" if prompts == len(pieces) else "mixed"
