"""The live source: this machine, sampled in a thread at its own rate, and the runs of one session,
behind one hub.

What a run needs is imported when one is started: the first reading of the machine comes sooner.
Heavy imports (psutil, pynvml) and slow calls (the driver) happen in the sampler's thread.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gputui.base.sanitize import masked_words, sanitize
from gputui.collect import NOTHING_WRITTEN, Written
from gputui.collect.serving_reader import ServerReader, ServingOptions
from gputui.inject import CaptureOptions
from gputui.model.events import AnyEvent, HostUnavailable
from gputui.model.hub import Hub, Numbering

if TYPE_CHECKING:
    from gputui.collect.catalogue import Catalogue, Forecaster, Value
    from gputui.collect.traced_run import RunRequest, TracedRun
    from gputui.store.journal.writer import RecordingWriter
    from gputui.store.trace import TraceWriter


MINIMUM_INTERVAL_S = 0.1
"""GPM's minimum: closer samples are invalid."""
# A day: what is longer is a mistake.
MAXIMUM_INTERVAL_S = 86_400.0

# From opening to the first tick: slightly more than GPM's 100 ms, so that it has every value.
_FIRST_WINDOW_NS = 110_000_000
# A call that hangs in the driver is left to its thread, which is a daemon.
_STOP_TIMEOUT_S = 2.0

Emit = Callable[[Sequence[AnyEvent]], None]


