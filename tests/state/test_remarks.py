"""What a person must know of a run to trust its figures."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    KernelDefined,
    KernelDelta,
    RangeDefined,
    RunEnded,
    RunOutput,
)
from gputui.state import Session, remarks
from gputui.state.remarks import CUPTI_STAYS, NEWEST_CUPTI
from tests.events_for_tests import at, attached, header, run_ended, run_started, times


def pushed(number: int, name: str, process: int = 1, parent: int = 0) -> RangeDefined:
    return RangeDefined(
        time_ns=at(2), range=number, process=process, thread=1, parent=parent, name=name
    )


def said(*events: AnyEvent, step: str | None = "step") -> list[str]:
    session = Session.from_events([header(), replace(run_started(), traced_step=step), *events])
    assert session.run is not None
    return [remark.line for remark in remarks(session.run)]


def grown_to(seconds: float) -> CaptureDelta:
    return CaptureDelta(time_ns=at(1 + seconds), process=1, records=1)


def test_a_tool_that_might_be_in_the_way_is_not_named_where_kernels_came() -> None:
    reason = "maybe no kernels: NSYS_ variables suggest that nsys is tracing; CUPTI serves one tool"
    nvtx = "no phases of the nvtx package: NVTX_DISABLE is set"
    for words, known in ((reason, None), (f"{reason}; {nvtx}", nvtx)):
        left = [f"not captured: {known}"] if known else []
        started = replace(
            run_started(), capture_feared_reason=reason, capture_unavailable_reason=known
        )
        session = Session.from_events([header(), started, attached()])
        assert session.run is not None
        assert [remark.text for remark in remarks(session.run)] == [words]
        kernel = KernelDelta(process=1, range=0, kernel=1, device=0, time=times(2000))
        defined = KernelDefined(time_ns=at(2), kernel=1, name="gemm", mangled="gemm")
        session.apply([defined, CaptureDelta(time_ns=at(3), process=1, kernels=(kernel,))])
        assert [remark.line for remark in remarks(session.run)] == left


NO_STEP = "--trace-steps: no range named step occurred"


def test_a_step_that_occurs_is_not_remarked_on() -> None:
    assert said(attached(), pushed(1, "decode"), pushed(2, "step", parent=1), run_ended()) == []
    assert said(attached(), pushed(1, "decode"), run_ended(), step=None) == []


def test_a_step_that_never_occurs_is_named_with_the_ranges_there_were() -> None:
    ranges = [pushed(1, "outer"), pushed(2, "inner", parent=1), pushed(3, "Steps", parent=2)]
    assert said(attached(), *ranges, run_ended()) == [
        f"{NO_STEP}: kernels were traced all the time; ranges there were: Steps, outer, inner"
    ]
    assert said(attached(), run_ended()) == [
        f"{NO_STEP}: kernels were traced all the time; there were no ranges"
    ]


def test_of_many_names_some_are_listed_and_long_ones_cut() -> None:
    ranges = [pushed(number, f"{number}" * 100) for number in range(1, 31)]
    (line,) = said(attached(), *ranges, run_ended())
    assert line.endswith("… and 22 more")
    assert len(line) < 700


def test_what_has_not_occurred_yet_is_said_after_a_while() -> None:
    assert said(attached(), pushed(1, "load"), grown_to(9.9)) == []
    (line,) = said(attached(), pushed(1, "load"), grown_to(10))
    assert line == (f"{NO_STEP} so far: kernels are traced all the time; ranges there were: load")
    assert said(attached(), pushed(1, "load"), pushed(2, "step"), grown_to(10)) == []


def test_a_step_that_one_of_two_processes_lacks_is_laid_to_that_one() -> None:
    both = [attached(1), attached(2)]
    (line,) = said(*both, pushed(1, "step"), pushed(2, "other", process=2), run_ended())
    assert line.startswith(f"{NO_STEP} in pid 102: its kernels were traced all the time; ")


def test_a_process_without_cuda_needs_no_step() -> None:
    launcher = replace(attached(2), cuda_status="no CUDA")
    assert said(attached(1), launcher, pushed(1, "step"), run_ended()) == []
    (line,) = said(launcher, pushed(1, "other", process=2), run_ended())
    assert line == f"{NO_STEP}: no kernels are captured either; ranges there were: other"
    assert said(launcher, pushed(1, "step", process=2), run_ended()) == []


def test_a_step_that_is_a_start_end_range_is_told_from_one_that_is_not_there() -> None:
    (line,) = said(attached(), replace(pushed(1, "step"), style="StartEnd"), run_ended())
    assert line.endswith("it occurred as a start/end range, and steps are counted by push and pop")


def test_nothing_to_annotate_is_said_at_the_end_or_once_a_gpu_is_used() -> None:
    started = replace(run_started(), annotate="modules")
    nothing = "no Python process of the run imported torch, or it ignores PYTHONPATH"

    def told(*events: AnyEvent) -> list[str]:
        session = Session.from_events([header(), started, *events])
        assert session.run is not None
        return [remark.line for remark in remarks(session.run)]

    assert told(attached(), grown_to(9.9)) == []
    (line,) = told(attached(), grown_to(10))
    assert line.startswith(f"--annotate: nothing to annotate so far: {nothing}")
    importing = replace(attached(), cuda_status="no CUDA")
    assert told(importing, grown_to(1000)) == []  # as long as the import of torch may take
    (line,) = told(importing, run_ended())
    (other,) = told(attached(), run_ended())
    assert line == other
    assert line.startswith(f"--annotate: nothing to annotate: {nothing}")
    annotated = replace(attached(2), annotated=True)
    assert told(attached(1), annotated, grown_to(10)) == []
    assert told(attached(1), annotated, run_ended()) == []


def test_a_cupti_that_is_newer_than_the_newest_tested_is_remarked_on() -> None:
    def with_cupti(version: int) -> list[str]:
        return said(replace(attached(), cupti_version=version), run_ended(), step=None)

    assert with_cupti(NEWEST_CUPTI) == []
    assert with_cupti(150000) == [
        f"CUPTI: version 150000 is newer than {NEWEST_CUPTI}, the newest tested: figures of "
        "kernels and copies may be wrong"
    ]


def test_processes_that_could_not_end_by_themselves_are_named_with_their_ranks() -> None:
    ended = RunEnded(
        time_ns=at(9), run=1, exit_code=1, reason="", continued=(101,), killed=(102, 7), left=(7,)
    )
    started = attached(1, rank=0), attached(2, rank=1)
    (line,) = [line for line in said(*started, ended, step=None) if line.startswith("the end: ")]
    assert line == (
        "the end: process 101 (rank 0) was stopped (SIGSTOP), and continued so as to end; "
        "process 102 (rank 1) was killed: SIGTERM did not end it in time; "
        "process 7 was left: SIGKILL brought no end"
    )
    assert not [line for line in said(run_ended(), step=None) if line.startswith("the end")]


def test_what_stays_in_a_program_after_detaching_is_remarked_on() -> None:
    late = replace(run_started(), attached=True)
    traced = CaptureDelta(time_ns=at(2), process=1, records=1, traced_ns=5)
    detached = replace(run_ended(), stopped=True)

    def of(*events: AnyEvent) -> list[str]:
        session = Session.from_events([header(), late, attached(), *events])
        assert session.run is not None
        return [remark.line for remark in remarks(session.run)]

    assert of(traced, detached) == [f"detached: {CUPTI_STAYS}"]
    assert of(traced) == of(traced, run_ended()) == of(detached) == []


def test_a_launch_that_failed_under_a_trace_says_what_has_cupti_do_less() -> None:
    line = "RuntimeError: CUDA error: unspecified launch failure"
    output = RunOutput(time_ns=at(3), run=1, stream="stderr", lines=(line,))
    for events, is_said in (
        ((attached(), output, run_ended(exit_code=1)), True),
        ((attached(), output, run_ended()), False),
        ((attached(), run_ended(exit_code=1)), False),
        ((replace(attached(), cuda_status="off"), output, run_ended(exit_code=1)), False),
    ):
        assert ("a failed launch: " in "".join(said(*events, step=None))) is is_said
