"""What does not change while a GPU runs: its make, its limits, and how GPUs are connected.

Read once, when the driver has started.
"""

from __future__ import annotations

from collections.abc import Mapping

from gputui.collect.nvml.bindings import DriverLibrary
from gputui.collect.nvml.driver_calls import DriverError, Handle
from gputui.collect.nvml.reading import SAMPLE_FIELDS, Fields
from gputui.model.events import GpuFacts

# The static facts of one GPU.

_CORES_PER_SM = {
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2", "8.6", "8.7", "8.9"), 128),
    **dict.fromkeys(("9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
}
"""FP32 cores of one SM by compute capability (CUDA C++ Programming Guide, throughput table)."""

HOST_MEMORY = "this chip shares the host's memory"


def read_facts(
    library: DriverLibrary, handle: Handle, index: int, gpm_supported: bool
) -> tuple[GpuFacts, dict[str, str]]:
    """The facts, and the reason for each that is missing. Raises `DriverError` for a lost GPU."""
    fields = Fields()
    capability = fields.read("compute_capability", library.compute_capability, handle)
    cores = fields.read("sm_count", library.core_count, handle)
    per_sm = _CORES_PER_SM.get(capability or "")
    if cores is not None and per_sm is None:
        fields.reasons["sm_count"] = f"cores per SM unknown for {capability}"
    mig = fields.read("mig_enabled", library.mig_enabled, handle)
    unified = not mig and not library.has_memory(handle)
    memory = None if unified else fields.read("memory_total_bytes", library.memory, handle)
    width = fields.read("memory_bus_width_bits", library.memory_bus_width_bits, handle)
    clock = fields.read("max_memory_clock_mhz", library.max_memory_clock_mhz, handle)
    peak = None
    if width is not None and clock is not None:
        # Two transfers per clock; a bus of `width` bits moves width/8 bytes per transfer.
        peak = 2 * clock * 1e6 * width / 8
    else:
        fields.reasons["peak_memory_bandwidth_bytes_per_s"] = (
            "needs the memory clock and the bus width"
        )
    limits = fields.read("power_limit_minimum_watts", library.power_limit_range_watts, handle)
    if limits is None:
        fields.reasons["power_limit_maximum_watts"] = fields.reasons["power_limit_minimum_watts"]
    facts = GpuFacts(
        index=index,
        uuid=fields.read("uuid", library.uuid, handle) or "",
        name=fields.read("name", library.name, handle) or f"GPU {index}",
        architecture=fields.read("architecture", library.architecture, handle),
        vbios_version=fields.read("vbios_version", library.vbios_version, handle),
        pci_bus_id=fields.read("pci_bus_id", library.pci_bus_id, handle),
        compute_capability=capability,
        sm_count=cores // per_sm if cores is not None and per_sm is not None else None,
        memory_kind="unified" if unified else "device",
        memory_total_bytes=None if memory is None else memory.total,
        memory_bus_width_bits=width,
        bar1_total_bytes=fields.read("bar1_total_bytes", library.bar1_total_bytes, handle),
        max_sm_clock_mhz=fields.read("max_sm_clock_mhz", library.max_sm_clock_mhz, handle),
        max_memory_clock_mhz=clock,
        peak_memory_bandwidth_bytes_per_s=peak,
        peak_memory_bandwidth_source=(
            None if peak is None else f"2 × {clock} MHz × {width} bit from NVML"
        ),
        power_limit_watts=fields.read("power_limit_watts", library.power_limit_watts, handle),
        power_limit_default_watts=fields.read(
            "power_limit_default_watts", library.power_limit_default_watts, handle
        ),
        power_limit_minimum_watts=None if limits is None else limits[0],
        power_limit_maximum_watts=None if limits is None else limits[1],
        temperature_slowdown_celsius=fields.read(
            "temperature_slowdown_celsius", library.slowdown_celsius, handle
        ),
        temperature_shutdown_celsius=fields.read(
            "temperature_shutdown_celsius", library.shutdown_celsius, handle
        ),
        memory_temperature_maximum_celsius=fields.read(
            "memory_temperature_maximum_celsius", library.memory_maximum_celsius, handle
        ),
        pcie_generation=fields.read("pcie_generation", library.max_pcie_generation, handle),
        pcie_width=fields.read("pcie_width", library.max_pcie_width, handle),
        nvlink_count=(links := fields.read("nvlink_count", library.nvlink_count, handle)),
        nvlink_link_bytes_per_s=(
            fields.read("nvlink_link_bytes_per_s", library.nvlink_link_bytes_per_s, handle)
            if links
            else None
        ),
        gpm_supported=gpm_supported,
        mig_enabled=mig,
    )
    reasons = {name: reason for name, reason in fields.reasons.items() if name not in SAMPLE_FIELDS}
    if unified:
        reasons["memory_total_bytes"] = HOST_MEMORY
    return facts, reasons


# How the GPUs of one machine are connected, in the terms of `nvidia-smi topo -m`.


def read_topology(
    library: DriverLibrary, handles: Mapping[int, Handle]
) -> dict[int, dict[int, str]]:
    """For each GPU, its connection to each other one. What the driver does not say is left out."""
    ways: dict[int, dict[int, str]] = {index: {} for index in handles}
    links = {index: _active_links(library, handle) for index, handle in handles.items()}
    for first, handle in handles.items():
        for second, other in handles.items():
            if first >= second:
                continue
            if way := _way(library, handle, other, links[first], links[second]):
                ways[first][second] = ways[second][first] = way
    return ways


def _active_links(library: DriverLibrary, handle: Handle) -> int:
    try:
        return library.nvlink_active_count(handle)
    except DriverError:
        return 0


def _way(
    library: DriverLibrary, first: Handle, second: Handle, links: int, others: int
) -> str | None:
    try:
        if links and others and library.has_nvlink_between(first, second):
            # Links end at the other GPU or, on machines with NVSwitch, all of them at switches.
            direct = library.nvlinks_to(first, library.pci_bus_id(second))
            return f"NV{direct or min(links, others)}"
    except DriverError:
        pass
    try:
        return library.common_ancestor(first, second)
    except DriverError:
        return None
