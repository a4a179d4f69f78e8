"""`gputui try` as it is typed, with what it keeps in a folder of the test's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOOPING = str(Path(__file__).with_name("programs") / "looping.py")


def environment(folder: Path) -> dict[str, str]:
    """Where gputui keeps what it measured, and what it leaves for a while, are within `folder`."""
    folder.joinpath("tmp").mkdir(exist_ok=True)
    return {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "TMPDIR": str(folder / "tmp")}


def gputui_try(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gputui", "try", *words],
        env={**environment(folder), **(env or {})},
        capture_output=True, text=True, timeout=300, check=False, **more,
    )  # fmt: skip
