"""Sizes of memory operations: from bytes for people, in nsys's rounded MB for programs."""

from __future__ import annotations

import json

from gputui.model.events import CaptureDelta, MemoryOperationDelta
from gputui.render.text_tables import to_csv, to_json, to_text
from gputui.report.tables import run_tables
from gputui.state import Session
from tests.events_for_tests import at, attached, run_started, times


def test_small_copies_keep_their_bytes_for_people_and_are_rounded_as_in_nsys() -> None:
    copies = (
        MemoryOperationDelta(
            process=1, range=0, operation="[CUDA memcpy Device-to-Host]", device=0,
            source_kind="device", destination_kind="pageable",
            time=times(*[900] * 518), size=times(*[32] * 518),
        ),
        MemoryOperationDelta(
            process=1, range=0, operation="[CUDA memset]", device=0,
            source_kind="", destination_kind="device", time=times(9), size=times(62_500),
        ),
    )  # fmt: skip
    session = Session.from_events(
        [
            run_started(),
            attached(),
            CaptureDelta(time_ns=at(3), process=1, memory_operations=copies),
        ]
    )
    assert session.run is not None
    table = run_tables()["cuda_gpu_mem_size_sum"].table(session, session.run)
    memset, copied = to_text(table).splitlines()[3:]
    assert memset.split()[:2] == ["61.0", "KiB"]
    assert copied.split() == (
        [
            "16.2",
            "KiB",
            "518",
            "32",
            "B",
            "32",
            "B",
            "32",
            "B",
            "32",
            "B",
            "0",
            "B",
            "[CUDA",
            "memcpy",
            "Device-to-Host]",
        ]
    )
    assert to_csv(table).splitlines()[1:] == [
        "0.063,1,0.063,0.063,0.063,0.063,0.000,[CUDA memset]",
        "0.017,518,0.000,0.000,0.000,0.000,0.000,[CUDA memcpy Device-to-Host]",
    ]
    assert [row["total_bytes"] for row in json.loads(to_json(table))["rows"]] == [62_500, 16_576]
