"""CUDA's device numbers and the machine's."""

from __future__ import annotations

import pytest

from gputui.visible_devices import visible_gpus

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


def test_without_the_machines_gpus_indices_stand_for_themselves():
    assert visible_gpus("5,4", {}) == (5, 4)
    assert visible_gpus("GPU-a", {}) == ()
