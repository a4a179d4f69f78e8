"""However the screen ends, the terminal is restored, the source is closed, nothing spins."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTERS_ALTERNATE_SCREEN = b"\x1b[?1049h"
LEAVES_ALTERNATE_SCREEN = b"\x1b[?1049l"
DEADLINE_S = 60.0

RESTORED = (
    LEAVES_ALTERNATE_SCREEN,
    b"\x1b[?1000l",  # the mouse
    b"\x1b[?1002l",
    b"\x1b[?2004l",  # bracketed paste
    b"\x1b[?25h",  # the cursor
)

PROGRAM = """
import os, signal, sys, termios
from gputui.collect.nvml.opening import Glance
from gputui.collect.nvml.bindings import GpuMemory
from gputui.tui.early import Shown
from gputui.tui.early import first_frame
from gputui.tui.running import run_app
from tests.tui import scripted

class Source(scripted.ScriptedSource):
    def start(self):
        if "crash" in sys.argv:
            self.hub.drain = lambda: 1 / 0
        self.give(scripted.gpu_session(1, quiet=3, ended=False))
    def close(self):
        if "late" in sys.argv:  # the screen's loop has ended
            for number in (signal.SIGWINCH, signal.SIGCONT):
                os.kill(os.getpid(), number)
        open(sys.argv[1], "w").write("closed")
        return True

def frame(width, height):
    memory = GpuMemory(140 << 30, 1 << 30, None)
    gpu = Glance(0, "NVIDIA H200", 97.0, memory, 612.3, None, 54.0, None)
    return first_frame([gpu], None, width, height)

if "resized" in sys.argv:  # to another size as one is read
    sizes, read_size = [(45, 130), (40, 120)], os.get_terminal_size
    def resized(fd):
        size = read_size(fd)
        if sizes and signal.getsignal(signal.SIGWINCH):
            termios.tcsetwinsize(0, sizes.pop())
            os.kill(os.getpid(), signal.SIGWINCH)
        return size
    os.get_terminal_size = resized

class Watched:
    def __init__(self, file):
        self.file = file
    def write(self, text):
        if "1004l" in text:
            is_cooked = termios.tcgetattr(0)[3] & termios.ICANON
            open(sys.argv[2], "a").write("cooked " if is_cooked else "raw ")
        return self.file.write(text)
    def __getattr__(self, name):
        return getattr(self.file, name)

if sys.argv[2:] and os.path.isabs(sys.argv[2]):
    sys.__stdout__ = Watched(sys.__stdout__)
shown = Shown(frame) if "early" in sys.argv else None
if "held" in sys.argv:
    signal.pause()
