"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.cards import read_visible_devices

INSTANCES = {"MIG-1111-a": 1, "MIG-3333-c": 3}
GPUS = {0: "GPU-aaaa-1", 1: "GPU-aabb-2", 2: "GPU-bbbb-3", 3: "GPU-cccc-4"}


def gpus_of(visible: str) -> tuple[int, ...]:
    return read_visible_devices(visible, GPUS, INSTANCES.get).gpus


@pytest.mark.parametrize(
    ("visible", "expected", "problem"),
    [
        # The guide's own examples.
        ("2,1", (2, 1), None),
        ("0,2,-1,1", (0, 2), None),
        ("", (), None),
        ("GPU-bbbb", (2,), None),
        # White space, the end of a number, case.
        (" 3 , 0 ", (3, 0), None),
        ("+1,2nd", (1, 2), None),
        ("01", (1,), None),
        ("GPU-bb,gpu-CCCC-4", (2, 3), None),
        # What ends the list.
        ("1,9,2", (1,), ("9", "no GPU")),
        ("1," + "9" * 5000, (1,), ("9" * 5000, "no GPU")),
        ("2,,1", (2,), None),
        ("NoDevFiles", (), None),
        ("-0", (), None),
        ("GPU-cc,GPU-aa,GPU-bb", (3,), ("GPU-aa", "several GPUs")),
        ("GPU-", (), ("GPU-", "several GPUs")),
        ("aaaa-1", (), ("aaaa-1", "no GPU")),
        ("1,GPU-cc", (1,), ("GPU-cc", "mixed")),
        ("GPU-cc,1", (3,), ("1", "mixed")),
        # Twice the same hides all.
        ("1,1", (), ("1", "twice")),
        ("0,1,01,2", (), ("01", "twice")),
        ("GPU-bb,GPU-bbbb-3", (), ("GPU-bbbb-3", "twice")),
        # One MIG instance at most.
        ("MIG-3333-c", (3,), None),
        ("MIG-3333-c,MIG-1111-a", (3,), None),
        ("GPU-aaaa,MIG-3333-c", (0, 3), None),
        ("GPU-cccc,MIG-3333-c", (3,), None),
        ("MIG-none", (), ("MIG-none", "no GPU")),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(visible, expected, problem):
    seen = read_visible_devices(visible, GPUS, INSTANCES.get)
    assert (seen.gpus, seen.problem) == (expected, problem)


def test_an_instance_is_told_by_its_entry():
    assert read_visible_devices("MIG-1111-a,0", GPUS, INSTANCES.get).instance == "MIG-1111-a"
    assert read_visible_devices("1", GPUS, INSTANCES.get).instance is None


ENTRIES = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from([*GPUS.values(), *INSTANCES, "GPU-aa", "GPU-", "MIG-", "", " ", "1st"]),
    st.text(max_size=10),
)


@given(st.lists(ENTRIES, max_size=6).map(",".join))
def test_whatever_it_says_it_names_gpus_once_each_up_to_the_first_that_is_none(visible):
    found = gpus_of(visible)
    assert set(found) <= set(GPUS)
    assert len(set(found)) == len(found)
    assert gpus_of(f"{visible},GPU-none,0,1,2,3") in (found, ())


@given(st.permutations(sorted(GPUS)), st.integers(1, 4), st.booleans())
def test_devices_are_numbered_in_the_order_of_the_list(order, count, by_uuid):
    chosen = order[:count]
    names = [GPUS[index] if by_uuid else str(index) for index in chosen]
    assert gpus_of(",".join(names)) == tuple(chosen)
    assert gpus_of(",".join([*names, names[0]])) == ()


def test_without_the_machines_gpus_indices_stand_for_themselves():
    assert read_visible_devices("5,4", {}, INSTANCES.get).gpus == (5, 4)
    assert read_visible_devices("GPU-a", {}, INSTANCES.get).gpus == ()
