"""What a GPU is and how it does, with the declaration of each figure."""

from typing import Annotated, Literal

import msgspec

from gputui.model.events.base import About, Event, GpuIndex, Index, Integer, Moment, Record
from gputui.model.metrics import (
    BITS,
    BYTES,
    BYTES_PER_S,
    CELSIUS,
    COUNT,
    JOULES,
    MHZ,
    ON_OFF,
    PERCENT,
    PERFORMANCE_STATE,
    REASONS,
    SECONDS_BY_REASON,
    TEXT,
    WATTS,
    YES_NO,
    Chart,
    Metric,
)

# An argument a line would make three times as many.
# fmt: off


class MigFacts(Record, frozen=True, kw_only=True):
    """Facts of one MIG instance of a GPU that do not change.

    An instance is a part of its GPU, not a GPU of its own: power, temperature and clocks are the
    card's. `index` is the driver's; instances with the same `gpu_instance_id` share its memory and
    its counters.
    """

    index: Index
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

    index: GpuIndex
    uuid: Annotated[str, Metric("UUID", "Its identity", TEXT, "nvmlDeviceGetUUID", ("Chip", 10))]
    name: str
    pci_bus_id: Annotated[str | None, Metric(
        "PCI bus", "Where it is on the PCI bus", TEXT, "nvmlDeviceGetPciInfo", ("Chip", 20),
    )] = None
    compute_capability: Annotated[str | None, Metric(
        "compute capability", "What its SMs can do, as CUDA numbers it", TEXT,
        "nvmlDeviceGetCudaComputeCapability", ("Chip", 40),
    )] = None
    sm_count: Annotated[Integer | None, Metric(
        "SMs", "Streaming multiprocessors", COUNT, "nvmlDeviceGetNumGpuCores", ("Chip", 50),
    )] = None
    # NVML has no such figure: the driver is asked in the first traced program, or a report of nsys
    # says it.
    l2_cache_bytes: Annotated[Integer | None, Metric(
        "L2 cache", "Its second-level cache", BYTES,
        "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, from the first traced program that uses CUDA, or a "
        "report of nsys", ("Chip", 55),
        optional=True,
    )] = None
    memory_total_bytes: Integer | None = None
    memory_bus_width_bits: Annotated[Integer | None, Metric(
        "bus width", "Width of the memory bus", BITS, "nvmlDeviceGetMemoryBusWidth", ("Memory", 80),
    )] = None
    max_sm_clock_mhz: Annotated[Integer | None, Metric(
        "SM at most", "Highest clock of the SMs", MHZ, "nvmlDeviceGetMaxClockInfo", ("Clocks", 30),
    )] = None
    max_memory_clock_mhz: Annotated[Integer | None, Metric(
        "memory at most", "Highest clock of the memory", MHZ, "nvmlDeviceGetMaxClockInfo",
        ("Clocks", 50),
    )] = None
    peak_memory_bandwidth_bytes_per_s: Annotated[float | None, Metric(
        "peak bandwidth", "DRAM peak", BYTES_PER_S,
        "nvmlDeviceGetMemoryBusWidth and nvmlDeviceGetMaxClockInfo", ("Memory", 70),
        prometheus="memory_bandwidth_peak_bytes_per_second", once=("pipes", "of peak"),
    )] = None
    peak_memory_bandwidth_source: str | None = None
    power_limit_watts: float | None = None
    temperature_slowdown_celsius: Annotated[float | None, Metric(
        "slows at", "Temperature at which clocks are lowered", CELSIUS,
        "nvmlDeviceGetTemperatureThreshold", ("Power and heat", 100),
    )] = None
    pcie_generation: Annotated[Integer | None, Metric(
        "PCIe generation at most", "Highest PCIe generation of the link", COUNT,
        "nvmlDeviceGetMaxPcieLinkGeneration", ("Links", 20),
    )] = None
    pcie_width: Annotated[Integer | None, Metric(
        "PCIe lanes at most", "Most PCIe lanes of the link", COUNT,
        "nvmlDeviceGetMaxPcieLinkWidth", ("Links", 40),
    )] = None
    gpm_supported: bool = False
    mig_enabled: Annotated[bool | None, Metric(
        "MIG", "Whether it is divided into instances", ON_OFF, "nvmlDeviceGetMigMode", ("Chip", 90),
    )] = None
    architecture: Annotated[str | None, Metric(
        "architecture", "Its generation", TEXT, "nvmlDeviceGetArchitecture", ("Chip", 30),
    )] = None
    vbios_version: Annotated[str | None, Metric(
        "VBIOS", "Version of its firmware", TEXT, "nvmlDeviceGetVbiosVersion", ("Chip", 60),
    )] = None
    memory_kind: Annotated[Literal["device", "unified"], Metric(
        "kind", "Whether memory is its own or the host's", TEXT, "nvmlDeviceGetMemoryInfo",
        ("Memory", 10),
    )] = "device"
    bar1_total_bytes: Annotated[Integer | None, Metric(
        "BAR1 in all", "BAR1 there is", BYTES, "nvmlDeviceGetBAR1MemoryInfo", ("Memory", 100),
    )] = None
    power_limit_default_watts: Annotated[float | None, Metric(
        "limit by default", "Power limit after a reset", WATTS,
        "nvmlDeviceGetPowerManagementDefaultLimit", ("Power and heat", 40),
    )] = None
    power_limit_minimum_watts: Annotated[float | None, Metric(
        "least limit", "Lowest power limit that can be set", WATTS,
        "nvmlDeviceGetPowerManagementLimitConstraints", ("Power and heat", 50),
    )] = None
    power_limit_maximum_watts: Annotated[float | None, Metric(
        "highest limit", "Highest power limit that can be set", WATTS,
        "nvmlDeviceGetPowerManagementLimitConstraints", ("Power and heat", 60),
    )] = None
    temperature_shutdown_celsius: Annotated[float | None, Metric(
        "shuts down at", "Temperature at which it shuts down", CELSIUS,
        "nvmlDeviceGetTemperatureThreshold", ("Power and heat", 110),
    )] = None
    memory_temperature_maximum_celsius: Annotated[float | None, Metric(
        "memory at most", "Temperature that the memory may have", CELSIUS,
        "nvmlDeviceGetTemperatureThreshold", ("Power and heat", 130),
    )] = None
    nvlink_count: Annotated[Integer | None, Metric(
        "NVLinks in all", "NVLinks there are", COUNT, "NVML_FI_DEV_NVLINK_LINK_COUNT",
        ("Links", 90),
    )] = None
    nvlink_link_bytes_per_s: Annotated[float | None, Metric(
        "a link each way", "What one NVLink carries each way", BYTES_PER_S,
        "NVML_FI_DEV_NVLINK_GET_SPEED", ("Links", 100),
    )] = None
    """What one link carries in each direction."""
    topology: dict[Index, str] = msgspec.field(default_factory=dict)
    mig_instances: tuple[MigFacts, ...] = ()