sys.exit(run_app(Source, shown=shown))
"""

SIZE = {"COLUMNS": "100", "LINES": "30"}


class Screen:
    """The program under a terminal of its own."""

    def __init__(
        self,
        note: Path,
        *arguments: str,
        program: str = PROGRAM,
        stderr: int | None = None,
        size: dict[str, str] = SIZE,
    ) -> None:
        self.master, slave = pty.openpty()
        if size:
            termios.tcsetwinsize(slave, (int(size["LINES"]), int(size["COLUMNS"])))
        self.modes = termios.tcgetattr(self.master)
        self.seen = b""
        environment = {k: v for k, v in os.environ.items() if k not in SIZE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(note), *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave if stderr is None else stderr,
            cwd=ROOT,
            env=environment | {"TERM": "xterm-256color"} | size,
            start_new_session=True,
        )
        os.close(slave)

    def falls_silent(self) -> bool:
        """Whether nothing is drawn for a second, before the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if not select.select([self.master], [], [], 1)[0]:
                return True
            self.seen += os.read(self.master, 65536)
        return False

    def is_restored(self) -> bool:
        """Whether the terminal is as it was."""
        return termios.tcgetattr(self.master) == self.modes and all(
            self.seen.rfind(sequence) > self.seen.rfind(ENTERS_ALTERNATE_SCREEN)
            for sequence in RESTORED
        )

    def read_until(self, text: bytes, within_s: float = DEADLINE_S) -> None:
        """Read what is drawn until `text` was, or the program is gone."""
        deadline = time.monotonic() + within_s
        while text not in self.seen and time.monotonic() < deadline:
            if not select.select([self.master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.seen += data

    def ended(self) -> int:
        """The status, once the program is gone."""
        self.read_until(b"never drawn")
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()


def test_the_first_reading_is_drawn_at_once_and_a_signal_puts_the_terminal_back(
    tmp_path: Path,
) -> None:
    screen = Screen(tmp_path / "note", "early", "held")  # before Textual is there
    screen.read_until(b"second reading")
    assert b"GPU 0  NVIDIA H200" in screen.seen
    shown = re.sub(rb"\x1b\[[0-9;]*m", b"", screen.seen)
    # What the driver did not say is not there.
    assert b"memory 1.00 GiB of 140 GiB   power 612 W   temperature 54" in shown
    assert b"SM clock" not in shown
    screen.process.send_signal(signal.SIGTERM)
    assert screen.ended() == -signal.SIGTERM
    assert screen.seen.rfind(LEAVES_ALTERNATE_SCREEN) > screen.seen.rfind(ENTERS_ALTERNATE_SCREEN)
    assert b"\x1b[?25h" in screen.seen
    assert termios.tcgetattr(screen.master) == screen.modes


def test_textual_takes_over_from_the_first_reading(tmp_path: Path) -> None:
    note = tmp_path / "note"
    screen = Screen(note, "early")
    screen.read_until(b"\x1b[?1000h")
    screen.read_until(b"quit")
    os.write(screen.master, b"q")
    screen.read_until(b"end it")  # a run goes on in this session
    os.write(screen.master, b"y\r")
    screen.ended()
    assert note.read_text() == "closed"
    assert screen.is_restored()


def test_a_terminal_that_does_not_know_its_size_is_drawn_once(tmp_path: Path) -> None:
    note = tmp_path / "note"
    screen = Screen(note, size={})
    try:
        screen.read_until(b"H200")
        assert screen.falls_silent()
    finally:
        screen.process.send_signal(signal.SIGTERM)
        screen.ended()
    assert note.read_text() == "closed"


SIGNALS = [
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGUSR1
]  # fmt: skip


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_restore_the_terminal_and_close_the_source(
    tmp_path: Path, number: signal.Signals
) -> None:
    note = tmp_path / "note"
    screen = Screen(note)
    screen.read_until(b"H200")
    assert not screen.is_restored()
    screen.process.send_signal(number)
    assert screen.ended() == 0
    assert screen.is_restored()
    assert note.read_text() == "closed"


def test_standard_error_may_be_a_file(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        screen = Screen(tmp_path / "note", stderr=file.fileno())
    screen.read_until(b"H200")
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0
    assert screen.is_restored()
    assert errors.read_bytes() == b""


def test_ctrl_c_quits_and_echoes_nothing_amid_the_last_sequences(tmp_path: Path) -> None:
    modes = tmp_path / "modes"
    screen = Screen(tmp_path / "note", str(modes))
    screen.read_until(b"H200")
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0
    assert screen.is_restored()
    assert modes.read_text() == "raw "  # when the last sequence was written


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stopped_screen_is_drawn_anew_when_it_is_continued(tmp_path: Path, number: int) -> None:
    screen = Screen(tmp_path / "note")
    for _ in range(2):  # twice: the first time puts back what the second needs
        screen.read_until(b"H200")
        screen.process.send_signal(number)
        assert os.WIFSTOPPED(os.waitpid(screen.process.pid, os.WUNTRACED)[1])
        if number == signal.SIGTSTP:
            screen.read_until(b"\x1b[?1004l")
            assert screen.is_restored()
        screen.seen = b""
        screen.process.send_signal(signal.SIGCONT)
        screen.read_until(ENTERS_ALTERNATE_SCREEN)
    screen.read_until(b"H200")
    assert b"H200" in screen.seen
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0
    assert screen.is_restored()


def test_the_newest_of_sizes_that_come_at_once_is_drawn(tmp_path: Path) -> None:
    screen = Screen(tmp_path / "note", "resized")
    screen.read_until(b"\x1b[45;")
    screen.process.terminate()
    assert screen.ended() == 0
    assert b"\x1b[45;" in screen.seen


def test_a_resize_or_a_continuation_after_the_last_frame_means_nothing(tmp_path: Path) -> None:
    screen = Screen(tmp_path / "note", "late")
    screen.read_until(b"H200")
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0
    assert b"Traceback" not in screen.seen
    assert screen.seen.count(ENTERS_ALTERNATE_SCREEN) == 1
    assert screen.is_restored()


def test_a_terminal_that_vanishes_ends_the_program(tmp_path: Path) -> None:
    note = tmp_path / "note"
    screen = Screen(note)
    screen.read_until(b"H200")
    # A new session has no controlling terminal here: no SIGHUP comes, only the end of input.
    os.close(screen.master)
    assert screen.process.wait(DEADLINE_S) == 0
    assert note.read_text() == "closed"


def test_an_internal_error_is_one_line_without_data(tmp_path: Path) -> None:
    note = tmp_path / "note"
    screen = Screen(note, "crash")
    assert screen.ended() == 1
    ending = screen.seen.split(LEAVES_ALTERNATE_SCREEN)[-1].decode()
    assert "gputui: internal error: ZeroDivisionError: division by zero at " in ending
    assert "Traceback" not in ending
    assert "locals" not in ending
    assert note.read_text() == "closed"


def test_without_a_terminal_it_says_so() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "unused"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "--record" in result.stderr
