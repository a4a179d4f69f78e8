"""A text field in any width, with any text."""

from __future__ import annotations

import time

import pytest
from rich.cells import cell_len

from gputui.tui.widgets.field import TextField


@pytest.mark.parametrize("text", ["", "a", "abc" * 40, "字" * 40])
@pytest.mark.parametrize("width", [-2, 0, 1, 2, 3, 10, 60])
def test_a_field_has_its_cursor_in_sight_and_ends(text: str, width: int) -> None:
    """In one cell or none it looked for a beginning without end: the screen hung, and took no
    signal."""
    before, cursor, _ = TextField.holding(text).spans(width)
    assert cursor == (" ", "cursor")
    assert cell_len(before[0]) <= max(0, width - 1)
    assert before[0] == text or before[0].startswith("…") or width <= 1


def test_a_key_in_a_long_text_costs_little() -> None:
    field = TextField.holding("字" * 4096)
    began_s = time.process_time()
    field.spans(60)
    assert time.process_time() - began_s < 0.2
