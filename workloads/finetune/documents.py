"""Documents as rows of one length: each alone, or several one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

NO_TARGET = -100
"""What torch's cross entropy leaves out."""


def draw(count: int, longest: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Documents of 2 to `longest` tokens, short ones more often: a quarter of it on average."""
    chance = random.Random(seed)
    lengths = [2 + round((longest - 2) * chance.random() ** 3) for _ in range(count)]
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def packed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of documents by row: the longest first, each into the first row with room for it
    (first-fit decreasing, at most 11/9 of the fewest rows and a few; Johnson, 1973).
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = next((row for row, left in enumerate(free) if lengths[number] <= left), None)
        if place is None:
            place = len(rows)
            rows.append([])
            free.append(room)
        rows[place].append(number)
        free[place] -= lengths[number]
    return rows


def batch(
    documents: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], room: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and targets [rows, room], and what a position must not see [rows, 1, room, room].

    A target is the next token of the same document. Padding sees itself.
    """
    tokens = torch.zeros(len(rows), room, dtype=torch.int64)
    targets = torch.full_like(tokens, NO_TARGET)
    owner = -1 - torch.arange(room).repeat(len(rows), 1)
    for row, numbers in enumerate(rows):
        start = 0
        for number in numbers:
            words = torch.tensor(documents[number])
            end = start + len(words)
            tokens[row, start:end] = words
            targets[row, start : end - 1] = words[1:]
            owner[row, start:end] = number
            start = end
    later = torch.ones(room, room, dtype=torch.bool).triu(1)
    hidden = later | (owner[:, :, None] != owner[:, None, :])
    return tokens, targets, hidden[:, None]
