"""Stacks of a process against a model of a few lines: who has one, in what order, and who goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.attribute import Strings
from gputui.attribute.range_stacks import (
    MAX_STACKS,
    NO_STACK,
    OWN_BRANCHES,
    WINDOW_MOMENTS,
    WINDOW_NS,
    RangeStacks,
)
from gputui.model.naming import is_library_domain
from gputui.ring import SLOT

DOMAINS = {1: "mine", 2: "NCCL", 3: "CUB", 4: "yours", 5: "mine"}
"""Two handles of one name are one domain."""


def slots(pairs: list[tuple[int, int]]) -> np.ndarray:
    """Records of (thread, domain) each."""
    records = np.zeros(len(pairs), SLOT)
    records["thread"] = [thread for thread, _ in pairs]
    records["a"] = [domain for _, domain in pairs]
    return records


def lanes_of() -> RangeStacks:
    strings = Strings()
    strings.add(DOMAINS)
    return RangeStacks(strings)


PAIRS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=40)


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_a_stack_for_each_thread_and_domain(batches: list[list[tuple[int, int]]]) -> None:
    stacks = lanes_of()
    known: dict[tuple[int, str], int] = {}
    for batch in batches:
        for (thread, number), index in zip(
            batch, stacks.indices(slots(batch)).tolist(), strict=True
        ):
            key = thread, DOMAINS.get(number, "")
            assert known.setdefault(key, index) == index
            assert (stacks[index].thread, stacks[index].domain) == key
            assert stacks[index].depth == 0
    assert len(set(known.values())) == len(known) == len(stacks.all())
    assert stacks.threads().tolist() == sorted({thread for thread, _ in known})
    # Stacks are numbered in the order they came; each has a branch of its own.
    first = [stacks[index] for index in known.values()]
    assert sorted(stack.place for stack in first) == list(range(1, len(known) + 1))
    assert [stack.place for stack in first] == [stack.branch for stack in first]
    for thread in range(8):
        domains = [domain for owner, domain in known if owner == thread]
        expected = [domain for domain in domains if domain == ""]
        expected += [domain for domain in domains if domain and not is_library_domain(domain)]
        expected += [domain for domain in domains if is_library_domain(domain)]
        assert [stack.domain for stack in stacks.of_thread(thread)] == expected


def test_no_records_have_no_stacks() -> None:
    stacks = lanes_of()
    assert stacks.indices(slots([])).tolist() == []
    assert stacks.threads().tolist() == []
    assert stacks.of_thread(1) == []
    stacks.forget()


def test_further_threads_share_a_branch_a_domain() -> None:
    stacks = lanes_of()
    stacks.indices(slots([(thread, 0) for thread in range(1, OWN_BRANCHES + 1)]))
    more = stacks.indices(slots([(1000, 0), (1001, 1), (1002, 0), (1003, 5), (1004, 2)]))
    branches = [stacks[index].branch for index in more.tolist()]
    assert branches[0] == branches[2]  # of the default domain
    assert branches[1] == branches[3]  # of "mine", by either handle
    assert len(set(branches)) == 3
    own = {stack.branch for stack in stacks.all()} - set(branches)
    assert own == set(range(1, OWN_BRANCHES + 1))


def test_thread_ids_that_no_linux_has_keep_their_low_bits() -> None:
    stacks = lanes_of()
    low, high = stacks.indices(slots([(7, 1), (7 | 1 << 31, 1)])).tolist()
    assert low == high
    assert stacks[low].thread == 7


def filled(open_threads: set[int], idle_since: dict[int, int]) -> RangeStacks:
    """As many stacks as there may be: some open, others that were idle since a moment."""
    stacks = lanes_of()
    indices = stacks.indices(slots([(thread, 0) for thread in range(1, MAX_STACKS + 1)])).tolist()
    for thread, index in enumerate(indices, 1):
        stack = stacks[index]
        stack.depth = int(thread in open_threads)
        moment = np.array([idle_since.get(thread, 1000 + thread)], np.int64)
        stack.timeline.append(moment, np.array([-1]), np.array([0]))
    return stacks


def test_stacks_that_were_idle_the_longest_make_room_and_open_ones_stay() -> None:
    late = 5
    stacks = filled(open_threads={1, 2}, idle_since={late: 10**9})
    kept = stacks[int(stacks.indices(slots([(late, 0)]))[0])]
    assert kept.thread == late
    threads = set(stacks.threads().tolist())
    assert len(threads) == MAX_STACKS // 2
    assert {1, 2, late} <= threads
    # Of the others the newest half.
    assert threads - {1, 2, late} == set(range(MAX_STACKS // 2 + 4, MAX_STACKS + 1))
    assert stacks.of_thread(3) == []
    (again,) = stacks.indices(slots([(3, 0)])).tolist()
    assert stacks[again].thread == 3
    assert stacks[again].place == MAX_STACKS + 1
    assert len(stacks.all()) == MAX_STACKS // 2 + 1


def test_where_all_are_open_new_stacks_find_no_room() -> None:
    stacks = filled(open_threads=set(range(1, MAX_STACKS + 1)), idle_since={})
    known, new = stacks.indices(slots([(1, 0), (MAX_STACKS + 1, 0)])).tolist()
    assert stacks[known].thread == 1
    assert new == NO_STACK
    assert len(stacks.all()) == MAX_STACKS
    # Once one has ended it makes room.
    stacks[known].depth = 0
    (new,) = stacks.indices(slots([(MAX_STACKS + 1, 0)])).tolist()
    assert stacks[new].thread == MAX_STACKS + 1
    assert len(stacks.all()) == MAX_STACKS
    assert stacks.of_thread(1) == []


def test_one_stack_of_several_goes_and_the_thread_stays() -> None:
    stacks = lanes_of()
    pairs = [(thread, domain) for thread in range(1, MAX_STACKS // 2 + 1) for domain in (0, 1)]
    for (_, domain), index in zip(pairs, stacks.indices(slots(pairs)).tolist(), strict=True):
        stacks[index].timeline.append(np.array([1 + domain]), np.array([-1]), np.array([0]))
    stacks.indices(slots([(1, 1)]))
    assert [stack.domain for stack in stacks.of_thread(1)] == ["mine"]
    assert len(stacks.threads()) == MAX_STACKS // 2


@pytest.mark.parametrize(("age_ns", "kept"), [(WINDOW_NS, 4), (WINDOW_NS + 1, 3)])
def test_timelines_go_back_a_window(age_ns: int, kept: int) -> None:
    stacks = lanes_of()
    first, second = (stacks[index] for index in stacks.indices(slots([(1, 0), (2, 0)])).tolist())
    now = 10 * WINDOW_NS
    moments = np.array([1, now - age_ns, now - WINDOW_NS + 1, now - 5], np.int64)
    first.timeline.append(moments, np.arange(4), np.arange(4))
    second.timeline.append(np.array([now]), np.array([0]), np.array([0]))
    stacks.forget()
    # The newest moment of all counts, and what held at the window's beginning is still known.
    assert len(first.timeline) == kept
    assert len(second.timeline) == 1


def test_timelines_hold_so_many_moments_together() -> None:
    stacks = lanes_of()
    count = WINDOW_MOMENTS // 2
    found = [stacks[index] for index in stacks.indices(slots([(1, 0), (2, 0)])).tolist()]
    step = WINDOW_NS // WINDOW_MOMENTS
    for stack in found:
        times = np.arange(1, count + 1) * step
        stack.timeline.append(times, np.zeros(count, np.int64), np.zeros(count, np.int64))
    stacks.forget()
    assert [len(stack.timeline) for stack in found] == [count, count]
    found[0].timeline.append(np.array([count * step]), np.array([0]), np.array([0]))
    stacks.forget()  # one too many: the window halves until all fit
    sizes = [len(stack.timeline) for stack in found]
    assert sum(sizes) <= WINDOW_MOMENTS
    assert min(sizes) >= count // 2
