"""PCIe and NVLink: what the links are, what they carry, and where they lead."""

from __future__ import annotations

from typing import NamedTuple

from gputui.collect.nvml.bindings.calls import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    Calls,
    DriverError,
    Handle,
)

_NVLINK_SPEED_MBPS = 90
_NVLINK_LINK_COUNT = 91
_NVLINK_GET_SPEED = 164
_NVLINK_DATA_TX_KIB = 138
_NVLINK_DATA_RX_KIB = 139
"""nvml.h, NVML_FI_DEV_NVLINK_*."""
_ALL_LINKS = 0xFFFFFFFF
"""nvml.h: as scope of a throughput field, the sum of all links."""
_MAXIMUM_LINKS = 36

_PCIE_TX, _PCIE_RX = 0, 1
_P2P_NVLINK = 2
_P2P_OK = 0

_ANCESTORS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`."""


class NvlinkBytes(NamedTuple):
    """What all links of a GPU carried since some moment in the past."""

    rx: int
    tx: int


class LinkCalls(Calls):
    """Links of one GPU, and between two."""

    def pcie_link_generation(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetCurrPcieLinkGeneration", handle))

    def pcie_link_width(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetCurrPcieLinkWidth", handle))

    def pcie_replays(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetPcieReplayCounter", handle))

    def pcie_rx_bytes_per_s(self, handle: Handle) -> float:
        """Averaged over 20 ms, and takes that long."""
        return 1024.0 * int(self._call("nvmlDeviceGetPcieThroughput", handle, _PCIE_RX))

    def pcie_tx_bytes_per_s(self, handle: Handle) -> float:
        """Averaged over 20 ms, and takes that long."""
        return 1024.0 * int(self._call("nvmlDeviceGetPcieThroughput", handle, _PCIE_TX))

    def nvlink_count(self, handle: Handle) -> int:
        return int(self.field(handle, _NVLINK_LINK_COUNT))

    def nvlink_link_bytes_per_s(self, handle: Handle) -> float:
        """What one link carries each way; the first link's if there is no common value."""
        try:
            return 1e6 * self.field(handle, _NVLINK_SPEED_MBPS)
        except DriverError as error:
            if error.code != NOT_SUPPORTED:
                raise
        answer = self.fields(handle, [(_NVLINK_GET_SPEED, 0)])[_NVLINK_GET_SPEED]
        if isinstance(answer, DriverError):
            raise answer
        return 1e6 * answer

    def nvlink_active_count(self, handle: Handle) -> int:
        active, known = 0, False
        for link in range(_MAXIMUM_LINKS):
            try:
                active += bool(self._call("nvmlDeviceGetNvLinkState", handle, link))
                known = True
            except DriverError as error:
                # Links are numbered without gaps; the first missing one ends them.
                if error.code == INVALID_ARGUMENT or (known and error.code == NOT_SUPPORTED):
                    break
                raise
        return active

    def nvlink_bytes(self, handle: Handle) -> NvlinkBytes:
        """Counters, in steps of 1 KiB."""
        answers = self.fields(
            handle, [(_NVLINK_DATA_RX_KIB, _ALL_LINKS), (_NVLINK_DATA_TX_KIB, _ALL_LINKS)]
        )
        rx, tx = answers[_NVLINK_DATA_RX_KIB], answers[_NVLINK_DATA_TX_KIB]
        for answer in (rx, tx):
            if isinstance(answer, DriverError):
                raise answer
        return NvlinkBytes(1024 * int(rx), 1024 * int(tx))  # type: ignore[arg-type]

    def common_ancestor(self, first: Handle, second: Handle) -> str:
        """The PCIe path between two GPUs: PIX, PXB, PHB, NODE or SYS."""
        level = int(self._call("nvmlDeviceGetTopologyCommonAncestor", first, second))
        return _ANCESTORS.get(level, f"level {level}")

    def has_nvlink_between(self, first: Handle, second: Handle) -> bool:
        """Whether two GPUs reach each other over NVLink, directly or through a switch."""
        status = self._call("nvmlDeviceGetP2PStatus", first, second, _P2P_NVLINK)
        return int(status) == _P2P_OK

    def nvlinks_to(self, handle: Handle, pci_bus_id: str) -> int:
        """How many active links end at that GPU. 0 if they end at a switch."""
        count = 0
        for link in range(_MAXIMUM_LINKS):
            try:
                if self._call("nvmlDeviceGetNvLinkState", handle, link):
                    remote = self._call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                    count += str(remote.busId).lower() == pci_bus_id.lower()
            except DriverError:
                break
        return count
