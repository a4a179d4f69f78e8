"""Files that are none: nothing waits for a pipe that nobody writes to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gputui.playback.player import Playback
from gputui.store.errors import JournalError
from gputui.store.journal import open_journal
from gputui.store.regular_file import open_regular
from gputui.store.trace import TraceReader


@pytest.mark.parametrize(
    "words",
    [
        ("summary", "x.gputui"),
        ("summary", "x.gputui.gz"),
        ("summary", "x.sqlite"),
        ("summary", "x.csv"),
        ("export", "x.sqlite", "--format", "chrome", "-o", "out"),
        ("export", "x.gputui", "--format", "snapshot", "-o", "out"),
        ("compare", "x.gputui", "x.sqlite"),
    ],
)
def test_a_pipe_is_refused_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in {word for word in words if word.startswith("x.")}:
        os.mkfifo(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "gputui", *words],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "is not a file: to read a recording from a pipe, give - as FILE\n" in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
