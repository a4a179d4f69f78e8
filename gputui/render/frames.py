"""Rows as data frames of pandas or polars, whichever is installed or asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Literal, get_args

from gputui.base.errors import GputuiError
from gputui.render.typed_columns import TypedColumn, typed_columns

Frames = Literal["pandas", "polars"]

_PANDAS: dict[Any, str] = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


class MissingPackageError(GputuiError, ImportError):
    """Data frames were asked for, and there is no package that makes them. The text names the
    command that installs one."""


def frames_package(asked: Frames | None) -> Frames:
    """The package that makes the frames: the one `asked` for, otherwise pandas before polars.

    Raises MissingPackageError where it is not installed, GputuiError where there is none such.
    """
    known: tuple[Frames, ...] = get_args(Frames)
    if asked is not None and asked not in known:
        raise GputuiError(f"frames={asked!r}: give one of {', '.join(known)}")
    for package in known if asked is None else (asked,):
        if find_spec(package) is not None:
            return package
    names = asked or " or ".join(known)
    raise MissingPackageError(
        f"data frames need {names}: pip install 'gputui[{asked or known[0]}]'; rows() needs neither"
    )


def frame(
    declared: Mapping[str, Any], records: Iterable[Mapping[str, Any]], package: Frames
) -> Any:
    """A data frame with the `declared` columns, each of its type also where it is empty."""
    columns = list(typed_columns(declared, records))
    return _polars(columns) if package == "polars" else _pandas(columns)


def _pandas(columns: list[TypedColumn]) -> Any:
    import pandas

    return pandas.DataFrame(
        {
            column.name: pandas.Series(column.values, dtype=_PANDAS.get(column.kind, "object"))
            for column in columns
        }
    )


def _polars(columns: list[TypedColumn]) -> Any:
    import polars

    types: dict[Any, Any] = {
        str: polars.String,
        int: polars.Int64,
        float: polars.Float64,
        bool: polars.Boolean,
        list[str]: polars.List(polars.String),
        list[int]: polars.List(polars.Int64),
        list[float]: polars.List(polars.Float64),
    }
    return polars.DataFrame(
        [polars.Series(column.name, column.values, types[column.kind]) for column in columns]
    )
