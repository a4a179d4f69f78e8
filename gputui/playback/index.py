"""The state of a recording at any moment: folded ahead of the player, with checkpoints on the way.

LineIndex first locates its lines. Then a fold of everything except captures that sums make
unnecessary finds the moments and saves states; last, if there are captures, a fold of everything
saves states that need no sums. Until then, a requested state is made from the nearest one.
"""

from __future__ import annotations

import threading
import time
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Literal

import msgspec

from gputui.base.decoding import decode_msgpack, json_decoder
from gputui.model.cards import HARMLESS_THROTTLING
from gputui.model.events import (
    Alert,
    AnyEvent,
    CaptureDelta,
    CaptureSum,
    MachineSample,
    OpenRange,
    ProcessDetached,
    RangeDefined,
    RunEnded,
    RunProgress,
    RunStarted,
)
from gputui.playback.line_index import LineIndex, LineKind
from gputui.state import HISTORY_SAMPLES, Readings, Session
from gputui.state.history import History
from gputui.store.journal.reader import RecordingReader

# Saved states of a session: encoded, except for histories, which share what they have packed.

# Names of fields and of kernels make up most of a session, and repeat.
_LEVEL = 1


class Checkpoint:
    """A saved state of a session, from which others can continue."""

    __slots__ = ("_encoded", "_histories")

    def __init__(self, session: Session) -> None:
        """Raises OverflowError where a sum exceeds 64 bits, as no machine's does."""
        histories: list[History[Any]] = []

        def put_aside(value: object) -> int:
            if not isinstance(value, History):
                raise NotImplementedError(f"a session cannot be saved with a {type(value)}")
            histories.append(value.copy())
            return len(histories) - 1

        encoded = msgspec.msgpack.encode(session, enc_hook=put_aside)
        self._encoded = zlib.compress(encoded, _LEVEL)
        self._histories = tuple(histories)

    @property
    def size_bytes(self) -> int:
        """The memory that it takes, without the histories."""
        return len(self._encoded)

    def session(self) -> Session:
        """An independent session that continues from here."""

        def put_back(_: type, place: int) -> History[Any]:
            return self._histories[place].copy()

        encoded = zlib.decompress(self._encoded)
        return decode_msgpack(encoded, Session, put_back)


# A session up to a line of a recording, decoding as little as possible.
#
# Capture events are deferred until a sum makes them unnecessary, a run ends, or somebody asks.

LEFT_BYTES = 64 << 20
"""The most capture events deferred; without sums they are folded then."""

SAMPLES_AT_ONCE = HISTORY_SAMPLES + 1024
"""Samples folded for a state while somebody waits; of more, only the newest HISTORY_SAMPLES."""

Decoded = tuple[int, AnyEvent | CaptureSum]


