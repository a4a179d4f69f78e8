"""Every fault and its cure makes steps on the CPU, and names a leaf that there is."""

from __future__ import annotations

import pytest
import torch

from gputui.model.leaves import LEAF_OF_KEY
from workloads.faults import FAULTS
from workloads.faults.variants import VARIANTS

SLOW = {"recompiling", "shared_gpu", "workers", "starved", "healthy_server"}
"""Compile, or start other processes and wait for them."""


def test_the_declaration_lists_every_variant() -> None:
    assert tuple(VARIANTS) == FAULTS


@pytest.mark.parametrize("cure", [False, True], ids=["fault", "cure"])
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in SLOW])
def test_it_makes_steps(name: str, cure: bool) -> None:
    step = VARIANTS[name].make(cure, torch.device("cpu"))
    step()
    step()


@pytest.mark.parametrize("name", VARIANTS)
def test_its_cause_is_a_leaf_or_is_found_beside_the_tree(name: str) -> None:
    cause = VARIANTS[name].cause
    assert cause == "" or cause in LEAF_OF_KEY or cause == "memory_grows"
