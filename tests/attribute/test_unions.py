"""Time covered by intervals: the arrays beside a reference that goes through them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gputui.attribute.arrays import MOST_GAPS, Unions

Interval = tuple[int, int, int]
"""Key, start, end."""

BASE_NS = 1_700_000_000_000_000_000


def intervals(most: int = 40) -> st.SearchStrategy[list[Interval]]:
    one = st.tuples(
        st.sampled_from([0, 1, 2, 255, 256, 700]), st.integers(0, 60), st.integers(0, 9)
    )
    return st.lists(one, min_size=1, max_size=most).map(
        lambda found: sorted(((key, at, at + long) for key, at, long in found), key=lambda i: i[1])
    )


def add(unions: Unions, batch: list[Interval]) -> dict[int, tuple[int, ...]]:
    """By key: covered, summed up, count, first start, last end; gaps as the row and the time."""
    keys, starts, ends = (np.array(column, np.int64) for column in zip(*batch, strict=True))
    found = unions.add(keys, BASE_NS + starts, BASE_NS + ends)
    figures = (
        found.busy_ns, found.total_ns, found.counts, found.first_ns - BASE_NS,
        found.last_ns - BASE_NS,
    )  # fmt: skip
    rows = zip(found.keys.tolist(), *(column.tolist() for column in figures), strict=True)
    gaps = zip(found.gap_rows.tolist(), found.gaps_ns.tolist(), strict=True)
    told = {key: tuple(rest) for key, *rest in rows}
    told[-1] = tuple(number for gap in sorted(gaps) for number in gap)
    return told


class Reference:
    """The same, an interval at a time."""

    def __init__(self) -> None:
        self.reach: dict[int, int] = {}

    def add(self, batch: list[Interval]) -> dict[int, tuple[int, ...]]:
        told: dict[int, list[int]] = {}
        gaps: list[int] = []
        for row, (key, start, end) in enumerate(batch):
            reach = self.reach.get(key)
            if reach is not None and start > reach:
                gaps += [row, start - reach]
            busy = max(0, end - max(start, reach if reach is not None else start))
            entry = told.setdefault(key, [0, 0, 0, start, end])
            entry[0] += busy
            entry[1] += end - start
            entry[2] += 1
            entry[4] = max(entry[4], end)
            self.reach[key] = max(reach if reach is not None else end, end)
        return {key: tuple(entry) for key, entry in told.items()} | {-1: tuple(gaps)}


@given(st.lists(intervals(), min_size=1, max_size=4))
def test_any_intervals_are_covered_as_one_by_one(batches: list[list[Interval]]) -> None:
    unions, reference = Unions(), Reference()
    late = 0
    for batch in batches:
        moved = [(key, start + late, end + late) for key, start, end in batch]
        assert add(unions, moved) == reference.add(moved)
        late += 30  # some begin before what was covered already


def test_a_key_that_nothing_was_seen_of_has_no_gap_before_its_first() -> None:
    unions = Unions()
    assert add(unions, [(0, 10, 20)])[-1] == ()
    assert add(unions, [(0, 20, 30), (1, 50, 60)])[-1] == ()
    assert add(unions, [(0, 31, 32), (1, 61, 62)])[-1] == (0, 1, 1, 1)


def test_hours_apart_are_told_to_the_nanosecond() -> None:
    unions = Unions()
    hours = 9 * 3600 * 10**9
    assert add(unions, [(0, 0, 1), (0, hours, hours + 5)]) == {
        0: (6, 6, 2, 0, hours + 5), -1: (1, hours - 1),
    }  # fmt: skip


def covered_moments(batches: list[list[Interval]], key: int) -> set[int]:
    return {
        moment for batch in batches for own, start, end in batch if own == key
        for moment in range(start, end)
    }  # fmt: skip


@given(st.lists(intervals(), min_size=1, max_size=6))
def test_with_gaps_kept_any_order_of_arrival_covers_what_the_intervals_do(
    batches: list[list[Interval]],
) -> None:
    unions = Unions(fills_gaps=True)
    busy_ns: dict[int, int] = {}
    for batch in batches:
        for key, figures in add(unions, batch).items():
            if key >= 0:
                busy_ns[key] = busy_ns.get(key, 0) + figures[0]
    assert busy_ns == {key: len(covered_moments(batches, key)) for key in busy_ns}


def test_of_too_many_gaps_the_oldest_are_not_filled() -> None:
    unions = Unions(fills_gaps=True)
    add(unions, [(0, 10 * at, 10 * at + 5) for at in range(MOST_GAPS + 2)])
    add(unions, [(0, 10 * at, 10 * at + 5) for at in range(MOST_GAPS + 2, 2 * MOST_GAPS + 9)])
    assert add(unions, [(0, 15, 20)])[0][0] == 0
    late = 20 * MOST_GAPS
    assert add(unions, [(0, late + 5, late + 7), (0, late + 6, late + 25)])[0][0] == 10
    assert add(unions, [(0, late + 5, late + 9)])[0][0] == 0
