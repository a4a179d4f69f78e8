"""What finds the ring full is counted where it is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.inject.build import CAPTURE
from gputui.inject.environment import capture_environment

SLOTS = 1024
BURSTS = st.lists(st.integers(0, 2 * SLOTS), min_size=1, max_size=8)


def test_losses_stand_where_they_were(tmp_path: Path) -> None:
    environment, _ = capture_environment(tmp_path, False, dict(os.environ))
    environment["GPUTUI_RING_BYTES"] = str(64 * SLOTS)
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("lossy_child.py")), str(CAPTURE.path)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        last, lost_so_far = -1, 0

        @settings(max_examples=20, deadline=None, database=None)
        @given(BURSTS)
        def holds(bursts: list[int]) -> None:
            nonlocal last, lost_so_far
            child.stdin.write(json.dumps(bursts) + "\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
            lost = 0
            for kind, number in answer["found"]:
                if kind == "lost":
                    lost += number
                    continue
                assert number == last + 1 + lost
                last, lost_so_far, lost = number, lost_so_far + lost, 0
            assert lost == 0
            assert answer["dropped"] == lost_so_far

        holds()
        child.stdin.close()
        assert lost_so_far > 0
        assert child.wait(30) == 0
