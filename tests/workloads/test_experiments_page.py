"""The page of experiments has what its recordings say; workloads and answers agree in them."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from gputui.report.answer import answer
from gputui.report.tables.bounds import TARGETS
from tests.workloads.beside_answers import KERNEL_PERCENT, STEP_PERCENT, steps_of, work_of
from tests.workloads.experiments import (
    ANSWERS,
    EXACT,
    FOLDER,
    OTHERS,
    PAGE,
    STEPS,
    answered,
    page,
    run_of,
)

GAP_US = 1.0
"""What may be left of the gaps between kernels, which 5 % of 15 µs are less than."""


def test_the_tables_are_those_of_the_recordings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m tests.workloads.experiments"


@pytest.mark.parametrize("name", STEPS)
def test_the_answers_step_is_the_workloads_own(name: str) -> None:
    off = steps_of(*run_of(name)).off_percent
    assert off is not None
    assert abs(off) <= STEP_PERCENT


@pytest.mark.parametrize("name", ["bandwidth", "convolution", "gemm"])
def test_times_of_passes_are_those_of_their_kernels(name: str) -> None:
    works = [*work_of(*run_of(name))]
    assert len(works) > 10
    for work in works:
        apart_us = abs(work.table_us - work.kernels_us)
        assert apart_us <= max(KERNEL_PERCENT / 100 * work.kernels_us, GAP_US), work


@pytest.mark.parametrize("name", [*EXACT, *OTHERS])
def test_no_recording_names_a_machine_or_a_folder(name: str) -> None:
    path = FOLDER / f"{name}.gputui.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines()
    assert len(path.read_bytes()) < 1 << 20
    for line in lines:
        event = json.loads(line)
        assert not re.search(rb'[" ]/(\w|\.)+/', line), line[:300]
        assert event.get("host", {}).get("hostname", "host") == "host"
        for gpu in event.get("gpus", ()):
            assert set(gpu.get("uuid", "")) <= set("GPU-0")
        assert not {"command", "name"} & {key for p in event.get("processes", ()) for key in p}


@pytest.mark.parametrize("name", [*EXACT, *OTHERS])
def test_a_small_recording_answers_as_the_whole_one_did(name: str) -> None:
    """The README of the folder says what it lacks."""
    assert answered(*run_of(name)) == json.loads(ANSWERS.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("gemm", 22),
        ("fusion", 2),
        ("bandwidth", 16),
        ("precision", 10),
        ("quantized", 5),
        ("compile", 3),
        ("attention-grid", 35),
    ],
)
def test_the_answer_of_a_benchmark_says_that_its_steps_are_of_rows(name: str, rows: int) -> None:
    """None is slow beside another's, and they do not grow: each row does other work."""
    session, run = run_of(name)
    said = " ".join(line.text for group in answer(session, run) for line in group)
    assert f"steps of {rows} rows of different work, which --table" in said
    assert not re.search("slow step|are slow", said)
    assert not re.search("longer than the (one before|others)", said)
    assert "arbage" not in said
    assert not re.search("J/(step|token)", said)
    assert "Try" not in {line.label for group in answer(session, run) for line in group}


def test_means_over_different_rows_are_beside_no_target_without_a_word() -> None:
    for name, note in (("gemm", "means over 22 rows of different work"), ("seed-004-profile", "")):
        session, run = run_of(name)
        assert TARGETS.note is not None
        assert TARGETS.note(run, TARGETS.rows(session, run)) == note


def test_the_answer_of_a_training_is_of_one_kind_of_steps() -> None:
    said = " ".join(line.text for group in answer(*run_of("seed-004-profile")) for line in group)
    assert "rows of different work" not in said
    assert "arbage" not in said
