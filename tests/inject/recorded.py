"""Runs gputui itself around programs: what it says, and what it makes of its recording."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from gputui.cli.dispatch import run


def gputui(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    clear = {name: value for name, value in os.environ.items() if "INJECTION64" not in name}
    return subprocess.run(
        [sys.executable, "-m", "gputui", *words],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=clear | extra,
    )  # fmt: skip


def recorded(folder: Path, flags: list[str], *command: str, **extra: str) -> tuple[str, dict]:
    """What gputui said while it recorded, and the document that it makes of the recording."""
    path = str(folder / "x.gputui")
    done = gputui("--record", "-o", path, *flags, "--", *command, **extra)
    assert done.returncode == 0, done.stderr
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run(["summary", path, "--format", "json"]) == 0
    return done.stderr, json.loads(shown.getvalue())
