"""Files that are none: nothing waits for a pipe that nobody writes to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gputui.base import JournalError
from gputui.playback.player import Playback
from gputui.store import open_regular
from gputui.store.journal.reader import open_journal
from gputui.store.trace import TraceReader

READERS = (
    ("summary", "x.gputui"),
    ("summary", "x.gputui.gz"),
    ("summary", "x.sqlite"),
    ("summary", "x.csv"),
    ("export", "x.sqlite", "--format", "chrome", "-o", "out"),
    ("export", "x.gputui", "--format", "snapshot", "-o", "out"),
    ("compare", "x.gputui", "x.sqlite"),
)


def test_a_pipe_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in {word for words in READERS for word in words if word.startswith("x.")}:
        os.mkfifo(tmp_path / name)
    # In a child: one that opened a pipe would wait for ever.
    program = (
        "import sys\n"
        "from gputui.cli.dispatch import run\n"
        f"for words in {READERS!r}:\n"
        "    print('status', run(words), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, cwd=tmp_path, timeout=300,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["status 1"] * len(READERS)
    refused = "is not a file: to read a recording from a pipe, give - as FILE"
    assert [line.endswith(refused) for line in lines[::2]] == [True] * len(READERS)


def test_folders_devices_and_what_is_absent(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "is not a file$"),
        (Path("/dev/zero"), "is not a file: to read"),
        (tmp_path / "none", "no such file or directory"),
        (tmp_path / "nul\0", "null"),
    ):
        with pytest.raises(JournalError, match=words):
            open_regular(path)
    os.mkfifo(tmp_path / "x.gputui-trace")
    with pytest.raises(JournalError, match="is not a file"):
        open_journal(tmp_path / "x.gputui-trace", stop=threading.Event())
    with pytest.raises(JournalError, match="is not a file"):
        Playback.open(str(tmp_path / "x.gputui-trace"), lambda: None)
    with pytest.raises(JournalError, match="is not a file"):
        TraceReader(tmp_path / "x.gputui-trace")
