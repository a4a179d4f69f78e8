"""`cuda`: compile, run, and every way that can go wrong. The compiler is a stand-in."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.fake_nvcc import fake_nvcc
from workloads.command_line import read_arguments
from workloads.cuda import CUDA
from workloads.cuda import run as cuda
from workloads.declaration import Outcome
from workloads.errors import CannotRun, WrongUsage
from workloads.report import Report

SAMPLE = Path(cuda.__file__).with_name("matmul.cu")
UUID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


def with_source(
    folder: Path, source: str, told: io.StringIO, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Outcome:
    """Runs `source` as on a GPU: what torch tells of the device is told here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
    path = folder / "some program.cu"
    path.write_text(source)
    given = {"file": str(path), "nvcc": str(fake_nvcc(folder)), "device": "cuda:0", **more}
    return cuda.run(given, Report(None, told))


def test_figures_the_program_prints_become_a_table(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "// SH: echo hello; echo size=$1; echo 'rate = 1.5e3'; echo not=a=figure\n"
        "// SH: echo on $CUDA_VISIBLE_DEVICES\n"
    )
    outcome = with_source(tmp_path, source, told, monkeypatch, arguments="64 more")
    assert outcome.tables["cuda_output"] == [
        {"name": "size", "value": 64.0},
        {"name": "rate", "value": 1500.0},
    ]
    assert outcome.results["output_lines"] == 5
    assert outcome.results["architecture"] == "sm_90"
    assert outcome.results["exit_status"] == 0
    assert outcome.results["compiler"] == "99.1"
    assert "hello" in told.getvalue()
    assert f"on GPU-{UUID}" in told.getvalue()  # that device alone


PTX = """
.visible .entry _Z3addPf(
    .param .u64 p0
)
{
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [p0];
    @%p1 bra $L__BB0_2;
    fma.rn.f32 %f1, %f2, %f2, %f1;
    fma.rn.f32 %f2, %f1, %f1, %f2;
$L__BB0_2:
    ret;
}
"""


def test_the_ptx_is_written_and_counted_by_instruction(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "".join(f"// PTX: {line}\n" for line in PTX.splitlines()) + "// SH: true\n"
    file = tmp_path / "add.ptx"
    outcome = with_source(tmp_path, source, told, monkeypatch, ptx=str(file))
    assert outcome.results["ptx_file"] == str(file)
    assert "fma.rn.f32" in file.read_text()
    counts = {row["instruction"]: row["count"] for row in outcome.tables["ptx_instructions"]}
    assert counts == {"fma.rn.f32": 2, "ld.param.u64": 1, "bra": 1, "ret": 1}
    assert {row["kernel"] for row in outcome.tables["ptx_instructions"]} == {"add"}
    without = with_source(tmp_path, source, told, monkeypatch)
    assert without.results["ptx_file"] is None
    assert "-p ptx=FILE" in without.unavailable["ptx_file"]


def test_a_signal_ends_the_compiler(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = with_source(tmp_path, "// ENDLESS\n", told, monkeypatch, ptx=str(tmp_path / "x.ptx"))
    os.kill(int((tmp_path / "nvcc.pid").read_text()), signal.SIGKILL)
    assert outcome.stopped_by == signal.SIGTERM
    assert outcome.results["program"] == "not run: stopped before"
    assert not list(tmp_path.glob("*.ptx"))


def test_a_program_that_fails_says_how(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRun, match="the program ended with status 3"):
        with_source(tmp_path, "// SH: exit 3\n", told, monkeypatch)
    with pytest.raises(CannotRun, match="the program was ended by SIGKILL"):
        with_source(tmp_path, "// SH: kill -9 $$\n", told, monkeypatch)


def test_source_that_does_not_compile_is_one_line_with_the_first_error(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRun, match=r"does not compile: .*error: expected a ';'"):
        with_source(tmp_path, "BROKEN\n", told, monkeypatch)


def test_no_compiler_and_no_source_are_told_with_a_way_out(tmp_path: Path) -> None:
    report = Report(None, io.StringIO())
    with pytest.raises(CannotRun, match="install the CUDA toolkit, or name the compiler"):
        cuda.run({"device": "cpu", "nvcc": str(tmp_path / "none")}, report)
    with pytest.raises(CannotRun, match=r"is not an existing \.cu file"):
        cuda.run({"device": "cpu", "file": str(tmp_path)}, report)


def test_without_a_gpu_it_is_only_compiled(tmp_path: Path) -> None:
    outcome = cuda.run(
        {"device": "cpu", "nvcc": str(fake_nvcc(tmp_path))}, Report(None, io.StringIO())
    )
    assert outcome.results["compile_s"] is not None
    assert outcome.unavailable["run_s"] == "without a GPU it is only compiled"
    assert outcome.results["program"] == "not run: without a GPU it is only compiled"


def test_flags_may_begin_with_a_dash() -> None:
    for words in (["--flags", "-O1 -g"], ["--flags=-O1 -g"]):
        assert read_arguments(CUDA, words) == {"flags": "-O1 -g"}
    with pytest.raises(WrongUsage, match="argument --flags: expected one argument"):
        read_arguments(CUDA, ["--flags", "--nvcc", "nvcc"])
    with pytest.raises(WrongUsage, match="there is no parameter 'flag'"):
        read_arguments(CUDA, ["--flag", "-O1"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="has no nvcc")
def test_the_sample_compiles_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        ["nvcc", "-Xcompiler=-Wall", "-Werror=all-warnings", "-o", tmp_path / "x", SAMPLE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
