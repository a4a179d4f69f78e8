"""Whatever the screen fails of, and whatever a terminal sends, the run goes on until it is told to
end; gputui in a terminal of its own around a program of its own."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from textual import events

from gputui.playback.opening import load
from gputui.tui.textual_internals import Keys
from tests.tui.test_dying import DEADLINE_S, RESTORED

STATUS = 7

RUN = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
    open(sys.argv[2], "a").write(".")
sys.exit(7)
"""
"""Leaves a mark every moment until it is told to end."""

GPUTUI = """
import sys
from gputui.__main__ import main
from gputui.state import Session
from gputui.tui.shell.main import MainScreen
from gputui.tui.textual_internals import Terminal
from gputui.tui.widgets.line_view import LineView

def fail(*_):
    raise RuntimeError("a failure of the test's")

def handler(screen):
    fail()

def drawing(screen):
    LineView.render_lines = fail
    screen.refresh(layout=True)
    screen.view.refresh()

def timer(screen):
    screen.set_timer(0.01, fail)

def worker(screen):
    async def work():
        fail()
    screen.run_worker(work())

def folding(screen):
    Session.apply = fail

def leaving(screen):
    Terminal.stop_application_mode = fail
    fail()

def reading_keys(screen):
    pass

if "reading_keys" == sys.argv[1]:
    read = Terminal.run_input_thread
    def reading(terminal):
        MainScreen.action_sort = lambda screen: terminal.disable_input()
        read(terminal)
        fail()
    Terminal.run_input_thread = reading
MainScreen.action_sort = globals().get(sys.argv.pop(1))
sys.exit(main())
"""
"""gputui whose key s fails, in the way that its first argument says."""


