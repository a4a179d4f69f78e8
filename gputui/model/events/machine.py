"""The machine: its facts, and its readings."""

from __future__ import annotations

from typing import Literal

import msgspec

from gputui.model.events.base import Amount, Event, Integer, Moment, Record


class MigFacts(Record, frozen=True, kw_only=True):
    """Facts of one MIG instance of a GPU that do not change.

    An instance is a part of its GPU, not a GPU of its own: power, temperature and clocks are the
    card's. `index` is the driver's; instances with the same `gpu_instance_id` share its memory and
    its counters.
    """

    index: Integer
    uuid: str
    name: str
    """The profile, as "1g.18gb"."""
    gpu_instance_id: Integer
    compute_instance_id: Integer | None = None
    sm_count: Integer | None = None
    memory_total_bytes: Integer | None = None


class GpuFacts(Record, frozen=True, kw_only=True):
    """Facts of one GPU that do not change while the program runs.

    `memory_kind` "unified" is a chip that uses the host's memory: its memory figures are those of
    the host. `pcie_generation` and `pcie_width` are the link's maximum. `topology` is, by the other
    GPU's index, the connection to it in the terms of `nvidia-smi topo -m` ("NV18", "PIX").
    """

    index: Integer
    uuid: str
    name: str
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    sm_count: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bus_width_bits: Integer | None = None
    max_sm_clock_mhz: Integer | None = None
    max_memory_clock_mhz: Integer | None = None
    peak_memory_bandwidth_bytes_per_s: float | None = None
    peak_memory_bandwidth_source: str | None = None
    power_limit_watts: float | None = None
    temperature_slowdown_celsius: float | None = None
    pcie_generation: Integer | None = None
    pcie_width: Integer | None = None
    gpm_supported: bool = False
    mig_enabled: bool | None = None
    architecture: str | None = None
    vbios_version: str | None = None
    memory_kind: Literal["device", "unified"] = "device"
    bar1_total_bytes: Integer | None = None
    power_limit_default_watts: float | None = None
    power_limit_minimum_watts: float | None = None
    power_limit_maximum_watts: float | None = None
    temperature_shutdown_celsius: float | None = None
    memory_temperature_maximum_celsius: float | None = None
    nvlink_count: Integer | None = None
    nvlink_link_bytes_per_s: float | None = None
    """What one link carries in each direction."""
    topology: dict[Integer, str] = msgspec.field(default_factory=dict)
    mig_instances: tuple[MigFacts, ...] = ()


class HostFacts(Record, frozen=True, kw_only=True):
    """The host of the GPUs."""

    hostname: str
    system: str
    cpu_model: str | None = None
    cpu_count: Integer
    memory_total_bytes: Integer


class Header(Event, frozen=True, kw_only=True, tag="header"):
    """The first event of every session, and the first line of every journal.

    `monotonic_ns` is CLOCK_MONOTONIC read at `time_ns`: an anchor that distinguishes a stepped wall
    clock from a pause.
    """

    schema: Integer
    gputui_version: str
    python_version: str
    monotonic_ns: Integer
    arguments: tuple[str, ...] = ()
    interval_s: float
    host: HostFacts
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_unavailable_reason: str | None = None


class MigSample(Record, frozen=True, kw_only=True):
    """One MIG instance at one moment. Reasons for what is None are `mig.INDEX.FIELD`."""

    index: Integer
    memory_used_bytes: Integer | None = None
    memory_reserved_bytes: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bandwidth_percent: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None


class GpuSample(Record, frozen=True, kw_only=True):
    """One GPU at one moment. Field names are those of `--once --json`.

    `power_watts` is the driver's average over a second (Ampere and later), like nvidia-smi's
    power.draw; the pipes (`tensor_active_percent` and on) are shares of cycles (GPM).
    """

    index: Integer
    utilization_percent: float | None = None
    memory_used_bytes: Integer | None = None
    memory_reserved_bytes: Integer | None = None
    memory_total_bytes: Integer | None = None
    memory_bandwidth_percent: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: Integer | None = None
    memory_clock_mhz: Integer | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    power_instant_watts: float | None = None
    memory_temperature_celsius: float | None = None
    performance_state: Integer | None = None
    """0 (fastest) to 15."""
    video_clock_mhz: Integer | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    integer_active_percent: float | None = None
    fp16_active_percent: float | None = None
    fp32_active_percent: float | None = None
    fp64_active_percent: float | None = None
    mig_instances: tuple[MigSample, ...] = ()


