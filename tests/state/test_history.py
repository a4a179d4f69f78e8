"""The newest of what was seen: copies go their own way and come back as they were."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from gputui.state.history import History

Entry = tuple[int, str]


@given(st.integers(1, 200), st.lists(st.integers(0, 150), max_size=12))
def test_a_history_is_a_bounded_deque_whatever_was_copied_of_it(
    most: int, additions: list[int]
) -> None:
    history, expected = History[Entry](Entry, most), deque[Entry](maxlen=most)
    saved: list[tuple[History[Entry], list[Entry]]] = []
    number = 0
    for count in additions:
        for _ in range(count):
            number += 1
            history.append((number, "x"))
            expected.append((number, "x"))
        saved.append((history.copy(), list(expected)))
    for one, entries in [*saved, (history, list(expected))]:
        assert list(one) == entries
        assert list(reversed(one)) == entries[::-1]
        assert len(one) == len(entries)
        assert (one.oldest, one.newest) == ((entries[0], entries[-1]) if entries else (None, None))
    for one, entries in saved:
        one.append((0, "y"))
        assert list(one) == [*entries, (0, "y")][-most:]
    assert list(history) == list(expected)


def test_entries_that_cannot_be_packed_are_kept_as_they_are() -> None:
    """Figures beyond 64 bits, which only hostile recordings hold."""
    history = History[int](int, 500, range(2**64, 2**64 + 200))
    assert list(history.copy()) == list(range(2**64, 2**64 + 200))
