"""What ranges count delta by delta is what the tables of the run hold."""

from __future__ import annotations

from functools import partial
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
from gputui.model.naming import is_kernel_launch
from gputui.state import Launched, Run, Session
from gputui.store.journal.reader import JournalReader
from tests.conftest import DATA
from tests.events_for_tests import at, attached, defined, header, run_started, times


def held(run: Run, inherited: bool) -> dict[int, list[int]]:
    """Kernels, their time, launches and copied bytes of each range, from the run's tables."""
    sums: dict[int, list[int]] = {number: [0, 0, 0, 0] for number in run.ranges}
    nowhere = [0, 0, 0, 0]
    for kernels in run.kernels.values():
        if kernels.inherited == inherited:
            sums.get(kernels.range, nowhere)[0] += kernels.time.count
            sums.get(kernels.range, nowhere)[1] += kernels.time.total
    for kernels in run.secondary_domain_kernels.values():
        if not inherited:
            sums.get(kernels.range, nowhere)[0] += kernels.time.count - kernels.repeats
            sums.get(kernels.range, nowhere)[1] += kernels.time.total
    for calls in run.api.values():
        if calls.inherited == inherited and is_kernel_launch(calls.name):
            sums.get(calls.range, nowhere)[2] += calls.time.count
    for both in run.memory_operations.values():
        if both.inherited == inherited and "memcpy" in both.operation:
            sums.get(both.range, nowhere)[3] += both.size.total
    return sums


def check(events: list[AnyEvent]) -> Run:
    session = Session()
    for event in events:
        session.apply((event,))
        run = session.run
        if isinstance(event, CaptureDelta) and run is not None:
            for inherited in (False, True):
                counted = {
                    number: [counts.kernels, counts.kernel_ns, counts.launches, counts.memcpy_bytes]
                    for number, node in run.ranges.items()
                    for counts in [(node.inherited if inherited else node.launched) or Launched()]
                }
                assert counted == held(run, inherited)
    assert session.run is not None
    return session.run


@pytest.mark.parametrize("name", ["h200-inference.gputui", "h200-annotated.gputui.gz"])
def test_at_every_delta_of_a_real_run(name: str) -> None:
    run = check(list(JournalReader.open(Path(DATA / name))))
    assert any(node.launched.kernels for node in run.ranges.values())


NOTHING = Distribution(count=0, total=5, squares=0, minimum=0, maximum=0, values=())
"""A total of nothing is none."""

RANGES = st.integers(0, 7)
"""Some of them nobody defined; 0 is outside every range."""

WHERE = st.fixed_dictionaries({"range": RANGES, "inherited": st.booleans()})

_few = partial(st.lists, max_size=3)

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
    _few(
        st.builds(
            RangeDelta,
            range=RANGES,
            cpu=st.none() | st.just(times(5, 7)) | st.just(NOTHING),
            gpu_busy_ns=st.integers(0, 100),
        )
    ),
    _few(WHERE.map(lambda w: KernelDelta(process=1, kernel=1, device=0, time=times(3, 3), **w))),
    _few(
        WHERE.map(
            lambda w: KernelDelta(process=1, kernel=1, device=0, time=times(3, 3), repeats=1, **w)
        )
    ),
    _few(
        st.tuples(WHERE, st.sampled_from(["cudaLaunchKernel", "cudaMalloc"])).map(
            lambda w: ApiDelta(process=1, name=w[1], time=times(9), **w[0])
        )
    ),
    _few(
        st.tuples(WHERE, st.sampled_from(["[CUDA memcpy Host-to-Device]", "[CUDA memset]"])).map(
            lambda w: MemoryOperationDelta(
                process=1, operation=w[1], device=0, time=times(9), size=times(512), **w[0]
            )
        )
    ),
)


@given(st.lists(DELTAS, max_size=4))
def test_whatever_is_told(deltas: list[CaptureDelta]) -> None:
    check(
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
