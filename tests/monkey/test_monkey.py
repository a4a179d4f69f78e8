"""A thousand random events over each of the demo, a replay and a live run: the run lives, the
screen answers, the terminal is put back, no file that was there is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monkey.monkey import NAMES, play


@pytest.mark.parametrize("name", NAMES)
def test_a_monkey_ends_nothing_and_changes_no_file(tmp_path: Path, name: str) -> None:
    play(name, 1000, 1, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_monkey_that_agrees_leaves_all_else_as_it_was(tmp_path: Path, name: str) -> None:
    play(name, 300, 7, tmp_path, agrees=True)