class Watched:
    """A run on the screen of a gputui, in a terminal of its own."""

    def __init__(
        self, folder: Path, *options: str, fails: str = "handler", command: bool = True
    ) -> None:
        self.end, self.marks, self.data = folder / "end", folder / "marks", folder / "data"
        run = [sys.executable, "-c", RUN, str(self.end), str(self.marks)]
        self.seen = b""
        self.status: int | None = None
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"XDG_DATA_HOME": str(self.data), "TERM": "xterm-256color"}
            words = [*options, "--", *run] if command else options
            os.execv(sys.executable, [sys.executable, "-c", GPUTUI, fails, *words])
        termios.tcsetwinsize(self.terminal, (30, 100))
        self.modes = termios.tcgetattr(self.terminal)

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def until(self, holds: Callable[[], bool]) -> None:
        """Read what is drawn until something holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.seen[-2000:]
            self._read(0.05)

    def draws(self, text: bytes) -> None:
        self.until(lambda: text in self.seen)

    def goes_on(self) -> None:
        """The run makes progress from here on."""
        before = self.marks.stat().st_size
        self.until(lambda: self.marks.stat().st_size > before + 3)
        assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), self.seen[-2000:]

    def is_started(self) -> None:
        self.until(self.marks.exists)
        self.draws(b"live")

    def is_restored(self) -> bool:
        """Whether the terminal is as it was."""
        entered = self.seen.rfind(b"\x1b[?1049h")
        return termios.tcgetattr(self.terminal) == self.modes and all(
            self.seen.rfind(sequence) > entered for sequence in RESTORED
        )

    def exit_status(self) -> int:
        """Once gputui has ended."""

        def has_ended() -> bool:
            pid, how = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(how)
            return pid != 0

        self.until(has_ended)
        self._read(0.05)
        assert self.status is not None
        return self.status

    @property
    def recording(self) -> Path:
        (path,) = (self.data / "gputui" / "sessions").iterdir()
        return path

    def ends_by_itself(self) -> None:
        """The run ends, and is recorded to its end."""
        self.end.touch()
        assert self.exit_status() == STATUS
        run = load(self.recording).session.run
        assert run is not None
        assert run.ended is not None
        assert (run.ended.exit_code, run.ended.stopped) == (STATUS, False)

    def close(self) -> None:
        """End all of it, whatever came before."""
        self.end.touch()
        if self.status is None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        with suppress(OSError):
            os.close(self.terminal)

    def _read(self, within_s: float) -> None:
        with suppress(OSError):  # nobody has the other side open
            while select.select([self.terminal], [], [], within_s)[0]:
                self.seen += os.read(self.terminal, 65536)
                within_s = 0.0


@contextmanager
def watched(folder: Path, *options: str, fails: str = "handler") -> Iterator[Watched]:
    watched = Watched(folder, *options, fails=fails)
    try:
        watched.is_started()
        yield watched
    finally:
        watched.close()


FAILURES = ("handler", "drawing", "timer", "worker", "folding", "leaving", "reading_keys")


@pytest.mark.parametrize("fails", FAILURES)
def test_a_failure_of_the_screen_leaves_the_run_recorded_to_its_end(
    tmp_path: Path, fails: str
) -> None:
    with watched(tmp_path, fails=fails) as screen:
        screen.type(b"s")
        screen.draws(b"goes on and is recorded in")
        assert b"the screen failed: internal error: RuntimeError: a failure of the test" in (
            screen.seen
        )
        assert b"Traceback" not in screen.seen
        assert screen.is_restored()
        screen.goes_on()
        screen.ends_by_itself()


def test_a_run_without_its_screen_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with watched(tmp_path) as screen:
        screen.type(b"s")
        screen.draws(b"Ctrl-C ends it")
        screen.goes_on()
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.exit_status() == 128 + signal.SIGTERM
        run = load(screen.recording).session.run
        assert run is not None
        assert run.ended is not None
        assert run.ended.stopped


JUNK = (
    b"\xe9", b"\xc3", b"\xa9", b"\xff", b"\xf0\x9f",
    b"\x1b[1114112u", b"\x1b[55296u", b"\x1b[99999999999999999999~",
    b"\x1b[99999999999999999999;1u",
    b"\x1b[57358;9999999u", b"\x1b[1;99999999999999999999R", b"\x1b[<99999999999999999999;1;1M",
    b"\x1b[<0;99999999999999999999;1M", b"\x1b[<-1;-5;3M",
    b"\x1b[?99999999999;1$y",
    b"\x1b[?2048;1$y",
    b"\x1b[48;99999999;99999999;0;0t", b"\x1b[48;0;0;0;0t",
    b"\x1b[8;999999999;9999999t",
    b"\x1b[200~\xff\xfe pasted \x1b[31m\x1b[201~", b"\x1b]52;c;AAAA\x07",
    b"\x1bP+q\x1b\\", b"\x1b[M   ",
)  # fmt: skip
"""What terminals send that are not set to UTF-8, that are slow, or that somebody else writes to."""


def test_bytes_that_are_no_keys_are_dropped(tmp_path: Path) -> None:
    with watched(tmp_path) as screen:
        for data in JUNK:
            screen.type(data)
            screen.goes_on()
        # Some of it, taken for keys, asks whether to quit: Escape, by itself, says no. A screen
        # that was preempted reads the two keys as one, Alt with the second: then once more.
        deadline = time.monotonic() + DEADLINE_S
        while b"what should one do?" not in screen.seen:
            assert time.monotonic() < deadline, screen.seen[-2000:]
            screen.type(b"\x1b")
            screen.goes_on()
            screen.goes_on()
            screen.type(b"?")
            screen.goes_on()
        screen.type(b"\x03")
        assert screen.exit_status() == 128 + signal.SIGTERM
        assert screen.is_restored()


def _typed(*reads: bytes) -> list[str | None]:
    keys = Keys()
    return [
        event.character
        for data in reads
        for event in keys.feed(data)
        if isinstance(event, events.Key)
    ]


def test_a_character_may_come_in_parts_and_what_is_none_takes_nothing_with_it() -> None:
    assert _typed(b"\xc3", b"\xa9", b"1") == ["é", "1"]
    assert _typed(b"a\x1b[1114112ub\x1b[55296uc") == ["a", "b", "c"]
    assert _typed(b"\xe9", b"1") == ["\ufffd", "1"]


def test_a_hang_up_ends_the_run_as_in_a_shell(tmp_path: Path) -> None:
    with watched(tmp_path) as screen:
        os.close(screen.terminal)  # as sshd does
        assert screen.exit_status() == 128 + signal.SIGTERM
        run = load(screen.recording).session.run
        assert run is not None
        assert run.ended is not None
        assert run.ended.stopped


@pytest.mark.parametrize("options", [(), ("--record",)])
def test_a_run_that_is_kept_outlives_its_terminal(tmp_path: Path, options: tuple[str]) -> None:
    watched = Watched(tmp_path, *options, "--keep-running")
    try:
        watched.until(watched.marks.exists)
        if not options:
            watched.draws(b"live")
        os.close(watched.terminal)
        watched.goes_on()
        os.kill(watched.pid, signal.SIGHUP)
        watched.goes_on()
        watched.ends_by_itself()
    finally:
        watched.close()


def test_a_workload_that_fails_on_the_screen_gives_its_status(tmp_path: Path) -> None:
    refused = ("--workload", "inference", "-p", "prompt=1000", "-p", "tokens=1000")
    watched = Watched(tmp_path, *refused, command=False)
    try:
        watched.draws(b"failed")
        watched.type(b"q")
        assert watched.exit_status() == 2
    finally:
        watched.close()
