"""A run as events: a program that gputui starts or attaches to, what it prints and reports, and
what is captured of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gputui.base.sanitize import masked_words, sanitize
from gputui.base.standard_streams import say
from gputui.collect import child_reports
from gputui.collect.catalogue import MODULE
from gputui.collect.child import Child, ChildEnding, LineBatch
from gputui.collect.child_reports import RunReports
from gputui.collect.supervisor import is_alive
from gputui.inject import ATTACH_COST_PERCENT, Annotate, CaptureOptions, TraceSampling, within_cost
from gputui.inject.attach import attach, shared_memory_of
from gputui.inject.environment import (
    SHARED_MEMORY,
    InTheWay,
    capture_environment,
    create_capture_folder,
    library_path,
)
from gputui.inject.target import PYTHON_FAILED, AttachError, Word, WordError
from gputui.model.events import AnyEvent, RunAskedToEnd, RunEnded, RunOutput, RunStarted
from gputui.model.units import parameter

if TYPE_CHECKING:
    from gputui.attribute.reader import CaptureReader
    from gputui.model.hub import Numbering
    from gputui.store.trace import TraceWriter


# What a person asks to run.


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a workload by name with its parameters, or a command. With `pid`, a process that
    runs already.
    """

    kind: Literal["workload", "command"]
    name: str
    command: tuple[str, ...]
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    step_range: str | None = None
    pid: int | None = None

    @classmethod
    def of_workload(
        cls,
        name: str,
        parameters: Mapping[str, str | int | float | bool],
        step_range: str | None,
    ) -> RunRequest:
        """A workload of the catalogue, with parsed parameters."""
        words = [
            word for key, value in parameters.items() for word in (f"--{key}", parameter(value))
        ]
        # -P: no module of the folder that gputui was started in stands for one of Python's own.
        command = (sys.executable, "-P", "-m", MODULE, name, *words)
        return cls("workload", name, command, dict(parameters), step_range)

    @classmethod
    def of_command(cls, command: Sequence[str]) -> RunRequest:
        return cls("command", os.path.basename(command[0]) or command[0], tuple(command))


# A run as events: a child, what it prints and reports, and what is captured of it.

Emit = Callable[[Sequence[AnyEvent]], None]

# What torch.profiler prints if another tool already holds the process's only CUPTI subscription.
_REFUSED = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"

_TWO = (
    "a profiler in the command needs CUPTI too, which serves only one: it gets no CUDA "
    "events. To leave CUDA to it, run with --no-kernels"
)


