"""Ranges that overlap, cross threads and never end, beside what `nsys stats` (2025.3) prints.

`nsys_ranges/SEED` is of the report that `nvtx_cases.py` writes with that seed; `nsys_ranges/h200`
of a program with two threads, two streams, a CUDA graph and overlapping Start/End ranges that
gputui recorded on an H200 and exported for nsys (tests/data/h200-ranges.sqlite.gz).
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gputui.imports.nsys import NsysReport
from gputui.render.text_tables import to_csv
from gputui.report.tables import run_tables
from gputui.state import Session
from tests.report.nvtx_cases import write_cases

EXPECTED = Path(__file__).with_name("nsys_ranges")
RECORDED = Path(__file__).parents[1] / "data" / "h200-ranges.sqlite.gz"


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    folder = tmp_path_factory.mktemp("reports")
    recorded = folder / "h200.sqlite"
    recorded.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    reports = {"h200": recorded}
    for seed in ("7", "11"):
        reports[seed] = write_cases(folder / f"{seed}.sqlite", int(seed))
    sessions = {}
    for name, path in reports.items():
        sessions[name] = Session()
        sessions[name].apply(NsysReport(path))
    return sessions


@pytest.mark.parametrize(
    "table", sorted(str(path.relative_to(EXPECTED)) for path in EXPECTED.glob("*/*.csv"))
)
def test_the_table_is_what_nsys_stats_prints(sessions: dict[str, Session], table: str) -> None:
    path = EXPECTED / table
    session = sessions[path.parent.name]
    assert session.run is not None
    found = to_csv(run_tables()[path.stem.replace("_base", ":base")].table(session, session.run))
    assert found.splitlines() == path.read_text().splitlines()
