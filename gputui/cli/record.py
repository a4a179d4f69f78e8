"""Recording without a screen: the same sources and the same fold, with one line of progress. Also
the exit status of a run, with which the screens of this machine and of other hosts end, too."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gputui.base import JournalError
from gputui.base.sanitize import cut_to_width, sanitize
from gputui.base.standard_streams import begin_line, columns, draw, notify, release_streams, say
from gputui.collect.child import ENDING_S, GRACE_S
from gputui.collect.live import Live, LiveOptions
from gputui.collect.traced_run import RunRequest
from gputui.model import units
from gputui.model.events import Alert, RunEnded
from gputui.report.tables import metric_text
from gputui.state import Gpu, Run, Session, remarks
from gputui.store import snapshot_path
from gputui.store.journal import Limits
from gputui.store.journal.writer import JournalWriter, RecordingWriter

if TYPE_CHECKING:
    from gputui.render.prometheus_server import Exporter

# Of a program's errors: a traceback ends in what went wrong.
_LAST_LINES = 5

HEARD_S = 1.0
"""A signal is heard after that at most."""

# Longer than anything takes that ends by itself.
_CLOSING_S = ENDING_S + 5.0

# How long a command may go on after the first Ctrl-C before a line says what ends it.
_HINT_S = 5.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of `--record`. `path` None writes the journal to standard output."""

    path: Path | None
    live: LiveOptions
    request: RunRequest | None = None
    duration_s: float | None = None
    limits: Limits = field(default_factory=Limits)
    prometheus: tuple[str, int] | None = None
    """Host and port of the Prometheus endpoint."""
    notify: str | None = None
    """How the terminal notifies of alerts."""
    keep_running: bool = False
    """Whether a hang-up ends nothing."""


