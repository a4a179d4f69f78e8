"""A recording as Parquet: a folder with a file for each table, and one of all samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from gputui.model.events import GpuSample, HostSample, MachineSample
from gputui.model.metrics import metrics_of
from gputui.render.atomic_write import atomic_folder, file_names
from gputui.report.summary_tables import Cell, Table

ROWS_AT_ONCE = 20_000

_LARGEST = 2**63 - 1

_GPU_FIELDS = tuple(name for name in metrics_of(GpuSample) if name != "throttle_reasons")
_HOST_FIELDS = tuple(metrics_of(HostSample))


def write_parquet(folder: Path, tables: Iterable[Table], samples: Iterable[MachineSample]) -> None:
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


def _columns(arrow: Any, table: Table) -> Any:
    columns: dict[str, list[Cell]] = {}
    for at, column in enumerate(table.columns):
        columns |= _typed(column.header, [row[at] for row in table.rows])
    return arrow.table(columns)


def _typed(name: str, cells: list[Cell]) -> dict[str, list[Cell]]:
    """Cells of one type under their name. Where words stand beside numbers, as among a workload's
    metrics, the words go to a column of their own, `(text)` behind its name. Numbers are floats
    where one of them is, or does not fit 64 bits."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if len(kinds) > 1 and not kinds <= {int, float}:
        figures: list[Cell] = [cell if _is_number(cell) else None for cell in cells]
        texts: list[Cell] = [
            None if cell is None or _is_number(cell) else str(cell) for cell in cells
        ]
        return _typed(name, figures) | {f"{name} (text)": texts}
    if float in kinds or any(_is_number(cell) and abs(cell) > _LARGEST for cell in cells):
        return {name: [_figure(cell) for cell in cells]}
    return {name: cells}


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
