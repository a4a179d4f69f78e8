"""Starting the driver, choosing GPUs (`--only`, else CUDA_VISIBLE_DEVICES, else all), and the few
values that the first frame shows.

The first frame waits for all of this, so nothing here imports NumPy, psutil or msgspec, which take
as long as the rest together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from gputui.base.sanitize import sanitize
from gputui.collect.nvml import DriverError, Handle
from gputui.collect.nvml.bindings import DriverLibrary, GpuMemory
from gputui.model.cards import read_visible_devices

# Which GPUs are shown: `--only`, else CUDA_VISIBLE_DEVICES, else all.

# Characters of the variable that messages repeat: a UUID is shorter.
_SHOWN = 96


class ChosenGpus(NamedTuple):
    indexes: tuple[int, ...]
    instance: str | None
    """UUID of the only MIG instance to show of its GPU; None means all."""
    reason: str | None
    """One line if something requested does not exist."""


def choose_devices(
    count: int,
    only: Sequence[int] | None,
    visible: str | None,
    uuids: Callable[[], Sequence[str]],
    index_of_mig: Callable[[str], int],
) -> ChosenGpus:
    """Which of `count` GPUs to show, in the order of their indexes.

    `only` wins over `visible`, the text of CUDA_VISIBLE_DEVICES, parsed by `read_visible_devices`.
    `uuids` gives the UUID of each index; `index_of_mig` the GPU that holds an instance, or raises
    `DriverError`.
    """
    have = f"this machine has {f'GPU 0 to {count - 1}' if count > 1 else 'GPU 0'}"
    if only is not None:
        wanted = tuple(sorted(set(only)))
        missing = [str(index) for index in wanted if not 0 <= index < count]
        reason = f"--only {' '.join(missing)}: no such GPU, {have}" if missing else None
        return ChosenGpus(tuple(index for index in wanted if 0 <= index < count), None, reason)
    if visible is None:
        return ChosenGpus(tuple(range(count)), None, None)

    def gpu_of_instance(name: str) -> int | None:
        try:
            return index_of_mig(name)
        except DriverError:
            return None

    listed = uuids() if "-" in visible else [""] * count
    seen = read_visible_devices(visible, dict(enumerate(listed)), gpu_of_instance)
    reason = None
    if seen.problem is not None:
        entry, why = seen.problem
        reason = (
            f"CUDA_VISIBLE_DEVICES: {sanitize(entry, _SHOWN)!r} "
            + {
                "no GPU": f"is not a GPU here: {have}",
                "several GPUs": "names more than one GPU",
                "twice": "names a GPU twice, which hides every GPU: name it once",
                "mixed": "mixes indices and UUIDs, which CUDA does not accept",
            }[why]
        )
    elif not seen.gpus:
        reason = (
            f"CUDA_VISIBLE_DEVICES={sanitize(visible, _SHOWN)!r} hides every GPU: unset it, "
            "or use --only"
        )
    return ChosenGpus(tuple(sorted(seen.gpus)), seen.instance, reason)


# Starting the driver and choosing GPUs: all that the first frame waits for, so without msgspec.

NO_GPU = "the NVIDIA driver works but sees no GPU (in a container: start it with --gpus)"


class Opened(NamedTuple):
    """The driver, and which of its GPUs are shown."""

    library: DriverLibrary
    driver_version: str | None
    cuda_driver_version: str | None
    chosen: ChosenGpus


def open_library(only: Sequence[int] | None, visible: str | None) -> Opened:
    """`only` and `visible` (CUDA_VISIBLE_DEVICES) choose, as `choose_devices` says. Raises
    `DriverError`."""
    library = DriverLibrary()
    driver = cuda = None
    with contextlib.suppress(DriverError):
        driver = library.driver_version()
    with contextlib.suppress(DriverError):
        cuda = library.cuda_driver_version()
    count = library.device_count()
    if count == 0:
        return Opened(library, driver, cuda, ChosenGpus((), None, NO_GPU))

    def uuids() -> list[str]:
        listed = []
        for index in range(count):
            try:
                listed.append(library.uuid(library.handle(index)))
            except DriverError:
                listed.append("")
        return listed

    chosen = choose_devices(count, only, visible, uuids, library.index_of_uuid)
    return Opened(library, driver, cuda, chosen)


# What the driver says of each GPU in a few quick calls: the first frame's figures.
#
# Nothing here imports msgspec, which takes as long as all of this.

T = TypeVar("T")


class Glance(NamedTuple):
    """One GPU; None is what the driver does not say."""

    gpu: int
    name: str
    utilization_percent: float | None
    memory: GpuMemory | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: float | None
    sm_clock_mhz: int | None


def glance(only: Sequence[int] | None) -> tuple[list[Glance], str | None]:
    """The GPUs that a session shows, and why there is none. The driver stays initialized, so that
    the session need not wait for it."""
    try:
        opened = open_library(only, os.environ.get("CUDA_VISIBLE_DEVICES"))
        glances = [_read(opened.library, index) for index in opened.chosen.indexes]
    except DriverError as error:
        return [], error.reason
    return glances, opened.chosen.reason


def _read(library: DriverLibrary, index: int) -> Glance:
    handle = library.handle(index)

    def read(call: Callable[[Handle], T]) -> T | None:
        try:
            return call(handle)
        except DriverError:
            return None

    return Glance(
        index,
        read(library.name) or f"GPU {index}",
        read(library.utilization_percent),
        read(library.memory),
        read(library.power_watts),
        read(library.power_limit_watts),
        read(library.temperature_celsius),
        read(library.sm_clock_mhz),
    )