class UnattendedRecorder:
    """A recording without a screen, of one target or of many: until it is over, its time is up or
    a signal ends it. `files` has the recording of each target by its host's name, which is "" where
    it is this machine's alone.
    """

    def __init__(
        self,
        files: Mapping[str, RecordingWriter],
        wake: Wake,
        duration_s: float | None,
        notify: str | None,
        *,
        keep_running: bool = False,
    ) -> None:
        """`notify` says how the terminal notifies of alerts; with `keep_running` a hang-up ends
        nothing. What brings news calls `wake.set`."""
        self._files = files
        self._wake = wake
        self._duration_s = duration_s
        self._notify = notify
        self._keep_running = keep_running
        self._signals: list[int] = []
        self._time_is_up = False

    @property
    def _has_begun(self) -> bool:
        """Whether the duration counts already."""
        return True

    def _look(self) -> None:
        """Handle the events that have come since the last look."""
        raise NotImplementedError

    def _is_over(self) -> bool:
        """Whether nothing more can come."""
        raise NotImplementedError

    def _handle(self, _number: int, _times: int) -> bool:
        """Handle a signal, the `_times`-th; whether to go on."""
        return False

    def _clear(self) -> None:
        """Make room for a line on the terminal."""

    def _hint(self) -> float | None:
        """Seconds until there is something to say, None for nothing."""
        return None

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Have signals end this, but a hang-up that --keep-running or nohup says to outlive."""
        previous = {number: self._hear(number) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _hear(self, number: int) -> Any:
        if number == signal.SIGHUP and (
            self._keep_running or signal.getsignal(number) == signal.SIG_IGN
        ):
            return signal.signal(number, signal.SIG_IGN)
        return signal.signal(number, lambda heard, _: self._on_signal(heard))

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self._wake.set()

    def _loop(self) -> None:
        deadline_s: float | None = None
        handled = 0
        while True:
            if self._duration_s is not None and deadline_s is None and self._has_begun:
                deadline_s = time.monotonic() + self._duration_s
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                self._time_is_up = True
                return
            hint_s = self._hint()
            waits_s = hint_s if left_s is None else min(left_s, hint_s or left_s)
            # Python misses a signal that comes just before the thread sleeps: it ended a recording
            # whose reader had stopped only with the next one.
            self._wake.wait(HEARD_S if waits_s is None else min(waits_s, HEARD_S))
            self._look()
            while handled < len(self._signals):
                handled += 1
                if not self._handle(self._signals[handled - 1], handled):
                    return
            if self._is_over():
                return

    def _alert(self, host: str, alert: Alert) -> None:
        from gputui.report.alerts import alert_text

        text = f"{host}: {alert_text(alert)}" if host else alert_text(alert)
        self._clear()
        say(text)
        if alert.raised:
            notify(self._notify, text)

    def _say_notices(self, host: str) -> None:
        for notice in self._files[host].notices:
            say(f"{host}: {notice}" if host else notice)

    def _say_result(self, host: str) -> bool:
        """Prints what was recorded of a target, or why not all of it; returns whether all was
        written."""
        file = self._files[host]
        if file.failure:
            say(f"{host}: {file.failure}" if host else file.failure)
        elif file.path is not None:
            say(f"recorded {file.path} ({units.size(file.bytes_written or 0)})")
        return not file.failure


class _MachineRecorder(UnattendedRecorder):
    """The recording of this machine and of what runs on it, driven from the main thread."""

    def __init__(
        self,
        options: RecordOptions,
        live: Live,
        session: Session | None,
        wake: Wake,
        exporter: Exporter | None = None,
    ) -> None:
        """`live` calls `wake.set`. Without a session, nothing is shown of it."""
        super().__init__(
            {"": live.recording},
            wake,
            options.duration_s,
            options.notify,
            keep_running=options.keep_running,
        )
        self._options = options
        self._session = session or Session()
        self._is_blind = session is None
        self._exporter = exporter
        self._journal = live.recording
        self._live = live
        self._hint_at = math.inf
        self._told: set[str] = set()
        # The reader of the journal on a pipe shows it, often on this very terminal.
        self._is_shown = options.path is None and stat.S_ISFIFO(os.fstat(1).st_mode)
        self._progress = ProgressLine(hidden=self._is_shown)

    def run(self, *, starts: bool = True) -> int:
        """Record until the run, the duration or the user ends it; the exit status. `starts` is
        false for a source that runs already."""
        with self._hearing():
            try:
                if starts:
                    self._live.start()
                if starts and self._options.request is not None:
                    self._live.start_run(self._options.request)
                self._loop()
            finally:
                gone = self._close()
                self._clear()
                if self._exporter is not None:
                    self._exporter.close()
        self._look()
        return self._finish(gone)

    def _clear(self) -> None:
        self._progress.clear()

    def _close(self) -> bool:
        """End the run and finish the recording; whether the run's processes are gone.

        The reader of a journal on a pipe may have stopped reading without closing it: then nothing
        can be finished, and the program ends here.
        """
        gone: list[bool] = []
        closing = threading.Thread(target=lambda: gone.append(self._live.close()), daemon=True)
        closing.start()
        closing.join(_CLOSING_S)
        if closing.is_alive():
            say("the recording is incomplete: its reader has stopped reading")
            release_streams()
            os._exit(1)
        return gone == [True]

    @property
    def _has_begun(self) -> bool:
        # From what is to be recorded on: loading and attaching take long where it is busy.
        session = self._session
        return (session.header if self._options.request is None else session.run) is not None

    def _is_over(self) -> bool:
        run = self._live.run
        if self._options.request is not None and run is not None and run.ended is not None:
            return True
        lost = self._journal.failure and self._options.path is None
        return bool(lost) and not self._goes_on()

    def _goes_on(self) -> bool:
        """Whether a run outlives the reader of its journal: a viewer that is closed ends nothing.
        One that is looked at by attaching does so by itself.
        """
        request, failure = self._options.request, self._journal.failure
        if request is None or request.pid is not None:
            return False
        # The run goes on where the reader of its recording goes: q in a viewer once ended the job
        # on the other machine.
        if failure and failure not in self._told:
            self._told.add(failure)
            self._is_shown = False
            self._progress.clear()
            say(f"{failure}; {request.name} goes on without it: Ctrl-C ends it")
        return True

    def _handle(self, number: int, times: int) -> bool:
        # The first Ctrl-C goes only to the command.
        is_first_interrupt = number == signal.SIGINT and times == 1
        if is_first_interrupt and self._options.request is not None:
            self._live.interrupt_run()
            self._hint_at = time.monotonic() + _HINT_S
            return True
        return False

    def _hint(self) -> float | None:
        """Say once what ends a command that goes on after Ctrl-C; the seconds until then."""
        left = self._hint_at - time.monotonic()
        if left > 0:
            return None if math.isinf(left) else left
        self._hint_at = math.inf
        self._progress.clear()
        say(
            "the command goes on after Ctrl-C: once more ends it with all its processes, which "
            f"then have {GRACE_S:g} s"
        )
        return None

    def _look(self) -> None:
        """Fold in what came, and show it. Whatever fails of that, the run and its recording go
        on."""
        if self._is_blind:
            self._live.hub.drain()
            return
        try:
            self._apply_news()
            self._remark()
            self._progress.show(self._session)
        except Exception as error:
            from gputui.base import crash_line

            self._is_blind = True
            self._progress.clear()
            say(f"{crash_line(error)}: nothing more is shown; recording goes on")

    def _apply_news(self) -> None:
        events = self._live.hub.drain()
        with self._exporter.lock if self._exporter else nullcontext():
            self._session.apply(events)
        for event in events:
            if isinstance(event, Alert) and not self._is_shown:
                self._alert("", event)

    def _remark(self) -> None:
        """Print remarks about the run as soon as they are known."""
        run = None if self._is_shown else self._session.run
        for remark in remarks(run) if run is not None else ():
            if remark.about not in self._told:
                self._told.add(remark.about)
                self._progress.clear()
                say(remark.line)

    def _finish(self, gone: bool) -> int:
        run = self._session.run
        ok = not self._journal.failure
        self._say_notices("")
        trace = self._live.trace
        if trace is not None:
            say(trace.failure or f"traced {trace.path}")
            if trace.dropped:
                say(f"{trace.path.name} is full: the oldest {trace.dropped} records were dropped")
        if ok and self._options.path is not None and self._was_refused:
            self._options.path.unlink(missing_ok=True)  # there is nothing in it
        elif self._journal.failure not in self._told:
            self._say_result("")
        if self._is_blind:
            last_run = self._live.run
            status = 1 if last_run is None else exit_status(last_run.request.kind, last_run.ended)
            return status if status or (ok and gone) else 1
        if run is not None and self._options.path is not None:
            snapshot = snapshot_path(self._options.path, run.started.run)
            if snapshot.exists():
                say(f"memory snapshot {snapshot}")
        if not gone:
            if run is None or run.ended is None:
                say("some processes of the run did not end and were left behind")
            ok = False
        if run is None:
            if self._session.samples:
                self._summarize(None)
            return 0 if ok else 1
        # The command's own status, from the screen, too: the README promises it.
        status = exit_status(run.started.kind, run.ended)
        if self._time_is_up and run.ended and run.ended.stopped:
            # A run ended by --duration did what was requested, whatever its status.
            status = 0
            if not self._is_shown:
                duration_s = self._options.duration_s
                attached = self._options.request is not None and self._options.request.pid
                how = "detached from {}" if attached else "{} was stopped"
                say(f"{how.format(run.started.name)}: --duration {duration_s:g} s is over")
        if not self._is_shown:
            self._report(run, failed=status != 0)
        return status if status or ok else 1

    @property
    def _was_refused(self) -> bool:
        """Whether the process was not attached to."""
        request, run = self._options.request, self._session.run
        if request is None or request.pid is None or run is None or run.ended is None:
            return False
        from gputui.collect.traced_run import REFUSED

        # A process that could not be attached to leaves no recording.
        return run.ended.exit_code == REFUSED and not run.processes

    def _report(self, run: Run, *, failed: bool) -> None:
        """How it ended, and the answer."""
        is_workload = run.started.kind == "workload"
        if is_workload and failed:
            complaints = [entry.text for entry in run.log if entry.stream == "stderr"]
            for line in complaints[-_LAST_LINES:]:
                say(line)
        if run.ended and (is_workload or run.started.pid is None) and failed:
            say(run.ended.reason)
        if run.ranges or run.kernels or run.metrics:
            self._summarize(run)

    def _summarize(self, run: Run | None) -> None:
        """Prints to stdout, unless that carries the command's output or the journal."""
        is_data = self._options.path is None or self._options.live.pass_through
        print_answer(self._session, run, self._options.path, sys.stderr if is_data else sys.stdout)


