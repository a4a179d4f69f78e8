"""Starting the driver and choosing GPUs: all that the first frame waits for, so without msgspec."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from gputui.collect.nvml.bindings import DriverError, Library
from gputui.collect.nvml.selection import Chosen, choose_devices

NO_GPU = "the NVIDIA driver works but sees no GPU (in a container: start it with --gpus)"


class Opened(NamedTuple):
    """The driver, and which of its GPUs are shown."""

    library: Library
    driver_version: str | None
    cuda_driver_version: str | None
    chosen: Chosen


def open_library(only: Sequence[int] | None, visible: str | None) -> Opened:
    """`only` and `visible` (CUDA_VISIBLE_DEVICES) choose, as `choose_devices` says. Raises
    `DriverError`."""
    library = Library()
    driver = cuda = None
    with contextlib.suppress(DriverError):
        driver = library.driver_version()
    with contextlib.suppress(DriverError):
        cuda = library.cuda_driver_version()
    count = library.device_count()
    if count == 0:
        return Opened(library, driver, cuda, Chosen((), None, NO_GPU))

    def uuids() -> list[str]:
        found = []
        for index in range(count):
            try:
                found.append(library.uuid(library.handle(index)))
            except DriverError:
                found.append("")
        return found

    chosen = choose_devices(count, only, visible, uuids, library.index_of_uuid)
    return Opened(library, driver, cuda, chosen)
