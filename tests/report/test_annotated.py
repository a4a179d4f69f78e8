"""A script without NVTX on an H200, with `--annotate autograd`: its phases and their kernels."""

from __future__ import annotations

from functools import cache

from gputui.report.phases import PhaseRow, phase_rows
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from tests.conftest import DATA

STEPS = 12
LAYER = "Sequential/1/1.layers.0"


@cache
def phases() -> dict[str, PhaseRow]:
    session = Session.from_events(JournalReader.open(DATA / "h200-annotated.gputui.gz"))
    assert session.run is not None
    return {row.path: row for row in phase_rows(session.run)}


def test_modules_and_their_operators_nest() -> None:
    linear = phases()[f"{LAYER}/1.layers.0.linear1"]
    product = phases()[f"{LAYER}/1.layers.0.linear1/aten::linear/aten::addmm"]
    assert (linear.instances, linear.kernels) == (STEPS, STEPS)
    assert (product.instances, product.kernels) == (STEPS, STEPS)


def test_operators_of_autograd_are_seen_on_its_thread() -> None:
    name = "autograd::engine::evaluate_function: NllLossBackward0"
    row = phases()[name]
    assert (row.instances, row.kernels) == (STEPS, 2 * STEPS)
    assert row.kernels > phases()["backward"].kernels


def test_the_optimizer_is_a_phase() -> None:
    step = phases()["AdamW.step"]
    assert step.instances == STEPS
    assert step.kernels > 0
