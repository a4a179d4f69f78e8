"""CUDA's device numbers and the machine's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.visible_devices import visible_gpus

INSTANCES = {"MIG-1111-a": 1, "MIG-1122-b": 1, "MIG-3333-c": 3}
GPUS = {0: "GPU-aaaa-1", 1: "GPU-aabb-2", 2: "GPU-bbbb-3", 3: "GPU-cccc-4"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("2,3", (2, 3)),
        (" 3 , 0 ", (3, 0)),
        ("GPU-bb,GPU-CCCC-4", (2, 3)),
        ("GPU-aa,0", ()),  # the beginning of two
        ("1,9,2", (1,)),
        ("1,-1,2", (1,)),
        ("1,1,2", (1,)),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_numbers_are_read_as_cuda_reads_them(visible, expected):
    assert visible_gpus(visible, GPUS) == expected


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.one_of(
                st.integers(-2, 5).map(str),
                st.sampled_from([*GPUS.values(), *INSTANCES, "GPU-aa", "GPU-", "MIG-", "", " "]),
            ),
            max_size=6,
        ).map(",".join),
    )
)
def test_whatever_the_variable_says_it_names_gpus_once_each(visible):
    found = visible_gpus(visible, GPUS, INSTANCES)
    assert set(found) <= set(GPUS)
    assert len(set(found)) == len(found)
    # What comes after a name of no GPU changes nothing.
    assert visible_gpus(f"{visible},GPU-none,0,1,2,3", GPUS, INSTANCES) == found


def test_an_instance_stands_for_the_gpu_it_is_a_part_of():
    assert visible_gpus("MIG-3333", GPUS, INSTANCES) == (3,)
    assert visible_gpus("mig-1111", GPUS, INSTANCES) == (1,)
    assert visible_gpus("MIG-9", GPUS, INSTANCES) == ()
    assert visible_gpus("MIG-1", GPUS, INSTANCES) == ()  # the beginning of two
    assert visible_gpus("MIG-3333", GPUS) == ()


def test_all_gpus_come_in_the_order_of_their_numbers():
    assert visible_gpus(None, dict(reversed(GPUS.items()))) == (0, 1, 2, 3)


def test_without_the_machines_gpus_indices_stand_for_themselves():
    assert visible_gpus("5,4", {}) == (5, 4)
    assert visible_gpus("GPU-a", {}) == ()
