"""GPUs that were divided into MIG instances."""

from __future__ import annotations

import pytest

from gputui.model.events import MigFacts, MigSample
from tests.collect.fake_machine import NO_PERMISSION, NOT_SUPPORTED, FakeMachine, Probe

UUIDS = ("MIG-aaaaaaaa-0000", "MIG-bbbbbbbb-1111")
COUNTERS = (2, 3, 5, 10)


@pytest.fixture
def divided(machine: FakeMachine) -> FakeMachine:
    """An H200 with two instances; the driver numbers them 0 and 2."""
    gpu = machine.gpus[0]
    gpu |= {
        "nvmlDeviceGetMigMode": "1 1",
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
        "nvmlGpmSampleGet": NOT_SUPPORTED,
        "nvmlDeviceGetProcessUtilization": NOT_SUPPORTED,
    }
    for index, uuid, number, slices in ((0, UUIDS[0], 9, 1), (2, UUIDS[1], 5, 3)):
        instance = {
            "nvmlDeviceGetName": f"NVIDIA H200 MIG {slices}g.{slices * 18}gb",
            "nvmlDeviceGetUUID": uuid,
            "nvmlDeviceGetGpuInstanceId": number,
            "nvmlDeviceGetComputeInstanceId": 0,
            "nvmlDeviceGetAttributes_v2": f"{16 * slices} {16384 * slices}",
            "nvmlDeviceGetMemoryInfo_v2": f"{slices * 10**10} {slices * 10**9} 1000",
        }
        gpu |= {f"mig.{index}.{key}": value for key, value in instance.items()}
        gpu |= {f"instance.{number}.gpm.{metric}": 10.0 * slices for metric in COUNTERS}
        gpu[f"nvmlGpmMigSampleGet.{number}"] = 0
    machine.write()
    return machine


def test_instances_are_parts_of_their_gpu(divided: FakeMachine, probe: Probe) -> None:
    reading = probe.once()
    (facts,) = reading.header.gpus
    assert facts.mig_enabled
    assert facts.mig_instances == (
        MigFacts(
            index=0,
            uuid=UUIDS[0],
            name="1g.18gb",
            gpu_instance_id=9,
            compute_instance_id=0,
            sm_count=16,
            memory_total_bytes=16384 * 1024**2,
        ),
        MigFacts(
            index=2,
            uuid=UUIDS[1],
            name="3g.54gb",
            gpu_instance_id=5,
            compute_instance_id=0,
            sm_count=48,
            memory_total_bytes=49152 * 1024**2,
        ),
    )
    first, second = reading.gpu().mig_instances
    assert first == MigSample(
        index=0,
        memory_used_bytes=10**9,
        memory_reserved_bytes=1000,
        memory_total_bytes=10**10,
        memory_bandwidth_percent=10.0,
        sm_active_percent=10.0,
        sm_occupancy_percent=10.0,
        tensor_active_percent=10.0,
    )
    assert (second.index, second.sm_active_percent, second.memory_used_bytes) == (
        2,
        30.0,
        3 * 10**9,
    )
    assert reading.gpu().utilization_percent is None
    assert reading.reasons()["utilization_percent"] == "not supported while MIG is on"
    assert reading.gpu().power_watts == 612.345
    assert divided.unfreed_samples == 0


def test_what_an_instance_does_not_tell_has_its_own_reason(
    divided: FakeMachine, probe: Probe
) -> None:
    divided.gpus[0]["nvmlGpmMigSampleGet.5"] = NO_PERMISSION
    divided.gpus[0]["mig.0.nvmlDeviceGetMemoryInfo_v2"] = NO_PERMISSION
    divided.write()
    reading = probe.once()
    first, second = reading.gpu().mig_instances
    assert (first.memory_used_bytes, first.sm_active_percent) == (None, 10.0)
    assert (second.memory_used_bytes, second.sm_active_percent) == (3 * 10**9, None)
    assert reading.reasons()["mig.0.memory_used_bytes"].startswith("no permission")
    assert reading.reasons()["mig.2.sm_active_percent"].startswith("GPM counters: no permission")


def test_a_share_above_all_is_cut(divided: FakeMachine, probe: Probe) -> None:
    divided.gpus[0]["instance.9.gpm.2"] = 107.3
    divided.write()
    assert probe.once().gpu().mig_instances[0].sm_active_percent == 100.0


def test_one_instance_is_chosen_by_its_uuid(divided: FakeMachine, probe: Probe) -> None:
    divided.system[f"mig.{UUIDS[1]}"] = 0
    divided.write()
    reading = probe.once(visible=UUIDS[1])
    assert [one.uuid for one in reading.header.gpus[0].mig_instances] == [UUIDS[1]]
    assert [one.index for one in reading.gpu().mig_instances] == [2]


def test_processes_say_which_instance_they_are_on(divided: FakeMachine, probe: Probe) -> None:
    divided.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": "50 1000 50 2000",
        "nvmlDeviceGetComputeRunningProcesses_v3.instances": "9 0 5 0",
    }
    divided.write()
    reading = probe.once()
    told = [(p.pid, p.gpu_instance_id, p.gpu_memory_bytes) for p in reading.sample.processes or ()]
    assert told == [(50, 9, 1000), (50, 5, 2000)]
    assert reading.host_reasons["processes.sm_percent"] == "not supported while MIG is on"


def test_processes_are_asked_of_the_instances_where_the_gpu_will_not_tell(
    divided: FakeMachine, probe: Probe
) -> None:
    divided.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": NO_PERMISSION,
        "mig.2.nvmlDeviceGetComputeRunningProcesses_v3": "60 1000",
    }
    divided.write()
    reading = probe.once()
    (one,) = reading.sample.processes or ()
    assert (one.pid, one.gpu_instance_id) == (60, 5)
    assert "processes" not in reading.host_reasons
