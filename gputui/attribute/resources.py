"""The names a program gives its CUDA devices, contexts and streams, and what its devices are."""

from __future__ import annotations

from typing import Literal

from gputui.attribute.arrays import Slots
from gputui.attribute.records import Strings
from gputui.model.events import DeviceDefined, ResourceNamed
from gputui.ring.layout import UNKNOWN_DEVICE, Resource

MAX_RESOURCES = 4096
"""Names kept per process."""

_KINDS: dict[int, Literal["device", "context", "stream"]] = {
    Resource.DEVICE: "device",
    Resource.CONTEXT: "context",
    Resource.STREAM: "stream",
}


class Resources:
    """The names of one process's resources."""

    def __init__(self, process: int, strings: Strings) -> None:
        self._process = process
        self._strings = strings
        self._known: dict[tuple[int, int, int], str] = {}
        self._changed: dict[tuple[int, int, int], None] = {}
        self._devices: dict[int, int] = {}
        self._new_devices: dict[int, int] = {}

    def define(self, records: Slots) -> None:
        """Add RESOURCE_NAME records; a resource's newest name wins."""
        for record in records:
            key = int(record["sub"]), int(record["a"]), int(record["b"])
            if key[0] in _KINDS and (key in self._known or len(self._known) < MAX_RESOURCES):
                self._known[key] = self._strings.label(int(record["name"]))
                self._changed[key] = None

    def define_devices(self, records: Slots) -> None:
        """Add DEVICE records: each attach brings them again."""
        for record in records:
            device, l2_bytes = int(record["a"]), int(record["value"])
            if self._devices.get(device) != l2_bytes and len(self._devices) < MAX_RESOURCES:
                self._devices[device] = self._new_devices[device] = l2_bytes

    def collect(self, now_ns: int) -> list[DeviceDefined | ResourceNamed]:
        """Devices that are new, names that are new or changed."""
        changed, self._changed = self._changed, {}
        devices, self._new_devices = self._new_devices, {}
        found: list[DeviceDefined | ResourceNamed] = [
            DeviceDefined(
                time_ns=now_ns, process=self._process, device=device, l2_cache_bytes=l2_bytes
            )
            for device, l2_bytes in devices.items()
        ]
        return found + [
            ResourceNamed(
                time_ns=now_ns,
                process=self._process,
                kind=_KINDS[kind],
                number=number,
                device=None if device == UNKNOWN_DEVICE else device,
                name=self._known[kind, number, device],
            )
            for kind, number, device in changed
        ]