class RecordingFold:
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
        sampled = line_index.numbers(LineKind.SAMPLE, self.number, last)
        newest = list(islice(sampled, SAMPLES_AT_ONCE + 1))
        first = self.number
        if len(newest) > SAMPLES_AT_ONCE:
            self.is_rough = True
            first = newest[HISTORY_SAMPLES - 1]
        numbers = (
            number
            for number in range(self.number, last)
            if number >= first or line_index.kind_of(number) != LineKind.SAMPLE
        )
        self.number = last
        for _ in self._fold(line_index, self._wanted(line_index, numbers)):
            pass
        for _ in self._fold(line_index, self._undefer()):
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
            if kind in (LineKind.CAPTURE, LineKind.SUM):
                yield from self._captures(line_index, number, is_sum=kind == LineKind.SUM)
            elif kind == LineKind.RUN_ENDED:
                # What a run did comes before its end.
                yield from self._undefer()
                yield number
            elif kind == LineKind.PIECE:
                yield from self._undefer()
                self._folded.clear()
            elif kind != LineKind.NOTHING:
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
        return self._undefer() if self._bytes > LEFT_BYTES else ()

    def _undefer(self) -> list[int]:
        """The deferred lines. Later captures of the same processes are no longer deferred, and
        their sums are useless."""
        numbers = sorted(number for left in self._left.values() for number in left)
        self._folded.update(self._left)
        self._left, self._bytes = {}, 0
        return numbers


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of a fold that was saved at line `number`."""

    number: int
    state: Checkpoint
    left: dict[int, tuple[int, ...]]
    left_bytes: int
    folded: frozenset[int]
    is_whole: bool
    """Whether it holds every capture, so that a later sum would count them twice."""

    def fold(self) -> RecordingFold:
        """A fold that goes on from this state of the recording."""
        fold = RecordingFold(self.state.session(), self.number, whole=self.is_whole)
        fold._left = {process: list(numbers) for process, numbers in self.left.items()}
        fold._bytes = self.left_bytes
        fold._folded = set(self.folded)
        return fold


# What is worth jumping to in a recording.


@dataclass(frozen=True, slots=True)
class Moment:
    """Something worth jumping to. `number` counts the events before it."""

    time_ns: int
    kind: Literal["phase", "run", "exit", "throttle", "memory", "process", "alert"]
    text: str
    number: int


class OpenRanges(msgspec.Struct):
    """The part of a capture event that concerns phases: the rest need not be decoded."""

    time_ns: int
    process: int
    open_ranges: tuple[OpenRange, ...] = ()


class Notes:
    """Finds the moments as events go by."""

    def __init__(self) -> None:
        self._stages: dict[int, str] = {}
        self._open: dict[int, int] = {}
        self._throttled: dict[int, frozenset[str]] = {}
        self._names: dict[int, str] = {}

    def see(self, event: AnyEvent | OpenRanges, number: int) -> Moment | None:
        """The moment of an event, None for most."""
        match event:
            case RunStarted():
                return Moment(event.time_ns, "run", f"{event.name} started", number)
            case RunEnded():
                reason = event.reason.lower()
                lacked = "out of memory" in reason
                return Moment(event.time_ns, "memory" if lacked else "exit", event.reason, number)
            case Alert(raised=True):
                text = f"alert on {event.subject}: {event.condition}"
                return Moment(event.time_ns, "alert", text, number)
            case ProcessDetached(clean=False):
                text = f"process {event.process} vanished"
                return Moment(event.time_ns, "process", text, number)
            case RangeDefined():
                self._names[event.range] = event.name
            case RunProgress():
                return self._stage(event, number)
            case CaptureDelta() | OpenRanges():
                return self._range(event, number)
            case MachineSample():
                return self._sample(event, number)
        return None

    def _stage(self, event: RunProgress, number: int) -> Moment | None:
        if self._stages.get(event.run) == event.stage:
            return None
        self._stages[event.run] = event.stage
        return Moment(event.time_ns, "phase", event.stage, number)

    def _range(self, event: CaptureDelta | OpenRanges, number: int) -> Moment | None:
        """A phase changes when the outermost open range does: the one open longest."""
        outermost = min(event.open_ranges, key=lambda entry: entry.since_ns, default=None)
        now = outermost.range if outermost else 0
        if self._open.get(event.process, 0) == now:
            return None
        self._open[event.process] = now
        text = self._names.get(now, "outside every range")
        return Moment(event.time_ns, "phase", text, number)

    def _sample(self, event: MachineSample, number: int) -> Moment | None:
        for sample in event.gpus:
            reasons = frozenset(sample.throttle_reasons or ()) - HARMLESS_THROTTLING
            before = self._throttled.get(sample.index, frozenset())
            self._throttled[sample.index] = reasons
            if reasons - before:
                words = ", ".join(sorted(reasons - before))
                text = f"GPU {sample.index} throttles: {words}"
                return Moment(event.time_ns, "throttle", text, number)
        return None


SNAPSHOTS = 384
"""States kept; beyond this every second one is dropped and the spacing doubles."""

STATES_BYTES = 256 << 20
"""The most bytes of saved states: each has the names and paths of the recording, however many there
are."""

FIRST_SPACING = 32
"""Initial number of lines between states."""

# A list that a person leafs through; a recording of damaged steps may have one each.
MOMENTS = 20_000

# The screen's thread needs the interpreter's lock in between: it draws at most this much later.
_WORK_S = 0.02
# After each stretch of work the index yields the processor to the screen.
_REST_S = 0.004

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
        self._fold_ahead(RecordingFold(Session()), self._note)
        self.is_complete = not self._closing
        self._notify()
        if self.line_index.has_captures:
            self._fold_ahead(RecordingFold(Session(), whole=True), lambda *_: None)

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
        kinds = (LineKind.NOTHING, LineKind.SUM, LineKind.PIECE)
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
        fold = kept.fold() if kept else RecordingFold(Session())
        fold.leap(self.line_index, number)
        return fold.session, not fold.is_rough

    def _fold_ahead(
        self, fold: RecordingFold, note: Callable[[int, int, Sequence[Decoded]], None]
    ) -> None:
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
        # Every second one goes: states stay evenly spread, however long the recording is.
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
        captures = sorted(line_index.numbers(LineKind.CAPTURE, first, last))
        for number, line in line_index.lines(captures):
            event: AnyEvent | CaptureSum | OpenRanges | None
            try:
                event = _open_ranges.decode(line)
            except (msgspec.MsgspecError, UnicodeError):
                event = line_index.event(number, line)
            if isinstance(event, OpenRanges | CaptureDelta):
                seen.append((number, event))
        for number, event in sorted(seen, key=itemgetter(0)):
            moment = self._notes.see(event, number)
            if moment is not None and len(self.moments) < MOMENTS:
                self.moments.append(moment)
