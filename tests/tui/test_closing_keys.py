"""Keys that arrive in one read, as tmux and ssh deliver them: a dialog closes, and only once."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gputui.tui.dialogs
from gputui.tui.dialogs.boxes import Dialog
from tests.tui.test_dying import DEADLINE_S, Screen
from tests.tui.test_screen import DIALOGS

PROGRAM = """
import sys
from pathlib import Path
from gputui.render import formats
from gputui.report.tables.processes import ProcessRow
from gputui.tui.running import run_app
from gputui.collect.catalogue import Catalogue, Workload
from gputui.tui.dialogs import boxes, workloads
from gputui.tui.shell.main import MainScreen
from gputui.tui.widgets.view import Details
from tests.tui import scripted

NO_WORKLOADS = Catalogue(schema=1, workloads=())

MAKE = {
    "Question": lambda: boxes.Question("A title", [], boxes.Answer("y", "yes")),
    "DetailsBox": lambda: boxes.DetailsBox(Details("A title", ())),
    "ExportDialog": lambda: boxes.ExportDialog(Path("a-path"), formats.every(), "Export it"),
    "SignalQuestion": lambda: boxes.SignalQuestion(ProcessRow(1)),
    "Prompt": lambda: boxes.Prompt("A title", "A hint.", "go", "a text"),
    "WorkloadDialog": lambda: workloads.WorkloadDialog(lambda: NO_WORKLOADS, {}, ""),
    "WorkloadForm": lambda: workloads.WorkloadForm(Workload(name="x"), {}, None, None),
}

class Source(scripted.ScriptedSource):
    def start(self):
        self.give(scripted.gpu_session(1, quiet=3, ended=False))

def tell(word):
    with open(sys.argv[1], "a") as note:
        note.write(word)

def opened(screen):
    dialog = MAKE[names.pop(0)]()
    screen.app.push_screen(dialog, answers.append)
    dialog.call_after_refresh(tell, "open ")  # its title may still come of the one before

def resumed(screen):
    resume(screen)
    if answers:  # until here keys are lost with the dialog that was closed
        answers.clear()
        tell("answered ")

names, answers = sys.argv[2:], []
MainScreen.action_sort = opened
# Two keys of one write may be handled a moment apart, and the second by what is behind.
MainScreen.check_action = lambda screen, action, _: action == "sort"
resume, MainScreen.on_screen_resume = MainScreen.on_screen_resume, resumed
sys.exit(run_app(Source))
"""

CLOSING = {
    "Question": ("nn", "\r\r", "yn"),
    "DetailsBox": ("qq",),
    "ExportDialog": ("\r\r",),
    "SignalQuestion": ("qq",),
    "Prompt": ("\r\r",),
    "WorkloadDialog": ("qq",),
    "WorkloadForm": ("\r\r",),
}
"""Keys that close each dialog, twice. Escape twice is one escape sequence."""


def test_every_dialog_is_tried() -> None:
    package = gputui.tui.dialogs
    found = {
        name
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if isinstance(value, type) and issubclass(value, Dialog) and value is not Dialog
    }
    assert found == set(CLOSING)
    assert found == set(DIALOGS) - {"Palette"}  # and resized, with hostile names in it


def test_closing_keys_in_one_write_close_a_dialog_once(tmp_path: Path) -> None:
    """One dialog after the other in one program, which the second key neither ends nor has answer
    twice."""
    note = tmp_path / "note"
    tried = [(name, keys) for name, all_keys in CLOSING.items() for keys in all_keys]
    screen = Screen(note, *(name for name, _ in tried), program=PROGRAM)

    def until(told: str, last: tuple[str, str]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not note.exists() or note.read_text() != told:
            screen.read_until(b"never drawn", within_s=0.02)
            # A screen that crashes of the second key ends.
            assert screen.process.poll() is None, (last, screen.seen[-300:])
            assert time.monotonic() < deadline, last

    screen.read_until(b"H200")
    for number, one in enumerate(tried):
        os.write(screen.master, b"s")
        until("open answered " * number + "open ", one)
        os.write(screen.master, one[1].encode())
        until("open answered " * (number + 1), one)
    screen.process.send_signal(signal.SIGTERM)
    assert screen.ended() == 0, screen.seen[-300:]
    assert screen.is_restored()
    assert note.read_text() == "open answered " * len(tried)


RUN = """
import sys
from gputui.__main__ import main
from gputui.tui.dialogs.boxes import Dialog
from gputui.tui.shell.main import MainScreen

def tell(mark):
    with open(note, "a") as file:
        file.write(mark)

def resumed(screen):
    resume(screen)
    tell(".")

note = sys.argv.pop(1)
Dialog.on_screen_resume = lambda dialog: dialog.call_after_refresh(tell, "o")
resume, MainScreen.on_screen_resume = MainScreen.on_screen_resume, resumed
sys.exit(main())
"""
"""gputui; notes each time that the main screen has come to the top, or a dialog has opened: what
is drawn may come of the one before."""


def test_nothing_typed_ends_a_run_without_its_question(tmp_path: Path) -> None:
    started, note = tmp_path / "started", tmp_path / "note"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"XDG_DATA_HOME": str(tmp_path), "TERM": "xterm-256color"}
        script = f"touch {started}; exec sleep 300"
        os.execv(sys.executable, [sys.executable, "-c", RUN, str(note), "--", "sh", "-c", script])
    seen = b""

    def until(found: Callable[[], bool]) -> None:
        nonlocal seen
        deadline = time.monotonic() + DEADLINE_S
        while not found():
            assert time.monotonic() < deadline, seen
            if select.select([terminal], [], [], 0.05)[0]:
                seen += os.read(terminal, 65536)

    def opens(key: bytes, text: bytes) -> None:
        nonlocal seen
        seen, before = b"", note.read_text().count("o")
        os.write(terminal, key)
        until(lambda: note.read_text().count("o") > before and text in seen)

    def closes(keys: bytes) -> None:
        """Until the dialog is gone: what arrives before is lost with it."""
        before = note.read_text().count(".")
        os.write(terminal, keys)
        until(lambda: note.read_text().count(".") > before)

    try:
        until(lambda: b"running" in seen and started.exists() and note.exists())
        opens(b"e", b"Export the run")
        closes(b"\x1b")
        opens(b"q", b"end it and quit")
        closes(b"nn")
        opens(b"q", b"end it and quit")
        closes(b"\r")  # the key for everything ends nothing
        opens(b"q", b"end it and quit")
        os.write(terminal, b"y")
        with contextlib.suppress(OSError):  # its terminal is gone with it
            until(lambda: False)
        _, how = os.waitpid(pid, 0)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(how) == 128 + signal.SIGTERM, seen
