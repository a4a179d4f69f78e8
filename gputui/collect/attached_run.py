"""A run of a process that gputui did not start: it is attached to, and let go at the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gputui.base.sanitize import sanitize
from gputui.collect.child.process import Ending
from gputui.collect.child.supervisor import is_alive
from gputui.collect.run_request import RunRequest
from gputui.collect.traced_run import Run
from gputui.inject import word as words
from gputui.inject.attach import attach, shared_memory_of
from gputui.inject.environment import SHARED_MEMORY, create_capture_folder
from gputui.inject.options import ATTACH_COST_PERCENT, Annotate, TraceSampling, within_cost
from gputui.inject.target import AttachError
from gputui.inject.word import Word, WordError

WAKE_S = 5.0
SLEEP_S = 5.0
"""Longer than the library drains CUPTI."""

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


class AttachedRun(Run):
    """Its end detaches; the process goes on."""

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

    def _run_child(self) -> Ending:
        pid = self.request.pid
        assert pid is not None
        with shared_memory_of(pid) as place, create_capture_folder(place=place) as folder:
            try:
                word = attach(pid)
            except AttachError as error:
                return Ending(REFUSED, None, str(error))
            reader = self._reader_of(folder)
            try:
                with self._lock:
                    self._reader = reader
                reader.watch()
                try:
                    self._wake(word, folder, place)
                except WordError as error:
                    return Ending(REFUSED, None, f"process {pid}: {error}")
                self._start(pid, None)
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

    def _watch(self, pid: int, word: Word) -> Ending:
        """Wait for the end of the process, or for somebody to end the looking."""
        name = f"{sanitize(self.request.name, 200)} ({pid})"
        said: set[str] = set()
        while not self._stop_wanted:
            if not _lives(pid, word):
                return Ending(0, None, f"{name} has ended")
            if not word.is_awake:
                self._stop_wanted = True  # by another's: it did not end by itself
                return Ending(0, None, f"{name} was detached by gputui detach")
            for line in _lines(word):
                if line not in said:
                    said.add(line)
                    self._say(line)
            time.sleep(_LOOK_S)
        return Ending(0, None, f"detached from {name}, which keeps running")

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
    if word.page.python == words.PYTHON_FAILED:
        lines.append("no ranges around torch modules: the hooks could not be set")
    if word.page.nvtx_held:
        lines.append("some libraries' NVTX ranges are not seen: another tool has them")
    return lines
