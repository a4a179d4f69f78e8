"""However a trial ends, nothing of it goes on."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.schemas_for_tests import check
from tests.trial.trying_for_tests import LOOPING, environment

pytest.importorskip("tqdm")

LIMIT_S = 240
"""Against what hangs: the machine may be slow."""


def _has_ended(pid: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just gone
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return True


@pytest.mark.parametrize(
    ("number", "moment", "words"),
    [
        (signal.SIGTERM, "", ()),
        (signal.SIGTERM, "started", ()),
        (signal.SIGKILL, "started", ()),
        (signal.SIGHUP, "started", ("--cure", "gc_off")),
        (signal.SIGINT, "started", ("--cure", "gc_off")),
        (signal.SIGKILL, "switched", ("--cure", "gc_off")),
    ],
)
def test_killed_at_any_moment_it_leaves_nothing(
    tmp_path: Path, number: int, moment: str, words: tuple[str, ...]
) -> None:
    """Before the program starts, under capture, in a run of its own, and while a cure is switched:
    its processes end, those too that it has started."""
    told = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-m", "gputui", "try", "--yes", "--shared", *words, "--",
         sys.executable, LOOPING, "--tell", str(told)],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    until = time.monotonic() + LIMIT_S

    def words_told() -> list[str]:
        return told.read_text().split() if told.exists() else []

    process.stdout.readline()  # it has begun
    while moment and moment not in words_told():
        assert time.monotonic() < until
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(LIMIT_S)
    process.stdout.close()
    for pid in filter(str.isdigit, words_told()):
        while not _has_ended(pid):
            assert time.monotonic() < until
            time.sleep(0.02)
    if number != signal.SIGKILL:
        assert list(tmp_path.joinpath("tmp").iterdir()) == []


def test_ctrl_c_ends_it_with_what_was_measured_until_then(tmp_path: Path) -> None:
    told = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-m", "gputui", "try", "--yes", "--shared", "--json", "--cure", "gc_off",
         "--", sys.executable, LOOPING, "--tell", str(told)],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    until = time.monotonic() + LIMIT_S
    while not told.exists() or "switched" not in told.read_text():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    document = json.loads(printed)
    check("try", document)
    assert document["remarks"][0].startswith("Stopped by Ctrl-C")
    assert document["runs"] == 1
