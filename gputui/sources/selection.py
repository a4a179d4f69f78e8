"""Which GPUs are shown: `--only`, or CUDA_VISIBLE_DEVICES, or all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gputui.sources.library import DriverError
from gputui.text import clean

_SHOWN = 96
"""Characters of the variable that are said again: a UUID is shorter."""


def choose_devices(
    count: int,
    only: Sequence[int] | None,
    visible: str | None,
    uuids: Callable[[], Sequence[str]],
    index_of_mig: Callable[[str], int],
) -> tuple[tuple[int, ...], str | None]:
    """The indexes to show, and one line when something asked for is not there.

    `only` wins over `visible`, the text of CUDA_VISIBLE_DEVICES. That counts in PCI order here,
    as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID and on machines whose GPUs are all of one
    kind, and ends, as in CUDA, at the first entry that is not there. `uuids` gives the UUID of
    each index; `index_of_mig` the GPU that holds an instance, or raises `DriverError`.
    """
    have = f"this machine has {f'GPU 0 to {count - 1}' if count > 1 else 'GPU 0'}"
    if only is not None:
        wanted = tuple(sorted(set(only)))
        missing = [str(index) for index in wanted if not 0 <= index < count]
        reason = f"--only {' '.join(missing)}: no such GPU, {have}" if missing else None
        return tuple(index for index in wanted if 0 <= index < count), reason
    if visible is None:
        return tuple(range(count)), None
    chosen: set[int] = set()
    reason = None
    entries = [entry.strip() for entry in visible.split(",")]
    for entry in entries:
        if not entry or entry in ("-1", "NoDevFiles"):
            break
        matches = _matching(entry, count, uuids, index_of_mig)
        if len(matches) != 1:
            problem = "names more than one GPU" if matches else f"is no GPU here, {have}"
            reason = f"CUDA_VISIBLE_DEVICES: {clean(entry, _SHOWN)!r} {problem}"
            break
        chosen.update(matches)
    if not chosen and reason is None:
        reason = (
            f"CUDA_VISIBLE_DEVICES={clean(visible, _SHOWN)!r} hides every GPU: unset it, "
            "or use --only"
        )
    return tuple(sorted(chosen)), reason


def mig_uuids(only: Sequence[int] | None, visible: str | None) -> frozenset[str]:
    """The MIG instances that CUDA_VISIBLE_DEVICES names; none of them counts under `--only`."""
    if only is not None or visible is None:
        return frozenset()
    entries = (entry.strip() for entry in visible.split(","))
    return frozenset(entry for entry in entries if entry.startswith("MIG-"))


def _matching(
    entry: str,
    count: int,
    uuids: Callable[[], Sequence[str]],
    index_of_mig: Callable[[str], int],
) -> list[int]:
    if re.fullmatch(r"[0-9]+", entry):
        # Python reads no number of thousands of digits.
        return [int(entry)] if len(entry) < 10 and int(entry) < count else []
    if entry.startswith("MIG-"):
        try:
            return [index_of_mig(entry)]
        except DriverError:
            return []
    return [index for index, uuid in enumerate(uuids()) if uuid.startswith(entry)]
