"""Short ways to make events, for tests that fold a handful of them."""

from __future__ import annotations

import numpy as np

from gputui.attribute.distributions import distributions
from gputui.model.events import (
    JOURNAL_SCHEMA,
    Distribution,
    GpuFacts,
    Header,
    HostFacts,
    ProcessAttached,
    RangeDefined,
    RunEnded,
    RunStarted,
)

START_NS = 1_700_000_000_000_000_000


def at(seconds: float) -> int:
    """A moment that many seconds into the test's session."""
    return START_NS + int(seconds * 1e9)


def header(*gpus: GpuFacts, reason: str | None = None) -> Header:
    return Header(
        time_ns=START_NS,
        schema=JOURNAL_SCHEMA,
        gputui_version="0.0.0",
        python_version="3.11.0",
        monotonic_ns=1,
        interval_s=1.0,
        host=HostFacts(
            hostname="testhost", system="TestOS 1", cpu_count=4, memory_total_bytes=8 << 30
        ),
        gpus=gpus,
        gpu_unavailable_reason=reason,
    )


def gpu(index: int = 0) -> GpuFacts:
    return GpuFacts(
        index=index, uuid=f"GPU-{index}", name="NVIDIA Test", memory_total_bytes=80 << 30
    )


def run_started(run: int = 1, step_range: str | None = "step") -> RunStarted:
    """Starts 1 s into the session; `attached` is at 1.5 s, `defined` at 2 s."""
    return RunStarted(
        time_ns=at(1),
        run=run,
        kind="workload",
        name="inference",
        arguments=("python", "-m", "workloads", "inference"),
        parameters={"size": "tiny"},
        pid=100,
        step_range=step_range,
    )


def run_ended(run: int = 1, exit_code: int = 0) -> RunEnded:
    """Ends 9 s into the session, 8 s after `run_started`."""
    return RunEnded(
        time_ns=at(9), run=run, exit_code=exit_code, reason=f"ended with status {exit_code}"
    )


def attached(process: int = 1, run: int = 1, rank: int | None = None) -> ProcessAttached:
    return ProcessAttached(
        time_ns=at(1.5),
        run=run,
        process=process,
        pid=100 + process,
        parent_pid=100,
        rank=rank,
        command="python",
        cuda_status="tracing",
    )


def defined(
    number: int, name: str, parent: int = 0, process: int = 1, **more: object
) -> RangeDefined:
    return RangeDefined(
        time_ns=at(2),
        range=number,
        process=process,
        thread=int(more.pop("thread", 101)),  # type: ignore[call-overload]
        parent=parent,
        name=name,
        **more,  # type: ignore[arg-type]
    )


def times(*values: int) -> Distribution:
    """The distribution of these values: ns, or bytes; of none, the empty one."""
    if not values:
        return Distribution(0, 0, 0.0, 0, 0, ())
    return distributions(np.zeros(len(values), np.int64), np.array(values, np.int64))[1][0]
