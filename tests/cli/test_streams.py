"""Standard streams that are closed: what was asked for goes on, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "gputui"]
RUN = ["sh", "-c", "echo out; echo err >&2; exit 3"]


def closed(numbers: tuple[int, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Run gputui with those of its standard streams closed."""
    closing = " ".join(f"{number}>&-" for number in numbers)
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *PROGRAM, *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_a_run_goes_on_without_standard_streams(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    path = tmp_path / "x.gputui"
    done = closed(numbers, "--record", "-o", str(path), "--", *RUN)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert (done.stdout == "") == (1 in numbers)
    # Nothing that was printed ended up in a file that took a stream's number.
    first, *_, last = map(json.loads, path.read_text().splitlines())
    assert "schema" in str(first)
    assert last


def test_data_without_standard_output_is_an_error_of_one_line() -> None:
    done = closed((1,), "--once")
    assert done.returncode == 1
    assert done.stderr == "gputui: cannot write to standard output: bad file descriptor\n"


def test_data_without_standard_error_is_written() -> None:
    done = closed((2,), "--once", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["host"]


def test_a_mistake_without_standard_error_keeps_its_status() -> None:
    assert closed((2,), "--no-such-option").returncode == 2
