"""The CSV tables of nsys stats, as a course report's scripts name them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gputui.base import JournalError
from gputui.cli.dispatch import run as gputui
from gputui.playback.opening import open_recording
from gputui.report.phases import phase_rows
from gputui.report.statistics import api_rows, category_rows, kernel_rows, memory_time_rows
from gputui.state import Session
from tests.sessions_for_tests import read_whole

RANGES = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range
45.2,1782316000,30,59410533.3,59400000.0,59000000,60000000,120000.5,:BACKWARD
28.9,1139483000,30,37982766.7,37970000.0,37500000,39000000,90000.1,:FORWARD
19.8,780154000,720,1083547.2,1080000.0,1000000,1200000,5000.0,:MHA(total)
6.1,272168000,30,9072266.7,9070000.0,9000000,9200000,40000.0,mine:OPTIMIZER
"""

KERNELS = """\
Generating SQLite file report.sqlite from report.nsys-rep

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
62.5,1004806000,19530,51449.4,50000.0,1000,90000,10.0,ampere_sgemm_128x64_nn
37.5,602932000,60,10048866.7,10000000.0,9000000,11000000,0.0,"multi_tensor_apply_kernel<a, b>"
"""


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "nsys_medium_nvtx_pushpop_sum.csv").write_text(RANGES)
    (tmp_path / "nsys_medium_cuda_gpu_kern_sum_base.csv").write_text(KERNELS)
    return tmp_path / "nsys_medium"


def test_a_prefix_reads_all_its_tables(prefix: Path) -> None:
    session, run = read_whole(prefix)
    rows = {row.name: row for row in phase_rows(run)}
    assert {name: row.cpu_total_ns for name, row in rows.items()} == {
        "BACKWARD": 1782316000,
        "FORWARD": 1139483000,
        "MHA(total)": 780154000,
        "OPTIMIZER": 272168000,
    }
    forward = rows["FORWARD"].cpu
    assert (forward.count, forward.median, forward.minimum) == (30, 37970000.0, 37500000)
    assert forward.deviation == pytest.approx(90000.1)
    assert rows["OPTIMIZER"].domain == "mine"
    kernels = kernel_rows(session, run)
    assert [(row.instances, row.total) for row in kernels] == [(19530, 1004806000), (60, 602932000)]
    assert [name for name, *_ in category_rows(session, run)] == ["matmul", "optimizer"]


def test_a_folder_and_a_single_file_read_too(prefix: Path) -> None:
    assert len(phase_rows(read_whole(prefix.parent)[1])) == 4
    single = prefix.parent / "nsys_medium_nvtx_pushpop_sum.csv"
    _, run = read_whole(single)
    assert len(phase_rows(run)) == 4
    assert not run.kernels


def test_calls_and_copies_in_other_units(tmp_path: Path) -> None:
    (tmp_path / "cuda_api_sum.csv").write_text(
        "Time (%),Total Time (us),Num Calls,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name\n"
        "100.0,12.5,5,2.5,2.0,1.0,5.0,0.5,cudaLaunchKernel_v7000\n"
    )
    (tmp_path / "cuda_gpu_mem_time_sum.csv").write_text(
        "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation\n"
        "100.0,900,3,300.0,300.0,300,300,0.0,[CUDA memcpy Host-to-Device]\n"
    )
    (tmp_path / "cuda_gpu_mem_size_sum.csv").write_text(
        "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation\n"
        "1258.291,300,4.194,4.194,4.194,4.194,0.000,[CUDA memcpy Host-to-Device]\n"
    )
    _, run = read_whole(tmp_path)
    assert [(row.name, row.total) for row in api_rows(run)] == [("cudaLaunchKernel", 12500)]
    assert [(row.instances, row.total) for row in memory_time_rows(run)] == [(3, 900)]
    [both] = run.memory_operations.values()
    assert both.size.total == 1258291000


