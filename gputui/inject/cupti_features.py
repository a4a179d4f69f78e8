"""What a newer CUPTI offers that gputui does not use, and why: seen in the file, never loaded."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple


class Feature(NamedTuple):
    """`symbols` are the functions that it needs; `reason` is why it is left alone."""

    name: str
    symbols: tuple[str, ...]
    reason: str


FEATURES = (
    Feature(
        "several subscribers",
        ("cuptiSubscribe_v2", "cuptiActivityEnable_v2", "cuptiActivityGetNextRecord_v2"),
        "a program has subscribers of that kind or of the older one, never both: torch.profiler "
        "and other tools in it would get nothing",
    ),
    Feature(
        "selected fields",
        ("cuptiActivityEnable_v2", "cuptiActivityRegisterCallbacks_v2"),
        "they need a subscriber of that kind",
    ),
    Feature(
        "hardware tracing",
        ("cuptiActivityEnableHWTrace",),
        "only from Blackwell on, and it cannot be switched off once a context has it",
    ),
)


def unused_features(library: Path) -> list[Feature]:
    """Those whose functions stand in a libcupti; none if it cannot be read."""
    try:
        with library.open("rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ
        ) as content:  # fmt: skip
            return [
                feature
                for feature in FEATURES
                if all(content.find(b"\0%s\0" % name.encode()) >= 0 for name in feature.symbols)
            ]
    except (OSError, ValueError):
        return []
