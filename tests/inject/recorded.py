"""Runs gputui around programs: what it says, and what it makes of its recording.

In this process: starting an interpreter and importing gputui costs a second of CPU, more than all
that a test looks at.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from gputui.cli.dispatch import run


@dataclass(frozen=True)
class Done:
    status: int
    stdout: str
    stderr: str


def gputui(*words: str, **extra: str) -> Done:
    clear = {name: value for name, value in os.environ.items() if "INJECTION64" not in name}
    shown, told = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, clear | extra, clear=True),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(told),
    ):
        status = run(words)
    return Done(status, *(stream.buffer.getvalue().decode() for stream in (shown, told)))


def recorded(folder: Path, flags: list[str], *command: str, **extra: str) -> tuple[str, dict]:
    """What gputui said while it recorded, and the document that it makes of the recording."""
    path = str(folder / "x.gputui")
    done = gputui("--record", "-o", path, *flags, "--", *command, **extra)
    assert done.status == 0, done.stderr
    return done.stderr, json.loads(gputui("summary", path, "--format", "json").stdout)
