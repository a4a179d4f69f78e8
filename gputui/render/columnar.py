"""A recording as columns that each have one type: data frames of pandas or polars, Parquet, and
rows of all samples. The types are the declared ones, even if a column is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from gputui.base import GputuiError
from gputui.model.events import AnyEvent, GpuSample, HostSample, MachineSample
from gputui.model.metrics import Metric, metrics_of
from gputui.render import ExportError, atomic_folder, file_names
from gputui.render.formats import ExportSource
from gputui.report.schema import AnyTable
from gputui.state import Run, Session

KINDS = (str, int, float, bool, list[str], list[int], list[float])

# Arrow's int64; larger integers become floats.
_LARGEST = 2**63 - 1
_NUMBERS = {int, float}


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """Values of one type, one of KINDS; missing is None. `declared` is the column's own name, of
    which it may be a part."""

    name: str
    declared: str
    kind: Any
    values: list[Any]


def typed_columns(
    declared: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Iterator[TypedColumn]:
    """`records` column by column, each of the type that is `declared` for it by an annotation, also
    where it is empty: a float where one cell is, or does not fit 64 bits.

    Where words stand beside numbers, as among a workload's metrics, the words go to a column of
    their own, `_text` behind its name. What is a structure becomes JSON.
    """
    rows = list(records)
    for name, kind in declared.items():
        cells = [_plain(row[name]) for row in rows]
        types = {type(cell) for cell in cells if cell is not None}
        if len(types) > 1 and not types <= _NUMBERS:
            numbers = [cell if _is_number(cell) else None for cell in cells]
            texts = [None if cell is None or _is_number(cell) else str(cell) for cell in cells]
            has_numbers = bool(types & _NUMBERS)
            if has_numbers:
                yield TypedColumn(name, name, *_typed(float, numbers))
            yield TypedColumn(f"{name}_text" if has_numbers else name, name, str, texts)
        else:
            yield TypedColumn(name, name, *_typed(kind, cells))


def _typed(declared: Any, cells: list[Any]) -> tuple[Any, list[Any]]:
    """The type of cells that are all of one Python type, or numbers, and the cells in it."""
    types = {type(cell) for cell in cells if cell is not None}
    kind = _kind(declared)
    if types == {list}:
        elements = [part for cell in cells for part in cell or ()]
        _, typed = _typed(get_args(kind)[0] if get_origin(kind) is list else str, elements)
        kind = list[type(typed[0])] if typed else kind  # type: ignore[misc]
        left = iter(typed)
        cells = [None if cell is None else [next(left) for _ in cell] for cell in cells]
    elif types and types <= _NUMBERS:
        if types == {int} and all(-_LARGEST <= cell <= _LARGEST for cell in cells if cell):
            kind = kind if kind in _NUMBERS else int
        else:
            kind = float
        cells = [as_float(cell) for cell in cells] if kind is float else cells
    elif types:
        [kind] = types
    return kind, cells


def _kind(declared: Any) -> Any:
    """The type from KINDS for an annotation such as `int | None`; str if none fits."""
    arguments = [part for part in get_args(declared) if part not in (type(None), ...)]
    if get_origin(declared) in (list, tuple):
        declared = list[_kind(arguments[0])]  # type: ignore[misc]
    elif len(arguments) == 1:
        return _kind(arguments[0])
    return declared if declared in KINDS else str


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, msgspec.Struct | dict):
        return msgspec.json.encode(value).decode()
    return value


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def as_float(value: Any) -> float | None:
    """A figure as a float; None if it is missing or if no float can hold it."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


# --- the samples of a recording, read while it is folded


Span = tuple[int, int]
"""First and last moment of a run, in ns since the epoch."""


_GPU_FIELDS = tuple(name for name in metrics_of(GpuSample) if name != "throttle_reasons")
_HOST_FIELDS = tuple(metrics_of(HostSample))

SAMPLE_COLUMNS: dict[str, Any] = {
    "time_ns": int,
    "gpu": int,
    **dict.fromkeys(_GPU_FIELDS, float),
    "throttle_reasons": list[str],
    **{f"host_{name}": float for name in _HOST_FIELDS},
}
"""The columns of `sample_rows` with their types: the figures of GpuSample, then the host's."""


def sample_rows(samples: Iterable[MachineSample]) -> Iterator[dict[str, Any]]:
    """A row for each GPU of a sample; where there is none one, whose `gpu` is None. Missing figures
    are None."""
    for sample in samples:
        host = {f"host_{name}": as_float(getattr(sample.host, name)) for name in _HOST_FIELDS}
        for gpu in sample.gpus or (GpuSample(index=-1),):
            yield {
                "time_ns": sample.time_ns,
                "gpu": gpu.index if sample.gpus else None,
                **{name: as_float(getattr(gpu, name)) for name in _GPU_FIELDS},
                "throttle_reasons": (
                    None if gpu.throttle_reasons is None else list(gpu.throttle_reasons)
                ),
                **host,
            }


