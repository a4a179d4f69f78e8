"""One link to another host: its state, its clock, and the events that come through it.

For `fleet`, which holds one link per host. A host without gputui is read through its `nvidia-smi`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from gputui.base import VERSION, JournalError
from gputui.base.sanitize import sanitize
from gputui.collect.hosts import (
    MOST_NOISE_BYTES,
    Failure,
    FailureKind,
    FarOptions,
    FarRun,
    Hello,
    HostTarget,
    Pipe,
    SilentError,
    ended_failure,
    no_command_failure,
    no_figures_failure,
    no_hello_failure,
    no_journal_failure,
    only_noise_failure,
    over_failure,
    read_line,
    refused_there_failure,
    silent_failure,
    would_ask_failure,
    wrong_version_failure,
)
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    CaptureSum,
    ClockRead,
    GpuFacts,
    GpuSample,
    Header,
    HostFacts,
    HostSample,
    HostUnavailable,
    MachineSample,
    RunEnded,
    RunStarted,
)
from gputui.state.session import ClockOffset, HostNews, Link, State
from gputui.store.journal.reader import DamagedError, JournalReader
from gputui.store.journal.reader import Written as Recorded

# The difference between two hosts' clocks, from round trips over the link.

ROUND_TRIPS = 8
"""The quickest of these counts: what delays one trip delays it in one direction."""


class ClockEstimate:
    """Offsets of the newest round trips (Cristian, 1989: the other clock was read between the
    question and its answer; the middle is the estimate, half the round trip its error).
    """

    def __init__(self) -> None:
        self._trips: deque[ClockOffset] = deque(maxlen=ROUND_TRIPS)

    def add(self, asked_ns: int, there_ns: int, answered_ns: int) -> None:
        """A round trip; one that ends before it began is a clock that was set, or a lie."""
        if answered_ns >= asked_ns:
            middle_ns = (asked_ns + answered_ns) // 2
            self._trips.append(ClockOffset(there_ns - middle_ns, (answered_ns - asked_ns + 1) // 2))

    @property
    def best(self) -> ClockOffset | None:
        """The offset with the smallest error so far; None before the first round trip."""
        return min(self._trips, key=lambda trip: trip.error_ns, default=None)


# A host without gputui, as its `nvidia-smi` prints it: its devices, and nothing else.

_MIB = 1 << 20

# A line of nvidia-smi has 12 fields; what is longer is none.
_LINE_BYTES = 4096

# No host has more; a stream that never repeats an index is not nvidia-smi's.
_MOST_GPUS = 256

_FACTS = ("index", "uuid", "name", "driver_version")

# nvidia-smi's name of each field, ours, and what one of its units is of ours.
_FIGURES = {
    "utilization.gpu": ("utilization_percent", 1),
    "memory.used": ("memory_used_bytes", _MIB),
    "memory.total": ("memory_total_bytes", _MIB),
    "power.draw": ("power_watts", 1),
    "power.limit": ("power_limit_watts", 1),
    "temperature.gpu": ("temperature_celsius", 1),
    "clocks.sm": ("sm_clock_mhz", 1),
    "clocks.mem": ("memory_clock_mhz", 1),
}

_WHOLE = ("memory_used_bytes", "memory_total_bytes", "sm_clock_mhz", "memory_clock_mhz")

REASON = "only nvidia-smi is there: its devices, without processes, the host and counters"


def words(interval_s: float) -> list[str]:
    """The nvidia-smi command that prints all figures of a host each `interval_s` seconds."""
    return [
        "nvidia-smi",
        f"--query-gpu={','.join((*_FACTS, *_FIGURES))}",
        "--format=csv,noheader,nounits",
        f"--loop-ms={max(100, int(interval_s * 1000))}",
    ]


def events(stream: BinaryIO, name: str, interval_s: float) -> Iterator[AnyEvent]:
    """What it prints as the events of a host called `name`, by this end's clock, until it ends.

    A sample is complete when the first GPU comes again. A line that cannot be read ends it.
    """
    gpus: dict[int, tuple[GpuFacts, GpuSample, str]] = {}
    has_header = False
    while (line := stream.readline(_LINE_BYTES)).endswith(b"\n"):
        reading = _gpu(line)
        if reading is None or len(gpus) > _MOST_GPUS:
            return
        if reading[1].index in gpus:
            if not has_header:
                has_header = True
                yield from _first(gpus, name, interval_s)
            now_ns = time.time_ns()
            samples = tuple(sample for _, sample, _ in gpus.values())
            yield MachineSample(time_ns=now_ns, host=HostSample(), gpus=samples)
            gpus.clear()
        gpus[reading[1].index] = reading


def _first(
    gpus: dict[int, tuple[GpuFacts, GpuSample, str]], name: str, interval_s: float
) -> Iterator[AnyEvent]:
    now_ns = time.time_ns()
    (_, _, driver), *_ = gpus.values()
    yield Header(
        time_ns=now_ns,
        schema=JOURNAL_SCHEMA,
        gputui_version=VERSION,
        python_version="",
        monotonic_ns=time.monotonic_ns(),
        interval_s=interval_s,
        host=HostFacts(hostname=name, system="unknown system", cpu_count=0, memory_total_bytes=0),
        driver_version=driver,
        gpus=tuple(facts for facts, _, _ in gpus.values()),
    )
    fields = ("processes", *HostSample.__struct_fields__)
    yield HostUnavailable(time_ns=now_ns, reasons=dict.fromkeys(fields, REASON))


def _gpu(line: bytes) -> tuple[GpuFacts, GpuSample, str] | None:
    text = sanitize(line.decode(errors="replace").rstrip("\r\n"))
    (cells,) = csv.reader([text], skipinitialspace=True)
    if len(cells) != len(_FACTS) + len(_FIGURES) or not cells[0].isdigit():
        return None
    index, uuid, name, driver = int(cells[0]), cells[1], cells[2], cells[3]
    if index >= 2**31:
        return None
    figures = {
        field: _number(cell, factor, whole=field in _WHOLE)
        for cell, (field, factor) in zip(cells[len(_FACTS) :], _FIGURES.values(), strict=True)
    }
    memory = figures["memory_total_bytes"]
    facts = GpuFacts(
        index=index,
        uuid=uuid,
        name=name,
        memory_total_bytes=None if memory is None else int(memory),
        power_limit_watts=figures["power_limit_watts"],
    )
    return facts, GpuSample(index=index, **figures), driver  # type: ignore[arg-type]


def _number(cell: str, factor: int, *, whole: bool) -> float | None:
    """None for "[N/A]" and whatever else is no figure."""
    try:
        value = float(cell) * factor
    except ValueError:
        return None
    if not math.isfinite(value) or abs(value) >= 2**63:
        return None
    return int(value) if whole else value


# One link: a thread that opens the pipe, reads the journal from it, and opens it again.

HANDSHAKES = 8
"""At once: sshd refuses connections from the tenth on (MaxStartups 10:30:100), and one jump host
sees them all.
"""

# Between questions for the time there. The far end takes silence of a minute (WATCHER_SILENCE_S) as
# the end of this one.
ASK_S = 5.0

# Doubling from 1 s: a host that reboots is seen again within a minute of being up, and one that is
# gone is not hammered.
_LONGEST_WAIT_S = 60.0

# A link that was up this long did not fail for a reason that repeats at once: waits begin at 1 s
# again.
_HEALTHY_S = 60.0


Opened = tuple[Pipe, BinaryIO, Hello | None]
"""A pipe, its output after the far end's first line, and that; None if it ended before."""


