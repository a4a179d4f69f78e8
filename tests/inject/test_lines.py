"""In which programs the lines that run are sampled: real interpreters with the start-up hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.inject import hook
from gputui.inject.hook import python_lines

SAYS = "; import threading; print([t.name for t in threading.enumerate()].count('gputui lines'))"


@pytest.mark.parametrize(
    ("program", "samplers"),
    [
        ("import json", 0),
        ("import torch", 1),
        ("import cupy", 1),
        ("import jax, torch", 1),
        ("import torch, jax", 1),
        ("import nobody", 0),
    ],
)
def test_lines_are_sampled_once_a_library_uses_gpus(
    tmp_path: Path, program: str, samplers: int
) -> None:
    for library in ("torch", "cupy", "jax"):
        (tmp_path / f"{library}.py").write_text("")
    (tmp_path / "nobody.py").write_text("try:\n import pycuda\nexcept ImportError:\n pass")
    folders = os.pathsep.join([str(Path(hook.__file__).parent), str(tmp_path)])
    lines = {"GPUTUI_LINES": "10", "GPUTUI_CAPTURE_DIR": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", program + SAYS],
        env={**os.environ, "PYTHONPATH": folders, **lines},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (said.stdout, said.stderr) == (f"{samplers}\n", "")


@pytest.mark.parametrize(
    ("said", "rate"), [("1", 1), ("100", 100), ("0", 10), ("101", 10), ("", 10)]
)
def test_lines_are_read_as_often_as_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, said: str, rate: int
) -> None:
    monkeypatch.setenv("GPUTUI_LINES", said)
    assert python_lines._rate_hz() == rate


HOLDING = """
import json, sys, threading, time
from pathlib import Path
from gputui.inject.hook import python_lines
folder, aside = sys.argv[1:]
rows = [{"a": i, "b": [i] * 4} for i in range(100_000)]
python_lines.OF_LATE = 0.05  # where other programs take the cores, a thread runs a part of the time
assert python_lines.start(folder)
def dump():
    for _ in range(100):
        json.dumps(rows)
        time.sleep(0.01)
        # In a function of its own it was at times where the thread was once the sampler could look.
        for path in Path(folder).glob("lines-*"):
            if ":l:" in path.read_text():
                return
if aside == "aside":
    other = threading.Thread(target=dump)
    other.start()
    while other.is_alive():
        sum(range(100))
else:
    for _ in range(5):
        json.dumps(rows)
"""


@pytest.mark.parametrize("aside", ["aside", "main"])
def test_a_thread_that_holds_the_lock_of_python_is_named(tmp_path: Path, aside: str) -> None:
    """One call of json in C, for which nobody else can go on, the sampler neither. The main
    thread's own calls are where it is."""
    program = tmp_path / "saves.py"
    program.write_text(HOLDING)
    folders = {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = [sys.executable, str(program), str(tmp_path), aside]
    subprocess.run(child, env={**os.environ, **folders}, check=True)
    [path] = tmp_path.glob("lines-*")
    rows = path.read_text().splitlines()
    defined = {row.split(" ")[1]: row.split(" ")[3] for row in rows if row.startswith("d ")}
    held = [row.split(" ")[2].split(":") for row in rows if ":l:" in row]
    assert {defined[number] for _, number, _, _ in held} == (
        {"dump"} if aside == "aside" else set()
    )
