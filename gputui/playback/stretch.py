"""Some steps of a run, read again from its recording: what a session adds up over the whole run
(phases, kernels, calls, copies) is folded from what was read while they went on, by the same fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from msgspec.structs import replace

from gputui.model.events import (
    About,
    AnyEvent,
    CaptureDelta,
    MachineSample,
    RunEnded,
    Scope,
    StepLanes,
)
from gputui.playback.opening import open_recording
from gputui.state import Run, Session
from gputui.state.fold import gpu_of
from gputui.store.journal import JournalError
from gputui.store.journal.reader import RecordingReader
from gputui.store.trace import TracedOperations, TraceReader

Loops = Mapping[tuple[int, int], int]
"""The loop whose steps are counted, by process and the machine's index of the device."""


class ReadStretch(NamedTuple):
    """A run of nothing but some of its steps, in a session of its own: from one reading of records
    to another, those nearest to where the steps begin and end."""

    session: Session
    run: Run


def read_stretch(path: str, number: int, loops: Loops, first: int, last: int) -> ReadStretch:
    """Steps `first` to `last` of run `number` of what is at `path`: steady ones of `loops`, counted
    from 1. Reads the recording twice. Raises JournalError, one line."""
    with closing(_opened(path)) as recording:
        span = _span(recording, number, loops, first, last)
    if span is None:
        raise JournalError(f"{path} does not hold these steps")
    with closing(_opened(path)) as recording:
        return _folded(recording, number, span)


def operations_of_step(
    trace: TraceReader, session: Session, run: Run, step: StepLanes
) -> TracedOperations:
    """The GPU operations of a kept step, one of `run.step_lanes`, from the trace beside the
    recording, as `TraceReader.operations` describes them: those that went on at some moment of it,
    so that the first and the last may belong to its neighbours too."""
    numbers = range(max(len(session.gpus), step.device + 1))
    device = next(
        (number for number in numbers if gpu_of(session, run, step.process, number) == step.device),
        step.device,
    )
    end_ns = step.start_ns + step.duration_ns
    return trace.operations(step.process, device, step.start_ns, end_ns)


def _opened(path: str) -> RecordingReader:
    recording = open_recording(path)
    if recording.damage:  # files that are missing: steps would be counted wrong
        recording.close()
        raise JournalError(recording.damage)
    return recording


def _span(
    recording: RecordingReader, number: int, loops: Loops, first: int, last: int
) -> tuple[int, int] | None:
    """From when to when these steps went on, as if those of one reading were equally long."""
    session = Session()
    counted = dict.fromkeys(loops, 0)
    begins: list[int] = []
    ends: list[int] = []
    for event in recording:
        if event.defines:
            session.apply((event,))
        if not isinstance(event, CaptureDelta):
            continue
        run = session.holder_of(event.process)
        if run is None or run.started.run != number:
            continue
        for turns in event.loops:
            place = event.process, gpu_of(session, run, event.process, turns.device)
            if turns.scope != Scope.STEADY or loops.get(place) != turns.loop or not turns.steps:
                continue
            before = counted[place]
            counted[place] += turns.steps
            low = max(0.0, (first - 1 - before) / turns.steps)
            high = min(1.0, (last - before) / turns.steps)
            if low < high:
                length_ns = turns.last_ns - turns.first_ns
                begins.append(turns.first_ns + round(low * length_ns))
                ends.append(turns.first_ns + round(high * length_ns))
        if counted and min(counted.values()) >= last:
            break
    return (min(begins), max(ends)) if begins else None


def _folded(recording: RecordingReader, number: int, span: tuple[int, int]) -> ReadStretch:
    begin_ns, end_ns = span
    session = Session()
    read_ns: dict[int, int] = {}
    """Until when the records of each process were read."""
    first_ns, last_ns = end_ns, begin_ns
    for event in recording:
        is_inside = begin_ns <= event.time_ns <= end_ns
        if isinstance(event, CaptureDelta):
            holder = session.holder_of(event.process)
            if holder is None or holder.started.run != number:
                continue
            since_ns = read_ns.get(event.process, holder.started.time_ns)
            read_ns[event.process] = event.time_ns
            if not _is_in(since_ns, event.time_ns, span):
                continue
            first_ns, last_ns = min(first_ns, since_ns), max(last_ns, event.time_ns)
            session.apply((event,))
        elif event.defines or (is_inside and _is_reading(event)):
            session.apply((event,))
    run = session.runs.get(number)
    if run is None or last_ns <= first_ns:
        raise JournalError(f"{recording.name}: nothing was read while these steps went on")
    _drop_unseen(run)
    run.started = replace(run.started, time_ns=first_ns)
    session.apply((RunEnded(time_ns=last_ns, run=number, reason="the end of the scope"),))
    return ReadStretch(session, run)


def _is_reading(event: AnyEvent) -> bool:
    """Whether it says how the machine or a GPU is at its moment."""
    return isinstance(event, MachineSample) or event.about is About.GPU


def _is_in(since_ns: int, until_ns: int, span: tuple[int, int]) -> bool:
    """Whether more of a reading is inside than outside, or all of the span is in it."""
    begin_ns, end_ns = span
    is_most = begin_ns <= (since_ns + until_ns) // 2 <= end_ns
    return is_most or since_ns < (begin_ns + end_ns) // 2 <= until_ns


def _drop_unseen(run: Run) -> None:
    """Leave out ranges of which nothing was seen, nor of any inside. Sums over their operations
    may come a reading later."""
    kept: set[int] = set()
    for number, node in reversed(run.ranges.items()):  # parents come before what is inside them
        is_open = node.open_since_ns is not None
        launched = node.launched.kernels or node.inherited is not None
        if number in kept or is_open or node.cpu.count or launched:
            kept |= {number, node.definition.parent}
    run.ranges = {number: node for number, node in run.ranges.items() if number in kept}
    run.roots = [number for number in run.roots if number in kept]
    for node in run.ranges.values():
        node.children = [number for number in node.children if number in kept]
