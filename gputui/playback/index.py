"""The state of a recording at any moment: folded ahead of the player, with checkpoints on the way.

LineIndex first locates its lines. Then a fold of everything except captures that sums make
unnecessary finds the moments and saves states; last, if there are captures, a fold of everything
saves states that need no sums. Until then, a requested state is made from the nearest one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter

import msgspec

from gputui.base.decoding import json_decoder
from gputui.model.events import AnyEvent, CaptureDelta, CaptureSum
from gputui.playback.fold import Decoded, Fold, Kept
from gputui.playback.line_index import LineIndex
from gputui.playback.lines import Kind
from gputui.playback.moments import Moment, Notes, OpenRanges
from gputui.state import Session
from gputui.store.journal.reader import RecordingReader

SNAPSHOTS = 384
"""States kept; beyond this every second one is dropped and the spacing doubles."""

STATES_BYTES = 256 << 20
"""The same for their size: a recording's names and paths are in each, however many there are."""

FIRST_SPACING = 32
"""Initial number of lines between states."""

MOMENTS = 20_000

_WORK_S = 0.02
_REST_S = 0.004
"""After each stretch of work the index yields the processor to the screen."""

_WAIT_S = 0.5
_MOST_AT_ONCE = 512

_open_ranges = json_decoder(OpenRanges)


class Index:
    """The events of a recording by line number and by time; states at any of them."""

    def __init__(
        self,
        recording: RecordingReader,
        *,
        live: bool = False,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """`live` is for events that are passed on as they arrive; `notify` is called when more
        states are kept.
        """
        self.line_index = LineIndex(recording, live=live)
        self._notify = notify
        self._lock = threading.Lock()
        self._spacing = FIRST_SPACING
        self._numbers: list[int] = []
        self._kept: list[Kept] = []
        self._calm = threading.Event()
        self._calm.set()
        self._closing = False
        self._notes = Notes()
        self.moments: list[Moment] = []
        self.folded = 0
        """Lines before this one have been folded: their states are exact, their moments known."""
        self.is_complete = False

    def __len__(self) -> int:
        return len(self.line_index)

    def build(self) -> None:
        self.line_index.read()
        self.fold()

    def fold(self) -> None:
        """Fold what has been read, to the recording's end. Runs in a thread beside
        `line_index.read`.
        """
        self._fold_ahead(Fold(Session()), self._note)
        self.is_complete = not self._closing
        self._notify()
        if self.line_index.has_captures:
            self._fold_ahead(Fold(Session(), whole=True), lambda *_: None)

    def close(self) -> None:
        """Stop reading and folding, and release the states."""
        self.line_index.close()
        with self._lock:
            self._closing = True
            self._notify = lambda: None
            self._kept, self._numbers = [], []
        self._calm.set()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """The processor is needed elsewhere: fold nothing ahead meanwhile."""
        self._calm.clear()
        try:
            yield
        finally:
            self._calm.set()

    def events(self, first: int, last: int) -> Iterator[AnyEvent]:
        """The events of lines `first` to before `last`, decoded lazily."""
        kinds = (Kind.NOTHING, Kind.SUM, Kind.PIECE)
        line_index = self.line_index
        numbers = (n for n in range(first, last) if line_index.kind_of(n) not in kinds)
        for number, line in line_index.lines(numbers):
            event = line_index.event(number, line)
            if event is not None and not isinstance(event, CaptureSum):
                yield event

    def state(self, number: int) -> tuple[Session, bool]:
        """An independent session folded from everything before a line; and whether it is exact:
        what was not folded ahead may lack old samples (see Fold.leap).
        """
        with self._lock:
            place = bisect_right(self._numbers, number)
            kept = self._kept[place - 1] if place else None
        fold = kept.fold() if kept else Fold(Session())
        fold.leap(self.line_index, number)
        return fold.session, not fold.is_rough

    def _fold_ahead(self, fold: Fold, note: Callable[[int, int, Sequence[Decoded]], None]) -> None:
        began = time.monotonic()
        line_index = self.line_index
        while not self._closing:
            first = fold.number
            boundary = (first // self._spacing + 1) * self._spacing
            last = min(len(line_index), boundary, first + _MOST_AT_ONCE)
            if last <= first:
                if line_index.is_complete and len(line_index) <= first:
                    return
                line_index.wait(first, _WAIT_S)
                continue
            decoded = []
            for entry in fold.advance(line_index, last):
                decoded.append(entry)
                if time.monotonic() - began > _WORK_S:
                    time.sleep(_REST_S)
                    self._calm.wait()
                    began = time.monotonic()
            note(first, last, decoded)
            self.folded = max(self.folded, last)
            if last == boundary:
                with suppress(OverflowError):  # then an earlier state has to do
                    self._keep(fold.keep())
                self._notify()

    def _keep(self, kept: Kept) -> None:
        with self._lock:
            if self._closing:
                return
            place = bisect_left(self._numbers, kept.number)
            if self._numbers[place : place + 1] == [kept.number]:
                self._kept[place] = kept
            else:
                self._numbers.append(kept.number)
                self._kept.append(kept)
            while len(self._kept) > SNAPSHOTS or self._size_bytes() > STATES_BYTES:
                self._thin_out()

    def _size_bytes(self) -> int:
        return sum(kept.state.size_bytes for kept in self._kept)

    def _thin_out(self) -> None:
        self._spacing *= 2
        self._kept = [kept for kept in self._kept if kept.number % self._spacing == 0]
        self._numbers = [kept.number for kept in self._kept]

    def _note(self, first: int, last: int, decoded: Sequence[Decoded]) -> None:
        """Find the moments among lines; of captures, decode no more than they need."""
        line_index = self.line_index
        seen: list[tuple[int, AnyEvent | OpenRanges]] = [
            (number, event)
            for number, event in decoded
            if not isinstance(event, CaptureDelta | CaptureSum)
        ]
        captures = sorted(line_index.numbers(Kind.CAPTURE, first, last))
        for number, line in line_index.lines(captures):
            event: AnyEvent | CaptureSum | OpenRanges | None
            try:
                event = _open_ranges.decode(line)
            except (msgspec.MsgspecError, UnicodeError):
                event = line_index.event(number, line)
            if isinstance(event, OpenRanges | CaptureDelta):
                seen.append((number, event))
        for number, one in sorted(seen, key=itemgetter(0)):
            moment = self._notes.see(one, number)
            if moment is not None and len(self.moments) < MOMENTS:
                self.moments.append(moment)
