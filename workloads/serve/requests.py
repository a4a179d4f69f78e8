"""Requests: when each arrives, and how long it is."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CannotRun

# Of the logarithms of lengths.
_SIGMA = 0.8
_TRACE_LIMIT_BYTES = 64 * 2**20


@dataclass(eq=False)
class Request:
    """One request and what became of it; moments in nanoseconds since the first arrival.

    `tokens` are the prompt's and those written so far; `computed` of them have their keys and
    values in `pages`. `written_ns` has the moment of each token written.
    """

    number: int
    arrival_ns: int
    prompt: int
    output: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    begun_ns: int | None = None
    written_ns: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all its tokens are written."""
        return len(self.written_ns) >= self.output

    @property
    def missing(self) -> int:
        """Tokens without keys and values yet: one of a request that decodes."""
        return len(self.tokens) - self.computed

    @property
    def is_prefill(self) -> bool:
        """Whether it has to read more than the token it wrote last."""
        return self.missing > 1 or not self.written_ns

    @property
    def most_positions(self) -> int:
        """Keys and values it needs at the end: the last token is written but not read."""
        return self.prompt + self.output - 1


def draw(
    count: int,
    arrivals: str,
    rate: float,
    prompt: int,
    output: int,
    lengths: str,
    context: int,
    vocabulary: int,
    seed: int,
) -> list[Request]:
    """`count` requests in order of arrival, the same for the same `seed`; those longer than
    `context` are cut to it.
    """
    chance = random.Random(seed)
    requests, now_s = [], 0.0
    for number in range(count):
        if number and arrivals != "burst":
            now_s += chance.expovariate(rate) if arrivals == "poisson" else 1 / rate
        reads = _length(chance, lengths, prompt)
        writes = _length(chance, lengths, output)
        requests.append(_request(number, now_s, reads, writes, context, vocabulary, chance))
    return requests


def read_trace(path: str, count: int, context: int, vocabulary: int, seed: int) -> list[Request]:
    """The first `count` requests of a trace. Raises CannotRun, with the line that is wrong."""
    chance = random.Random(seed)
    try:
        rows = sorted(_rows(Path(path).expanduser()))[:count]
    except (OSError, UnicodeError, csv.Error) as error:
        line = " ".join(str(error).split())[:200]
        raise CannotRun(f"trace: {path[:200]!r} cannot be read: {line}") from None
    if not rows:
        raise CannotRun(f"trace: {path[:200]!r} has no requests")
    first_s = rows[0][0]
    return [
        _request(number, moment_s - first_s, reads, writes, context, vocabulary, chance)
        for number, (moment_s, reads, writes) in enumerate(rows)
    ]


def _rows(path: Path) -> Iterator[tuple[float, int, int]]:
    if path.stat().st_size > _TRACE_LIMIT_BYTES:
        raise CannotRun(f"trace: {str(path)[:200]!r} is too large")
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.reader(file), 1):
            if not cells:
                continue
            try:
                moment_s, reads, writes = float(cells[0]), int(cells[1]), int(cells[2])
            except (ValueError, IndexError):
                if number == 1:
                    continue  # names of the columns
                raise CannotRun(f"trace: line {number}: give seconds, prompt, output") from None
            if not (0 <= moment_s < 1e9 and 0 < reads < 2**24 and 0 < writes < 2**24):
                raise CannotRun(f"trace: line {number}: out of range")
            yield moment_s, reads, writes


def _length(chance: random.Random, lengths: str, mean: int) -> int:
    match lengths:
        case "fixed":
            length = float(mean)
        case "uniform":
            length = chance.uniform(0.5 * mean, 1.5 * mean)
        case _:
            length = chance.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
    return max(1, round(length))


def _request(
    number: int,
    moment_s: float,
    reads: int,
    writes: int,
    context: int,
    vocabulary: int,
    chance: random.Random,
) -> Request:
    reads = min(reads, context - 1)
    writes = min(writes, context - reads)
    tokens = [chance.randrange(vocabulary) for _ in range(reads)]
    return Request(number, round(1e9 * moment_s), reads, writes, tokens)