class TracedRun:
    """One run in a thread of its own, from start to RunEnded."""

    def __init__(
        self,
        number: int,
        request: RunRequest,
        emit: Emit,
        *,
        interval_s: float,
        numbering: Numbering,
        capture: CaptureOptions | None = None,
        pass_through: bool = False,
        after: TracedRun | None = None,
        trace: TraceWriter | None = None,
        recording: Callable[[], Path | None] = lambda: None,
        at_edges: Callable[[], None] = lambda: None,
    ) -> None:
        """`emit` is called from the run's threads; RunEnded is its last event, also kept as
        `ended`. `recording` gives the session's file: a memory snapshot left by the child is moved
        beside it. `at_edges` is called when the child starts and when it has ended.

        The child starts once the run `after` has ended.
        """
        self.number = number
        self.request = request
        self._emit = emit
        self._interval_s = interval_s
        self._numbering = numbering
        self._capture = capture or CaptureOptions()
        self._pass_through = pass_through
        self._after = after
        self._trace = trace
        self._recording = recording
        self._at_edges = at_edges
        self._child: Child | None = None
        self._reader: CaptureReader | None = None
        self._stop_wanted = False
        self._lock = threading.Lock()
        self._reports = RunReports(number)
        self._told_of_profiler = False
        self._started = False
        self._child_ended_ns: int | None = None
        # From then on no rank died: after Ctrl-C some rank always had.
        self._asked_ns: int | None = None
        self.ended: RunEnded | None = None
        # A child that cannot be killed must not delay the exit.
        self._thread = threading.Thread(target=self._main, name=f"run-{number}", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the child."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the run to end. Returns at once."""
        self._ask()
        with self._lock:
            self._stop_wanted = True
            if self._child is not None:
                self._child.stop()
            if self._reader is not None:
                self._reader.hurry()

    def interrupt(self) -> None:
        """Pass a Ctrl-C on to the child and its descendants. One that is not there yet is started
        and ended, as by a Ctrl-C at once."""
        self._ask()
        with self._lock:
            if self._child is not None:
                self._child.interrupt()
            else:
                self._stop_wanted = True

    def _ask(self) -> None:
        """Note when it was first asked to end: before it is, so that no rank's end is earlier."""
        with self._lock:
            is_first = self._asked_ns is None
            asked_ns = self._asked_ns = self._asked_ns or time.time_ns()
        if is_first and self._started and self.ended is None:
            # At that moment, not at the end: while torchrun waits for 30 s, the rank that had
            # obeyed was said to have died.
            self._emit([RunAskedToEnd(time_ns=asked_ns, run=self.number)])

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it came in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_active(self) -> bool:
        """Whether RunEnded is still to come."""
        return self._thread.is_alive()

    def _main(self) -> None:
        if self._after is not None:
            self._after.join()
            self._after = None
        try:
            ending = self._run_child()
        except Exception as error:
            # Whoever waits for the run's end must learn of it, and why.
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.strerror:
                why = f"{error.strerror.lower()}: {error.filename or 'its pipes'}"
            ending = ChildEnding(126, None, f"gputui could not run {self.request.name}: {why}")
        if not self._started:
            self._start(None, InTheWay())
        self.ended = self._ended(ending)
        self._emit([self.ended])

    def _reader_of(self, folder: Path) -> CaptureReader:
        # Brings NumPy, which watching a machine never needs: in this thread, with the first run.
        from gputui.attribute.reader import CaptureReader
        from gputui.counters import RunCounters

        return CaptureReader(
            folder,
            self.number,
            self.request.step_range,
            self._numbering,
            trace=self._trace,
            max_cost_percent=self._max_cost_percent,
            counters=RunCounters(self._trace is not None, in_windows=self._sampling is not None)
            if self._capture.counters
            else None,
        )

    def _run_child(self) -> ChildEnding:
        with (
            create_capture_folder() as folder,
            create_capture_folder(child_reports.SNAPSHOT_ROOM_BYTES) as private,
        ):
            environment, in_the_way = capture_environment(
                folder,
                self._capture.kernels,
                os.environ,
                self._capture.graph_trace,
                self._capture.annotate,
                self._capture.capture_range or self._sampling,
                self.request.command,
                line_rate_hz=self._capture.line_rate_hz if self._capture.kernels else 0,
                step_marks=self._capture.step_marks,
                library_calls=self._capture.library_calls,
            )
            left = private / child_reports.SNAPSHOT_FILE
            environment[child_reports.SNAPSHOT_VARIABLE] = str(left)
            reader = self._reader_of(folder)
            with self._lock:
                child = self._child = Child(
                    self.request.command,
                    environment,
                    name=self.request.name,
                    pass_through=self._pass_through,
                )
                self._reader = reader
                reader.watch()
                if self._stop_wanted:
                    child.stop()
                    reader.hurry()

            def on_start(pid: int) -> None:
                self._start(pid, in_the_way)
                self._at_edges()
                reader.start(self._emit, self._interval_s)

            try:
                ending = child.run(on_start, self._output)
                self._child_ended_ns = time.time_ns()
                self._at_edges()
                return ending
            finally:
                reader.stop()
                self._say(child_reports.keep_snapshot(left, self._recording(), self.number))

    def _say(self, text: str | None) -> None:
        if text is not None:
            lines = (sanitize(f"gputui: {text}"),)
            self._emit(
                [RunOutput(time_ns=time.time_ns(), run=self.number, stream="stderr", lines=lines)]
            )

    def _ended(self, ending: ChildEnding) -> RunEnded:
        reason = ending.reason
        if self._reports.error and ending.exit_code != 0:
            reason = f"{self._reports.error} ({reason})"
        return RunEnded(
            time_ns=time.time_ns(),
            run=self.number,
            exit_code=ending.exit_code,
            signal=ending.signal,
            reason=sanitize(f"stopped: {reason}" if self._stop_wanted else reason, 1000),
            stopped=self._stop_wanted,
            child_ended_ns=self._child_ended_ns,
            asked_ns=self._asked_ns,
            continued=ending.continued,
            killed=ending.killed,
            left=ending.left,
        )

    def _start(self, pid: int | None, in_the_way: InTheWay) -> None:
        self._started = True
        sampling = self._sampling
        counts_steps = sampling is not None and sampling.max_cost_percent is None
        started = RunStarted(
            time_ns=time.time_ns(),
            run=self.number,
            kind=self.request.kind,
            name=sanitize(self.request.name, 200),
            arguments=tuple(sanitize(word) for word in masked_words(self.request.command)),
            parameters={
                name: sanitize(value) if isinstance(value, str) else value
                for name, value in self.request.parameters.items()
            },
            pid=pid,
            step_range=self.request.step_range,
            capture_unavailable_reason=in_the_way.certain,
            capture_feared_reason=in_the_way.feared,
            annotate="autograd" if self._annotates == "shapes" else self._annotates,
            operator_shapes=self._annotates == "shapes",
            attached=self.request.pid is not None,
            traced_step=(
                sanitize(sampling.step) if sampling and counts_steps and sampling.step else None
            ),
            max_cost_percent=self._max_cost_percent,
            captured_part=self._captured,
        )
        self._emit([started])

    @property
    def _sampling(self) -> TraceSampling | None:
        """When kernels are traced; None traces them all the time."""
        return self._capture.trace_sampling

    @property
    def _captured(self) -> str | None:
        """The part of the program that is captured, in words; None if it is all of it."""
        part = self._capture.capture_range if self._capture.kernels else None
        return None if part is None else sanitize(part.words)

    @property
    def _max_cost_percent(self) -> float | None:
        sampling = self._sampling
        return sampling.max_cost_percent if sampling is not None and self._capture.kernels else None

    @property
    def _annotates(self) -> Annotate | None:
        return self._capture.annotate if library_path() is not None else None

    def _output(self, batches: list[LineBatch]) -> None:
        events: list[AnyEvent] = []
        # A profiler inside the command takes CUPTI for itself: said once, in a line of what is
        # printed.
        if not self._told_of_profiler and any(
            _REFUSED in line for batch in batches for line in batch.lines
        ):
            self._told_of_profiler = True
            self._say(_TWO)
            if self._pass_through:
                say(_TWO)
        for batch in batches:
            if batch.stream == "report":
                events += self._reports.read(batch.lines)
            else:
                events.append(
                    RunOutput(
                        time_ns=time.time_ns(),
                        run=self.number,
                        stream=batch.stream,
                        lines=tuple(batch.lines),
                        dropped_lines=batch.dropped,
                    )
                )
        self._emit(events)


# A run of a process that gputui did not start: it is attached to, and let go at the end.

# The library's thread first needs a turn on a busy machine.
WAKE_S = 5.0

SLEEP_S = 5.0
"""Longer than the library drains CUPTI."""

# What an attached process says, and whether it lives: two reads of small files.
_LOOK_S = 0.1

_CAME_LATE = (
    "attached to a running program: names of NVTX domains and strings that it registered before "
    "are unknown"
)

_KEEPS_CUPTI = (
    "torch.profiler, started for the first time while gputui is attached, gets no CUDA events"
)

REFUSED = 126
"""The exit status of a run that is none: the process was not attached to."""


def request_of_pid(pid: int) -> RunRequest:
    """What attaching to process `pid` asks for. Raises AttachError without such a process."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        raise AttachError(f"there is no process {pid}") from None
    command = tuple(text.rstrip("\0").split("\0")) if text else (f"process {pid}",)
    name = os.path.basename(command[0]) or command[0]
    return RunRequest("command", name, command, pid=pid)


class AttachedRun(TracedRun):
    """An attached run. Ending it detaches from the process, which goes on."""

    @property
    def _sampling(self) -> TraceSampling | None:
        if self._capture.says_when:
            return self._capture.trace_sampling
        return within_cost(ATTACH_COST_PERCENT)

    @property
    def _annotates(self) -> Annotate | None:
        return None  # not asked for: done where the process has torch

    def stop(self) -> None:
        """Ask to detach. Returns at once."""
        with self._lock:
            self._stop_wanted = True
            if self._reader is not None:
                self._reader.hurry()

    def interrupt(self) -> None:
        """Detach: a Ctrl-C is meant for gputui, not for a program that others started."""
        self.stop()

    def _run_child(self) -> ChildEnding:
        pid = self.request.pid
        assert pid is not None
        with shared_memory_of(pid) as place, create_capture_folder(place=place) as folder:
            try:
                word = attach(pid)
            except AttachError as error:
                return ChildEnding(REFUSED, None, str(error))
            reader = self._reader_of(folder)
            try:
                with self._lock:
                    self._reader = reader
                reader.watch()
                try:
                    self._wake(word, folder, place)
                except WordError as error:
                    return ChildEnding(REFUSED, None, f"process {pid}: {error}")
                self._start(pid, InTheWay())
                if word.page.came_late:
                    self._say(_CAME_LATE)
                if self._capture.kernels:
                    self._say(_KEEPS_CUPTI)
                reader.start(self._emit, self._interval_s)
                return self._watch(pid, word)
            finally:
                self._let_go(word)
                self._child_ended_ns = time.time_ns()
                reader.stop()
                word.close()

    def _wake(self, word: Word, folder: Path, place: Path | None) -> None:
        sampling = self._sampling
        word.wake(
            SHARED_MEMORY / folder.name if place is not None else folder,
            kernels=self._capture.kernels,
            modules=self._capture.annotate is not None,
            sampling=sampling.encode() if sampling is not None else "",
            timeout_s=WAKE_S,
        )

    def _watch(self, pid: int, word: Word) -> ChildEnding:
        """Wait for the end of the process, or for somebody to end the looking."""
        name = f"{sanitize(self.request.name, 200)} ({pid})"
        said: set[str] = set()
        while not self._stop_wanted:
            if not _lives(pid, word):
                return ChildEnding(0, None, f"{name} has ended")
            if not word.is_awake:
                self._stop_wanted = True  # by another's: it did not end by itself
                return ChildEnding(0, None, f"{name} was detached by gputui detach")
            for line in _lines(word):
                if line not in said:
                    said.add(line)
                    self._say(line)
            time.sleep(_LOOK_S)
        return ChildEnding(0, None, f"detached from {name}, which keeps running")

    def _let_go(self, word: Word) -> None:
        pid = self.request.pid
        if word.is_awake and pid is not None and _lives(pid, word) and not word.sleep(SLEEP_S):
            self._say(f"process {pid} has not fallen asleep yet: it does as soon as it can")


def _lives(pid: int, word: Word) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return is_alive(fields) and int(fields[19]) == word.page.start_ticks
    except (OSError, IndexError, ValueError):
        return False


def _lines(word: Word) -> list[str]:
    """What the process has to say."""
    lines = []
    if word.page.python == PYTHON_FAILED:
        lines.append("no ranges around torch modules: the hooks could not be set")
    if word.page.nvtx_held:
        lines.append("some libraries' NVTX ranges are not seen: another tool has them")
    return lines
