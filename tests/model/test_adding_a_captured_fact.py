"""A captured fact is added in five files, its part, the delta, its collector, where it is kept and
its table: the recipe of docs, carried out on a copy of the package.
"""

from __future__ import annotations

from pathlib import Path

from tests.package_copies_for_tests import change, check_copy, copy_package

_PART = '''class SmallCopies(OfProcess, msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Copies of at most 4 KiB to or from a device."""

    device: Annotated[Integer, Key]
    copies: Annotated[Amount, Sum]
    time: Annotated[Distribution, Sketch]


'''
_NAMED = "    SmallCopies,\n"
_FIELD = "    small_copies: Annotated[tuple[SmallCopies, ...], Parts, Reader.TABLES] = ()\n"
_IMPORT = "from gputui.model.events import SmallCopies\n"
_HELD = "        self._small = ValueSums()\n"
_ADDED = """        is_small = records["value"] <= 4096
        devices = places[is_small] >> _DEVICE_SHIFT & 0xFF
        self._small.add(devices, durations[is_small])
"""
_COLLECTED = """"small_copies": tuple(
            SmallCopies(device, time.count, time)
            for device, time in self._small.drain(collection.exact_values)
        ), """
_KEPT = "    small_copies: FoldedTable[SmallCopies] = {}\n"
_CHANGED = (
    ("model/events/capture_parts.py", "class LineSamples(", _PART, ""),
    ("model/events/capture.py", "    StepBlock,\n", _NAMED, ""),
    ("model/events/capture.py", "\n\nclass CaptureSum(", _FIELD, ""),
    ("attribute/operation_sums.py", "from gputui.model.events.distributions", _IMPORT, ""),
    ("attribute/operation_sums.py", "        self._sizes = ValueSums()\n", _HELD, ""),
    ("attribute/operation_sums.py", "        keys = places | _memory_code", _ADDED, ""),
    (
        "attribute/operation_sums.py",
        '"memory_operations": deltas',
        _COLLECTED,
        "",
    ),
    ("state/run.py", "from gputui.model.merge", _IMPORT, ""),
    ("state/run.py", "    lines: dict[tuple[int, int], LineDefined]", _KEPT, ""),
)
"""File, where the new lines stand before, those, and what they replace."""

_TABLE = """
from gputui.report.schema import TableSpec, count, number, time
from gputui.state import Run, Session


def _rows(session: Session, run: Run):
    return sorted(run.small_copies.values(), key=lambda row: (row.process, row.device))


TABLES = (
    TableSpec(
        key="small_copies",
        title="Small Copies",
        meaning="Copies of at most 4 KiB.",
        columns=(
            number("Process", "process", lambda row: row.process, "Its number"),
            number("GPU", "gpu", lambda row: row.device, "The GPU's index"),
            count("Copies", "copies", lambda row: row.copies, "How many"),
            time("Median", "median_ns", lambda row: row.time.median, "Of a copy"),
        ),
        rows=_rows,
        order=901,
        in_summary=True,
        document="small_copies",
    ),
)
"""

_CHECK = """
import gputui
from gputui.model.events import CaptureDelta
from gputui.model.merge import merge
from gputui.playback.index import Checkpoint
from gputui.render.formats import summary
from gputui.report.summary_document import summary_document
from tests.reference import recording_page
from tests.attribute.capture_program import MAIN, Program, Traced

assert gputui.__file__.startswith(FOLDER), gputui.__file__
program = Program()
traced = Traced(program)
for second in range(2):
    begin = second * 1000
    traced.feed([
        program.call(begin + 10, begin + 12, 3 * second + 1, name="cudaMemcpyAsync_v3020"),
        program.copy(begin + 20, begin + 50, 3 * second + 1, size=4096),
        program.call(begin + 60, begin + 62, 3 * second + 2, name="cudaMemcpyAsync_v3020"),
        program.copy(begin + 70, begin + 90, 3 * second + 2, size=8),
        program.call(begin + 100, begin + 110, 3 * second + 3, name="cudaMemcpyAsync_v3020"),
        program.copy(begin + 120, begin + 900, 3 * second + 3, size=1 << 20),
    ], second)
    traced.collect(second, ended=second == 1)
first, second = (e for e in traced.events if isinstance(e, CaptureDelta) and e.small_copies)
assert [part.copies for part in (*first.small_copies, *second.small_copies)] == [2, 2]
[both] = merge(first, second).small_copies
assert (both.device, both.copies, both.time.median) == (0, 4, 25)

for session in (traced.session, Checkpoint(traced.session).session()):
    run = session.run
    row = run.small_copies[1, 0]
    assert (row.process, row.device, row.copies) == (1, 0, 4)
    assert (row.time.count, row.time.total, row.time.minimum) == (4, 100, 20)
    assert summary_document(session, run)["small_copies"] == [
        {"process": 1, "gpu": 0, "copies": 4, "median_ns": 25}
    ]
    text = summary(session, run, "table")
    assert "Small Copies\\n────────────\\nProcess  GPU  Copies  Median" in text, text
    assert "      1    0       4   25 ns" in text, text
assert "### SmallCopies" in recording_page()

# Declared to be read by tables alone, it is not kept where there are none.
again = Traced(program)
again.session.keeps_tables = False
again.session.apply(traced.events)
assert again.session.run.timing.devices and not again.session.run.small_copies
"""


def test_a_captured_fact_is_its_part_its_collector_its_place_and_its_table(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    change(package, _CHANGED)
    (package / "report/tables/small_copies.py").write_text(_TABLE, encoding="utf-8")
    assert len({name for name, *_ in _CHANGED}) + 1 == 5
    check_copy(tmp_path, _CHECK)
