"""A recording as Parquet: a folder with a file for each table, and one of all samples.

Types are those declared, also where a column is empty. A field's metadata have its `unit` and
`meaning`, those of a file `table`, `title`, `note` and `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_origin

from gputui.model.events import GpuSample, HostSample, MachineSample
from gputui.model.metrics import Metric, metrics_of
from gputui.render.atomic_write import atomic_folder, file_names
from gputui.render.samples import SAMPLE_COLUMNS, sample_rows
from gputui.render.typed_columns import typed_columns
from gputui.report.schema import AnyTable
from gputui.state import Run

ROWS_AT_ONCE = 20_000


def write_parquet(
    folder: Path,
    samples: Iterable[MachineSample],
    tables: Callable[[], tuple[Run | None, Iterable[AnyTable]]],
) -> None:
    """Write `folder`, which must not exist, whole or not at all: first the samples, a portion at a
    time, then the tables, which are asked for once the samples were read.

    Rows of samples are those of `sample_rows`; missing is null. Raises ExportError.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    with atomic_folder(folder) as made:
        _write_samples(arrow, parquet, made / "samples.parquet", samples)
        run, found = tables()
        every = list(found)
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
    return {} if metric is None else _known({"unit": metric.unit.symbol, "meaning": metric.help})


def _table(arrow: Any, table: AnyTable, run: Run | None) -> Any:
    """A table under the names of its JSON."""
    columns = {column.name: column for column in table.columns}
    declared = {name: column.kind for name, column in columns.items()}
    fields, arrays = [], []
    for typed in typed_columns(declared, table.records()):
        column = columns[typed.declared]
        about = _known({"unit": column.unit, "meaning": column.meaning})
        fields.append(arrow.field(typed.name, _type(arrow, typed.kind), metadata=about))
        arrays.append(arrow.array(typed.values, fields[-1].type))
    about = {"table": table.name, "title": table.title, "note": table.note}
    if run is not None:
        about["run"] = f"{run.started.name} #{run.started.run}"
    return arrow.Table.from_arrays(arrays, schema=arrow.schema(fields, _known(about)))


def _known(about: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in about.items() if text}


def _type(arrow: Any, kind: Any) -> Any:
    if get_origin(kind) is list:
        return arrow.list_(_type(arrow, get_args(kind)[0]))
    types = {str: arrow.string, int: arrow.int64, float: arrow.float64, bool: arrow.bool_}
    return types[kind]()
