"""What tables come as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.render.columnar import Frames, frame, frames_package

Row = dict[str, Any]

Rows = tuple[Mapping[str, Any], list[Row]]
"""The type of each column, by name, and the rows."""

Frame = Any
"""A pandas.DataFrame or a polars.DataFrame."""


def framed(rows: Rows, frames: Frames | None) -> Frame:
    """`rows` as a frame of the package that was asked for. Raises MissingPackageError."""
    return frame(*rows, frames_package(frames))
