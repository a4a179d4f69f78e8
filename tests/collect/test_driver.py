"""A driver that is missing, broken or slow, and which of its GPUs are shown."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.base.sanitize import sanitize
from gputui.collect.nvml import DriverError
from gputui.collect.nvml.opening import choose_devices
from tests.collect.fake_machine import NOT_SUPPORTED, FakeMachine, Probe


def driver_is_installed() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(driver_is_installed(), reason="this machine has an NVIDIA driver")
def test_no_driver_is_a_normal_case() -> None:
    probe = Probe(None, None)
    reading = probe.once()
    assert probe.close() == 0
    reason = "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert reading.header.gpu_unavailable_reason == reason
    assert reading.header.gpus == ()
    assert reading.sample.gpus == ()
    assert reading.sample.processes is None
    assert reading.host_reasons == {"processes": reason}
    assert reading.sample.host.memory_used_bytes


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4, "no permission to use the NVIDIA driver: this user needs read and write access to"),
        (9, "the NVIDIA driver is not loaded: run `sudo modprobe nvidia`"),
        (18, "driver/library version mismatch: the driver was updated"),
        (999, "NVML answered Unknown Error (999)"),
    ],
)
def test_a_driver_that_does_not_start_says_why(
    machine: FakeMachine, probe: Probe, code: int, words: str
) -> None:
    machine.system["nvmlInitWithFlags"] = f"!{code}"
    machine.write()
    reading = probe.once()
    assert (reading.header.gpu_unavailable_reason or "").startswith(words)
    assert reading.sample.gpus == ()
    assert reading.sample.host.memory_used_bytes


def test_a_driver_that_hangs_at_start_is_left_out(
    machine: FakeMachine, own_probe: Callable[[], Probe], tmp_path: Path
) -> None:
    fifo = tmp_path / "hang"
    os.mkfifo(fifo)
    machine.system["nvmlInitWithFlags"] = f"@{fifo}"
    machine.write()
    probe = own_probe()
    probe.send(do="open", timeout_s=0.05)
    assert "did not answer within 0.05 s" in json.loads(probe.line())


def test_a_driver_that_will_not_tell_its_version_is_used_all_the_same(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.system["nvmlSystemGetDriverVersion"] = "!999"
    machine.write()
    reading = probe.once()
    assert reading.header.driver_version is None
    assert reading.gpu().utilization_percent == 97.0


U = ["GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2", "GPU-cc44-3"]


def mig(entry: str) -> int:
    if entry != "MIG-known":
        raise DriverError(6, "not found")
    return 2


@pytest.mark.parametrize(
    ("only", "visible", "indexes", "words"),
    [
        (None, None, (0, 1, 2, 3), None),
        ([2, 0, 2], "1", (0, 2), None),
        ([0, 9], None, (0,), "--only 9: no such GPU, this machine has GPU 0 to 3"),
        ([-1], None, (), "--only -1: no such GPU"),
        (None, "3,1", (1, 3), None),
        (None, " 2 , 0", (0, 2), None),
        (None, "1,7,0", (1,), "CUDA_VISIBLE_DEVICES: '7' is not a GPU here"),
        (None, "1,-1,0", (1,), None),
        (None, "", (), "CUDA_VISIBLE_DEVICES='' hides every GPU"),
        (None, "NoDevFiles", (), "hides every GPU"),
        (None, "GPU-bb,GPU-aa2", (1, 2), None),
        (None, "GPU-aa", (), "'GPU-aa' names more than one GPU"),
        (None, "GPU-zz", (), "'GPU-zz' is not a GPU here"),
        (None, "gpu-BB33-2", (2,), None),
        (None, "1,1", (), "'1' names a GPU twice, which hides every GPU"),
        (None, "GPU-bb,GPU-bb33-2", (), "'GPU-bb33-2' names a GPU twice"),
        (None, "0,GPU-bb", (0,), "'GPU-bb' mixes indices and UUIDs, which CUDA does not accept"),
        (None, "MIG-known", (2,), None),
        (None, "MIG-known,3", (2,), None),
        (None, "MIG-other", (), "'MIG-other' is not a GPU here"),
        pytest.param(None, "0," + "9" * 5000, (0,), "'99999", id="a long number"),
        (None, "٣", (), "'٣' is not a GPU here"),
    ],
)
def test_which_gpus_are_shown(
    only: list[int] | None, visible: str | None, indexes: tuple[int, ...], words: str | None
) -> None:
    chosen, _instance, reason = choose_devices(4, only, visible, lambda: U, mig)
    assert chosen == indexes
    assert reason is None if words is None else words in (reason or "")


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.one_of(
                st.integers(-2, 5).map(str),
                st.sampled_from(
                    [*U, "GPU-aa", "GPU-", "MIG-known", "MIG-other", "", " ", "NoDevFiles"]
                ),
                st.integers(4290, 4400).map(lambda digits: "9" * digits),
            ),
            max_size=6,
        ).map(",".join),
    )
)
def test_whatever_the_variable_says_gpus_are_chosen_or_one_short_line_tells_why(
    visible: str,
) -> None:
    chosen, _instance, reason = choose_devices(4, None, visible, lambda: U, mig)
    assert chosen == tuple(sorted(set(chosen) & set(range(4))))
    assert chosen or reason
    assert sanitize(reason or "", 1200) == (reason or "")


def test_gpus_are_chosen_by_uuid_and_by_mig_instance(machine: FakeMachine, probe: Probe) -> None:
    machine.reset(4)
    machine.system["mig.MIG-1234-5678"] = 3
    machine.write()
    reading = probe.once(visible="GPU-00000001,MIG-1234-5678")
    assert [gpu.index for gpu in reading.header.gpus] == [1, 3]
    assert [gpu.index for gpu in reading.sample.gpus] == [1, 3]
    assert [gpu.index for gpu in probe.once(only=[2], visible="0").sample.gpus] == [2]
    assert "--only 4" in (probe.once(only=[4]).header.gpu_unavailable_reason or "")
    # The first frame has the same ones, and of each what the driver says.
    machine.gpus[1]["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    machine.write()
    probe.send(do="glance", only=None, visible="GPU-00000001,MIG-1234-5678")
    (first, second), reason = json.loads(probe.line())
    memory = [150754820096, 1059913728, 644939776]
    assert first == [1, "NVIDIA H200", 97.0, memory, None, 700.0, 54.0, 1965]
    assert [second[0], second[4], reason] == [3, 612.345, None]
    probe.send(do="glance", only=[4], visible=None)
    assert json.loads(probe.line()) == [[], "--only 4: no such GPU, this machine has GPU 0 to 3"]
