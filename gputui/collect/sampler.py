"""A thread that samples the machine at its own rate and emits events.

This module stays light: heavy imports (psutil, pynvml) and slow calls (the driver) happen in the
thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence

from gputui.collect import NOTHING_WRITTEN, Written
from gputui.model.events import AnyEvent, HostUnavailable

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