def print_answer(session: Session, run: Run | None, path: Path | None, out: TextIO) -> None:
    """Print the answer of a run that was recorded at `path`, and how to see more of it."""
    from gputui.render.summary import answer_text, ways_on

    try:
        begin_line()
        more = ways_on(str(path)) if path is not None else []
        print(answer_text(session, run, columns(out), more), file=out, end="", flush=True)
    except OSError:
        # The reader of the summary is gone; the recording has it.
        release_streams()


def _exporter(session: Session, address: tuple[str, int] | None) -> Exporter | None:
    if address is None:
        return None
    from gputui.render.prometheus_server import Exporter

    exporter = Exporter(session, address)
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    say(f"serving http://{host}:{address[1]}/metrics")
    return exporter


def record(options: RecordOptions) -> int:
    """Record with `options`; the exit status. Raises JournalError if it cannot write,
    PrometheusError if it cannot serve.
    """
    wake, session = Wake(), Session()
    exporter = _exporter(session, options.prometheus)
    try:
        journal = JournalWriter(options.path, options.limits)
    except JournalError:
        if exporter is not None:
            exporter.close()
        raise
    live = Live(wake.set, journal, options.live)
    return _MachineRecorder(options, live, session, wake, exporter).run()


def record_on(
    live: Live,
    why: str | None,
    session: Session | None,
    tell: Callable[[Callable[[], None]], None],
    notify: str | None,
    keep_running: bool,
) -> int:
    """Goes on without a screen with the run of a screen that has failed of `why`, or whose terminal
    is gone; returns the exit status. The run ends by itself or by a signal. `tell` makes `live`
    call its argument when there is news; `session` is what the screen knew, None if that is not to
    be trusted."""
    run = live.run
    assert run is not None
    wake = Wake()
    tell(wake.set)
    wake.set()  # the screen may not have answered the last news
    path, name = live.recording.path, run.request.name
    what = f"{name} goes on and is recorded in {path}" if path else f"{name} goes on, not recorded"
    ends = "Ctrl-C detaches from it" if run.request.pid is not None else "Ctrl-C ends it"
    say(f"the screen failed: {why}. {what}; {ends}" if why else f"the terminal is gone: {what}")
    # What the run was asked for is the screen's: of it only the program matters here.
    options = RecordOptions(
        path, LiveOptions(), run.request, notify=notify, keep_running=keep_running
    )
    return _MachineRecorder(options, live, session, wake).run(starts=False)


