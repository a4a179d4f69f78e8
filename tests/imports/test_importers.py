"""What importers of every format share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gputui.imports import ABSENT, RangeRecords, RangeRows, number_distinct
from gputui.ring import RecordKind

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(INTEGERS | st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_each_combination_is_asked_for_once_the_lowest_first(rows: list[tuple[int, int]]) -> None:
    asked: list[tuple[int, ...]] = []

    def number(*key: int) -> int:
        asked.append(key)
        return len(asked)

    columns = np.array(rows, np.int64).reshape(-1, 2).T
    numbers = number_distinct(tuple(columns), number).tolist()
    assert asked == sorted(set(rows))
    assert [asked[place - 1] for place in numbers] == rows


def test_combinations_of_one_hash_stay_apart() -> None:
    whole, golden = 1 << 64, 0x9E37_79B9_7F4A_7C15
    second = (2 * golden | 1) % whole

    def after_first(value: int) -> int:
        hashed = value * golden % whole
        return (hashed ^ hashed >> 29) * golden % whole

    alike = (after_first(1) - after_first(2)) * pow(second, -1, whole) % whole
    alike -= whole if alike >> 63 else 0
    columns = np.array([1, 2, 1]), np.array([0, alike, 0])
    numbers = {(1, 0): 7, (2, alike): 8}
    assert number_distinct(columns, lambda *key: numbers[key]).tolist() == [7, 8, 7]


# --- ranges --------------------------------------------------------------------------------------

# Start, length (None: it never ends), thread and domain, on a short axis so that many coincide.
RANGES = st.lists(
    st.tuples(
        st.integers(0, 12), st.none() | st.integers(0, 6), st.integers(1, 2), st.integers(0, 1)
    ),
    max_size=25,
)


def _rows(ranges: list[tuple[int, int | None, int, int]]) -> RangeRows:
    count = len(ranges)
    columns = dict.fromkeys(RangeRows._fields, np.zeros(count, np.int64))
    columns["number"] = np.arange(count)
    columns["start"] = np.array([start for start, *_ in ranges], np.int64)
    columns["end"] = np.array(
        [ABSENT if length is None else start + length for start, length, *_ in ranges], np.int64
    )
    columns["kind"] = np.full(count, int(RecordKind.RANGE_PUSH))
    columns["task"] = columns["end_task"] = np.array([row[2] for row in ranges], np.int64)
    columns["domain"] = np.array([row[3] for row in ranges], np.int64)
    return RangeRows(**columns)


@given(RANGES, st.lists(st.integers(0, 20), max_size=6))
def test_records_of_ranges_are_the_same_wherever_blocks_end(
    ranges: list[tuple[int, int | None, int, int]], bounds: list[int]
) -> None:
    rows = _rows(ranges)
    whole, whole_tasks = RangeRecords(1_000).records_until(20, rows)
    carried = RangeRecords(1_000)
    blocks, tasks = [whole[:0]], [whole_tasks[:0]]
    before = -1
    for until in sorted({*bounds, 20}):
        begun = rows.pick((rows.start > before) & (rows.start <= until))
        records, of_task = carried.records_until(until, begun)
        blocks.append(records)
        tasks.append(of_task)
        before = until
    assert np.concatenate(blocks).tolist() == whole.tolist()
    assert np.concatenate(tasks).tolist() == whole_tasks.tolist()
    assert carried.last_ns == (max((record["start"] for record in whole), default=0))
