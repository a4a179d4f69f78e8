"""What holds for every workload of the catalogue: it does on the CPU what it declares."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.fake_nvcc import fake_nvcc
from workloads.declaration import Outcome, Workload
from workloads.peaks import find_peak
from workloads.registry import Entry, built_in
from workloads.report import Report

SMALL: dict[str, dict[str, Any]] = {
    "attention": {"passes": 2},
    "bandwidth": {"largest": 4, "passes": 2},
    "finetune": {"documents": 3, "ctx": 8, "warmup": 0, "steps": 1},
    "faults": {"fault": "logits", "seconds": 0.2},
    "gemm": {"largest": "128", "products": 2},
    "inference": {"tokens": 4},
    "quantized": {"inputs": 128, "outputs": 16, "passes": 1},
    "speculative": {"prompt": 4, "tokens": 4, "ahead": 2},
    "train": {"ctx": 8, "steps": 2},
}
"""Less than the CPU's defaults, to be quick."""

ON_A_GPU_ALONE = {
    "cuda_output", "attention_tf32", "train_memory_timeline", "convolution_kernels",
}  # fmt: skip
"""Tables without a row on the CPU."""

WORKLOADS = [found.workload for found in built_in() if isinstance(found, Entry)]
each = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
ELSEWHERE = {"parallel", "comm", "compile"}
"""Run in test_parallel, where ranks start quickly, and in test_experiments, which compiles once."""


def check(workload: Workload, outcome: Outcome) -> None:
    """Every declared figure is there or it is said why not; parameters are those that held."""
    assert set(outcome.results) == {figure.name for figure in workload.results}
    missing = {name for name, value in outcome.results.items() if value is None}
    assert missing == set(outcome.unavailable)
    assert all(outcome.unavailable.values())
    assert outcome.stopped_by is None

    assert set(outcome.parameters) == {parameter.name for parameter in workload.parameters}
    assert outcome.parameters["device"] == "cpu"
    workload.read(outcome.parameters)

    declared = {table.name: {column.name for column in table.columns} for table in workload.tables}
    assert set(outcome.tables) == set(declared)
    for name, rows in outcome.tables.items():
        if name not in ON_A_GPU_ALONE:
            assert rows, name
        for row in rows:
            assert set(row) <= declared[name]


@pytest.mark.parametrize(
    "workload",
    [workload for workload in WORKLOADS if workload.name not in ELSEWHERE],
    ids=lambda workload: workload.name,
)
def test_it_gives_what_it_declares(workload: Workload, tmp_path: Path) -> None:
    small = SMALL.get(workload.name, {})
    if workload.name == "cuda":
        source = tmp_path / "sample.cu"
        ptx = (".visible .entry _Z3addPf(", ")", "{", "    ret;", "}")
        source.write_text("".join(f"// PTX: {line}\n" for line in ptx) + "// SH: true\n")
        small = {
            "nvcc": str(fake_nvcc(tmp_path)),
            "file": str(source),
            "ptx": str(tmp_path / "sample.ptx"),
        }
    given = workload.read({"device": "cpu", **small})
    check(workload, workload.implementation()(given, Report(None, io.StringIO())))


@each
def test_its_forecast_takes_every_preset(workload: Workload) -> None:
    forecaster = workload.forecaster()
    if forecaster is None:
        return
    for preset in ("", *(one.name for one in workload.presets)):
        values = workload.fill(workload.read({}, preset or None), on_cpu=False)
        for peak in (None, find_peak("NVIDIA H200")):
            found = forecaster(values, peak)
            assert found.memory_bytes is None or found.memory_bytes > 0
            assert found.seconds is None or 0 < found.seconds < 600


@each
def test_it_declares_what_a_menu_needs(workload: Workload) -> None:
    assert workload.presets
    # `faults` brings no ranges: what is wrong has to be found from outside.
    assert workload.phases or workload.name == "faults"
    assert workload.summary[0].islower() or workload.summary.split()[0] in ("GPT-2", "CUDA")
    assert workload.description.endswith(".")
    assert len(workload.summary) <= 72
