"""What ran in ranges that a recording does not define: counted outside every range, and told."""

from __future__ import annotations

from gputui.model.events import CaptureDelta, RangeDefined
from gputui.playback.opening import load
from gputui.state import Run, Session
from gputui.state.remarks import remarks
from gputui.store.journal.reader import JournalReader
from tests.conftest import DATA


def counts(run: Run) -> dict[str, int]:
    tables = {"kernels": run.kernels, "api": run.api, "copies": run.memory_operations}
    return {name: sum(row.time.count for row in rows.values()) for name, rows in tables.items()}


def remarks_on_ranges(run: Run) -> list[str]:
    return [remark.text for remark in remarks(run) if remark.about == "ranges"]


def test_a_definition_that_is_missing_takes_no_kernel_with_it() -> None:
    events = [*JournalReader.open(DATA / "h200-medium.gputui")]
    whole = Session.from_events(events).run
    missing = next(e for e in events if isinstance(e, RangeDefined) and e.name == "mlp")
    run = Session.from_events(event for event in events if event is not missing).run
    assert whole is not None
    assert run is not None
    assert counts(run) == counts(whole)
    assert remarks_on_ranges(whole) == []
    # By hand, from the deltas themselves.
    gone = {missing.range}
    for event in events:  # and what is inside it
        if isinstance(event, RangeDefined) and event.parent in gone:
            gone.add(event.range)
    astray = sum(
        part.time.count
        for event in events
        if isinstance(event, CaptureDelta)
        for parts in (event.kernels, event.api, event.memory_operations)
        for part in parts
        if part.range in gone
    )
    assert astray == run.undefined_range_records > 0
    assert remarks_on_ranges(run) == [
        f"{astray} kernels, copies and calls are in ranges that the recording does not define, and "
        "count outside every range"
    ]
    outside = sum(row.time.count for row in run.kernels.values() if not row.range)
    before = sum(row.time.count for row in whole.kernels.values() if not row.range)
    of_range = sum(row.time.count for row in whole.kernels.values() if row.range in gone)
    assert outside == before + of_range


def test_all_kernels_of_a_recording_without_some_definitions_are_in_its_tables() -> None:
    """The recording's own events count 243,061: 255 are XLA's, of autotuning."""
    run = load(str(DATA / "faults" / "jax_operators.gputui.gz")).run
    assert run is not None
    assert counts(run)["kernels"] == 243_061
    assert run.undefined_range_records == 255 + 616
