"""A thousand random events over each of the demo, a replay and a live run: the run lives, the
screen answers, the terminal is put back, no file that was there is changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gputui.inject.build import build_all
from gputui.inject.environment import library_path
from tests.monkey.attach import ATTACHED, EITHER, REFUSED, compile_target
from tests.monkey.attach import play as attach_to
from tests.monkey.monkey import NAMES, play


@pytest.mark.parametrize("name", NAMES)
def test_a_monkey_ends_nothing_and_changes_no_file(tmp_path: Path, name: str) -> None:
    play(name, 1000, 1, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_monkey_that_agrees_leaves_all_else_as_it_was(tmp_path: Path, name: str) -> None:
    play(name, 300, 7, tmp_path, agrees=True)


def test_attaching_harms_no_program(tmp_path: Path) -> None:
    """40 kinds of program, three times each; kinds that this machine cannot make are left out."""
    if library_path() is None and (failure := build_all()):
        pytest.skip(failure)
    binary = compile_target(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        games = [
            threads.submit(attach_to, kind, 3, binary, tmp_path)
            for kind in ATTACHED + REFUSED + EITHER
        ]
        for game in games:
            game.result()
