"""What is read of GPUs, through the real pynvml on a fake driver library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.collect.nvml.reading import CounterRate, Fields
from gputui.model.events import GpuSample
from tests.collect.fake_machine import (
    H200_REASONS,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeMachine,
    Probe,
)

GPM_FIELDS = (
    "integer_active_percent",
    "fp64_active_percent",
    "fp32_active_percent",
    "fp16_active_percent",
    "sm_active_percent",
    "sm_occupancy_percent",
    "tensor_active_percent",
    "memory_bandwidth_percent",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
)
LINK_FIELDS = {name for name in GPM_FIELDS if name.startswith(("pcie", "nvlink"))}
SAMPLE_FIELDS = tuple(
    name for name in GpuSample.__struct_fields__ if name not in ("index", "mig_instances")
)

MIB = 1024 * 1024


def test_a_counter_of_all_ones_is_no_figure() -> None:
    fields = Fields()
    assert fields.keep("pcie_replays", 2**64 - 1) is None
    assert fields.keep("memory_used_bytes", 2**63 - 1) == 2**63 - 1
    assert fields.reasons == {"pcie_replays": "the driver's answer makes no sense"}


def test_every_figure_of_an_h200(probe: Probe) -> None:
    reading = probe.once()
    assert reading.gpu() == GpuSample(
        index=0,
        utilization_percent=97.0,
        memory_used_bytes=1059913728,
        memory_reserved_bytes=644939776,
        memory_total_bytes=150754820096,
        memory_bandwidth_percent=16.0,
        memory_bandwidth_bytes_per_s=pytest.approx(0.16 * 2 * 3201e6 * 752),
        sm_active_percent=97.0,
        sm_occupancy_percent=14.0,
        tensor_active_percent=91.0,
        power_watts=612.345,
        power_limit_watts=700.0,
        temperature_celsius=54.0,
        sm_clock_mhz=1965,
        memory_clock_mhz=3201,
        pcie_tx_bytes_per_s=3 * MIB,
        pcie_rx_bytes_per_s=5 * MIB,
        nvlink_rx_bytes_per_s=147_000 * MIB,
        nvlink_tx_bytes_per_s=146_000 * MIB,
        throttle_reasons=(),
        power_instant_watts=640.5,
        memory_temperature_celsius=61.0,
        performance_state=0,
        video_clock_mhz=1545,
        encoder_percent=0.0,
        decoder_percent=0.0,
        integer_active_percent=9.0,
        fp64_active_percent=0.0,
        fp32_active_percent=4.0,
        fp16_active_percent=1.5,
    )
    assert reading.all_reasons() == H200_REASONS
    assert reading.sample.own_cpu_percent is not None
    assert reading.sample.host.cpu_percent is not None


def test_the_facts_of_an_h200(probe: Probe) -> None:
    header = probe.once().header
    assert (header.driver_version, header.cuda_driver_version) == ("580.159.04", "13.0")
    assert header.gpu_unavailable_reason is None
    (facts,) = header.gpus
    assert (facts.index, facts.name, facts.uuid[:12]) == (0, "NVIDIA H200", "GPU-00000000")
    assert (facts.pci_bus_id, facts.compute_capability) == ("00000000:0F:00.0", "9.0")
    assert (facts.sm_count, facts.memory_total_bytes) == (132, 150754820096)
    assert (facts.max_sm_clock_mhz, facts.max_memory_clock_mhz) == (1980, 3201)
    assert facts.peak_memory_bandwidth_bytes_per_s == pytest.approx(4.814304e12)
    assert facts.peak_memory_bandwidth_source == "2 × 3201 MHz × 6016 bit from NVML"
    assert (facts.power_limit_watts, facts.temperature_slowdown_celsius) == (700.0, 89.0)
    assert (facts.pcie_generation, facts.pcie_width) == (5, 16)
    assert (facts.gpm_supported, facts.mig_enabled) == (True, False)


def test_counter_samples_are_freed(machine: FakeMachine, probe: Probe) -> None:
    machine.reset(3)
    machine.write()
    probe.once()
    assert machine.unfreed_samples == 0


@pytest.mark.parametrize("count", [0, 1, 8, 16])
def test_any_number_of_gpus(machine: FakeMachine, probe: Probe, count: int) -> None:
    machine.reset(count)
    for index, gpu in enumerate(machine.gpus):
        gpu["nvmlDeviceGetPowerUsage"] = 100_000 + index * 1000
    machine.write()
    reading = probe.once()
    assert [gpu.index for gpu in reading.header.gpus] == list(range(count))
    assert [gpu.power_watts for gpu in reading.sample.gpus] == [100.0 + i for i in range(count)]
    none = reading.header.gpu_unavailable_reason
    assert (none is not None and "sees no GPU" in none) == (count == 0)


def test_an_old_chip_has_no_counters_and_says_so(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["nvmlGpmQueryDeviceSupport"] = 0
    machine.gpus[0]["nvmlDeviceGetCudaComputeCapability"] = "8 0"
    machine.gpus[0]["nvmlDeviceGetNumGpuCores"] = 6912
    machine.write()
    reading = probe.once()
    assert reading.header.gpus[0].sm_count == 108
    assert not reading.header.gpus[0].gpm_supported
    assert reading.gpu().utilization_percent == 97.0
    missing = {*GPM_FIELDS, "memory_bandwidth_bytes_per_s"}
    assert set(reading.reasons()) == missing
    for name in missing:
        assert getattr(reading.gpu(), name) is None
    for name in missing - LINK_FIELDS:
        assert reading.reasons()[name] == "needs the counters (GPM) of a Hopper or later GPU"
    for name in LINK_FIELDS:
        assert reading.reasons()[name] == "not supported by this GPU"


def test_the_links_of_an_old_chip_are_read_without_counters(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.gpus[0] |= {
        "nvmlGpmQueryDeviceSupport": 0,
        "nvmlDeviceGetPcieThroughput.0": 7,
        "nvmlDeviceGetPcieThroughput.1": 9,
        "field.138": 1000,
        "field.139": 5000,
    }
    machine.write()
    gpu = probe.once().gpu()
    assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (7 * 1024, 9 * 1024)
    # The fake's counters stand still.
    assert (gpu.nvlink_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s) == (0, 0)


def test_rates_of_nvlink_counters_that_grow_and_that_wrap(
    machine: FakeMachine, own_probe: Callable[[], Probe]
) -> None:
    machine.gpus[0] |= {"nvmlGpmQueryDeviceSupport": 0, "field.138": 0, "field.139": 1000}
    machine.write()
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    probe.until(seen, lambda reading: reading.gpu().nvlink_rx_bytes_per_s == 0)
    machine.gpus[0]["field.139"] = 3000
    machine.write()
    probe.until(seen, lambda reading: (reading.gpu().nvlink_rx_bytes_per_s or 0) > 0)
    machine.gpus[0]["field.139"] = 7
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu().nvlink_rx_bytes_per_s is None)
    assert reading.reasons()["nvlink_rx_bytes_per_s"] == "measured from the second reading on"
    assert reading.gpu().nvlink_tx_bytes_per_s == 0
    probe.until(seen, lambda reading: reading.gpu().nvlink_rx_bytes_per_s == 0)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 10**12)), min_size=2, max_size=20)
)
def test_a_rate_is_what_was_counted_over_the_time_and_never_negative(
    readings: list[tuple[int, int]],
) -> None:
    rate, now, before = CounterRate(), 0, None
    for value, later in readings:
        now += later
        told = rate.update(value, now)
        if before is None or value < before or later == 0:
            assert told is None
        else:
            assert told == pytest.approx((value - before) / later * 1e9)
        before = value


def test_a_counter_without_a_figure_is_none_and_the_others_stay(
    machine: FakeMachine, probe: Probe
) -> None:
    machine.gpus[0] |= {"gpm.10": "nan", "gpm.60": "inf", "gpm.5": NOT_SUPPORTED}
    machine.write()
    reading = probe.once()
    assert reading.gpu().memory_bandwidth_percent is None
    assert reading.gpu().memory_bandwidth_bytes_per_s is None
    assert reading.gpu().sm_active_percent == 97.0
    assert reading.reasons() == {
        "memory_bandwidth_percent": "the counters gave no figure for this window",
        "memory_bandwidth_bytes_per_s": "the counters gave no figure for this window",
        "nvlink_rx_bytes_per_s": "the counters gave no figure for this window",
        "tensor_active_percent": "not supported by this GPU",
    }


def test_a_driver_that_knows_fewer_counters_still_gives_the_core(
    machine: FakeMachine, probe: Probe
) -> None:
    for identifier in (60, 61):
        del machine.gpus[0][f"gpm.{identifier}"]
    machine.write()
    reading = probe.once()
    assert reading.gpu().sm_active_percent == 97.0
    assert reading.gpu().tensor_active_percent == 91.0
    assert reading.gpu().nvlink_rx_bytes_per_s is None
    assert "unknown to this driver" in reading.reasons()["nvlink_rx_bytes_per_s"]


def test_counters_that_may_not_be_read(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["nvmlGpmSampleGet"] = NO_PERMISSION
    machine.write()
    reading = probe.once()
    assert set(reading.reasons()) == {*GPM_FIELDS, "memory_bandwidth_bytes_per_s"}
    assert reading.reasons()["sm_active_percent"].startswith("GPM counters: no permission")


FIELDS_OF = {
    "nvmlDeviceGetUtilizationRates": {"utilization_percent"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetTemperatureV.0": {"temperature_celsius"},
    "nvmlDeviceGetClockInfo.1": {"sm_clock_mhz"},
    "nvmlDeviceGetClockInfo.2": {"memory_clock_mhz"},
    "nvmlDeviceGetClockInfo.3": {"video_clock_mhz"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetEncoderUtilization": {"encoder_percent"},
    "nvmlDeviceGetDecoderUtilization": {"decoder_percent"},
    "field.186": {"power_instant_watts"},
    "field.82": {"memory_temperature_celsius"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle_reasons"},
    "nvmlDeviceGetMemoryInfo_v2": {
        "memory_used_bytes",
        "memory_reserved_bytes",
        "memory_total_bytes",
    },
}
ERRORS = {
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission: run as root, or ask the administrator",
    "!16": "the GPU needs a reset: run `nvidia-smi --gpu-reset` as root, or reboot",
    "!999": "NVML answered Unknown Error (999)",
    "!77": "NVML answered Something Odd (77)",
}


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(failing=st.dictionaries(st.sampled_from(sorted(FIELDS_OF)), st.sampled_from(sorted(ERRORS))))
def test_a_figure_that_fails_is_none_with_its_reason_and_harms_no_other(
    machine: FakeMachine, probe: Probe, failing: dict[str, str]
) -> None:
    machine.reset()
    machine.gpus[0] |= failing
    machine.write()
    reading = probe.once()
    expected = {name: ERRORS[error] for call, error in failing.items() for name in FIELDS_OF[call]}
    assert {name: reading.reasons().get(name) for name in expected} == expected
    missing = {name for name in SAMPLE_FIELDS if getattr(reading.gpu(), name) is None}
    assert missing == set(expected)


def test_facts_that_are_missing_have_reasons_too(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["nvmlDeviceGetMemoryBusWidth"] = NOT_SUPPORTED
    machine.write()
    reading = probe.once()
    assert reading.header.gpus[0].peak_memory_bandwidth_bytes_per_s is None
    assert reading.gpu().memory_bandwidth_percent == 16.0
    assert reading.gpu().memory_bandwidth_bytes_per_s is None
    assert reading.reasons()["memory_bus_width_bits"] == "not supported by this GPU"
    assert reading.reasons()["memory_bandwidth_bytes_per_s"] == "the peak is unknown"


def test_what_mig_takes_away_is_said_to_be_migs_doing(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["nvmlDeviceGetMigMode"] = "1 1"
    machine.gpus[0]["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED
    machine.gpus[0]["nvmlGpmSampleGet"] = NOT_SUPPORTED
    machine.write()
    reading = probe.once()
    assert reading.header.gpus[0].mig_enabled
    assert reading.reasons()["utilization_percent"] == "not supported while MIG is on"
    counters = "GPM counters: not supported while MIG is on"
    assert reading.reasons()["sm_active_percent"] == counters
    assert reading.gpu().power_watts == 612.345


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x8, ("hardware slowdown",)),
        (0x48, ("thermal slowdown (hardware)",)),
        (0x88, ("power brake",)),
        (0x25, ("power cap", "thermal slowdown (software)")),
        (0x4000, ("unknown reason 0x4000",)),
    ],
)
def test_throttling_in_words(
    machine: FakeMachine, probe: Probe, bits: int, words: tuple[str, ...]
) -> None:
    machine.gpus[0]["nvmlDeviceGetCurrentClocksEventReasons"] = bits
    machine.write()
    assert probe.once().gpu().throttle_reasons == words


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_lost_gpu_marks_its_own_card(machine: FakeMachine, probe: Probe, call: str) -> None:
    machine.reset(3)
    machine.gpus[1][call] = LOST
    machine.write()
    reading = probe.once()
    assert reading.gpu(1) == GpuSample(index=1)
    assert "lost" in reading.reasons(1)["device"]
    assert set(reading.reasons(1)) >= set(SAMPLE_FIELDS)
    for index in (0, 2):
        assert reading.gpu(index).utilization_percent == 97.0
        assert reading.reasons(index) == {}
    assert machine.unfreed_samples == 0


def test_a_hostile_name_is_made_safe(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0]["nvmlDeviceGetName"] = "H200\x1b[2J\x07"
    machine.write()
    assert probe.once().header.gpus[0].name == "H200\ufffd[2J\ufffd"


def test_an_old_driver_without_the_newer_functions(
    machine: FakeMachine,
    own_probe: Callable[[Path], Probe],
    build: Callable[[tuple[str, ...]], Path],
) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v2": "4000000 1000",
        "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
    }
    machine.write()
    missing = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetArchitecture",
        "nvmlEventSetCreate",
    )
    reading = own_probe(build(missing)).once()
    gpu = reading.gpu()
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (1704853504, None)
    assert "counts it as used memory" in reading.reasons()["memory_reserved_bytes"]
    assert gpu.temperature_celsius == 54.0
    assert gpu.throttle_reasons == ("power cap",)
    assert gpu.sm_active_percent is None
    unknown = "unknown to this driver: a newer one is needed"
    assert reading.reasons()["sm_active_percent"] == f"GPM counters: {unknown}"
    assert reading.header.gpus[0].sm_count is None
    for name in (
        "sm_count",
        "architecture",
        "nvlink_count",
        "power_instant_watts",
        "memory_temperature_celsius",
        "remapped_rows_corrected",
        "throttle_seconds",
        "xid_count",
    ):
        assert reading.reasons()[name] == unknown
    assert reading.status().temperature_margin_celsius == 89 - 54
    (process,) = reading.sample.processes or ()
    assert (process.pid, process.gpu_memory_bytes, process.sm_percent) == (4000000, 1000, None)
    assert reading.host_reasons["processes.sm_percent"] == unknown
