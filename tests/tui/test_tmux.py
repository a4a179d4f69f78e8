"""The tour in tmux, at three sizes: the verdict on the first screen, evidence in two keys, back in
two."""

from __future__ import annotations

import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.segment import Segment
from textual.strip import Strip

from gputui.tui.narrow_updates import Pen
from tests.conftest import DATA
from tests.tui.test_dying import DEADLINE_S, ROOT

RECORDING = DATA / "faults" / "launch.gputui.gz"
SIZES = ((80, 24), (120, 40), (200, 50))

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")


class Tmux:
    """A server of its own, with one window."""

    def __init__(self, socket: Path, command: list[str], size: tuple[int, int]) -> None:
        self._socket = socket
        command = ["env", f"HOME={socket.parent}", *command]
        width, height = map(str, size)
        place = ["-d", "-x", width, "-y", height, "-c", str(ROOT)]
        self.run("-f", "/dev/null", "new-session", *place, shlex.join(command))

    def run(self, *words: str) -> str:
        """A command of tmux's."""
        command = ["tmux", "-S", str(self._socket), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def until(self, *texts: str, looks: bool = False) -> list[str]:
        """The screen, once all of these are on it; with `looks` as what a terminal is sent."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            screen = self.run("capture-pane", "-p", *["-e"] * looks)
            if all(text in screen for text in texts):
                return screen.splitlines()
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)


def test_a_terminal_follows_the_pen(tmp_path: Path) -> None:
    width, height = 40, 12
    rng, pen = random.Random(5), Pen(Console(color_system="truecolor", force_terminal=True), width)
    cells = [[" "] * width for _ in range(height)]
    x, y = 0, 0
    for _ in range(600):
        # Near the last place, where the pen does without a full address, and at every edge.
        x = min(max(0, x + rng.choice((-1, 0, 1, 5, -width, width))), width - 1)
        y = min(max(0, y + rng.choice((0, 0, 1, 1, -1, -height))), height - 1)
        text = "".join(rng.choices("ab█▂", k=rng.randint(1, min(3, width - x))))
        pen.move_to(x, y)
        pen.write(Strip([Segment(text)]), 0, len(text))
        cells[y][x : x + len(text)] = text
        x += len(text)
    pen.move_to(0, height)
    pen.write(Strip([Segment("written")]), 0, 7)
    path = tmp_path / "frames"
    path.write_text("\x1b[?7l" + pen.text())
    tmux = Tmux(tmp_path / "tmux", ["tail", "-f", str(path)], (width, height + 1))
    try:
        lines = tmux.until("written")
    finally:
        tmux.run("kill-server")
    assert [line.ljust(width) for line in lines[:height]] == ["".join(row) for row in cells]


REPLAY = [sys.executable, "-m", "gputui", "--replay", str(RECORDING)]
COLOR = re.compile(r"\x1b\[(?:[\d;]*;)?(?:[349][0-7]|10[0-7]|[34]8;[\d;]+)(?:;[\d;]*)?m")
REVERSE = re.compile(r"\x1b\[(?:[\d;]*;)?7m *1 Overview")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    made = Tmux(tmp_path / "tmux", REPLAY, SIZES[0])
    yield made
    made.run("kill-server")


@pytest.mark.parametrize(("term", "is_colored"), [("xterm", True), ("vt100", False)])
def test_a_terminal_without_colours_is_sent_none(
    tmp_path: Path, term: str, is_colored: bool
) -> None:
    """What colours say is said by reverse video there, as with NO_COLOR."""
    command = ["env", "-u", "COLORTERM", "-u", "NO_COLOR", f"TERM={term}", *REPLAY]
    tmux = Tmux(tmp_path / "tmux", command, SIZES[0])
    try:
        screen = "\n".join(tmux.until("LAUNCH-BOUND", "quit", looks=True))
    finally:
        tmux.run("kill-server")
    assert bool(COLOR.search(screen)) == is_colored
    assert bool(REVERSE.search(screen)) != is_colored


def test_runs_beside_the_recording_are_listed(tmp_path: Path) -> None:
    """Those of its own folder: whoever opens one of several compares it with the others."""
    for name in ("launch", "sync"):
        shutil.copy(DATA / "faults" / f"{name}.gputui.gz", tmp_path)
    command = [*REPLAY[:-1], str(tmp_path / "launch.gputui.gz")]
    tmux = Tmux(tmp_path / "tmux", command, SIZES[1])
    try:
        tmux.until("LAUNCH-BOUND", "quit")
        tmux.run("send-keys", "7")
        tmux.until("2 recordings", "90.3 µs", "150 µs")
    finally:
        tmux.run("kill-server")


def test_the_tour_at_three_sizes(tmux: Tmux) -> None:
    for width, height in SIZES:
        tmux.run("resize-window", "-x", str(width), "-y", str(height))
        first = tmux.until("LAUNCH-BOUND", "q quit", "Where each step goes")
        verdict = next(y for y, line in enumerate(first) if "LAUNCH-BOUND" in line)
        assert verdict <= 3  # nothing scrolls to reach it
        assert "88" in first[verdict]
        assert any("CUDA graphs" in line for line in first[verdict:6])
        assert max(map(len, first)) <= width
        assert len(first) <= height
        tmux.run("send-keys", "Enter")
        evidence = tmux.until("cause", "79.5 µs", "idle › launch")
        assert any("CUDA graphs" in line for line in evidence)
        tmux.run("send-keys", "Enter")
        tmux.until("Steps in order", "Esc back")
        tmux.run("send-keys", "Escape")
        tmux.until("idle › launch")
        tmux.run("send-keys", "Escape")
        tmux.until("Where each step goes")
