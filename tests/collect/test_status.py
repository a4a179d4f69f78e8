"""What is read of GPUs every few seconds: energy, errors, modes, link states."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.model.events import GpuEnergy, GpuSample, GpuStatus
from tests.collect.fake_machine import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeMachine, Probe


def test_the_status_of_an_h200(probe: Probe) -> None:
    status = probe.once().status()
    assert status == GpuStatus(
        time_ns=status.time_ns,
        gpu=0,
        energy_joules=1234567.89,
        temperature_margin_celsius=33.0,
        throttle_seconds={
            "power cap": 12.0,
            "thermal slowdown (software)": 0.0,
            "sync boost": 0.0,
            "board limit": 0.0,
            "reliability": 0.0,
        },
        pcie_link_generation=5,
        pcie_link_width=16,
        pcie_replays=0,
        nvlink_active_count=18,
        bar1_used_bytes=1048576,
        compute_mode="default",
        persistence_mode=True,
        ecc_enabled=True,
        ecc_corrected=2,
        ecc_uncorrected=0,
        ecc_corrected_lifetime=5,
        ecc_uncorrected_lifetime=1,
        remapped_rows_corrected=1,
        remapped_rows_uncorrected=0,
        row_remapping_pending=False,
        row_remapping_failed=False,
        xid_count=0,
    )


def test_pages_that_an_older_chip_retired(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetRetiredPages_v2.0": 3,
        "nvmlDeviceGetRetiredPages_v2.1": 1,
        "nvmlDeviceGetRetiredPagesPendingStatus": 1,
        "nvmlDeviceGetRemappedRows": NOT_SUPPORTED,
    }
    machine.write()
    reading = probe.once()
    assert (reading.status().retired_pages, reading.status().page_retirement_pending) == (4, True)
    assert {n for n in reading.reasons() if "remap" in n} == {
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "row_remapping_pending",
        "row_remapping_failed",
    }


def test_a_figure_that_fails_is_none_with_its_reason(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED,
        "nvmlDeviceGetTotalEccErrors.0.0": NO_PERMISSION,
        "xid": NOT_SUPPORTED,
        **dict.fromkeys((f"field.{number}" for number in (74, 75, 76, 77, 79)), NOT_SUPPORTED),
        **dict.fromkeys((f"nvmlDeviceGetNvLinkState.{link}" for link in range(18)), NOT_SUPPORTED),
    }
    machine.write()
    reading = probe.once()
    status = reading.status()
    missing = ("energy_joules", "ecc_corrected", "throttle_seconds", "xid_count")
    assert [getattr(status, name) for name in missing] == [None] * 4
    assert status.nvlink_active_count is None
    assert status.ecc_uncorrected == 0
    assert set(reading.reasons()) == {*missing, "nvlink_active_count"}


def test_a_throttle_counter_that_is_missing_takes_no_other_with_it(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.gpus[0] |= {"field.76": NOT_SUPPORTED, "field.75": 1_500_000_000}
    machine.write()
    seconds = probe.once().status().throttle_seconds or {}
    assert "sync boost" not in seconds
    assert seconds["thermal slowdown (software)"] == 1.5


def test_links_that_are_down_are_not_counted(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {"nvmlDeviceGetNvLinkState.3": 0, "nvmlDeviceGetNvLinkState.4": 0}
    machine.write()
    assert probe.once().status().nvlink_active_count == 16


def test_a_sensor_that_reads_nothing_is_not_there(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["field.82"] = 0
    machine.write()
    reading = probe.once()
    assert reading.gpu().memory_temperature_celsius is None
    assert reading.reasons() == {"memory_temperature_celsius": "this GPU has no such sensor"}


def test_the_margin_is_the_way_to_the_threshold_where_the_driver_tells_none(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.gpus[0]["nvmlDeviceGetMarginTemperature"] = NOT_SUPPORTED
    machine.write()
    reading = probe.once()
    assert reading.status().temperature_margin_celsius == 89 - 54
    assert reading.reasons() == {}


def test_an_xid_is_told_soon(machine: FakeMachine, own_probe: Callable[[], Probe]) -> None:
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    probe.until(seen, lambda reading: reading.status().xid_count == 0)
    machine.gpus[0]["xid"] = "2 79"
    machine.write()
    status = probe.until(seen, lambda reading: reading.status().xid_count == 2).status()
    assert (status.xid_count, status.last_xid) == (2, 79)
    assert status.last_xid_time_ns is not None


def test_the_energy_counter_is_read_at_each_sample_and_on_request(
    machine: FakeMachine, own_probe: Callable[[], Probe]
) -> None:
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()

    def counted() -> list[float]:
        return [event.joules for event in seen if isinstance(event, GpuEnergy)]

    probe.until(seen, lambda _: len(counted()) >= 3)
    moments = [event.time_ns for event in seen if isinstance(event, GpuEnergy)]
    assert moments == sorted(moments)
    assert sum(isinstance(event, GpuStatus) for event in seen) == 1
    # From now on the next sample is hours away; only a request can bring a reading.
    probe.send(do="interval", interval_s=36_000)
    machine.gpus[0]["nvmlDeviceGetTotalEnergyConsumption"] = 2_000_000_000
    machine.write()
    while 2e6 not in counted():
        probe.send(do="energy")
        seen.extend(probe.events())
    assert set(counted()) == {1234567.89, 2e6}


def test_a_lost_gpu_has_no_status(machine: FakeMachine, probe: Probe) -> None:
    machine.reset(2)
    machine.gpus[0]["nvmlDeviceGetRemappedRows"] = LOST
    machine.write()
    reading = probe.once()
    assert {event.gpu for event in reading.events if isinstance(event, GpuStatus)} == {1}
    assert "lost" in reading.reasons(0)["status"]


def test_a_slow_call_that_hangs_leaves_the_ticks_alone(
    machine: FakeMachine, own_probe: Callable[..., Probe], tmp_path: Path
) -> None:
    fifo = tmp_path / "hang"
    os.mkfifo(fifo)
    machine.gpus[0]["nvmlDeviceGetTotalEnergyConsumption"] = f"@{fifo}"
    machine.write()
    probe = own_probe(hasty=True)
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    reading = probe.until(seen, lambda reading: reading.gpu().power_watts == 612.345)
    machine.gpus[0]["nvmlDeviceGetPowerUsage"] = 5000
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu().power_watts == 5.0)
    assert not [event for event in reading.events if isinstance(event, GpuStatus)]
    machine.reset()
    machine.write()
    os.close(os.open(fifo, os.O_WRONLY))
    reading = probe.until(seen, lambda r: any(isinstance(e, GpuStatus) for e in r.events))
    assert reading.status().energy_joules == 1234567.89


def test_ways_between_gpus_over_pcie(machine: FakeMachine, probe: Probe) -> None:
    machine.reset(3)
    machine.gpus[0] |= {
        "nvmlDeviceGetTopologyCommonAncestor.1": 10,
        "nvmlDeviceGetTopologyCommonAncestor.2": 50,
    }
    machine.gpus[1]["nvmlDeviceGetTopologyCommonAncestor.2"] = NOT_SUPPORTED
    machine.write()
    facts = probe.once().header.gpus
    assert [one.topology for one in facts] == [{1: "PIX", 2: "SYS"}, {0: "PIX"}, {0: "SYS"}]


@pytest.mark.parametrize(("direct", "word"), [(0, "NV18"), (12, "NV12")])
def test_ways_between_gpus_over_nvlink(
    machine: FakeMachine, probe: Probe, direct: int, word: str
) -> None:
    """Through a switch every link counts, without one those that end at the other."""
    machine.reset(2)
    machine.gpus[0] |= {"nvmlDeviceGetP2PStatus.1.2": 0} | {
        f"nvmlDeviceGetNvLinkRemotePciInfo_v2.{link}": (
            "00000000:0F:00.0" if link < direct else "00000000:FF:00.0"
        )
        for link in range(18)
    }
    machine.write()
    assert [one.topology for one in probe.once().header.gpus] == [{1: word}, {0: word}]


def test_the_facts_that_are_limits(probe: Probe) -> None:
    (facts,) = probe.once().header.gpus
    assert (facts.architecture, facts.vbios_version) == ("Hopper", "96.00.BC.00.02")
    assert (facts.power_limit_minimum_watts, facts.power_limit_maximum_watts) == (200.0, 700.0)
    assert facts.power_limit_default_watts == 700.0
    assert facts.temperature_shutdown_celsius == 92.0
    assert facts.memory_temperature_maximum_celsius == 95.0
    assert facts.bar1_total_bytes == 274877906944
    assert (facts.nvlink_count, facts.nvlink_link_bytes_per_s) == (18, 26.562e9)
    assert (facts.memory_kind, facts.topology, facts.mig_instances) == ("device", {}, ())


def test_a_chip_that_shares_the_hosts_memory(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetName": "NVIDIA GB10",
        "nvmlDeviceGetMemoryInfo_v2": NOT_SUPPORTED,
        "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED,
    }
    machine.write()
    reading = probe.once()
    gpu, host = reading.gpu(), reading.header.host
    assert reading.header.gpus[0].memory_kind == "unified"
    assert gpu.memory_total_bytes == host.memory_total_bytes
    assert gpu.memory_used_bytes is not None
    assert 0 < gpu.memory_used_bytes < host.memory_total_bytes
    assert gpu.memory_reserved_bytes is None
    assert reading.reasons()["memory_reserved_bytes"] == "this chip shares the host's memory"


def test_an_answer_in_a_lost_gpu_is_nothing(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["field.186"] = LOST
    machine.write()
    assert probe.once().gpu() == GpuSample(index=0)


def test_the_speed_of_the_first_link_where_there_is_no_common_one(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.gpus[0] |= {"field.90": NOT_SUPPORTED, "field.164": 26562}
    machine.write()
    assert probe.once().header.gpus[0].nvlink_link_bytes_per_s == 26.562e9