class HostLink:
    """The link to one host. `emit` gets its news, from the link's own thread."""

    def __init__(
        self,
        target: HostTarget,
        options: FarOptions,
        emit: Callable[[HostNews], None],
        handshakes: threading.Semaphore,
    ) -> None:
        self.target = target
        self._options = options
        self._emit = emit
        self._handshakes = handshakes
        self._end = threading.Event()
        self._settled = threading.Event()
        self._pipe: Pipe | None = None
        self._clock = ClockEstimate()
        self._link = Link()
        self._was_up = False
        self.failure: Failure | None = None
        """Why the newest try failed; None while the link is up."""
        self.recording = options.run.recording if options.run else ""
        """The file there that is followed, as soon as it is known."""
        self.run_started: RunStarted | None = None
        self.run_ended: RunEnded | None = None
        """The newest run of the recording that is followed."""
        self._offset = 0
        """The position in the recording of the first byte that was not taken."""
        self._newest_ns = 0
        self._asks_to_stop = False
        self._next: FarRun | None = None
        self._is_visit = False
        """Whether readings go on after the run that is followed."""
        self._why_not = ""
        self._thread = threading.Thread(target=self._run, name=target.name, daemon=True)

    @property
    def run_goes_on(self) -> bool:
        """Whether a run is followed whose end has not come."""
        return bool(self.recording) and (self.run_started is None or self.run_ended is None)

    @property
    def named(self) -> str:
        """The recording that is followed, as it may be typed again: as it was, or by its name."""
        typed = self._options.run.recording if self._options.run else ""
        return typed or Path(self.recording).name

    @property
    def is_up(self) -> bool:
        """Whether the link is up, so that events come through it."""
        return self._link.state == "up"

    @property
    def is_over(self) -> bool:
        """Whether the run that was followed is over and was read completely."""
        return self.failure is not None and self.failure.kind is FailureKind.OVER

    def start(self) -> None:
        """Begin to connect. Returns at once."""
        self._thread.start()

    def settled(self, deadline_s: float) -> bool:
        """Wait until it is up or has failed, at most to a moment of the monotonic clock."""
        return self._settled.wait(max(0.0, deadline_s - time.monotonic()))

    def end(self) -> None:
        """Have it end. Returns at once."""
        self._end.set()
        if self._pipe is not None:
            self._pipe.end()

    def give_up(self, failure: Failure | None) -> None:
        """End it, for a reason that was known before."""
        self.end()
        self.failure = failure
        self._tell("failed", failure.line if failure else "")

    def join(self, deadline_s: float) -> bool:
        """Wait for its end, at most to a moment of the monotonic clock; whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def stop_run(self) -> None:
        """Ask that the run be ended that is followed: now, or as soon as the link is back."""
        self._asks_to_stop = True
        if self._pipe is not None and self.is_up:
            self._pipe.ask(b"stop\n")

    def follow(self, run: FarRun) -> None:
        """Follow a run that is begun there, in place of readings; after its end they go on."""
        self._next = run
        if self._pipe is not None:
            self._pipe.end()

    def ask_time(self) -> None:
        """Ask the other host for its time; the answer keeps the link alive."""
        pipe = self._pipe
        if pipe is not None and self.is_up:
            pipe.ask(b"t %d\n" % time.time_ns())

    def _run(self) -> None:
        waited_s = 0.5
        while not self._end.is_set():
            up_s = -time.monotonic()
            failure = self._try()
            up_s += time.monotonic()
            if self._end.is_set():
                return
            if self._next is not None:
                self._turn_to(self._next)
                continue
            if failure.kind is FailureKind.OVER:
                self._end_run()
            if self._is_visit and failure.kind in (FailureKind.OVER, FailureKind.REFUSED_THERE):
                self._turn_to(None, "" if failure.kind is FailureKind.OVER else failure.line)
                continue
            self.failure = failure
            if failure.kind is FailureKind.OVER:
                self._tell("ended", failure.line)
                return
            retries = failure.kind.retries
            self._tell("lost" if retries else "failed", failure.line)
            self._settled.set()
            if not retries:
                return
            waited_s = 1.0 if up_s > _HEALTHY_S else min(2 * waited_s, _LONGEST_WAIT_S)
            # Spread, so that links that were cut together do not all come back together.
            self._end.wait(waited_s * random.uniform(0.75, 1.25))

    def _end_run(self) -> None:
        """Notes that no more of the run comes: if its recorder was killed, nobody reported the
        run's end."""
        if self.run_started is not None and self.run_ended is None:
            self.run_ended = RunEnded(
                time_ns=self._newest_ns,
                run=self.run_started.run,
                # A recorder that was killed there left its run running on this screen.
                reason="its recorder there is gone: how it ended is unknown",
            )
            self._emit(HostNews(self.target.name, None, (self.run_ended,)))

    def _turn_to(self, run: FarRun | None, why: str = "") -> None:
        """Read something else from the next try on."""
        self._next, self._is_visit, self._why_not = None, run is not None, why
        self._options = msgspec.structs.replace(self._options, run=run)
        self.recording, self._offset, self._asks_to_stop = "", 0, False
        if run is not None:
            self.run_started = self.run_ended = None
            self._emit(HostNews(self.target.name, begins_anew=True))

    def _try(self) -> Failure:
        """Connect and read until that ends, and why it did."""
        token = secrets.token_hex(8)
        target = self.target
        self._was_up = False
        if target.by_smi:
            return self._try_smi(target)
        words = self._options.words(token, target.there, self.recording, self._offset)
        argv = target.argv(words)
        opened = self._open(argv, token)
        if isinstance(opened, Failure):
            return opened
        pipe, stream, hello = opened
        with contextlib.closing(pipe):
            if hello is not None and hello.schema != JOURNAL_SCHEMA:
                return wrong_version_failure(hello.version, hello.schema)
            if hello is not None and hello.error:
                return refused_there_failure(hello.error)
            if hello is not None:
                self.recording = hello.recording
                failure = self._read(pipe, stream)
            else:
                failure = only_noise_failure(MOST_NOISE_BYTES)
            if not pipe.is_at_end:
                return failure
            status, printed = pipe.status()
            if status == 0 and self.recording and self._was_up:
                return over_failure(self.recording)
            ended = ended_failure(target, status, printed, was_up=self._was_up)
            return would_ask_failure(ended) if ended.kind.asks and target.control else ended

    def _open(self, argv: Sequence[str], token: str) -> Opened | Failure:
        """Start the command and wait for the far end's first line, a few links at a time."""
        with self._handshakes:
            try:
                pipe = Pipe(argv, self._options.hello_s)
            except OSError:
                return no_command_failure(argv[0])
            self._pipe = pipe
            # It may have been asked to before there was a pipe to end.
            if self._end.is_set() or self._next is not None:
                pipe.end()
            stream: BinaryIO = io.BufferedReader(pipe)
            try:
                return pipe, stream, read_line(stream, token, Hello, self._options.hello_s)
            except SilentError:
                pipe.close()
                return no_hello_failure(self._options.hello_s)

    def _try_smi(self, target: HostTarget) -> Failure:
        """Tries a host that only has nvidia-smi, which begins with its figures at once."""
        try:
            with self._handshakes:
                self._pipe = pipe = Pipe(target.argv(words(self._options.interval_s)),
                                         self._options.hello_s)  # fmt: skip
        except OSError:
            return no_command_failure(target.prefix[0] if target.prefix else "ssh")
        with contextlib.closing(pipe):
            try:
                stream: BinaryIO = io.BufferedReader(pipe)
                for event in events(stream, target.name, self._options.interval_s):
                    pipe.patience_s = self._options.silence_s + self._options.interval_s
                    self._receive(event, 0)
            except SilentError:
                return silent_failure(pipe.patience_s)
            if not pipe.is_at_end:
                return no_figures_failure()
            return ended_failure(target, *pipe.status(), was_up=self._was_up)

    def _read(self, pipe: Pipe, stream: BinaryIO) -> Failure:
        """Takes events until the stream ends or is damaged; returns what is wrong with it."""
        pipe.patience_s = self._options.silence_s
        try:
            journal = JournalReader(stream, self.target.name)
            for number, line in enumerate(journal.lines(), 1):
                self._receive(journal.event(number, line), len(line))
        except SilentError:
            return silent_failure(pipe.patience_s)
        except JournalError as error:
            return no_journal_failure(str(error))
        except DamagedError:
            pass
        return no_journal_failure(journal.damage or "it ends")

    def _receive(self, event: Recorded | None, size: int) -> None:
        """Take a line of so many bytes. After a cut the first line comes again, to be read by."""
        is_again = isinstance(event, Header) and self._offset > 0
        if isinstance(event, ClockRead):
            self._clock.add(event.asked_ns, event.time_ns, time.time_ns())
            if self._link.clock != self._clock.best:
                self._link = self._link._replace(clock=self._clock.best)
                self._emit(HostNews(self.target.name, self._link))
            return
        if not self._was_up:
            self._was_up, self.failure = True, None
            self._tell("up", REASON if self.target.by_smi else self._why_not)
            self._settled.set()
            self.ask_time()
            if self._asks_to_stop:
                self.stop_run()
        if is_again:
            return
        self._offset += size if self.recording else 0
        self._newest_ns = event.time_ns if event is not None else self._newest_ns
        if isinstance(event, RunStarted):
            self.run_started, self.run_ended = event, None
        elif isinstance(event, RunEnded):
            self.run_ended = event
        if event is not None and not isinstance(event, CaptureSum):
            self._emit(HostNews(self.target.name, None, (event,)))

    def _tell(self, state: State, reason: str) -> None:
        self._link = Link(state, reason, time.time_ns(), self._link.clock)
        self._emit(HostNews(self.target.name, self._link))
