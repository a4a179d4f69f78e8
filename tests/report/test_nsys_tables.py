"""Our tables beside those that `nsys stats` (2025.3) printed of the same report.

`nsys_stats/` holds its CSV output for nsys_power_iteration_t4.sqlite; a `_base` or `_mangled` at
the end of a name is the report's `:base` or `:mangled`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.imports.nsys import NsysReport
from gputui.render.text_tables import to_csv
from gputui.report.tables import run_tables
from gputui.state import Session

EXPECTED = Path(__file__).with_name("nsys_stats")
REPORT = Path(__file__).parents[3] / "shared" / "data" / "nsys_power_iteration_t4.sqlite"


@pytest.fixture(scope="module")
def session() -> Session:
    if not REPORT.exists():
        pytest.skip(f"{REPORT.name} is not here")
    return Session.from_events(NsysReport(REPORT))


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPECTED.glob("*.csv")))
def test_the_table_is_what_nsys_stats_prints(session: Session, name: str) -> None:
    report = name.replace("_base", ":base").replace("_mangled", ":mangled")
    assert session.run is not None
    table = to_csv(run_tables()[report].table(session, session.run))
    assert table.splitlines() == (EXPECTED / f"{name}.csv").read_text().splitlines()


def test_every_report_of_nsys_has_its_table() -> None:
    reports = (
        "cuda_api_sum cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_gpu_mem_size_sum cuda_gpu_sum "
        "cuda_api_gpu_sum nvtx_sum nvtx_pushpop_sum nvtx_startend_sum nvtx_gpu_proj_sum "
        "nvtx_kern_sum cuda_kern_exec_sum"
    )
    assert set(reports.split()) <= set(run_tables())