class MigSample(Record, frozen=True, kw_only=True):
    """One MIG instance at one moment. If a field is None, GpuUnavailable has the reason as
    `mig.INDEX.FIELD`."""

    index: Index
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

    index: GpuIndex
    utilization_percent: Annotated[float | None, Metric(
        "GPU utilization", "Time in which a kernel ran", PERCENT, "nvmlDeviceGetUtilizationRates",
        ("Load", 10), title="GPU utilization", chart=Chart(10), spread=True, counter_track=True,
        prometheus="utilization_ratio", once=("gpus", "Util"),
    )] = None
    memory_used_bytes: Annotated[Integer | None, Metric(
        "used", "Memory in use, without what is reserved", BYTES, "nvmlDeviceGetMemoryInfo",
        ("Memory", 20), title="Memory used", chart=Chart(30, "memory"), spread=True,
        counter_track=True, prometheus="memory_used_bytes",
    )] = None
    memory_reserved_bytes: Annotated[Integer | None, Metric(
        "reserved by the driver", "Memory the driver keeps", BYTES, "nvmlDeviceGetMemoryInfo",
        ("Memory", 30), prometheus="memory_reserved_bytes",
    )] = None
    memory_total_bytes: Annotated[Integer | None, Metric(
        "in all", "Memory there is", BYTES, "nvmlDeviceGetMemoryInfo", ("Memory", 40),
        prometheus="memory_total_bytes",
    )] = None
    memory_bandwidth_percent: Annotated[float | None, Metric(
        "bandwidth", "DRAM bandwidth used (GPM)", PERCENT, "GPM DRAM_BW_UTIL", ("Memory", 50),
        title="Memory bandwidth", chart=Chart(40, "bandwidth"), spread=True,
        prometheus="memory_bandwidth_ratio", once=("gpus", "DRAM"),
    )] = None
    memory_bandwidth_bytes_per_s: Annotated[float | None, Metric(
        "bandwidth", "DRAM traffic: the share times the peak", BYTES_PER_S, "GPM DRAM_BW_UTIL",
        ("Memory", 60), title="Memory bandwidth", spread=True, counter_track=True,
        prometheus="memory_bandwidth_bytes_per_second", once=("pipes", "DRAM"),
    )] = None
    sm_active_percent: Annotated[float | None, Metric(
        "SM active", "Cycles in which an SM had a warp", PERCENT, "GPM SM_UTIL", ("Load", 20),
        title="SM active", chart=Chart(20), spread=True, counter_track=True,
        prometheus="sm_active_ratio", once=("gpus", "SM"),
    )] = None
    sm_occupancy_percent: Annotated[float | None, Metric(
        "SM occupancy", "Warps of those an SM can hold", PERCENT, "GPM SM_OCCUPANCY", ("Load", 30),
        title="SM occupancy", chart=Chart(70, "occupancy"), spread=True,
        prometheus="sm_occupancy_ratio", once=("pipes", "Occ"),
    )] = None
    tensor_active_percent: Annotated[float | None, Metric(
        "tensor cores active", "Cycles of the tensor pipes", PERCENT, "GPM ANY_TENSOR_UTIL",
        ("Load", 40), title="Tensor active", chart=Chart(60, "tensor"), spread=True,
        counter_track=True, prometheus="tensor_active_ratio", once=("gpus", "Tensor"),
    )] = None
    power_watts: Annotated[float | None, Metric(
        "power, mean of 1 s", "Power, averaged over a second", WATTS, "nvmlDeviceGetPowerUsage",
        ("Power and heat", 10), title="Power", chart=Chart(50, "power"), spread=True,
        counter_track=True, prometheus="power_watts", total="energy_joules",
    )] = None
    power_limit_watts: Annotated[float | None, Metric(
        "limit", "Power limit in force", WATTS, "nvmlDeviceGetEnforcedPowerLimit",
        ("Power and heat", 30), prometheus="power_limit_watts",
    )] = None
    temperature_celsius: Annotated[float | None, Metric(
        "temperature", "Temperature of the GPU", CELSIUS, "nvmlDeviceGetTemperatureV",
        ("Power and heat", 80), title="Temperature", chart=Chart(80, on_screen=False), spread=True,
        counter_track=True, prometheus="temperature_celsius",
    )] = None
    sm_clock_mhz: Annotated[Integer | None, Metric(
        "SM", "Clock of the SMs", MHZ, "nvmlDeviceGetClockInfo", ("Clocks", 20), title="SM clock",
        spread=True, counter_track=True, prometheus="sm_clock_hertz",
    )] = None
    memory_clock_mhz: Annotated[Integer | None, Metric(
        "memory", "Clock of the memory", MHZ, "nvmlDeviceGetClockInfo", ("Clocks", 40),
        prometheus="memory_clock_hertz",
    )] = None
    pcie_rx_bytes_per_s: Annotated[float | None, Metric(
        "PCIe received", "Into the GPU over PCIe", BYTES_PER_S,
        "GPM PCIE_RX_PER_SEC, else nvmlDeviceGetPcieThroughput", ("Links", 50),
        prometheus="pcie_rx_bytes_per_second",
    )] = None
    pcie_tx_bytes_per_s: Annotated[float | None, Metric(
        "PCIe sent", "Out of the GPU over PCIe", BYTES_PER_S,
        "GPM PCIE_TX_PER_SEC, else nvmlDeviceGetPcieThroughput", ("Links", 60),
        prometheus="pcie_tx_bytes_per_second",
    )] = None
    nvlink_rx_bytes_per_s: Annotated[float | None, Metric(
        "NVLink received", "Into the GPU over NVLink", BYTES_PER_S,
        "GPM NVLINK_TOTAL_RX_PER_SEC, else NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ("Links", 110),
        prometheus="nvlink_rx_bytes_per_second",
    )] = None
    nvlink_tx_bytes_per_s: Annotated[float | None, Metric(
        "NVLink sent", "Out of the GPU over NVLink", BYTES_PER_S,
        "GPM NVLINK_TOTAL_TX_PER_SEC, else NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ("Links", 120),
        prometheus="nvlink_tx_bytes_per_second",
    )] = None
    throttle_reasons: Annotated[tuple[str, ...] | None, Metric(
        "throttled now by", "Why it is slowed now", REASONS,
        "nvmlDeviceGetCurrentClocksEventReasons", ("Clocks", 70), prometheus="throttled",
        prometheus_key="reason",
    )] = None
    power_instant_watts: Annotated[float | None, Metric(
        "power now", "Power now", WATTS, "NVML_FI_DEV_POWER_INSTANT", ("Power and heat", 20),
        prometheus="power_instant_watts",
    )] = None
    memory_temperature_celsius: Annotated[float | None, Metric(
        "memory temperature", "Temperature of the memory", CELSIUS, "NVML_FI_DEV_MEMORY_TEMP",
        ("Power and heat", 120), prometheus="memory_temperature_celsius",
    )] = None
    performance_state: Annotated[Integer | None, Metric(
        "performance state", "0 is the fastest", PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState",
        ("Clocks", 10), prometheus="performance_state",
    )] = None
    """0 (fastest) to 15."""
    video_clock_mhz: Annotated[Integer | None, Metric(
        "video", "Clock of the video engines", MHZ, "nvmlDeviceGetClockInfo", ("Clocks", 60),
        prometheus="video_clock_hertz",
    )] = None
    encoder_percent: Annotated[float | None, Metric(
        "video encoder", "Use of the video encoder", PERCENT, "nvmlDeviceGetEncoderUtilization",
        ("Load", 90), prometheus="encoder_ratio", once=("pipes", "Enc"), card="encoder",
    )] = None
    decoder_percent: Annotated[float | None, Metric(
        "video decoder", "Use of the video decoder", PERCENT, "nvmlDeviceGetDecoderUtilization",
        ("Load", 100), prometheus="decoder_ratio", once=("pipes", "Dec"), card="decoder",
    )] = None
    integer_active_percent: Annotated[float | None, Metric(
        "integer pipe active", "Cycles of the integer pipe", PERCENT, "GPM INTEGER_UTIL",
        ("Load", 80), prometheus="integer_active_ratio", once=("pipes", "INT"), card="integer",
    )] = None
    fp16_active_percent: Annotated[float | None, Metric(
        "FP16 pipe active", "Cycles of the FP16 pipe", PERCENT, "GPM FP16_UTIL", ("Load", 50),
        prometheus="fp16_active_ratio", once=("pipes", "FP16"), card="FP16",
    )] = None
    fp32_active_percent: Annotated[float | None, Metric(
        "FP32 pipe active", "Cycles of the FP32 pipe", PERCENT, "GPM FP32_UTIL", ("Load", 60),
        prometheus="fp32_active_ratio", once=("pipes", "FP32"), card="FP32",
    )] = None
    fp64_active_percent: Annotated[float | None, Metric(
        "FP64 pipe active", "Cycles of the FP64 pipe", PERCENT, "GPM FP64_UTIL", ("Load", 70),
        prometheus="fp64_active_ratio", once=("pipes", "FP64"), card="FP64",
    )] = None
    mig_instances: tuple[MigSample, ...] = ()