class HostSample(Record, frozen=True, kw_only=True):
    """The host at one moment."""

    cpu_percent: float | None = None
    memory_used_bytes: Integer | None = None
    load_1m: float | None = None
    swap_used_bytes: Integer | None = None


class ProcessSample(Record, frozen=True, kw_only=True):
    """One process on one GPU, as the driver and the host see it.

    A process is identified by its pid and its `start_time_ns`, because pids are reused. `kind` is
    the driver's: C is compute, G graphics. `gpu_instance_id` is the MIG instance it is on.
    """

    pid: Integer
    gpu: Integer
    user: str | None = None
    command: str | None = None
    gpu_memory_bytes: Integer | None = None
    sm_percent: float | None = None
    cpu_percent: float | None = None
    host_memory_bytes: Integer | None = None
    kind: Literal["C", "G", "C+G"] | None = None
    memory_bandwidth_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    start_time_ns: Moment | None = None
    parent_pid: Integer | None = None
    gpu_instance_id: Integer | None = None
    compute_instance_id: Integer | None = None


class LauncherSample(Record, frozen=True, kw_only=True):
    """An ancestor of GPU processes that is not on a GPU itself: an inner node of the process
    tree.
    """

    pid: Integer
    parent_pid: Integer | None = None
    start_time_ns: Moment
    user: str | None = None
    command: str | None = None


class MachineSample(Event, frozen=True, kw_only=True, tag="sample"):
    """One tick of the sampler. `processes` and `launchers` are None if this tick did not read them.

    `own_cpu_percent` is gputui's own use of one core since the last tick.
    """

    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] | None = None
    own_cpu_percent: float | None = None
    recorded_bytes: Amount | None = None
    """Size of the recording on disk when this tick was read; None if there is none."""
    traced_bytes: Amount | None = None
    """Size of the trace beside it."""
    launchers: tuple[LauncherSample, ...] = ()


class GpuStatus(Event, frozen=True, kw_only=True, tag="gpu_status"):
    """What the driver takes milliseconds to read, or what seldom changes: read every few seconds.

    `time_ns` is when it was read. Counters start where the driver starts them: energy and throttle
    times at its load, ECC errors at the last reset or (`_lifetime`) never reset. Field names are
    those of `--once --json`; reasons are in GpuUnavailable.
    """

    gpu: Integer
    energy_joules: float | None = None
    temperature_margin_celsius: float | None = None
    """How much hotter the GPU may get before it slows down."""
    fan_percent: float | None = None
    throttle_seconds: dict[str, float] | None = None
    """By reason, in the words of `throttle_reasons`."""
    pcie_link_generation: Integer | None = None
    pcie_link_width: Integer | None = None
    pcie_replays: Integer | None = None
    nvlink_active_count: Integer | None = None
    bar1_used_bytes: Integer | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    ecc_enabled: bool | None = None
    ecc_corrected: Integer | None = None
    ecc_uncorrected: Integer | None = None
    ecc_corrected_lifetime: Integer | None = None
    ecc_uncorrected_lifetime: Integer | None = None
    remapped_rows_corrected: Integer | None = None
    remapped_rows_uncorrected: Integer | None = None
    row_remapping_pending: bool | None = None
    row_remapping_failed: bool | None = None
    retired_pages: Integer | None = None
    page_retirement_pending: bool | None = None
    xid_count: Integer | None = None
    """Xid errors since gputui began to listen."""
    last_xid: Integer | None = None
    last_xid_time_ns: Moment | None = None


class GpuUnavailable(Event, frozen=True, kw_only=True, tag="gpu_unavailable"):
    """Why fields of one GPU are None: field name → reason. Replaces earlier reasons.

    The names are those of `GpuSample`, `GpuStatus` and `GpuFacts`, prefixed with `mig.INDEX.` for
    an instance; `device` is included if one reason holds for the whole card (lost, or no answer).
    """

    gpu: Integer
    reasons: dict[str, str]


class HostUnavailable(Event, frozen=True, kw_only=True, tag="host_unavailable"):
    """Why host fields, or whole kinds of readings (`processes`), are None. Replaces earlier
    reasons.

    `processes.FIELD` is why that field is None for some process; `sampler` is why sampling ended.
    """

    reasons: dict[str, str]
