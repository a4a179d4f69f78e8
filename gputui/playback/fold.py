"""A session up to a line of a recording, decoding as little as possible.

Capture events are deferred until a sum makes them unnecessary, a run ends, or somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from gputui.model.events import AnyEvent, CaptureSum
from gputui.playback.checkpoint import Checkpoint
from gputui.playback.line_index import LineIndex
from gputui.playback.lines import Kind
from gputui.state import HISTORY_SAMPLES, Readings, Session

LEFT_BYTES = 64 << 20
"""The most capture events deferred; without sums they are folded then."""

SAMPLES_AT_ONCE = HISTORY_SAMPLES + 1024
"""Samples folded for a state while somebody waits; of more, only the newest HISTORY_SAMPLES."""

Decoded = tuple[int, AnyEvent | CaptureSum]


class Fold:
    """A session, and the capture lines not folded into it yet."""

    def __init__(self, session: Session, number: int = 0, *, whole: bool = False) -> None:
        """`session` holds what precedes line `number`. With `whole` no capture is deferred."""
        self.session = session
        self.number = number
        self.is_rough = False
        """Whether samples were skipped: long charts and averages lack them."""
        self._whole = whole
        self._left: dict[int, list[int]] = {}
        self._bytes = 0
        self._folded: set[int] = set()

    def advance(self, line_index: LineIndex, last: int) -> Iterator[Decoded]:
        """Fold the lines before `last`; returns what was decoded, by number."""
        numbers = range(self.number, last)
        self.number = last
        return self._fold(line_index, self._wanted(line_index, numbers))

    def leap(self, line_index: LineIndex, last: int) -> None:
        """Like `advance`, but fast: only the newest of many samples, plus the deferred captures."""
        sampled = line_index.numbers(Kind.SAMPLE, self.number, last)
        newest = list(islice(sampled, SAMPLES_AT_ONCE + 1))
        first = self.number
        if len(newest) > SAMPLES_AT_ONCE:
            self.is_rough = True
            first = newest[HISTORY_SAMPLES - 1]
        numbers = (
            number
            for number in range(self.number, last)
            if number >= first or line_index.kind_of(number) != Kind.SAMPLE
        )
        self.number = last
        for _ in self._fold(line_index, self._wanted(line_index, numbers)):
            pass
        for _ in self._fold(line_index, self._taken()):
            pass
        if self.is_rough:
            # Computed from part of the samples they would be wrong.
            self.session.readings = Readings()
            for run in self.session.runs.values():
                run.readings = Readings()

    def keep(self) -> Kept:
        """A saved copy of the present state. Raises OverflowError, as Checkpoint does."""
        left = {process: tuple(numbers) for process, numbers in self._left.items()}
        return Kept(
            self.number,
            Checkpoint(self.session),
            left,
            self._bytes,
            frozenset(self._folded),
            self._whole,
        )

    def _fold(self, line_index: LineIndex, numbers: Iterable[int]) -> Iterator[Decoded]:
        for number, line in line_index.lines(numbers):
            event = line_index.event(number, line)
            if event is not None:
                self.session.apply((event,))
                yield number, event

    def _wanted(self, line_index: LineIndex, numbers: Iterable[int]) -> Iterator[int]:
        """The lines to fold now, each preceded by what was deferred before it."""
        for number in numbers:
            kind = line_index.kind_of(number)
            if kind in (Kind.CAPTURE, Kind.SUM):
                yield from self._captures(line_index, number, is_sum=kind == Kind.SUM)
            elif kind == Kind.RUN_ENDED:
                # What a run did comes before its end.
                yield from self._taken()
                yield number
            elif kind == Kind.PIECE:
                yield from self._taken()
                self._folded.clear()
            elif kind != Kind.NOTHING:
                yield number

    def _captures(self, line_index: LineIndex, number: int, *, is_sum: bool) -> Iterable[int]:
        process = line_index.process_of(number)
        if self._whole or process in self._folded:
            return () if is_sum else (number,)
        left = self._left.setdefault(process, [])
        if is_sum:
            self._bytes -= sum(map(line_index.length_of, left))
            left.clear()
        left.append(number)
        self._bytes += line_index.length_of(number)
        return self._taken() if self._bytes > LEFT_BYTES else ()

    def _taken(self) -> list[int]:
        """The deferred lines; later captures of the same processes are not deferred, and sums are
        useless.
        """
        numbers = sorted(number for left in self._left.values() for number in left)
        self._folded.update(self._left)
        self._left, self._bytes = {}, 0
        return numbers


@dataclass(frozen=True, slots=True)
class Kept:
    """A saved fold."""

    number: int
    state: Checkpoint
    left: dict[int, tuple[int, ...]]
    left_bytes: int
    folded: frozenset[int]
    is_whole: bool
    """Whether it holds every capture, so that a later sum would count them twice."""

    def fold(self) -> Fold:
        """A fold that continues from there."""
        fold = Fold(self.state.session(), self.number, whole=self.is_whole)
        fold._left = {process: list(numbers) for process, numbers in self.left.items()}
        fold._bytes = self.left_bytes
        fold._folded = set(self.folded)
        return fold