def test_several_reports_in_a_folder_are_told_apart(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (prefix.parent / "other_nvtx_pushpop_sum.csv").write_text(RANGES)
    monkeypatch.chdir(prefix.parent)  # a long path would be cut, and the names after it
    with pytest.raises(JournalError, match="several reports") as caught:
        open_recording(".")
    assert "nsys_medium" in str(caught.value)
    assert len(phase_rows(read_whole(prefix)[1])) == 4


GENUINE = Path(__file__).parents[1] / "report" / "nsys_stats"


@pytest.mark.parametrize("table", ["nvtx_gpu_proj_sum", "nvtx_kern_sum:base", "cuda_kern_exec_sum"])
def test_tables_of_launches_and_projections_are_printed_as_nsys_wrote_them(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = GENUINE / f"{table.replace(':', '_')}.csv"
    assert gputui(["summary", str(path), "--table", table, "--format", "csv"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_phases_join_what_the_tables_hold_of_a_range(tmp_path: Path) -> None:
    for name in ("nvtx_pushpop_sum", "nvtx_gpu_proj_sum"):
        shutil.copy(GENUINE / f"{name}.csv", tmp_path / f"cupy_{name}.csv")
    shutil.copy(GENUINE / "nvtx_kern_sum_base.csv", tmp_path / "cupy_nvtx_kern_sum_base.csv")
    _, run = read_whole(tmp_path)
    [loop] = [row for row in phase_rows(run) if row.name == "Loop"]
    # Sums of the lines of `:Loop` in the files.
    assert (loop.pid, loop.instances, loop.cpu_total_ns) == (9946, 1, 1787801754)
    assert (loop.kernels, loop.kernel_ns) == (3677, 1129090520)
    assert loop.projected.total == 1773703924
    # What lies in what, and when the GPU ran, is in none of them.
    assert (loop.share_percent, loop.gpu_idle_ns, run.kernels) == (None, None, {})


def test_kernels_of_several_processes_stay_apart(tmp_path: Path) -> None:
    header = (
        "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),"
        "Max (ns),StdDev (ns),Kernel Name\n"
    )
    (tmp_path / "x_nvtx_kern_sum.csv").write_text(
        f"{header}:step,PushPop,7,7,2,4,400,100.0,100.0,100,100,0.0,gemm\n"
        ":step,PushPop,8,9,2,2,300,100.0,100.0,100,100,0.0,gemm\n"
        ",,,,0,1,50,50.0,50.0,50,50,0.0,copy\n"
    )
    (tmp_path / "x_nvtx_pushpop_sum.csv").write_text(RANGES.replace("FORWARD", "step"))
    _, run = read_whole(tmp_path)
    steps = {row.pid: row for row in phase_rows(run) if row.name == "step"}
    # 300 ns are three times 100: one kernel was inside two ranges of the name.
    assert {pid: (row.kernels, row.kernel_ns) for pid, row in steps.items()} == {
        0: (0, 0), 7: (4, 400), 8: (2, 300),
    }  # fmt: skip
    assert steps[0].instances == 30


@pytest.mark.parametrize(
    "text", ["", "hello\n", "a,b,c\n1,2,3\n", "\0" * 1000, "Name\n" * 1000, '"' * 1000]
)
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x_cuda_api_sum.csv"
    path.write_text(text)
    with pytest.raises(JournalError) as caught:
        open_recording(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_rows_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x_nvtx_pushpop_sum.csv"
    bad = "1,nan,3,1,1,1,1,0,:a\n1,5,-3,1,1,1,1,0,:b\n1,5\n1,1e300,3,1,1,1,1,0,:c\n"
    path.write_text(RANGES + bad)
    reader = open_recording(str(path))
    session = Session.from_events(reader)
    assert reader.skipped == 4
    assert session.run is not None
    assert len(session.run.ranges) == 4


def test_summary_prints_them(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (prefix.parent / "nsys_medium_nvtx_sum.csv").write_text(RANGES)
    assert gputui(["summary", str(prefix)]) == 0
    assert "its length is not in what was imported" in capsys.readouterr().out
    assert gputui(["summary", "--full", str(prefix)]) == 0
    shown = capsys.readouterr().out
    assert "FORWARD" in shown
    assert "ampere_sgemm_128x64_nn" in shown
    assert "not read: nsys_medium_nvtx_sum.csv" in shown
    # MHA lies in FORWARD, which the tables do not say: shares of their sum would be of nothing.
    assert {row.share_percent for row in phase_rows(read_whole(prefix)[1])} == {None}
