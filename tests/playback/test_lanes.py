"""Lanes of single operations: what a window of them shows, by other ways of computing it."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.base import JournalError
from gputui.playback.lanes import LaneKind, Spans, TracedLanes, open_lanes, read_lanes
from gputui.playback.opening import Loaded, load, open_import
from gputui.state import Session
from gputui.store.trace import TRACE, TraceKind, TraceReader, TraceWriter
from tests.conftest import DATA
from tests.events_for_tests import attached, header, run_started

TRAINING = DATA / "h100-training.json.gz"
RANGES = DATA / "h200-ranges.sqlite.gz"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(str(TRAINING))


@pytest.fixture(scope="module")
def lanes(loaded: Loaded) -> TracedLanes:
    return open_lanes(TRAINING, loaded.session, loaded.needed_run())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=30), st.data())
def test_time_in_equal_parts_is_what_clipping_each_span_gives(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    moment, starts, ends = 0, [], []
    for gap, length in pairs:
        starts.append(moment + gap)
        moment += gap + length
        ends.append(moment)
    low = data.draw(st.floats(-10, 500))
    high = low + data.draw(st.floats(1, 500))
    count = data.draw(st.integers(1, 9))
    spans = Spans(np.array(starts, np.int64), np.array(ends, np.int64))
    each = (high - low) / count
    expected = [
        sum(
            max(0.0, min(end, low + each * (part + 1)) - max(start, low + each * part))
            for start, end in zip(starts, ends, strict=True)
        )
        for part in range(count)
    ]
    assert spans.within(low, high, count) == pytest.approx(expected, abs=1e-6)


def test_every_operation_is_in_a_lane_with_its_call(
    loaded: Loaded, lanes: TracedLanes, tmp_path: Path
) -> None:
    """As the trace's own records say."""
    writer = TraceWriter(tmp_path / "trace", 64 << 20)
    imported = open_import(TRAINING, writer)
    assert imported is not None
    for _ in imported:
        pass
    [process] = loaded.needed_run().processes
    records = np.concatenate([*TraceReader(writer.path).portions()])
    records = records[records["process"] == process]
    call_records = records[records["kind"] == TraceKind.CALL]
    called_ns = dict(
        zip(call_records["correlation"].tolist(), call_records["start"].tolist(), strict=True)
    )
    on_gpu = (TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET, TraceKind.GRAPH)
    operations = records[np.isin(records["kind"], on_gpu)]
    streams = [lane for lane in lanes.lanes if lane.kind is LaneKind.STREAM]
    assert sorted(lane.number for lane in streams) == sorted({*operations["stream"].tolist()})
    assert sum(map(len, streams)) == len(operations)
    found = []
    for number, lane in enumerate(lanes.lanes):
        if lane.kind is not LaneKind.STREAM:
            continue
        for row in range(len(lane)):
            launch = lanes.launch_of(lane, row)
            call_ns = -1
            if launch is not None:
                calls = lanes.lanes[launch[0]]
                call_ns = int(calls.spans.starts[launch[1]]) + lanes.begin_ns
                assert lanes.launch_of(calls, launch[1]) == (number, row)
            found.append((int(lane.spans.starts[row]) + lanes.begin_ns, call_ns))
    assert sorted(found) == sorted(
        (start_ns, called_ns.get(correlation, -1))
        for start_ns, correlation in zip(
            operations["start"].tolist(), operations["correlation"].tolist(), strict=True
        )
    )


def test_cells_add_up_and_have_the_category_of_most(lanes: TracedLanes) -> None:
    lane = next(one for one in lanes.lanes if one.kind is LaneKind.STREAM)
    took = lane.spans.ends - lane.spans.starts
    for count in (1, 7, 100):
        cells = lane.cells(0, lanes.end_ns, count)
        assert cells.busy.sum() * lanes.end_ns / count == pytest.approx(took.sum())
    by_category: dict[str, int] = {}
    for name, ns in zip(lane.names.tolist(), took.tolist(), strict=True):
        category = lanes.categories[lanes.category_of[name]]
        by_category[category] = by_category.get(category, 0) + ns
    [most] = lane.cells(0, lanes.end_ns, 1).category
    assert lanes.categories[most] == max(by_category, key=lambda one: by_category[one])


def test_boxes_are_what_is_long_enough_and_do_not_overlap(lanes: TracedLanes) -> None:
    for lane in lanes.lanes:
        for least in (1, 10_000, 400_000):
            boxes = lane.boxes(0, lanes.end_ns, least)
            ends = [box.end_ns for box in boxes]
            assert all(end <= box.start_ns for end, box in zip(ends, boxes[1:], strict=False))
            assert all(box.end_ns - box.start_ns >= least for box in boxes)
            alone = {box.row for box in boxes if box.times == 1}
            took = lane.spans.ends - lane.spans.starts
            assert alone == set(np.flatnonzero(took >= least).tolist())
            for box in boxes:
                assert len(set(lane.names[box.row : box.row + box.times].tolist())) == 1


def test_ranges_lie_in_the_lane_around_them(lanes: TracedLanes) -> None:
    ranges = [lane for lane in lanes.lanes if lane.kind is LaneKind.RANGES]
    assert max(lane.depth for lane in ranges) > 2
    for outer, inner in pairwise(ranges):
        if (outer.process, outer.number) != (inner.process, inner.number):
            continue
        assert inner.depth == outer.depth + 1
        for start, end in zip(inner.spans.starts, inner.spans.ends, strict=True):
            around = outer.row_at(float(start))
            assert outer.spans.starts[around] <= start <= end <= outer.spans.ends[around]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=40), st.data())
def test_records_of_any_bytes_make_lanes_that_can_be_painted(
    raw: list[bytes], data: st.DataObject
) -> None:
    records = np.frombuffer(b"".join(raw), TRACE).copy()
    records["kind"] = data.draw(st.sampled_from(list(TraceKind)))
    records["process"] = 1
    session = Session()
    session.apply([header(), run_started(), attached()])
    assert session.run is not None
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder, "trace"), 4 << 20)
        writer.append(records)
        writer.close()
        found = read_lanes(TraceReader(writer.path), session, session.run)
    for lane in found.lanes:
        lane.cells(0, found.end_ns, 9)
        lane.boxes(0, found.end_ns, 1)
        assert 0 <= lane.row_at(found.end_ns / 2) < len(lane)
        found.launch_of(lane, 0)
        assert found.usual_ns(lane, 0)[1] >= 1
    for process, device in found.busy:
        found.gaps(process, device)


def test_a_report_of_nsys_has_lanes_and_a_recording_without_a_trace_says_why(
    tmp_path: Path,
) -> None:
    report = tmp_path / "ranges.sqlite"
    with gzip.open(RANGES) as packed, report.open("wb") as whole:
        shutil.copyfileobj(packed, whole)
    of = load(str(report))
    found = open_lanes(report, of.session, of.needed_run())
    kinds = {LaneKind.STREAM, LaneKind.RANGES, LaneKind.CALLS}
    assert {lane.kind for lane in found.lanes} == kinds
    bare = DATA / "h200-medium.gputui"
    of = load(str(bare))
    with pytest.raises(JournalError, match="record with --trace"):
        open_lanes(bare, of.session, of.needed_run())
