"""`gputui --once` as it is typed, on the fake driver library."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputui.base.sanitize import cell_width
from gputui.model.events import GpuFacts, GpuSample, GpuStatus, ProcessSample
from tests.collect.fake_machine import HERE, LOST, FakeMachine

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import tests.collect.patience
from gputui.cli.dispatch import run
sys.exit(run(sys.argv[1:]))
"""
"""SIGINT is set back to its default: whoever runs the tests in the background ignores it."""


@pytest.fixture
def gputui(machine: FakeMachine, library: Path):  # type: ignore[no-untyped-def]
    """Runs gputui with the words given; more environment by name."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=HERE.parent.parent,
            env=os.environ
            | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)}
            | environment,
        )

    return run


@pytest.fixture
def watching(machine: FakeMachine, library: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `gputui --once --watch` ten times a second, with more words.

    The pipe it writes to is too small for the document of a few GPUs: writing has to wait.
    """

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--once", "--watch", "-i", "0.1", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=4096,
            text=True,
            cwd=HERE.parent.parent,
            env=os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)},
        )

    return start


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watched_each_line_is_a_document_until_a_signal(
    machine: FakeMachine,
    gputui,  # type: ignore[no-untyped-def]
    watching: Callable[..., subprocess.Popen[str]],
    number: int,
) -> None:
    machine.reset(2)
    machine.write()
    once = json.loads(gputui("--once", "--json").stdout)
    with watching("--json") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        documents: list[dict[str, Any]] = []
        is_read: list[bool] = []
        while sum(is_read) < 3:  # on a busy machine slow calls answer some readings later
            documents.append(json.loads(child.stdout.readline()))
            is_read.append(documents[-1]["gpus"][0]["ecc_uncorrected_lifetime"] is not None)
        child.send_signal(number)
        for line in child.stdout:
            json.loads(line)
        assert child.stderr.read() == ""
    assert child.returncode == 0
    assert len({document["time"] for document in documents}) == len(documents)
    for document in documents:
        assert document.keys() == once.keys()
        assert [gpu.keys() for gpu in document["gpus"]] == [gpu.keys() for gpu in once["gpus"]]
        assert document["gpus"][1]["sm_active_percent"] == 97.0
    assert is_read == sorted(is_read)  # what was read once stays
    assert machine.unfreed_samples == 0


def test_watched_a_changed_figure_is_in_a_later_line(
    machine: FakeMachine, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    with watching("--json") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["gpus"][0]["power_watts"] == 612.345
        machine.gpus[0]["nvmlDeviceGetPowerUsage"] = 5000
        machine.write()
        while json.loads(child.stdout.readline())["gpus"][0]["power_watts"] != 5.0:
            pass
        child.terminate()


def test_watched_tables_have_an_empty_line_between_them(
    watching: Callable[..., subprocess.Popen[str]],
) -> None:
    with watching() as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        first = lines[0].split()[2:]  # the host and its driver, behind date and time
        while (line := child.stdout.readline()).split()[2:] != first:
            lines.append(line)
        child.terminate()
    assert line.split()[2:] == first
    assert lines[-1] == "\n"
    assert "GPUs\n" in lines


def test_watched_a_reader_that_goes_or_stands_still_ends_it_quietly(
    machine: FakeMachine, watching: Callable[..., subprocess.Popen[str]]
) -> None:
    machine.reset(8)
    machine.write()
    with watching("--json") as gone, watching("--json") as still:
        for child in (gone, still):
            assert child.stdout is not None
            child.stdout.read(1)
        assert gone.stdout is not None
        gone.stdout.close()
        assert gone.wait(60) == 0
        still.terminate()
        assert still.wait(60) == 0
        for child in (gone, still):
            assert child.stderr is not None
            assert child.stderr.read() == ""


def test_nothing_is_recorded_or_run_of_a_gpu_that_is_not_there(
    gputui,  # type: ignore[no-untyped-def]
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.gputui"
    there = tmp_path / "there"
    words = ("--record", "--only", "9", "--trace", "-o", str(path), "--", "touch", str(there))
    done = gputui(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gputui: --only 9: no such GPU, this machine has GPU 0\n"
    done = gputui("--record", "--alert", "gpu9.power_watts > 1", "-o", str(path))
    assert done.stderr == "gputui: --alert 9: no such GPU, this machine has GPU 0\n"
    done = gputui("--record", "--only", "9", XDG_DATA_HOME=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 2
    assert {entry.name for entry in tmp_path.iterdir()} <= {"state", "fake"}
    done = gputui("--record", "--only", "0", "-o", str(path), "--", "touch", str(there))
    assert done.returncode == 0, done.stderr
    assert path.exists()
    assert there.exists()


def test_the_screen_is_not_drawn_for_a_gpu_that_is_not_there(
    machine: FakeMachine, library: Path
) -> None:
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)}
    terminal, side = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "gputui", "--only", "9"],
        stdin=side, stdout=side, stderr=side, check=False, env=environment, cwd=HERE.parent.parent,
    )  # fmt: skip
    os.close(side)
    seen = os.read(terminal, 65536)
    os.close(terminal)
    assert done.returncode == 2
    assert seen == b"gputui: --only 9: no such GPU, this machine has GPU 0\r\n"


def test_watching_a_gpu_that_is_not_there_is_wrong_usage(
    watching: Callable[..., subprocess.Popen[str]],
) -> None:
    with watching("--only", "7") as child:
        out, err = child.communicate()
    assert (child.returncode, out) == (2, "")
    assert err == "gputui: --only 7: no such GPU, this machine has GPU 0\n"


def test_the_library_gives_the_same(machine: FakeMachine, library: Path, gputui) -> None:  # type: ignore[no-untyped-def]
    code = (
        "import gputui, json; print(json.dumps([*gputui.devices(0.1, count=2)]));"
        "\ntry: next(gputui.devices(0.1, only=[7]))\nexcept gputui.Error as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=HERE.parent.parent,
        env=os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)},
    )  # fmt: skip
    line, error = done.stdout.splitlines()
    first, second = json.loads(line)
    [once] = json.loads(gputui("--once", "--json").stdout)["gpus"]
    assert {*first} == {*once} | {"time"}
    assert first["time"] < second["time"]
    assert (first["uuid"], first["power_watts"]) == (once["uuid"], once["power_watts"])
    assert "7" in error
