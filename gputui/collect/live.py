"""The live source: this machine's sampler and the runs of one session, behind one hub.

What a run needs is imported when one is started: the first reading of the machine comes sooner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gputui.base.sanitize import masked_words, sanitize
from gputui.collect import Written
from gputui.collect.machine_reader import bare_header
from gputui.collect.sampler import Sampler
from gputui.collect.serving_reader import ServerReader, ServingOptions
from gputui.inject import CaptureOptions
from gputui.model.events import AnyEvent
from gputui.model.hub import Hub, Numbering

if TYPE_CHECKING:
    from gputui.collect.catalogue import Catalogue, Forecaster, Value
    from gputui.collect.traced_run import RunRequest, TracedRun
    from gputui.store.journal.writer import RecordingWriter
    from gputui.store.trace import TraceWriter


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
