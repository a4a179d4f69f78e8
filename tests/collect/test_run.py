"""A run as events: a real workload and real commands, captured by the real library."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gputui.attribute.reader import CaptureReader
from gputui.collect.traced_run import RunRequest, TracedRun
from gputui.inject import environment
from gputui.model.events import AnyEvent, RunAskedToEnd, RunEnded, RunOutput, RunStarted
from gputui.model.hub import Numbering
from gputui.render.summary import facts_lines
from gputui.report.windows import cost_of
from gputui.state import Run as RunState
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import header


class Collected:
    """The events of one run, folded once it has ended."""

    def __init__(self, request: RunRequest) -> None:
        self.events: list[AnyEvent] = []
        self.changed = threading.Condition()
        self.edges: list[int] = []
        """How many events there were when the child started and when it had ended."""
        self.run = TracedRun(
            1,
            request,
            self._emit,
            interval_s=0.1,
            numbering=Numbering(),
            at_edges=lambda: self.edges.append(len(self.events)),
        )

    def _emit(self, events: Sequence[AnyEvent]) -> None:
        with self.changed:
            self.events += events
            self.changed.notify_all()

    def wait_for(self, kind: type[AnyEvent]) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: any(isinstance(event, kind) for event in self.events), timeout=60
            )

    def finish(self) -> RunState:
        assert self.run.join(60)
        session = Session.from_events([header(), *self.events])
        assert session.unknown_references == 0
        state = session.run
        assert state is not None
        return state


def collect(request: RunRequest) -> RunState:
    collected = Collected(request)
    collected.run.start()
    state = collected.finish()
    assert isinstance(collected.events[-1], RunEnded)
    if state.started.pid is not None:
        first, last = collected.edges
        assert isinstance(collected.events[first - 1], RunStarted)
        assert last < len(collected.events)
    return state


def python(code: str) -> RunRequest:
    return RunRequest.of_command([sys.executable, "-c", code])


def test_inference_has_the_phases_that_its_layers_and_tokens_imply() -> None:
    tokens, layers, warmup = 6, 2, 1
    request = RunRequest.of_workload(
        "inference",
        {"size": "tiny", "tokens": tokens, "prompt": 4, "warmup": warmup, "device": "cpu"},
        "step",
    )
    state = collect(request)
    assert state.ended is not None
    assert state.ended.exit_code == 0
    counts = {node.path: node.cpu.count for node in state.ranges.values()}
    expected = {"load": 1, "warmup": 1, "prefill": 1, "decode": 1}
    for phase, steps in (("warmup", 2 * warmup), ("prefill", 1), ("decode", tokens - 1)):
        # A warm-up is no step: only what is measured counts as one.
        within = phase if phase == "warmup" else f"{phase}/step"
        if within != phase:
            expected[within] = steps
        for name in ("embedding", "lm_head", "sample", "copy_back"):
            expected[f"{within}/{name}"] = steps
        for name in ("qkv_proj", "attention", "out_proj", "mlp"):
            expected[f"{within}/{name}"] = steps * layers
        expected[f"{within}/norm"] = steps * (2 * layers + 1)
    assert counts == expected
    assert state.metrics["output_tokens"] == tokens
    assert state.parameters["size"] == "gpt2-tiny"
    assert state.parameters["batch"] == 1
    assert state.result is not None
    assert state.result.complete
    assert state.progress is not None


def test_ranges_of_a_command_and_its_children_are_seen() -> None:
    inner = "import nvtx\nwith nvtx.annotate('inner'): pass"
    outer = (
        "import nvtx, subprocess, sys\n"
        f"with nvtx.annotate('outer'): subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    state = collect(python(outer))
    by_process = {node.definition.process: node.path for node in state.ranges.values()}
    assert sorted(by_process.values()) == ["inner", "outer"]
    parents = {process.attached.parent_pid for process in state.processes.values()}
    pids = {process.attached.pid for process in state.processes.values()}
    assert len(pids) == 2
    assert parents & pids


def test_a_command_that_does_not_exist_starts_and_ends_in_one_breath() -> None:
    state = collect(RunRequest.of_command(["no-such-command"]))
    assert state.started.pid is None
    assert state.ended is not None
    assert state.ended.exit_code == 127
    assert "command not found" in state.ended.reason


def test_a_workload_that_refuses_says_why() -> None:
    state = collect(RunRequest.of_workload("inference", {"prompt": 1000, "tokens": 1000}, "step"))
    assert state.ended is not None
    assert state.ended.exit_code == 2
    assert "context of 1024" in state.ended.reason


def test_garbage_on_the_report_pipe_is_counted_and_left_out() -> None:
    state = collect(
        python(
            "import os\nfd = int(os.environ['GPUTUI_REPORT_FD'])\n"
            'os.write(fd, b\'\\xff\\xfe{{{\\n[1,2\\n{"type":"other"}\\n\')\n'
            'os.write(fd, b\'{"type":"metrics","metrics":{"a\\\\u001b[1m":1,"b":[]}}\\n\')\n'
        )
    )
    assert any("3 lines on the report pipe" in line.text for line in state.log)
    assert list(state.metrics.values()) == [1]
    assert "\x1b" not in next(iter(state.metrics))


def test_ranges_of_a_child_that_is_killed_are_kept() -> None:
    state = collect(
        python(
            "import nvtx, os\n"
            "with nvtx.annotate('done'): pass\n"
            "nvtx.push_range('open')\n"
            "os.kill(os.getpid(), 9)"
        )
    )
    assert state.ended is not None
    assert state.ended.signal == 9
    # As in nsys, a range that nothing closed lasts to the end of the trace.
    assert {node.path: node.cpu.count for node in state.ranges.values()} == {"done": 1, "open": 1}
    assert not next(iter(state.processes.values())).detached.clean  # type: ignore[union-attr]


def test_stop_ends_a_run_and_marks_it() -> None:
    collected = Collected(python("import signal; print('up', flush=True); signal.pause()"))
    collected.run.start()
    collected.wait_for(RunOutput)
    collected.run.stop()
    state = collected.finish()
    assert state.ended is not None
    assert state.ended.stopped
    assert state.ended.reason.startswith("stopped: ")
    (asked,) = (event for event in collected.events if isinstance(event, RunAskedToEnd))
    assert asked.time_ns == state.asked_ns == state.ended.asked_ns


def test_a_run_waits_for_the_one_before_it() -> None:
    first = Collected(python("import signal; print('up', flush=True); signal.pause()"))
    second_events: list[AnyEvent] = []
    second = TracedRun(
        2, python("print('second')"), second_events.extend,
        interval_s=0.1, numbering=Numbering(), after=first.run,
    )  # fmt: skip
    first.run.start()
    first.wait_for(RunOutput)
    second.start()
    assert not second_events
    first.run.stop()
    assert second.join(60)
    assert isinstance(first.events[-1], RunEnded)
    assert isinstance(second_events[0], RunStarted)


def test_a_ctrl_c_before_the_command_was_started_ends_it() -> None:
    first = Collected(python("import signal; print('up', flush=True); signal.pause()"))
    events: list[AnyEvent] = []
    second = TracedRun(
        2, python("import signal; signal.pause()"), events.extend,
        interval_s=0.1, numbering=Numbering(), after=first.run,
    )  # fmt: skip
    first.run.start()
    first.wait_for(RunOutput)
    second.start()
    second.interrupt()
    first.run.stop()
    assert second.join(60)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].stopped


def test_variables_taken_by_another_tool_are_left_alone_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsight-systems/libToolsInjection64.so")
    state = collect(python("import os; print(os.environ['NVTX_INJECTION64_PATH'])"))
    assert state.started.capture_unavailable_reason is not None
    assert "nsys" in state.started.capture_unavailable_reason
    assert any("nsight-systems" in line.text for line in state.log if line.stream == "stdout")


def test_a_run_that_has_no_place_for_its_capture_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "SHARED_MEMORY", tmp_path / "no-memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no-temporaries"))
    state = collect(python("pass"))
    assert state.started.pid is None
    assert state.ended is not None
    assert state.ended.exit_code == 126
    assert "no such file or directory" in state.ended.reason
    assert "no-temporaries" in state.ended.reason


def test_words_that_are_no_text_are_recorded_as_something(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    request = RunRequest("command", "\x1b[31m", ("\x1b[31m",), {"path": "a\udcff"})
    collected = Collected(request)
    collected.run.start()
    state = collected.finish()
    writer = JournalWriter(path)
    writer.write([header(), *collected.events])
    writer.close()
    assert list(JournalReader.open(path)) == [header(), *collected.events]
    assert state.parameters == {"path": "a\N{REPLACEMENT CHARACTER}"}
    assert state.ended is not None
    assert "\x1b" not in state.ended.reason


def test_figures_that_are_beyond_any_counter_are_left_out() -> None:
    report = f'{{"type":"metrics","metrics":{{"a":{10**400},"b":{2**63 - 1},"c":1e300}}}}'
    code = f"import os; os.write(int(os.environ['GPUTUI_REPORT_FD']), b'{report}\\n')"
    assert collect(python(code)).metrics == {"b": 2**63 - 1, "c": 1e300}


def test_a_profiler_that_finds_cupti_taken_is_explained_once() -> None:
    refusal = "failed with error CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    state = collect(python(f"for _ in range(3): print({refusal!r}, flush=True)"))
    told = [line.text for line in state.log if "--no-kernels" in line.text]
    assert len(told) == 1
    assert state.ended is not None
    assert state.ended.exit_code == 0


def test_a_run_lasts_until_its_child_ends_however_long_its_capture_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drained_from: list[int] = []
    stop = CaptureReader.stop

    def stop_late(reader: CaptureReader) -> None:
        drained_from.append(time.time_ns())
        stop(reader)

    monkeypatch.setattr(CaptureReader, "stop", stop_late)
    state = collect(python("import nvtx; nvtx.push_range('work')"))
    assert state.started.time_ns + state.duration_ns <= drained_from[0]


def test_forked_processes_that_make_ranges_are_counted_and_those_that_exec_are_not() -> None:
    code = """
import nvtx, os, sys
nvtx.push_range("parent")
for number in range(3):
    if os.fork() == 0:
        for _ in range(100 * number):
            nvtx.push_range("unseen")
            nvtx.pop_range()
        if number == 0:
            os.execv(sys.executable, [sys.executable, "-c", "pass"])
        os._exit(0)
    os.wait()
"""
    state = collect(python(code))
    assert [process.attached.unseen_forks for process in state.processes.values()] == [2]
    assert (
        state.unseen_forks == "the ranges of 2 forked processes are not seen; spawn or exec instead"
    )
    summary = facts_lines(Session(), state)
    assert f"not captured: {state.unseen_forks}" in summary


def test_the_reader_uses_no_more_than_its_core_of_the_time_it_reads() -> None:
    state = collect(python("import nvtx\nfor _ in range(100_000): nvtx.mark('m')"))
    cost = cost_of(Session(), state, None)
    assert cost.reader_percent is not None
    assert state.ended is not None
    reading_ns = state.ended.time_ns - state.started.time_ns
    assert cost.reader_percent == pytest.approx(100 * cost.reader_cpu_ns / reading_ns)