class Schedule:
    """Ticks at `start_ns` + k × `interval_ns`: no drift, and no burst after a stall."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        self._start_ns = start_ns
        self._interval_ns = interval_ns

    def after(self, now_ns: int) -> int:
        """The first tick after `now_ns`; missed ones are skipped."""
        passed = max(0, now_ns - self._start_ns) // self._interval_ns
        return self._start_ns + (passed + 1) * self._interval_ns


class Sampler:
    """Emits the header, then one sample per interval, each with the reasons that changed.

    `emit` is called from the sampler's thread; it should return quickly.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        only: Sequence[int] | None = None,
        arguments: Sequence[str] = (),
        written: Callable[[], Written] = lambda: NOTHING_WRITTEN,
        energy: Callable[[], bool] = lambda: True,
    ) -> None:
        """`only` are NVML indexes (None: follow CUDA_VISIBLE_DEVICES); `arguments` is the command
        line, for the header; `written` gives the recording's disk use; `energy` says whether each
        tick reads the energy counters, which takes more CPU than all else. Raises `ValueError` for
        an impossible interval.
        """
        self._only = only
        self._arguments = tuple(arguments)
        self._written = written
        self._energy = energy
        self._interval_ns = _nanoseconds(interval_s)
        self._changed = threading.Condition()
        self._interval_changed = False
        self._energy_wanted = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, emit: Emit) -> None:
        """Start the thread. A second call raises RuntimeError."""
        if self._thread is not None:
            raise RuntimeError("the sampler was already started")
        self._thread = threading.Thread(target=self._run, args=(emit,), name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it, at most two seconds (a driver may hang)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    def set_interval(self, interval_s: float) -> None:
        """Takes a sample every `interval_s` seconds from now on. Raises `ValueError`."""
        interval_ns = _nanoseconds(interval_s)
        with self._changed:
            self._interval_ns = interval_ns
            self._interval_changed = True
            self._changed.notify_all()

    def read_energy(self) -> None:
        """Emit the energy counters as soon as possible, between samples. Returns at once."""
        with self._changed:
            self._energy_wanted = True
            self._changed.notify_all()

    def _run(self, emit: Emit) -> None:
        try:
            from gputui.collect.machine_reader import MachineReader, bare_header
        except Exception as error:  # without a word, whoever waits for the header waits for ever
            emit([_unavailable(error)])
            return
        try:
            machine = MachineReader(self._only, self._arguments, self._interval_ns / 1e9)
        except Exception as error:
            reason = _stopped(error)
            emit([bare_header(self._arguments, self._interval_ns / 1e9, reason)])
            return
        try:
            # Even if already stopping: without a header there is no session.
            emit([machine.header])
            first_ns = machine.opened_ns + _FIRST_WINDOW_NS
            schedule = Schedule(first_ns, self._interval_ns)
            due_ns = first_ns
            while waited := self._wait(due_ns, schedule):
                schedule, is_due = waited
                if not is_due:
                    emit(machine.energies())
                    continue
                emit(machine.tick(self._written(), energy=self._energy()))
                due_ns = schedule.after(time.monotonic_ns())
        except Exception as error:
            emit([_unavailable(error)])
        finally:
            machine.close()

    def _wait(self, due_ns: int, schedule: Schedule) -> tuple[Schedule, bool] | None:
        """Wait for the tick. Returns the schedule in force, and whether the tick is due (else the
        energy is wanted); None to stop.
        """
        with self._changed:
            while not self._stopping:
                now_ns = time.monotonic_ns()
                if self._energy_wanted:
                    self._energy_wanted = False
                    return schedule, False
                if self._interval_changed:
                    self._interval_changed = False
                    schedule = Schedule(now_ns, self._interval_ns)
                    due_ns = min(due_ns, schedule.after(now_ns))
                if now_ns >= due_ns:
                    return schedule, True
                self._changed.wait((due_ns - now_ns) / 1e9)
        return None


def _stopped(error: Exception) -> str:
    """A bug of ours must not end the session silently."""
    return f"sampling stopped: {type(error).__name__}: {error}"


def _unavailable(error: Exception) -> HostUnavailable:
    """The event that says why no more samples come."""
    return HostUnavailable(time_ns=time.time_ns(), reasons={"sampler": _stopped(error)})


def emissions(sampler: Sampler) -> Generator[Sequence[AnyEvent], None, None]:
    """Starts sampling, and yields the events until it is closed. A slow reader misses readings: it
    never gets old ones, and the memory does not fill."""
    emitted: queue.Queue[Sequence[AnyEvent]] = queue.Queue(maxsize=1)
    sampler.start(emitted.put)
    try:
        while True:
            yield emitted.get()
    finally:
        # The sampler may be waiting to hand over what nobody takes any more.
        while not emitted.empty():
            emitted.get_nowait()
        sampler.stop()


def read_once(only: Sequence[int] | None = None) -> list[AnyEvent]:
    """The header, the reasons and one sample, over a window of 110 ms; for `--once`."""
    from gputui.collect.machine_reader import MachineReader

    machine = MachineReader(only, (), 0.0)
    try:
        left_ns = machine.opened_ns + _FIRST_WINDOW_NS - time.monotonic_ns()
        time.sleep(max(0, left_ns) / 1e9)
        return [machine.header, *machine.tick()]
    finally:
        machine.close()


def _nanoseconds(interval_s: float) -> int:
    if not MINIMUM_INTERVAL_S <= interval_s <= MAXIMUM_INTERVAL_S:
        raise ValueError(
            f"interval {interval_s:g} s: give a number of seconds from {MINIMUM_INTERVAL_S:g} "
            f"to {MAXIMUM_INTERVAL_S:g}"
        )
    return int(interval_s * 1e9)


class LiveOptions(msgspec.Struct, frozen=True):
    """The command line's options for sampling and tracing."""

    interval_s: float = 1.0
    only: tuple[int, ...] | None = None
    arguments: tuple[str, ...] = ()
    capture: CaptureOptions = msgspec.field(default_factory=CaptureOptions)
    pass_through: bool = False
    trace: TraceWriter | None = None
    serving: ServingOptions = ServingOptions()
    watch: Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]] = lambda _: ()
    """What follows from events: see Hub."""


