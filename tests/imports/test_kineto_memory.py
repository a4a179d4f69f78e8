"""Memory by operator in traces of torch.profiler, beside the profiler's own table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gputui.imports import RangeRows
from gputui.imports.kineto_columns import OUTSIDE, TABLE, OperatorMemory
from gputui.playback.opening import load
from tests.conftest import DATA

PROGRAM = """
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile, record_function

model, x = torch.nn.Linear(20, 10), torch.randn(5, 20)
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    with record_function("forward"):
        out = model(x)
    for _ in range(3):
        (out @ torch.randn(10, 100)).relu().sum().backward(retain_graph=True)
profiler.export_chrome_trace(sys.argv[1])
averages = profiler.key_averages()
print(json.dumps({row.key: row.self_cpu_memory_usage for row in averages}))
"""


def by_operator(path: Path) -> dict[str, dict[str, object]]:
    run = load(str(path)).run
    assert run is not None
    assert run.result is not None
    [table] = [each for each in run.result.tables if each.name == TABLE]
    names = [column.name for column in table.columns]
    return {str(row[0]): dict(zip(names, row, strict=True)) for row in table.rows}


def test_the_figures_are_those_of_the_profiler(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = by_operator(path)
    took = {name: size for name, size in theirs.items() if size > 0}
    assert took
    assert {name: ours[name]["net_bytes"] for name in took} == took
    assert ours["aten::mm"]["allocations"] == 9


def test_a_gpus_memory_is_by_operator_too() -> None:
    rows = by_operator(DATA / "h100-training.json.gz")
    assert rows["aten::mm"]["memory"] == "GPU"
    assert rows["aten::mm"]["allocated_bytes"] == 280 << 20


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(1, 2)), max_size=12)
MOMENTS = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 3), st.integers(-9, 9)), min_size=1, max_size=20
)


def nested(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those that lie in one another or apart, as ranges of a thread do, each with its thread."""
    kept: list[tuple[int, int, int]] = []
    for start, length, thread in spans:
        end = start + length
        if all(
            thread != other or end < first or start > last or (first < start and end < last)
            or (start < first and last < end)
            for first, last, other in kept
        ):  # fmt: skip
            kept.append((start, end, thread))
    return kept


@given(SPANS, MOMENTS)
def test_each_change_counts_for_the_innermost_range(
    spans: list[tuple[int, int, int]], moments: list[tuple[int, int, int]]
) -> None:
    ranges = nested(spans)
    columns = RangeRows.empty()._asdict()
    columns |= {
        "start": np.array([start for start, _, _ in ranges], np.int64),
        "end": np.array([end for _, end, _ in ranges], np.int64),
        "task": np.array([thread for _, _, thread in ranges], np.int64),
        "name": np.arange(1, len(ranges) + 1),
    }
    memory = OperatorMemory()
    expected: dict[str, int] = {}
    for moment, thread, size in moments:
        memory.add(moment, thread, 0, size)
        around = [
            (end - start, f"range {number}")
            for number, (start, end, of_thread) in enumerate(ranges, 1)
            if of_thread == thread and start <= moment <= end
        ]
        name = min(around)[1] if around else OUTSIDE
        expected[name] = expected.get(name, 0) + size
    names = {number: f"range {number}" for number in range(1, len(ranges) + 1)}
    table = memory.table(RangeRows(**columns), names)
    assert table is not None
    assert {str(row[0]): row[-1] for row in table.rows} == expected


def test_figures_that_no_memory_has_are_bounded(tmp_path: Path) -> None:
    """A device type over 2^63 ended a summary."""
    huge = 1 << 70
    keys = ("Device Type", "Device Id", "Bytes", "Total Allocated", "Total Reserved")
    event = {"ph": "i", "name": "[memory]", "ts": 5, "pid": 1, "tid": 1}
    events = [
        event | {"args": dict.fromkeys(keys, 1) | {key: value}}
        for key in keys
        for value in (huge, -huge)
    ]
    call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 4, "dur": 9, "pid": 1, "tid": 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [call, *events]}))
    assert load(str(path)).run is not None
