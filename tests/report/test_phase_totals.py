"""Totals that are kept delta by delta are those of the table of phases."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    Distribution,
    KernelDelta,
    MemoryOperationDelta,
    RangeDelta,
)
from gputui.report.phase_totals import PhaseTotals, phase_totals
from gputui.state import Session
from gputui.store.journal import JournalReader
from tests.conftest import DATA
from tests.events_for_tests import at, attached, defined, header, run_started, times


def both(events: list[AnyEvent]) -> tuple[Session, PhaseTotals]:
    session, totals = Session(), PhaseTotals()
    for event in events:
        run = session.run
        if isinstance(event, CaptureDelta) and run is not None and event.process in run.processes:
            totals.add(run, event)
        session.apply((event,))
        run = session.run
        if isinstance(event, CaptureDelta) and run is not None:
            assert totals.of(run) == phase_totals(run)
    return session, totals


@pytest.mark.parametrize("name", ["h200-inference.gputui", "h200-annotated.gputui.gz"])
def test_at_every_delta_of_a_real_run(name: str) -> None:
    session, totals = both(list(JournalReader.open(Path(DATA / name))))
    assert session.run is not None
    assert any(phase.kernels for phase in totals.of(session.run))


NOTHING = Distribution(count=0, total=5, squares=0, minimum=0, maximum=0, values=())

RANGES = st.integers(0, 7)
"""Some of them nobody defined; 0 is outside every range."""

WHERE = st.fixed_dictionaries({"range": RANGES, "inherited": st.booleans()})

DELTAS = st.builds(
    lambda ranges, kernels, beside, calls, copies: CaptureDelta(
        time_ns=at(3),
        process=1,
        ranges=tuple(ranges),
        kernels=tuple(kernels),
        secondary_domain_kernels=tuple(beside),
        api=tuple(calls),
        memory_operations=tuple(copies),
    ),
    st.lists(
        st.builds(
            RangeDelta,
            range=RANGES,
            cpu=st.none() | st.just(times(5, 7)) | st.just(NOTHING),
            gpu_busy_ns=st.integers(0, 100),
        )
    ),
    st.lists(
        WHERE.map(lambda w: KernelDelta(process=1, kernel=1, device=0, time=times(3, 3), **w))
    ),
    st.lists(
        WHERE.map(
            lambda w: KernelDelta(process=1, kernel=1, device=0, time=times(3, 3), repeats=1, **w)
        )
    ),
    st.lists(
        st.tuples(WHERE, st.sampled_from(["cudaLaunchKernel", "cudaMalloc"])).map(
            lambda w: ApiDelta(process=1, name=w[1], time=times(9), **w[0])
        )
    ),
    st.lists(
        st.tuples(WHERE, st.sampled_from(["[CUDA memcpy Host-to-Device]", "[CUDA memset]"])).map(
            lambda w: MemoryOperationDelta(
                process=1, operation=w[1], device=0, time=times(9), size=times(512), **w[0]
            )
        )
    ),
)


@given(st.lists(DELTAS, max_size=4))
def test_whatever_is_told(deltas: list[CaptureDelta]) -> None:
    both(
        [
            header(),
            run_started(),
            attached(),
            defined(1, "step"),
            defined(2, "forward", parent=1),
            defined(3, "forward", parent=1),
            defined(4, "attention", parent=3),
            *deltas[:1],
            # The tree grows while it is counted in.
            defined(5, "ncclAllReduce", parent=4),
            *deltas[1:],
        ]
    )
