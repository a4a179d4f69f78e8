"""Merging by the rules that fields declare."""

from __future__ import annotations

from functools import reduce
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import (
    Amount,
    CaptureDelta,
    DeviceDelta,
    KernelDelta,
    Key,
    LoopDelta,
    MarkDelta,
    Payload,
    Rule,
    Scope,
    Sum,
)
from gputui.model.merge import declared_fields, merge, rules
from tests.events_for_tests import at, times
from tests.store.test_journal_sums import deltas


def test_every_kind_of_part_says_how_each_of_its_fields_is_merged() -> None:
    parts = [of for of, rule in declared_fields(CaptureDelta, Rule).values() if rule is Rule.PARTS]
    assert len(parts) >= 14
    for part in parts:
        kind = part.__args__[0]
        assert Rule.KEY in rules(kind).values(), kind
        assert set(rules(kind).values()) - {Rule.KEY}, kind


def test_each_rule_does_what_it_says() -> None:
    one = DeviceDelta(process=1, device=0, busy_ns=5, operations=1, first_start_ns=20,
                      last_end_ns=30, idle=times(4))  # fmt: skip
    other = DeviceDelta(process=1, device=0, busy_ns=2, operations=3, first_start_ns=10,
                        last_end_ns=25)  # fmt: skip
    expected = DeviceDelta(process=1, device=0, busy_ns=7, operations=4, first_start_ns=10,
                           last_end_ns=30, idle=times(4))  # fmt: skip
    assert merge(one, other) == merge(other, one) == expected
    marks = MarkDelta("", "m", 1, at(1), at(1), Payload("int64", 1))
    newer = MarkDelta("", "m", 1, at(2), at(2), Payload("int64", 2))
    silent = MarkDelta("", "m", 1, at(3), at(3))
    assert reduce(merge, (marks, newer, silent)).payload == Payload("int64", 2)


def test_a_sum_that_one_of_two_did_not_measure_is_that_of_the_other() -> None:
    def loop(waited_ns: int | None) -> LoopDelta:
        return LoopDelta(1, 0, Scope.STEADY, 1, 2, 6, 1, 2, waited_ns=waited_ns)

    for amount in (0, 5):
        assert merge(loop(None), loop(amount)).waited_ns == amount
        assert merge(loop(amount), loop(None)).waited_ns == amount
    assert merge(loop(0), loop(5)).waited_ns == 5
    assert merge(loop(None), loop(None)).waited_ns is None


def test_parts_about_the_same_thing_become_one_and_others_stay() -> None:
    def kernel(number: int, *values: int) -> KernelDelta:
        return KernelDelta(process=1, range=0, kernel=number, device=0, time=times(*values))

    one = CaptureDelta(time_ns=at(2), process=1, kernels=(kernel(1, 5), kernel(2, 6)), records=2)
    other = CaptureDelta(time_ns=at(1), process=1, kernels=(kernel(2, 7),), records=1)
    assert merge(one, other) == CaptureDelta(
        time_ns=at(2), process=1, kernels=(kernel(1, 5), kernel(2, 6, 7)), records=3
    )


@given(st.lists(deltas(), min_size=3, max_size=4))
def test_it_does_not_matter_in_which_groups_deltas_are_merged(some: list[CaptureDelta]) -> None:
    some = [msgspec.structs.replace(delta, process=1) for delta in some]
    left = reduce(merge, some)
    right = merge(some[0], reduce(merge, some[1:]))
    assert _rounded(left) == _rounded(right)


def _rounded(delta: CaptureDelta) -> object:
    def plain(value: object) -> object:
        match value:
            case float():
                return pytest.approx(value)
            case dict():
                return {key: plain(item) for key, item in value.items()}
            case list() | tuple():
                return [plain(item) for item in value]
        return value

    return plain(msgspec.to_builtins(delta))


def test_a_field_without_a_rule_is_refused() -> None:
    class Half(msgspec.Struct, frozen=True):
        number: Annotated[int, Key]
        amount: Annotated[Amount, Sum]
        more: int = 0

    with pytest.raises(TypeError, match=r"Half\.more declares no rule"):
        rules(Half)