def samples_of(
    events: Iterable[AnyEvent], span: Span | None, session: Session
) -> Iterator[MachineSample]:
    """The samples within `span`, or all if None; `session` has folded what was read."""
    for event in events:
        session.apply((event,))
        if isinstance(event, MachineSample) and (
            span is None or span[0] <= event.time_ns <= span[1]
        ):
            yield event


def span_of(source: ExportSource) -> Span | None:
    """The span of the run with this number; None if none is requested. Raises ExportError and
    JournalError.
    """
    if source.number is None:
        return None
    if source.name == "-":
        raise ExportError(
            "--run reads a recording twice, which standard input cannot do: give a file"
        )
    run = source.load().needed_run()
    return run.started.time_ns, run.started.time_ns + run.duration_ns


# --- rows as data frames of pandas or polars, whichever is installed or asked for


Frames = Literal["pandas", "polars"]

# Those types of pandas that know a missing value, which its int64 and bool do not.
_PANDAS: dict[Any, str] = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


class MissingPackageError(GputuiError, ImportError):
    """Data frames were asked for, and there is no package that makes them. The text names the
    command that installs one."""


def frames_package(asked: Frames | None) -> Frames:
    """The package that makes the frames: the one `asked` for, otherwise pandas before polars.

    Raises MissingPackageError where it is not installed, GputuiError where there is none such.
    """
    packages: tuple[Frames, ...] = get_args(Frames)
    if asked is not None and asked not in packages:
        raise GputuiError(f"frames={asked!r}: give one of {', '.join(packages)}")
    for package in packages if asked is None else (asked,):
        if find_spec(package) is not None:
            return package
    names = asked or " or ".join(packages)
    raise MissingPackageError(
        f"data frames need {names}: pip install 'gputui[{asked or packages[0]}]'; "
        "rows() needs neither"
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


# --- a recording as Parquet: a folder with a file for each table, and one of all samples
#
# Types are those declared, also where a column is empty. A field's metadata have its `unit` and
# `meaning`, those of a file `table`, `title`, `note` and `run`.


# A row group of the file. Chosen, not measured.
ROWS_AT_ONCE = 20_000


def write_parquet(
    folder: Path,
    samples: Iterable[MachineSample],
    tables: Callable[[], tuple[Run | None, Iterable[AnyTable]]],
) -> None:
    """Writes `folder`, which must not exist yet, completely or not at all: first the samples, a
    portion at a time, then the tables, which are asked for once the samples were read. Rows of
    samples are as `sample_rows` yields them; missing is null. Raises ExportError."""
    import pyarrow as arrow
    from pyarrow import parquet

    with atomic_folder(folder) as made:
        _write_samples(arrow, parquet, made / "samples.parquet", samples)
        run, with_rows = tables()
        every = list(with_rows)
        names = file_names(["samples", *(table.name for table in every)], ".parquet")
        for table, name in zip(every, names[1:], strict=True):
            parquet.write_table(_table(arrow, table, run), made / name)


def _write_samples(arrow: Any, parquet: Any, path: Path, samples: Iterable[MachineSample]) -> None:
    declared = {**metrics_of(GpuSample)} | {
        f"host_{name}": metric for name, metric in metrics_of(HostSample).items()
    }
    schema = arrow.schema(
        [
            arrow.field(name, _type(arrow, kind), metadata=_about(declared.get(name)))
            for name, kind in SAMPLE_COLUMNS.items()
        ],
        {"table": "samples", "title": "Every reading of every GPU, with the host's"},
    )
    rows = sample_rows(samples)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while portion := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(arrow.Table.from_pylist(portion, schema))


def _about(metric: Metric | None) -> dict[str, str]:
    return (
        {}
        if metric is None
        else _without_empty({"unit": metric.unit.symbol, "meaning": metric.help})
    )


def _table(arrow: Any, table: AnyTable, run: Run | None) -> Any:
    """A table under the names of its JSON."""
    columns = {column.name: column for column in table.columns}
    declared = {name: column.kind for name, column in columns.items()}
    fields, arrays = [], []
    for typed in typed_columns(declared, table.records()):
        column = columns[typed.declared]
        about = _without_empty({"unit": column.unit, "meaning": column.meaning})
        fields.append(arrow.field(typed.name, _type(arrow, typed.kind), metadata=about))
        arrays.append(arrow.array(typed.values, fields[-1].type))
    about = {"table": table.name, "title": table.title, "note": table.note}
    if run is not None:
        about["run"] = f"{run.started.name} #{run.started.run}"
    return arrow.Table.from_arrays(arrays, schema=arrow.schema(fields, _without_empty(about)))


def _without_empty(about: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in about.items() if text}


def _type(arrow: Any, kind: Any) -> Any:
    if get_origin(kind) is list:
        return arrow.list_(_type(arrow, get_args(kind)[0]))
    types = {str: arrow.string, int: arrow.int64, float: arrow.float64, bool: arrow.bool_}
    return types[kind]()
