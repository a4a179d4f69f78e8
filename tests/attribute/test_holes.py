"""Time of which nothing is known, against intervals one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.attribute.arrays import Holes

MOMENTS = st.integers(0, 60)
SPANS = st.lists(st.tuples(MOMENTS, st.integers(1, 9)), max_size=8)


@settings(max_examples=60)
@given(SPANS, SPANS.filter(bool), st.one_of(st.none(), MOMENTS))
def test_what_touches_a_hole_is_found(holes, asked, opened) -> None:
    known = Holes()
    whole = sorted(((start, start + length) for start, length in holes), key=lambda hole: hole[1])
    for start, end in whole:
        known.add(start, end)
    if opened is not None:
        known.begin(opened)
        whole.append((opened, 1 << 40))
        known.begin(opened + 5)  # it is open already
    spans = [(start, start + length) for start, length in asked]
    found = known.touch(np.array([a for a, _ in spans]), np.array([b for _, b in spans]))
    assert found.tolist() == [any(a < end and b > start for start, end in whole) for a, b in spans]


def test_a_hole_ends_where_something_is_known_again() -> None:
    known = Holes()
    known.end(5)  # none was begun
    known.begin(10)
    known.end(20)
    starts = np.array([0, 5, 15, 20])
    assert known.touch(starts, starts + 8).tolist() == [False, True, True, False]
