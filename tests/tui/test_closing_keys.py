"""Keys that arrive in one read, as tmux and ssh deliver them: a dialog closes, and only once."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

import gputui.tui.dialogs
from gputui.tui.dialogs.dialog import Dialog
from tests.tui.test_dying import DEADLINE_S, Screen

PROGRAM = """
import sys
from pathlib import Path
from gputui.render import formats
from gputui.report.process_table import ProcessRow
from gputui.state import Session
from gputui.tui import run_app
from gputui.tui.dialogs import boxes, export, palette, prompt, signal, workloads
from gputui.tui.shell.main import MainScreen
from gputui.tui.widgets.view import Details
from tests.tui import scripted

MAKE = {
    "Question": lambda: boxes.Question("A title", "A text.", "yes"),
    "DetailsBox": lambda: boxes.DetailsBox(Details("A title", ())),
    "Help": lambda: boxes.Help(replays=False),
    "ExportDialog": lambda: export.ExportDialog(Path("a-path"), formats.every(), "Export it"),
    "SignalDialog": lambda: signal.SignalDialog(ProcessRow(1)),
    "Prompt": lambda: prompt.Prompt("A title", "A hint.", "go", "a text"),
    "Palette": lambda: palette.Palette(replays=False),
    "WorkloadDialog": lambda: workloads.WorkloadDialog({}, ""),
}

class Source(scripted.ScriptedSource):
    def start(self):
        self.give(scripted.gpu_session(1, quiet=3, ended=False))

def opened(screen):
    def answered(result):
        with open(sys.argv[1], "a") as note:
            note.write("answered ")
    screen.app.push_screen(MAKE[sys.argv[2]](), answered)

MainScreen.action_sort = opened
sys.exit(run_app(Source, Session()))
"""

CLOSING = {
    "Question": ("A title", "nn", "\r\r", "yn"),
    "DetailsBox": ("A title", "qq"),
    "Help": ("Keys", "qq", "??"),
    "ExportDialog": ("Export it", "\r\r"),
    "SignalDialog": ("Send a signal", "qq"),
    "Prompt": ("A title", "\r\r"),
    "Palette": ("All tables", "\r\r"),
    "WorkloadDialog": ("Workloads", "qq"),
}
"""What each dialog shows, and keys that close it, twice. Escape twice is one escape sequence."""


def test_every_dialog_is_tried() -> None:
    package = gputui.tui.dialogs
    found = {
        name
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if isinstance(value, type) and issubclass(value, Dialog) and value is not Dialog
    }
    assert found == set(CLOSING)


@pytest.mark.parametrize(
    ("name", "keys"),
    [(name, keys) for name, (_, *all_keys) in CLOSING.items() for keys in all_keys],
)
def test_closing_keys_in_one_write_close_a_dialog_once(
    tmp_path: Path, name: str, keys: str
) -> None:
    note = tmp_path / "note"
    screen = Screen(note, name, program=PROGRAM)
    screen.read_until(b"H200")
    os.write(screen.master, b"s")
    screen.read_until(CLOSING[name][0].encode())
    os.write(screen.master, keys.encode())
    # A screen that crashes of the second key ends; one that does not is asked to.
    while screen.process.poll() is None and not note.exists():
        screen.read_until(b"never drawn", within_s=0.05)
    screen.process.send_signal(signal.SIGTERM)
    assert screen.ended() == 0, screen.seen[-300:]
    assert screen.is_restored()
    assert note.read_text() == "answered "


def test_nothing_typed_ends_a_run_without_its_question(tmp_path: Path) -> None:
    started = tmp_path / "started"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"XDG_DATA_HOME": str(tmp_path), "TERM": "xterm-256color"}
        script = f"touch {started}; exec sleep 300"
        os.execv(sys.executable, [sys.executable, "-m", "gputui", "--", "sh", "-c", script])
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        seen, deadline = b"", time.monotonic() + DEADLINE_S
        while text not in seen and time.monotonic() < deadline:
            seen += os.read(terminal, 65536)

    read_until(b"help")
    while not started.exists():
        read_until(b"")
    os.write(terminal, b"?")
    read_until(b"Keys")
    os.write(terminal, b"qq")  # the second may ask whether to quit
    os.write(terminal, b"n")
    os.write(terminal, b"q")
    read_until(b"end it and quit")
    os.write(terminal, b"nn")
    os.write(terminal, b"q")
    read_until(b"end it and quit")
    os.write(terminal, b"y")
    with contextlib.suppress(OSError):  # its terminal is gone with it
        while os.read(terminal, 65536):
            pass
    _, how = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(how) == 128 + signal.SIGTERM, seen
