"""`gputui --once` as it is typed, on the fake driver library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import HERE, LOST, FakeMachine

from gputui.events import GpuFacts, GpuSample, GpuStatus, ProcessSample
from gputui.text import cell_width


@pytest.fixture
def gputui(machine: FakeMachine, library: Path):  # type: ignore[no-untyped-def]
    """Runs gputui with the words given; more environment by name."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gputui", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=HERE.parent.parent,
            env=os.environ
            | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)}
            | environment,
        )

    return run


def test_the_document_has_every_field_and_a_reason_for_each_that_is_null(
    machine: FakeMachine,
    gputui,  # type: ignore[no-untyped-def]
) -> None:
    machine.reset(2)
    machine.gpus[1]["nvmlDeviceGetPowerUsage"] = LOST
    machine.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = f"{os.getpid()} 1000"
    machine.write()
    done = gputui("--once", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    for gpu in document["gpus"]:
        for record in (GpuSample, GpuStatus):
            assert set(gpu) >= set(record.__struct_fields__) - {"time_ns", "gpu"}
        names = set(GpuFacts.__struct_fields__) - {"index", "uuid", "name"}
        assert set(gpu["facts"]) == names
    first, second = document["gpus"]
    known_empty = {"last_xid", "last_xid_time_ns"}  # no Xid is nothing missing
    assert {n for n in first if first[n] is None} - known_empty == set(first["unavailable"])
    assert second["power_watts"] is None
    assert "lost" in second["unavailable"]["device"]
    (process,) = document["processes"]
    assert set(process) == set(ProcessSample.__struct_fields__)
    assert (process["pid"], process["gpu"], process["kind"]) == (os.getpid(), 0, "C")


def test_tables_for_people_fit_eighty_columns(
    machine: FakeMachine,
    gputui,  # type: ignore[no-untyped-def]
) -> None:
    machine.reset(8)
    for gpu in machine.gpus:
        gpu["nvmlDeviceGetComputeRunningProcesses_v3"] = "50 1059913728"
        gpu["nvmlDeviceGetCurrentClocksEventReasons"] = 4
    machine.write()
    done = gputui("--once")
    assert done.returncode == 0
    tables, _, reasons = done.stdout.partition("\nn/a")
    assert max(cell_width(line) for line in tables.splitlines()) <= 100
    load = tables[tables.index("GPUs\n") : tables.index("GPU processes")]
    assert max(cell_width(line) for line in load.splitlines()) <= 80
    for words in ("0.99/140 GiB  612/700 W  54 °C", "gen 5 x16", "power cap", "343 Wh", "ECC"):
        assert words in tables
    assert "fan_percent" in reasons
    assert "GPU 0" not in reasons  # it holds for all of them


def test_mig_instances_have_a_table(
    machine: FakeMachine,
    gputui,  # type: ignore[no-untyped-def]
) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetMigMode": "1 1",
        "nvmlDeviceGetMaxMigDeviceCount": 1,
        "mig.0.nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
        "mig.0.nvmlDeviceGetUUID": "MIG-1",
        "mig.0.nvmlDeviceGetGpuInstanceId": 1,
        "mig.0.nvmlDeviceGetMemoryInfo_v2": "18253611008 1073741824 0",
        "nvmlGpmMigSampleGet.1": 0,
        **{f"instance.1.gpm.{metric}": 50 for metric in (2, 3, 5, 10)},
    }
    machine.write()
    done = gputui("--once")
    assert "0:0  1g.18gb" in done.stdout
    assert "1.00/17.0 GiB" in done.stdout
    (gpu,) = json.loads(gputui("--once", "--json").stdout)["gpus"]
    (instance,) = gpu["mig_instances"]
    assert (instance["name"], instance["sm_active_percent"]) == ("1g.18gb", 50.0)


@pytest.mark.parametrize(
    ("words", "visible", "indexes"),
    [
        (("--only", "2"), None, [2]),
        (("--only", "2", "0"), "1", [0, 2]),
        ((), "3,1", [1, 3]),
        ((), "GPU-00000002", [2]),
        ((), "MIG-known", [3]),
    ],
)
def test_which_gpus_are_shown(
    machine: FakeMachine,
    gputui,  # type: ignore[no-untyped-def]
    words: tuple[str, ...],
    visible: str | None,
    indexes: list[int],
) -> None:
    machine.reset(4)
    machine.system["mig.MIG-known"] = 3
    machine.write()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = gputui("--once", "--json", *words, **environment)
    assert [gpu["index"] for gpu in json.loads(done.stdout)["gpus"]] == indexes


def test_a_gpu_that_is_not_there_is_wrong_usage(gputui) -> None:  # type: ignore[no-untyped-def]
    done = gputui("--once", "--only", "0", "7")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gputui: --only 7: no such GPU, this machine has GPU 0\n"
