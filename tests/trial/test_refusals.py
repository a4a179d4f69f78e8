"""What is not tried, and said in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trial.trying_for_tests import gputui_try


def test_nothing_runs_without_a_yes(tmp_path: Path) -> None:
    left = tmp_path / "left"
    program = f"open({str(left)!r}, 'w')"
    done = gputui_try(
        tmp_path, "--cure", "tf32", "--", sys.executable, "-c", program, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert "give --yes" in done.stderr
    assert "up to" in done.stderr
    assert not left.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cure", "tf23", "--", "true"), "did you mean tf32?"),
        (("--cure", "skip", "--", "true"), "give skip@FILE:FUNCTION"),
        ((), "nothing to try cures on"),
        (("--readonly", "--", "true"), "starts nothing"),
        (("--", "no-such-command"), "no-such-command"),
        (("python", "train.py"), "a command comes after --, as in: gputui try -- CMD"),
        (("missing.gputui", "--", "true"), "missing.gputui"),
    ],
)
def test_what_cannot_be_tried_is_said_in_a_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = gputui_try(tmp_path, *words)
    assert done.returncode in (1, 2, 127)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_program_without_steps_is_not_tried_again_and_again(tmp_path: Path) -> None:
    done = gputui_try(tmp_path, "--yes", "--shared", "--", "true")
    assert done.returncode == 1
    assert "neither used a GPU nor made a step that is known to its end" in done.stderr


def test_a_program_that_crashes_under_capture_is_tried_without_findings(tmp_path: Path) -> None:
    """Once more first; and here it has no steps without it either."""
    program = """if 1:
        import os, signal
        if "GPUTUI_CAPTURE_LIBRARY" in os.environ:
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    done = gputui_try(tmp_path, "--yes", "--shared", "--", sys.executable, "-c", program)
    said = done.stderr
    assert said.index("once more: ") < said.index("without findings: ")
    assert "was killed by SIGSEGV, twice" in done.stdout
    assert "Nothing could be timed: it ended; no step that is known in" in done.stdout


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"y\n"])
def test_a_person_is_asked_what_runs_where_and_how_often(tmp_path: Path, answer: bytes) -> None:
    left = tmp_path / "left"
    os.mkfifo(tmp_path / "fifo")  # which nobody reads, and no copy waits for
    master, slave = os.openpty()
    program = f'open("{left}", "w")'
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "gputui", "try", "--budget", "5m", "--cure", "tf32", "--scratch",
             "--", sys.executable, "-c", program],
            stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")},
        )  # fmt: skip
        os.write(master, answer)
        _, said = process.communicate(timeout=120)
    finally:
        os.close(master)
        os.close(slave)
    text = said.decode()
    for word in (program, "a copy of this folder", "6 runs", "5 min", "SIGTERM", "W&B"):
        assert word in text, word
    assert left.exists() == (answer == b"y\n")
    assert ("nothing was run" in text) == (answer != b"y\n")
    assert sorted(path.name for path in tmp_path.iterdir()) in (["fifo"], ["fifo", "left"])


def test_a_folder_that_is_too_large_is_not_copied(tmp_path: Path) -> None:
    with tmp_path.joinpath("large").open("wb") as file:
        file.truncate((2 << 30) + 1)
    done = gputui_try(tmp_path, "--yes", "--shared", "--scratch", "--", "true", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "gputui: --scratch: this folder has more than 2.00 GiB or 100,000 files to copy: run it in "
        "a smaller one\n"
    )