# An estimate beyond it says only that next to nothing was done so far.
_LONGEST_ETA_NS = 1000 * 3600e9

_ENDS = "Ctrl-C ends"

# On the one line of the status.
MOST_GPUS = 8

EXPLAIN_S = 1.0
"""Seconds from one look at where the time goes to the next."""


class ProgressLine:
    """One line on a terminal, rewritten only if it changed; nothing if not a terminal."""

    def __init__(self, *, hidden: bool) -> None:
        self._active = sys.stderr.isatty() and not hidden
        self._shown = ""
        self._explained: tuple[float, list[str]] = (-EXPLAIN_S, [])

    def show(self, session: Session) -> None:
        """Draws the progress of the session, if it differs from what is shown."""
        if not self._active:
            return
        now_s = time.monotonic()
        if session.run is not None and now_s - self._explained[0] >= EXPLAIN_S:
            from gputui.report.answer import short_line  # a machine only needs none

            self._explained = now_s, short_line(session.run)
        text = progress_text(session, self._explained[1])
        if text != self._shown:
            self._draw(text)

    def clear(self) -> None:
        """Erase the line, so that something else can be printed."""
        if self._shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        self._shown = text
        try:
            # What is wider than the terminal would not be erased.
            draw(cut_to_width(sanitize(text), (columns(sys.stderr) or 80) - 1))
        except OSError:
            # The terminal is gone; the recording goes on.
            self._active = False


