"""A copy of the package, changed as a recipe of docs says, and a check that runs on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import gputui

_REPOSITORY = Path(__file__).parents[1]


def copy_package(folder: Path) -> Path:
    """Copies the package into the folder and returns the copy's."""
    source = Path(gputui.__file__).parent
    return shutil.copytree(
        source, folder / "gputui", ignore=shutil.ignore_patterns("__pycache__")
    )  # fmt: skip


def change(package: Path, changes: Iterable[tuple[str, str, str, str]]) -> None:
    """Makes changes of (file, a text that stands in it once, what is written there, what of the
    text that replaces)."""
    for name, before, added, replaced in changes:
        path = package / name
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, (name, before)
        place = text.index(before)
        rest = text[place + len(replaced) :]
        path.write_text(f"{text[:place]}{added}{rest}", encoding="utf-8")


def check_copy(folder: Path, program: str) -> None:
    """Runs a program that imports the folder's copy, `FOLDER` in it, and the helpers of tests."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"FOLDER = {str(folder)!r}\n{program}"],
        env=os.environ | {"PYTHONPATH": f"{folder}:{_REPOSITORY}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
