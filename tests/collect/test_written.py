"""What a recording takes of the disk is among what watching costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputui.cli.dispatch import run

LIMIT_S = 60
PROGRAM = "import nvtx, sys\nwith nvtx.annotate('read'): sys.stdin.readline()"


def test_the_summary_says_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.gputui"
    words = ["--record", "--trace", "-i", "0.1", "-o", str(path), "--", sys.executable, "-c"]
    child = subprocess.Popen(
        [sys.executable, "-m", "gputui", *words, PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # The program goes on once a sample with a figure is in the recording.
    until = time.monotonic() + LIMIT_S
    while not (path.exists() and b'"recorded_bytes"' in path.read_bytes()):
        time.sleep(0.01)
        assert child.poll() is None, child.communicate()
        if time.monotonic() > until:
            child.kill()
            pytest.fail(f"no sample with recorded_bytes within {LIMIT_S} s: {child.communicate()}")
    _, told = child.communicate("go on\n", timeout=60)
    assert child.returncode == 0, told
    assert run(["summary", str(path), "--full"]) == 0
    full = capsys.readouterr().out
    assert "; wrote " in full
    assert " and a trace of " in full
    assert run(["summary", str(path), "--format", "json"]) == 0
    overhead = json.loads(capsys.readouterr().out)["overhead"]
    assert 0 < overhead["recorded_bytes"] <= path.stat().st_size
    (trace,) = (file for file in tmp_path.iterdir() if file != path)
    assert 0 < overhead["traced_bytes"] <= trace.stat().st_size