class Live:
    """Watches the machine and runs children, one at a time. `notify` as in Hub."""

    def __init__(
        self, notify: Callable[[], None], recording: RecordingWriter, options: LiveOptions
    ) -> None:
        self.recording = recording
        self.hub = Hub(notify, recording, options.watch)
        self._options = options
        self._interval_s = options.interval_s
        # An argument may be any bytes; unsanitized, they would make the journal unreadable.
        self._arguments = tuple(map(sanitize, masked_words(options.arguments)))
        self._sampler = Sampler(
            options.interval_s, options.only, self._arguments, self._written, self._needs_energy
        )
        self._servers = ServerReader(
            options.serving, lambda: self._interval_s, self._server_roots, self.hub.emit
        )
        self._numbering = Numbering()
        self._runs = 0
        self._run: TracedRun | None = None

    def start(self) -> None:
        """Start sampling the machine, in a thread."""
        self._sampler.start(self.hub.emit)
        self._servers.start()

    def close(self) -> bool:
        """End the run and its children, stop sampling, finish the recording.

        Waits for the children as long as they may take to be ended. True if all are gone.
        """
        self.stop_run()
        gone = True
        if self._run is not None:
            from gputui.collect.child import ENDING_S

            ended = self._run.ended if self._run.join(ENDING_S) else None
            gone = ended is not None and not ended.left
        self._servers.stop()
        self._sampler.stop()
        if self.hub.awaits_header:
            from gputui.collect.machine_reader import bare_header

            # The driver hangs. Record the run all the same.
            reason = "the NVIDIA driver did not answer before the end"
            self.hub.emit([bare_header(self._arguments, self._options.interval_s, reason)])
        self.recording.close()
        if self._options.trace is not None:
            self._options.trace.close()
        return gone

    def _needs_energy(self) -> bool:
        """A screen that only watches shows no energy that changes by the tick."""
        return self._run is not None or self.recording.bytes_written is not None

    def _server_roots(self) -> Sequence[int]:
        """The process that may be a serving engine: the one that gputui attached to, or what it
        started itself."""
        if not self.has_run or self._run is None:
            return ()
        pid = self._run.request.pid
        return (os.getpid() if pid is None else pid,)

    def _written(self) -> Written:
        trace = self._options.trace
        return self.recording.bytes_written, trace.bytes_written if trace else None

    @property
    def run(self) -> TracedRun | None:
        """The newest run, which may have ended; None before the first."""
        return self._run

    @property
    def has_run(self) -> bool:
        """Whether a run was asked for that has not ended; its start may still be unsaid."""
        return self._run is not None and self._run.ended is None

    @property
    def trace(self) -> TraceWriter | None:
        """The trace that is written."""
        return self._options.trace

    @property
    def interval_s(self) -> float:
        """Seconds between samples. Setting an impossible one raises ValueError."""
        return self._interval_s

    @interval_s.setter
    def interval_s(self, seconds: float) -> None:
        self._sampler.set_interval(seconds)
        self._interval_s = seconds

    def catalogue(self) -> Catalogue:
        """The workloads there are; takes about 0.1 s. Raises CatalogueError."""
        from gputui.collect.catalogue import load_catalogue

        return load_catalogue()

    def forecaster(self) -> Forecaster:
        """Says what runs of workloads would need; to be closed."""
        from gputui.collect.catalogue import Forecaster

        return Forecaster()

    def start_workload(
        self, name: str, parameters: Mapping[str, Value], step_range: str | None = None
    ) -> None:
        """Start a workload of the catalogue; an active run is ended first."""
        from gputui.collect.traced_run import RunRequest

        self.start_run(RunRequest.of_workload(name, parameters, step_range))

    def attach(self, pid: int) -> None:
        """Attach to a process; an active run is ended first. Raises AttachError without one."""
        from gputui.collect.traced_run import request_of_pid

        # Programs that were not made to be looked at seldom have ranges of their own.
        self.start_run(
            request_of_pid(pid), msgspec.structs.replace(self._options.capture, annotate="modules")
        )

    def start_run(self, request: RunRequest, capture: CaptureOptions | None = None) -> TracedRun:
        """Start `request`, capturing what the command line says or `capture`. Returns at once; the
        run's events report its progress.
        """
        from gputui.collect.traced_run import TracedRun

        previous = self._run
        if previous is not None:
            previous.stop()
        self._runs += 1
        kind = TracedRun
        if request.pid is not None:
            from gputui.collect.traced_run import AttachedRun

            kind = AttachedRun
        self._run = kind(
            self._runs,
            request,
            self.hub.emit,
            interval_s=self._interval_s,
            numbering=self._numbering,
            capture=capture or self._options.capture,
            pass_through=self._options.pass_through,
            after=previous,
            trace=self._options.trace,
            recording=lambda: self.recording.path,
            at_edges=self._sampler.read_energy,
        )
        self._run.start()
        return self._run

    def stop_run(self) -> None:
        """Ask the run to end. Returns at once."""
        if self._run is not None:
            self._run.stop()

    def interrupt_run(self) -> None:
        """Pass a Ctrl-C on to the run's processes."""
        if self._run is not None:
            self._run.interrupt()
