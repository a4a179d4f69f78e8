"""How the GPUs of one machine are connected, in the terms of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.collect.nvml.bindings import DriverError, Handle, Library


def read_topology(library: Library, handles: Mapping[int, Handle]) -> dict[int, dict[int, str]]:
    """For each GPU, its connection to each other one. What the driver does not say is left out."""
    ways: dict[int, dict[int, str]] = {index: {} for index in handles}
    links = {index: _active_links(library, handle) for index, handle in handles.items()}
    for first, one in handles.items():
        for second, other in handles.items():
            if first < second and (way := _way(library, one, other, links[first], links[second])):
                ways[first][second] = ways[second][first] = way
    return ways


def _active_links(library: Library, handle: Handle) -> int:
    try:
        return library.nvlink_active_count(handle)
    except DriverError:
        return 0


def _way(library: Library, first: Handle, second: Handle, links: int, others: int) -> str | None:
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