def progress_text(session: Session, explained: Sequence[str] = ()) -> str:
    """How long it runs, the stage, where the time goes as `explained` says, and the machine's
    newest figures, on one line."""
    run = session.run
    if run is None:
        gpus = [f"GPU {index} {_reading(gpu)}" for index, gpu in sorted(session.gpus.items())]
        return " · ".join([f"● {session.samples} samples", *gpus[:MOST_GPUS], _ENDS])
    words = [f"● {run.started.name} {units.duration(run.duration_ns)}"]
    if run.progress:
        words.append(progress_words(run))
    for name in ("tokens_per_s", "itl_ms"):
        value = run.metrics.get(name)
        if isinstance(value, int | float):
            words.append(" ".join(metric_text(name, value)))
    words += explained
    used = [index for index in run.devices if index in session.gpus]
    words += [_reading(session.gpus[index]) for index in sorted(used)[:1]]
    if session.recorded_bytes:
        words.append(units.size(session.recorded_bytes))
    return " · ".join([*filter(None, words), _ENDS])


def _reading(gpu: Gpu) -> str:
    """What a GPU spends and holds now."""
    sample = gpu.sample
    if sample is None:
        return ""
    figures = [units.percent(sample.utilization_percent)]
    if sample.power_watts is not None:
        figures = [f"{sample.power_watts:.0f} W"]
    if sample.memory_used_bytes is not None:
        figures.append(units.size(sample.memory_used_bytes))
    return " · ".join(figures)


def progress_words(run: Run) -> str:
    """The run's progress as "decode 45/128 tokens 35 % ETA 3.20 s"."""
    progress = run.progress
    if progress is None:
        return ""
    unit = f" {progress.unit}" if progress.unit else ""
    if not progress.total:
        return f"{progress.stage} {progress.done:g}{unit}"
    share = min(1.0, max(0.0, progress.done / progress.total))
    words = f"{progress.stage} {progress.done:g}/{progress.total:g}{unit} {100 * share:.0f} %"
    spent_ns = run.updated_ns - run.stage_started_ns
    if 0 < share < 1 and run.is_active and spent_ns > 0:
        left_ns = spent_ns * (1 - share) / share
        if left_ns < _LONGEST_ETA_NS:
            words += f" ETA {units.duration(left_ns)}"
    return words


# The exit status of gputui once a run has ended.


def exit_status(kind: str, ended: RunEnded | None) -> int:
    """The exit status for a run of this kind.

    Around a user's command it is that command's own, 128 + n if signal n ended it, as in a shell; a
    workload gives 0, 2 if its parameters were refused, otherwise 1.
    """
    if ended is None:
        return 1
    if kind == "command":
        number = ended.signal
        return 128 + number if number is not None else ended.exit_code or 0
    if ended.exit_code in (0, 2):
        return ended.exit_code
    return 1


# Waking a loop, also from a signal's handler.


class Wake:
    """An event that a handler may set while it interrupts the thread that waits for it:
    threading.Event holds a lock then, which the handler would wait for, for ever."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Have the newest or the next `wait` return."""
        self._calls.put(None)

    def wait(self, timeout_s: float | None) -> None:
        """Waits until `set` was called since the last time, but at most `timeout_s`."""
        with contextlib.suppress(queue.Empty):
            self._calls.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
            while True:
                self._calls.get_nowait()