class GpuStatus(Event, frozen=True, kw_only=True, tag="gpu_status"):
    """Figures that change seldom, or that the driver takes milliseconds to read. They are read
    every few seconds; `time_ns` is when.

    Counters begin where the driver begins them: energy and throttle times when the driver is
    loaded, ECC errors at the last reset, and those named `_lifetime` at no reset at all. Field
    names are those of `--once --json`; reasons are in GpuUnavailable.
    """

    about = About.GPU

    gpu: GpuIndex
    energy_joules: Annotated[float | None, Metric(
        "energy since driver load", "Energy since the driver was loaded", JOULES,
        "nvmlDeviceGetTotalEnergyConsumption", ("Power and heat", 70), prometheus="energy_joules",
        prometheus_kind="counter",
    )] = None
    temperature_margin_celsius: Annotated[float | None, Metric(
        "below slowdown by", "Degrees left to slowdown", CELSIUS, "nvmlDeviceGetMarginTemperature",
        ("Power and heat", 90), prometheus="temperature_margin_celsius",
    )] = None
    """How much hotter the GPU may get before it slows down."""
    fan_percent: Annotated[float | None, Metric(
        "fan", "Fan speed", PERCENT, "nvmlDeviceGetFanSpeed", ("Power and heat", 140),
        prometheus="fan_ratio",
    )] = None
    throttle_seconds: Annotated[dict[str, float] | None, Metric(
        "throttled so far by", "Time slowed since the driver was loaded", SECONDS_BY_REASON,
        "NVML_FI_DEV_PERF_POLICY_*", ("Clocks", 80), prometheus="throttle_seconds",
        prometheus_kind="counter", prometheus_key="reason",
    )] = None
    """Seconds by reason; the reasons are named as in `throttle_reasons`."""
    pcie_link_generation: Annotated[Integer | None, Metric(
        "PCIe generation now", "Generation of the PCIe link now", COUNT,
        "nvmlDeviceGetCurrPcieLinkGeneration", ("Links", 10), prometheus="pcie_link_generation",
    )] = None
    pcie_link_width: Annotated[Integer | None, Metric(
        "PCIe lanes now", "Lanes of the PCIe link now", COUNT, "nvmlDeviceGetCurrPcieLinkWidth",
        ("Links", 30), prometheus="pcie_link_lanes",
    )] = None
    pcie_replays: Annotated[Integer | None, Metric(
        "PCIe replays", "PCIe packets sent again", COUNT, "nvmlDeviceGetPcieReplayCounter",
        ("Links", 70), trouble="PCIe packets sent again", prometheus="pcie_replays",
        prometheus_kind="counter",
    )] = None
    nvlink_active_count: Annotated[Integer | None, Metric(
        "NVLinks active", "NVLinks that are up", COUNT, "nvmlDeviceGetNvLinkState", ("Links", 80),
        prometheus="nvlink_active_links",
    )] = None
    bar1_used_bytes: Annotated[Integer | None, Metric(
        "BAR1 used", "BAR1 in use", BYTES, "nvmlDeviceGetBAR1MemoryInfo", ("Memory", 90),
        prometheus="bar1_used_bytes",
    )] = None
    compute_mode: Annotated[str | None, Metric(
        "compute mode", "Which processes may use the GPU", TEXT, "nvmlDeviceGetComputeMode",
        ("Chip", 70),
    )] = None
    persistence_mode: Annotated[bool | None, Metric(
        "persistence mode", "Whether the driver stays loaded without a process", ON_OFF,
        "nvmlDeviceGetPersistenceMode", ("Chip", 80),
    )] = None
    ecc_enabled: Annotated[bool | None, Metric(
        "ECC", "1 when memory errors are corrected", ON_OFF, "nvmlDeviceGetEccMode", ("Health", 10),
        prometheus="ecc_enabled",
    )] = None
    ecc_corrected: Annotated[Integer | None, Metric(
        "ECC corrected", "Memory errors since the last reset, corrected", COUNT,
        "nvmlDeviceGetTotalEccErrors", ("Health", 20), trouble="memory errors, corrected",
    )] = None
    ecc_uncorrected: Annotated[Integer | None, Metric(
        "ECC uncorrected", "Memory errors since the last reset, uncorrected", COUNT,
        "nvmlDeviceGetTotalEccErrors", ("Health", 30), trouble="memory errors, uncorrected",
    )] = None
    ecc_corrected_lifetime: Annotated[Integer | None, Metric(
        "ECC corrected, ever", "Memory errors over the life of the GPU", COUNT,
        "nvmlDeviceGetTotalEccErrors", ("Health", 40), prometheus="ecc_errors",
        prometheus_kind="counter", prometheus_label=("kind", "corrected"),
    )] = None
    ecc_uncorrected_lifetime: Annotated[Integer | None, Metric(
        "ECC uncorrected, ever", "Memory errors over the life of the GPU", COUNT,
        "nvmlDeviceGetTotalEccErrors", ("Health", 50), prometheus="ecc_errors",
        prometheus_kind="counter", prometheus_label=("kind", "uncorrected"),
    )] = None
    remapped_rows_corrected: Annotated[Integer | None, Metric(
        "rows remapped, corrected", "Rows of memory replaced", COUNT, "nvmlDeviceGetRemappedRows",
        ("Health", 60), prometheus="remapped_rows", prometheus_label=("kind", "corrected"),
    )] = None
    remapped_rows_uncorrected: Annotated[Integer | None, Metric(
        "rows remapped, uncorr.", "Rows of memory replaced", COUNT, "nvmlDeviceGetRemappedRows",
        ("Health", 70), trouble="rows of memory replaced after uncorrected errors",
        prometheus="remapped_rows", prometheus_label=("kind", "uncorrected"),
    )] = None
    row_remapping_pending: Annotated[bool | None, Metric(
        "row remapping pending", "1 when a reset is needed to remap", YES_NO,
        "nvmlDeviceGetRemappedRows", ("Health", 80), prometheus="row_remapping_pending",
    )] = None
    row_remapping_failed: Annotated[bool | None, Metric(
        "row remapping failed", "1 when rows could not be remapped", YES_NO,
        "nvmlDeviceGetRemappedRows", ("Health", 90), prometheus="row_remapping_failed",
    )] = None
    retired_pages: Annotated[Integer | None, Metric(
        "retired pages", "Pages of memory taken out of use", COUNT, "nvmlDeviceGetRetiredPages_v2",
        ("Health", 100), prometheus="retired_pages",
    )] = None
    page_retirement_pending: Annotated[bool | None, Metric(
        "retirement pending", "Whether a reset is needed to retire pages", YES_NO,
        "nvmlDeviceGetRetiredPagesPendingStatus", ("Health", 110),
    )] = None
    xid_count: Annotated[Integer | None, Metric(
        "Xid errors seen", "Xid errors since gputui began to listen", COUNT, "nvmlEventSetWait_v2",
        ("Health", 120), trouble="Xid error", prometheus="xid_errors", prometheus_kind="counter",
    )] = None
    """Xid errors since gputui began to listen."""
    last_xid: Annotated[Integer | None, Metric(
        "last Xid error", "Number of the last Xid error", TEXT, "nvmlEventSetWait_v2",
        ("Health", 130), optional=True,
    )] = None
    last_xid_time_ns: Moment | None = None


class GpuEnergy(Event, frozen=True, kw_only=True, tag="gpu_energy"):
    """The driver's energy counter of one GPU: read at each tick, and where a run starts and ends.

    It starts when the driver is loaded; None of these come from a GPU that has no counter.
    """

    about = About.GPU

    gpu: GpuIndex
    joules: float


class GpuUnavailable(Event, frozen=True, kw_only=True, tag="gpu_unavailable"):
    """Why fields of one GPU are None: field name → reason. Replaces earlier reasons.

    The names are those of `GpuSample`, `GpuStatus` and `GpuFacts`, prefixed with `mig.INDEX.` for
    an instance; `device` is included if one reason holds for the whole card (lost, or no answer).
    """

    about = About.GPU
    repeated_for = ("gpu",)

    gpu: GpuIndex
    reasons: dict[str, str]
