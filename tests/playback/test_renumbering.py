"""Numbers of a session given anew: every field that is one declares it."""

from __future__ import annotations

import inspect

import msgspec

from gputui.model import events
from gputui.model.events import CaptureDelta, KernelDelta, Numbered, OpenRange
from gputui.playback.job_recording import _plan, renumbered
from tests.events_for_tests import times

NAMES = {"run", "process", "peer", "range", "parent", "captured", "kernel", "shape", "mark", "gpu"}


def test_every_field_that_is_such_a_number_declares_it() -> None:
    kinds = [kind for kind in vars(events).values() if inspect.isclass(kind)]
    structs = [kind for kind in kinds if issubclass(kind, msgspec.Struct)]
    for kind in structs:
        declared = {name for name, _ in _plan(kind).numbers}
        assert NAMES & {*kind.__struct_fields__} == declared - {"index"}, kind.__name__
    assert {"process", "range", "gpu"} <= {
        name for kind in structs for name, _ in _plan(kind).numbers
    }


def test_numbers_change_in_an_event_and_in_its_parts() -> None:
    kernel = KernelDelta(process=1, range=2, kernel=3, device=1, time=times(5))
    event = CaptureDelta(
        time_ns=1, process=1, kernels=(kernel,), open_ranges=(OpenRange(range=2, since_ns=7),)
    )
    numbers = {kind: (lambda number: number + 10) for kind in Numbered}
    numbers[Numbered.RANGE] = lambda number: number and number + 20
    assert renumbered(event, numbers) == CaptureDelta(
        time_ns=1,
        process=11,
        kernels=(KernelDelta(process=11, range=22, kernel=13, device=1, time=times(5)),),
        open_ranges=(OpenRange(range=22, since_ns=7),),
    )
