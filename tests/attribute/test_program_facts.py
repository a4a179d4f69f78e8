"""Lines of the hook's file about collections and calls become parts of deltas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.attribute.definitions import MOST_PLACES, ProgramFacts
from gputui.model.events import GarbageCollections, LineCalls


def parts(facts: ProgramFacts) -> tuple[object, object]:
    collected = facts.collect_parts(None)  # type: ignore[arg-type]  # reads nothing of it
    return collected["garbage_collections"], collected["line_calls"]


def test_facts_of_a_place_are_added_up_until_they_are_collected() -> None:
    facts = ProgramFacts()
    assert facts.add("g 2 7 3 9000 5000 12", has_launched=True) == 7
    facts.add("g 2 7 1 2000 2000 0", has_launched=True)
    facts.add("g 0 0 50 900 90 1", has_launched=True)
    assert facts.add("c to 9 4 4096 16x16:float32:cpu", has_launched=True) == 9
    facts.add("c to 9 2 2048 8x32:float32:cpu", has_launched=True)
    facts.add("c torch.cuda.empty_cache 9 1 0 -", has_launched=True)
    assert parts(facts) == (
        (GarbageCollections(2, 7, 4, 11_000, 5000, 12), GarbageCollections(0, 0, 50, 900, 90, 1)),
        (
            LineCalls(9, "to", 6, 6144, "8x32:float32:cpu"),
            LineCalls(9, "torch.cuda.empty_cache", 1, 0, ""),
        ),
    )
    assert parts(facts) == ((), ())


def test_garbage_of_imports_is_left_out() -> None:
    facts = ProgramFacts()
    facts.add("g 2 7 3 9000 5000 12", has_launched=False)
    facts.add("c item 3 1 4 1:float32:gpu", has_launched=False)
    assert parts(facts) == ((), (LineCalls(3, "item", 1, 4, "1:float32:gpu"),))


@given(st.text() | st.from_regex(r"[gc]( [-0-9a-z.:]{0,12}){0,8}", fullmatch=True))
def test_anything_may_stand_in_the_file(text: str) -> None:
    """Either it is what the hook writes, or a ValueError; never another error."""
    facts = ProgramFacts()
    try:
        facts.add(text, has_launched=True)
    except ValueError:
        assert parts(facts) == ((), ())


@pytest.mark.parametrize("kind", ["c item {} 1 4 -", "g 1 {} 1 4 4 0"])
def test_places_are_bounded(kind: str) -> None:
    facts = ProgramFacts()
    for line in range(MOST_PLACES + 50):
        facts.add(kind.format(line), has_launched=True)
    collections, calls = facts.collect_parts(None).values()  # type: ignore[arg-type]
    assert len(collections) + len(calls) == MOST_PLACES
