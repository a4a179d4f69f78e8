"""What happened in a window of time, from a trace: by its index, without reading all of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.model.events import StepLanes
from gputui.playback.opening import operations_of_step
from gputui.state import Session
from gputui.store.trace import (
    LEAST_BLOCK,
    RECORD_BYTES,
    RECORDS_AT,
    TRACE,
    Slots,
    TraceKind,
    TraceReader,
    TraceWriter,
)
from tests.events_for_tests import at, attached, gpu, header, run_started

KINDS = {
    "ranges": (TraceKind.RANGE, TraceKind.PROJECTION, TraceKind.MARK),
    "calls": (TraceKind.CALL,),
    "operations": (TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET, TraceKind.GRAPH),
}
LIMIT = RECORDS_AT + 5 * LEAST_BLOCK * RECORD_BYTES
"""A ring of five blocks."""


def records(kind: TraceKind, starts: list[int], length: int, **columns: object) -> Slots:
    rows = np.zeros(len(starts), TRACE)
    rows["kind"] = kind
    rows["start"] = starts
    rows["end"] = rows["start"] + length
    for name, values in columns.items():
        rows[name] = values
    return rows


def by_reading_everything(path: Path, part: str, first_ns: int, last_ns: int) -> list[int]:
    rows = np.concatenate([*TraceReader(path).portions()])
    rows = rows[np.isin(rows["kind"], KINDS[part])]
    rows = rows[(rows["start"] <= last_ns) & (rows["end"] >= first_ns)]
    return sorted(rows["start"].tolist())


def by_the_index(path: Path, part: str, first_ns: int, last_ns: int) -> list[int]:
    blocks = TraceReader(path).records(part, first_ns, last_ns)
    return sorted(start for block in blocks for start in block["start"].tolist())


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.sampled_from([*TraceKind]), st.integers(0, 10**6), st.integers(1, 3000),
            st.integers(0, 5000),
        ),
        min_size=1, max_size=12,
    ),
    window=st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)),
)  # fmt: skip
def test_the_index_finds_what_reading_everything_finds(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[TraceKind, int, int, int]],
    window: tuple[int, int],
) -> None:
    path = tmp_path_factory.mktemp("trace") / "x.gputui-trace"
    writer = TraceWriter(path, LIMIT)
    for kind, start, count, length in batches:
        writer.append(records(kind, [start + 7 * i for i in range(count)], length))
        # Also in the midst of writing, and where the oldest records were overwritten.
        for part in KINDS:
            first_ns, last_ns = window[0], sum(window)
            expected = by_reading_everything(path, part, first_ns, last_ns)
            assert by_the_index(path, part, first_ns, last_ns) == expected
    writer.close()


def test_a_window_reads_only_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, LIMIT)
    for block in range(4):
        starts = [1_000_000 * block + i for i in range(LEAST_BLOCK)]
        writer.append(records(TraceKind.KERNEL, starts, 10, process=1))
    writer.close()
    with path.open("r+b") as file:  # what is in other blocks makes no difference
        for block in (0, 1, 3):
            file.seek(RECORDS_AT + block * LEAST_BLOCK * RECORD_BYTES)
            file.write(records(TraceKind.KERNEL, [2_000_000] * LEAST_BLOCK, 9, process=1).tobytes())
    operations = TraceReader(path).operations(1, 0, 2_000_000, 2_000_500)
    assert operations.starts_ns.tolist() == [2_000_000 + i for i in range(501)]


def test_operations_of_a_window_are_columns_with_the_calls_that_launched_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 20)
    name = writer.name("cudaLaunchKernel")
    writer.append(
        records(TraceKind.CALL, [100, 200, 300], 5, process=1, correlation=[11, 12, 13],
                name=name, thread=77)
    )  # fmt: skip
    writer.append(
        records(TraceKind.CALL, [101], 5, process=2, correlation=12, name=name, thread=99)
    )
    writer.append(
        records(TraceKind.KERNEL, [260, 150], 50, process=1, correlation=[12, 11], name=[8, 7],
                range=[4, 3], stream=[21, 20])
    )  # fmt: skip
    writer.append(records(TraceKind.COPY, [320], 50, process=1, correlation=99, bytes=4096))
    writer.append(records(TraceKind.KERNEL, [900], 50, process=1, correlation=13))
    writer.append(records(TraceKind.KERNEL, [160], 50, process=1, device=1))
    writer.append(records(TraceKind.KERNEL, [160], 50, process=2))
    writer.close()
    reader = TraceReader(path)
    operations = reader.operations(process=1, device=0, first_ns=180, last_ns=400)
    assert {field: column.tolist() for field, column in operations._asdict().items()} == {
        "starts_ns": [150, 260, 320],
        "ends_ns": [200, 310, 370],
        "streams": [20, 21, 0],
        "kinds": [TraceKind.KERNEL, TraceKind.KERNEL, TraceKind.COPY],
        "kernels": [7, 8, 0],
        "ranges": [3, 4, 0],
        "size_bytes": [0, 0, 4096],
        "calls": [name, name, -1],
        "call_starts_ns": [100, 200, -1],
        "call_ends_ns": [105, 205, -1],
        "call_threads": [77, 77, -1],
    }
    assert reader.call_names[name] == "cudaLaunchKernel"
    assert len(reader.operations(1, 0, 2000, 3000).starts_ns) == 0
    assert len(reader.operations(3, 0, 0, 3000).starts_ns) == 0


def test_an_index_of_nonsense_is_no_danger(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 20)
    writer.append(records(TraceKind.KERNEL, [5, 6], 50))
    writer.close()
    data = bytearray(path.read_bytes())
    data[4096 + (256 << 10) : RECORDS_AT] = b"\x7f" * (RECORDS_AT - 4096 - (256 << 10))
    path.write_bytes(data)
    assert len(TraceReader(path).operations(0, 0, 0, 100).starts_ns) == 0
    path.write_bytes(data[: RECORDS_AT - 100])  # cut within the index
    assert len(TraceReader(path).operations(0, 0, 0, 2**62).starts_ns) == 0


def test_operations_of_a_kept_step_are_those_of_its_process_and_device(tmp_path: Path) -> None:
    uuids = ["GPU-aa", "GPU-bb"]
    gpus = [replace(gpu(index), uuid=uuid) for index, uuid in enumerate(uuids)]
    process = replace(attached(), visible_devices="GPU-bb")
    step = StepLanes(
        time_ns=at(5), process=process.process, device=0, start_ns=1000, duration_ns=100, busy=(1,)
    )
    session = Session.from_events([header(*gpus), run_started(), process, step])
    run = session.run
    assert run is not None
    assert run.step_lanes[0].device == 1  # the machine's second GPU is the process's first
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, 1 << 20)
    writer.append(records(TraceKind.KERNEL, [900, 1000, 1050, 1101], 20, process=process.process))
    writer.append(records(TraceKind.KERNEL, [1010], 20, process=process.process, device=1))
    writer.close()
    operations = operations_of_step(TraceReader(path), session, run, run.step_lanes[0])
    assert operations.starts_ns.tolist() == [1000, 1050]


def test_a_trace_that_is_cut_while_it_is_read_ends_nothing(tmp_path: Path) -> None:
    """Mapped into memory, the end of the file ended the program with SIGBUS."""
    path = tmp_path / "x.gputui-trace"
    writer = TraceWriter(path, LIMIT)
    for block in range(4):
        starts = [1_000_000 * block + i for i in range(LEAST_BLOCK)]
        writer.append(records(TraceKind.KERNEL, starts, 10, process=1))
    writer.close()
    reader = TraceReader(path)
    portions = reader.portions()
    os.truncate(path, RECORDS_AT + (LEAST_BLOCK + 1) * RECORD_BYTES + 5)
    assert sum(len(portion) for portion in portions) == LEAST_BLOCK + 1
    assert len(reader.operations(1, 0, 3_000_000, 3_000_500).starts_ns) == 0
    path.unlink()
    assert list(reader.portions()) == [] or all(not len(rest) for rest in reader.portions())
