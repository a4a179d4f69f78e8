"""A recording as Parquet: a folder with a file for each table, and one of all samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard, get_args, get_origin

import msgspec

from gputui.model.events import GpuSample, HostSample, MachineSample
from gputui.model.metrics import metrics_of
from gputui.render.atomic_write import atomic_folder, file_names
from gputui.report.schema import AnyColumn, AnyTable, Cell

ROWS_AT_ONCE = 20_000

_LARGEST = 2**63 - 1

_GPU_FIELDS = tuple(name for name in metrics_of(GpuSample) if name != "throttle_reasons")
_HOST_FIELDS = tuple(metrics_of(HostSample))


def write_parquet(
    folder: Path, tables: Iterable[AnyTable], samples: Iterable[MachineSample]
) -> None:
    """Write `folder`, which must not exist, whole or not at all: first the samples, a portion at a
    time, then the tables.

    Columns of samples are the figures of GpuSample, with `time_ns` and `gpu` before them and those
    of HostSample behind, with `host_` before their names; missing is null. A sample has a row for
    each GPU; where there is none it has one, whose `gpu` is null. Raises ExportError.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    with atomic_folder(folder) as made:
        _write_samples(arrow, parquet, made / "samples.parquet", samples)
        found = list(tables)
        names = file_names(["samples", *(table.name for table in found)], ".parquet")
        for table, name in zip(found, names[1:], strict=True):
            parquet.write_table(_columns(arrow, table), made / name)


def _write_samples(arrow: Any, parquet: Any, path: Path, samples: Iterable[MachineSample]) -> None:
    schema = arrow.schema(
        [("time_ns", arrow.int64()), ("gpu", arrow.int32())]
        + [(name, arrow.float64()) for name in _GPU_FIELDS]
        + [("throttle_reasons", arrow.list_(arrow.string()))]
        + [(f"host_{name}", arrow.float64()) for name in _HOST_FIELDS]
    )
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _portions(_rows(samples)):
            writer.write_table(arrow.Table.from_pylist(rows, schema))


def _columns(arrow: Any, table: AnyTable) -> Any:
    """The table under the names of its JSON, each column with its type even where it is empty; the
    metadata have each column's unit and meaning."""
    records = table.records()
    fields, arrays = [], []
    for column in table.columns:
        cells = [_plain(record[column.name]) for record in records]
        about = {"unit": column.unit, "meaning": column.meaning}
        for name, kind, values in _typed(arrow, column, cells):
            known = {key: text for key, text in about.items() if text}
            array = arrow.array(values, kind)
            fields.append(arrow.field(name, array.type, metadata=known))
            arrays.append(array)
    about = {"table": table.name, "title": table.title, "note": table.note}
    schema = arrow.schema(fields, {key: text for key, text in about.items() if text})
    return arrow.Table.from_arrays(arrays, schema=schema)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def _typed(arrow: Any, column: AnyColumn, cells: list[Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Cells of one type under their name, the type None where Arrow is to find it.

    Where words stand beside numbers, as among a workload's metrics, the words go to a column of
    their own, `_text` behind its name. Numbers are floats where one of them is, or does not fit 64
    bits.
    """
    kinds = {type(cell) for cell in cells if cell is not None}
    name = column.name
    if len(kinds) > 1 and not kinds <= {int, float}:
        figures = [cell if _is_number(cell) else None for cell in cells]
        texts = [None if cell is None or _is_number(cell) else str(cell) for cell in cells]
        yield from _typed(arrow, column, figures)
        yield f"{name}_text", arrow.string(), texts
    elif float in kinds or any(_is_number(cell) and abs(cell) > _LARGEST for cell in cells):
        yield name, arrow.float64(), [_figure(cell) for cell in cells]
    else:
        yield name, _arrow_type(arrow, column.kind), cells


def _arrow_type(arrow: Any, kind: Any) -> Any:
    """The type of a column as declared; None where it may be any of several."""
    types = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    origin = get_origin(kind)
    if origin in (list, tuple):
        return arrow.list_(_arrow_type(arrow, get_args(kind)[0]))
    known = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    return known.get(types[0]) if len(types) == 1 else None


def _is_number(cell: Cell) -> TypeGuard[int | float]:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _figure(value: Any) -> float | None:
    """A figure as a float; None for what is none and for what no float can hold."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None


def _rows(samples: Iterable[MachineSample]) -> Iterator[dict[str, Any]]:
    for sample in samples:
        host = {f"host_{name}": _figure(getattr(sample.host, name)) for name in _HOST_FIELDS}
        if not sample.gpus:
            yield {"time_ns": sample.time_ns, **host}
        for gpu in sample.gpus:
            yield {
                "time_ns": sample.time_ns,
                "gpu": gpu.index,
                **{name: _figure(getattr(gpu, name)) for name in _GPU_FIELDS},
                "throttle_reasons": (
                    None if gpu.throttle_reasons is None else list(gpu.throttle_reasons)
                ),
                **host,
            }


def _portions(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    portion: list[dict[str, Any]] = []
    for row in rows:
        portion.append(row)
        if len(portion) == ROWS_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
