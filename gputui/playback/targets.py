"""Where in a recording to go: to a time, a moment, or samples back."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gputui.playback.index import Index
from gputui.playback.lines import Kind

_WAIT_S = 0.5


class Place(NamedTuple):
    """A number of events from the beginning; and whether to follow what is written from there."""

    number: int
    follows: bool = False


class Targets:
    """The places of a recording. They are None where it has not been read or folded that far."""

    def __init__(self, index: Index, *, is_live: bool) -> None:
        """`is_live` is for a recording that is still being written."""
        self._index = index
        self._line_index = index.line_index
        self._is_live = is_live

    @property
    def are_known(self) -> bool:
        """Whether every moment is; if the recording is still being written, every one so far."""
        index = self._index
        return index.is_complete or (self._is_live and index.folded >= len(self._line_index) > 0)

    def at(self, seconds: float) -> Place | None:
        """After all events up to a time."""
        if not self._line_index.wait(0, _WAIT_S):
            return None
        time_ns = self._line_index.first_ns + round(max(0.0, seconds) * 1e9)
        if self._is_live and time_ns >= self._line_index.last_ns:
            return Place(len(self._line_index), follows=True)
        known = self._line_index.wait_for_time(time_ns, _WAIT_S)
        return Place(max(1, self._line_index.number_at(time_ns))) if known else None

    def seconds_of(self, number: int) -> float:
        """When the last of that many events was, from the beginning."""
        return (self._line_index.time_of(number - 1) - self._line_index.first_ns) / 1e9

    def moment_after(self, number: int, *, is_phase: bool) -> Place | None:
        """After the next change of phase, or the next of the other moments; `number` if there is
        none.
        """
        # Read first: folding meanwhile may add the moment.
        are_known = self.are_known
        for moment in self._index.moments:
            if moment.number >= number and (moment.kind == "phase") == is_phase:
                return Place(moment.number + 1)
        return Place(number) if are_known else None

    def samples_before(self, number: int, ticks: int) -> Place:
        """After the sample that is `ticks` before the one shown at `number`."""
        samples = self._line_index.numbers(Kind.SAMPLE, 0, number)
        return Place(next((sample + 1 for sample in islice(samples, ticks, None)), 1))
