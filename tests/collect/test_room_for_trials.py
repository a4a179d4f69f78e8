"""Whether a GPU is free for `gputui try`, on the fake driver library."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from tests.collect.fake_machine import FakeMachine
from tests.conftest import DATA
from tests.trial.trying_for_tests import gputui_try


@pytest.mark.parametrize(
    ("busy", "words", "said"),
    [
        ("4000000 1000", (), "GPU 0 is in use by process 4000000"),
        ("4000000 1000", ("--shared",), "neither used a GPU nor made a step"),
        ("", (), "neither used a GPU nor made a step"),
    ],
)
def test_while_another_program_holds_the_gpu_nothing_runs(
    tmp_path: Path,
    machine: FakeMachine,
    library: Path,
    busy: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    machine.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = busy
    machine.write()
    driver = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)}
    left = tmp_path / "left"
    program = f"open({str(left)!r}, 'w')"
    done = gputui_try(tmp_path, "--yes", *words, "--", sys.executable, "-c", program, env=driver)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert left.exists() == ("in use" not in said)


def test_a_program_that_does_not_fit_into_what_is_free_is_not_run(
    tmp_path: Path, machine: FakeMachine, library: Path
) -> None:
    """The recording has that it had 1.3 GiB of a GPU's memory."""
    machine.gpus[0]["nvmlDeviceGetMemoryInfo_v2"] = f"{2 << 30} {1 << 30} 0"
    machine.gpus[0]["nvmlDeviceGetMemoryInfo"] = f"{2 << 30} {1 << 30}"
    machine.write()
    recording = tmp_path / "tensor_cores.gputui"
    recording.write_bytes(gzip.decompress((DATA / "faults/tensor_cores.gputui.gz").read_bytes()))
    left = tmp_path / "left"
    done = gputui_try(
        tmp_path, str(recording), "--yes", "--", sys.executable, "-c", f"open({str(left)!r}, 'w')",
        env={"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "the program had 1.31 GiB of a GPU's memory, and 1.00 GiB are free" in done.stderr
    assert not left.exists()
