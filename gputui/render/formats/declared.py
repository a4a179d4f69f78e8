"""The formats there are. Of a summary and its tables: for people (table, md, html) and for programs
(json, csv). For other tools: every event on a time axis (chrome, nsys), stacks of GPU time for
flame graphs (collapsed, speedscope), every sample (openmetrics, parquet), and PyTorch's memory
snapshot."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gputui.render.formats import ExportSource, Format, Need, Package, Written

if TYPE_CHECKING:
    from gputui.report.compare import Comparison
    from gputui.report.schema import AnyColumn, AnyTable, Cell
    from gputui.state import Run, Session

# --- The summary and its tables as text: for people (table, md, html) and for programs (json, csv).


def _json_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.report.summary_document import summary_document

    return _document_text(summary_document(session, run))


def _json_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_json

    return to_json(table)


def _json_tables(tables: Sequence[AnyTable]) -> str:
    return "[\n" + ",\n".join(_json_table(table, None).rstrip() for table in tables) + "\n]\n"


def _json_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import comparison_document

    return _document_text(comparison_document(compared))


def _document_text(document: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


_JSON = Format(
    key="json",
    title="everything, as one document",
    order=10,
    text=_json_summary,
    table=_json_table,
    tables=_json_tables,
    comparison=_json_comparison,
)


def _csv_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import tables_with_rows

    return _csv_tables(tables_with_rows(session, run))


def _csv_tables(tables: Sequence[AnyTable]) -> str:
    from gputui.render.text_tables import csv_line, to_csv

    def section(table: AnyTable) -> str:
        note = f" ({table.note})" if table.note else ""
        return csv_line(f"# {table.name}: {table.title}{note}") + to_csv(table)

    return "\n".join(map(section, tables))


def _csv_folder(source: ExportSource, path: Path) -> Written:
    from gputui.render import atomic_folder, file_names
    from gputui.render.text_tables import to_csv
    from gputui.report.tables import table, table_names

    loaded = source.load()
    # Those with a colon are others by mangled name or by rank.
    names = [name for name in table_names(loaded.run) if ":" not in name]
    every = (table(loaded.session, loaded.run, name) for name in names)
    tables = [each for each in every if each.rows]
    names = file_names([each.name for each in tables], ".csv")
    with atomic_folder(path, may_exist=True) as place:
        for each, name in zip(tables, names, strict=True):
            (place / name).write_text(to_csv(each), encoding="utf-8")
    return Written((path,), loaded.remarks)


def _csv_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_csv

    return to_csv(table)


def _csv_rows(columns: Sequence[AnyColumn], rows: Iterable[Sequence[Cell]], out: TextIO) -> None:
    from gputui.render.text_tables import write_csv

    write_csv(columns, rows, out)


def _csv_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import flat_table
    from gputui.render.text_tables import to_csv

    return to_csv(flat_table(compared))


_CSV = Format(
    key="csv",
    title="every table; in FOLDER/ a file each",
    order=20,
    text=_csv_summary,
    folder=_csv_folder,
    table=_csv_table,
    tables=_csv_tables,
    rows=_csv_rows,
    comparison=_csv_comparison,
)


def _md_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.summary import facts_lines, tables_with_rows, title_of
    from gputui.render.text_tables import markdown_text, shortened, to_markdown
    from gputui.report.answer import answer

    # At a thousand rows, as the terminal's and the page's tables are: the rest is named.
    cut = map(shortened, tables_with_rows(session, run))
    sections = [to_markdown(table) + f"\n{left_out}\n" * bool(left_out) for table, left_out in cut]
    facts = "".join(f"- {markdown_text(line)}\n" for line in facts_lines(session, run))
    # The title stands above.
    for group in reversed(answer(session, run)[1:]):
        lines = [
            f"- **{markdown_text(line.label)}** {markdown_text(line.text)}\n"
            if line.label
            else f"  {markdown_text(line.text)}\n"
            for line in group
        ]
        sections.insert(0, "".join(lines))
    name = markdown_text(title_of(run))
    return f"## gputui summary: {name}\n\n{facts}\n" + "\n".join(sections)


def _md_table(table: AnyTable, _width: int | None) -> str:
    from gputui.render.text_tables import to_markdown

    return to_markdown(table)


def _md_comparison(compared: Comparison, _width: int | None) -> str:
    from gputui.render.comparison import comparison_tables, verdict_text
    from gputui.render.text_tables import markdown_text, to_markdown

    lines = [f"{markdown_text(line)}\n" for line in verdict_text(compared).splitlines()]
    return "\n".join([*lines, *map(to_markdown, comparison_tables(compared))])


_MD = Format(
    key="md",
    title="the summary, for notes and issues",
    order=30,
    text=_md_summary,
    table=_md_table,
    comparison=_md_comparison,
)


def _html_summary(session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.render.html import page
    from gputui.render.summary import facts_lines, tables_with_rows
    from gputui.report.answer import answer

    return page(
        session,
        run,
        facts_lines(session, run),
        answer(session, run)[1:],
        tables_with_rows(session, run),
    )


_HTML = Format(key="html", title="the summary as a page with charts", order=40, text=_html_summary)


def _table_summary(session: Session, run: Run | None, width: int | None) -> str:
    from gputui.render.summary import answer_text, facts_lines, tables_with_rows

    sections = [answer_text(session, run, width), "\n".join(facts_lines(session, run)) + "\n"]
    sections += [_shortened_text(table, width) for table in tables_with_rows(session, run)]
    return "\n".join(sections)


def _shortened_text(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import shortened

    short, left_out = shortened(table)
    return _table_table(short, width) + f"{left_out}\n" * bool(left_out)


def _table_table(table: AnyTable, width: int | None) -> str:
    from gputui.render.text_tables import to_text

    return to_text(table, width)


def _table_comparison(compared: Comparison, width: int | None) -> str:
    from gputui.render.comparison import comparison_text

    return comparison_text(compared, width)


_TABLE = Format(
    key="table",
    title="the summary, as a terminal shows it",
    suffix="txt",
    order=100,
    text=_table_summary,
    table=_table_table,
    comparison=_table_comparison,
)


def _write_chrome(source: ExportSource, path: Path | None) -> Written:
    """Several processes become a file each, `-rankN` or `-pidN` before the suffix; one whose name
    ends in `.gz` is compressed."""
    from gputui.render import ExportError
    from gputui.render.chrome import processes_of, write_chrome
    from gputui.render.traces import open_traced

    assert path is not None
    with open_traced(source.name, source.number) as traced:
        # A session may have had other runs before this one.
        processes = [p for p in processes_of(traced.trace) if p in traced.run.processes]
        if not processes:
            number = traced.run.started.run
            raise ExportError(f"the trace of {traced.name} has nothing of run {number}")
        written = []
        for process in processes:
            out = path if len(processes) == 1 else _file_of_process(path, traced.run, process)
            with _gzipped_where_named(out) as file:
                write_chrome(
                    file, traced.session, traced.run, traced.trace, process, traced.samples()
                )
            written.append(out)
        return Written(written, traced.remarks)


def _file_of_process(out: Path, run: Run, process: int) -> Path:
    of_number = run.processes.get(process)
    rank = of_number.attached.rank if of_number else None
    label = (
        f"rank{rank}"
        if rank is not None
        else f"pid{of_number.attached.pid if of_number else process}"
    )
    stem, dot, suffix = out.name.partition(".")
    return out.with_name(f"{stem}-{label}{dot}{suffix}")


@contextlib.contextmanager
def _gzipped_where_named(path: Path) -> Iterator[TextIO]:
    """A text file that takes its name once it is complete."""
    from gputui.render import atomic_write

    with atomic_write(path) as place, place.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, raw) as packed, io.TextIOWrapper(packed) as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text


_CHROME = Format(
    key="chrome",
    title="every event, for Perfetto",
    suffix="trace.json",
    order=60,
    needs=Need.TRACE,
    needs_path=True,
    write=_write_chrome,
)


def _write_nsys(source: ExportSource, path: Path | None) -> Written:
    from gputui.render.nsys import write_nsys
    from gputui.render.traces import open_traced

    assert path is not None
    with open_traced(source.name, source.number) as traced:
        write_nsys(path, traced.session, traced.run, traced.trace)
        return Written((path,), traced.remarks)


_NSYS = Format(
    key="nsys",
    title="every event, as nsys exports SQLite",
    suffix="sqlite",
    order=70,
    needs=Need.TRACE,
    needs_path=True,
    write=_write_nsys,
)


def _write_snapshot(source: ExportSource, path: Path | None) -> Written:
    import shutil

    from gputui.playback.opening import import_kind, load
    from gputui.render import ExportError, atomic_write
    from gputui.store import snapshot_path

    assert path is not None
    name = source.name
    if name == "-":
        raise ExportError("a memory snapshot is a file beside a recording: name the recording")
    if kind := import_kind(Path(name)):
        made_by = "a trace of torch.profiler" if kind == "chrome" else "a report of nsys"
        raise ExportError(
            f"{name} is {made_by}, which takes no memory snapshots: record the program with gputui "
            "instead, a workload with -p snapshot=true"
        )
    loaded = load(name, source.number)
    run = loaded.needed_run().started.run
    made = snapshot_path(Path(name), run)
    if not made.is_file():
        raise ExportError(
            f"{name} has no memory snapshot of run {run} beside it ({made.name}): "
            "run a workload with -p snapshot=true on a GPU"
        )
    with atomic_write(path) as place:
        shutil.copyfile(made, place)
    return Written((path,), loaded.remarks)


_SNAPSHOT = Format(
    key="snapshot",
    title="PyTorch's memory snapshot",
    suffix="pickle",
    order=90,
    needs=Need.SNAPSHOT,
    needs_path=True,
    write=_write_snapshot,
)


def _stacks(run: Run | None) -> list[tuple[tuple[str, ...], int]]:
    """Phases with a cause innermost, of a program that names no ranges the causes alone, and the
    GPU's time of each, ns. Raises JournalError where none is known."""
    from gputui.base import JournalError
    from gputui.report.explain.time_tree import time_tree
    from gputui.report.tables.time import icicle, icicle_of_step

    if run is not None:
        whole = icicle(run)
        stacks = list((whole if whole.ns else icicle_of_step(run, time_tree(run))[0]).stacks())
        if stacks:
            return stacks
    raise JournalError(
        "no GPU time by phase or cause is known of this run: it used no GPU, or was recorded with "
        "--no-kernels"
    )


def _collapsed(_session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.base.sanitize import sanitize

    # A semicolon would end a frame, and the last blank the stack.
    lines = [
        f"{';'.join(sanitize(name).replace(';', ':') for name in names)} {ns}\n"
        for names, ns in _stacks(run)
    ]
    return "".join(lines)


_COLLAPSED = Format(
    key="collapsed",
    title="GPU time by phase and cause, for flame graphs",
    order=75,
    text=_collapsed,
)


def _speedscope(_session: Session, run: Run | None, _width: int | None) -> str:
    """One document of https://www.speedscope.app/file-format-schema.json: a profile whose samples
    are stacks of phases with a cause innermost, and whose weights are nanoseconds."""
    import json

    from gputui.base.sanitize import sanitize

    stacks = _stacks(run)
    frames: dict[str, int] = {}
    samples = [[frames.setdefault(sanitize(name), len(frames)) for name in names]
               for names, _ in stacks]  # fmt: skip
    weights = [ns for _, ns in stacks]
    name = "gputui" if run is None else sanitize(run.started.name)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "gputui",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": f"{name}: GPU time by phase and cause",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


_SPEEDSCOPE = Format(
    key="speedscope",
    title="GPU time by phase and cause, for speedscope",
    order=76,
    text=_speedscope,
    suffix="speedscope.json",
)


def _write_openmetrics(source: ExportSource, path: Path | None) -> Written:
    from gputui.playback.opening import open_recording, remarks
    from gputui.render import atomic_write
    from gputui.render.columnar import span_of
    from gputui.render.prometheus import write_openmetrics

    span = span_of(source)
    # Not summed: the progress of each phase at each sample is needed.
    with closing(open_recording(source.name)) as recording:
        if path is None:
            write_openmetrics(sys.stdout, recording, span, raw_names=source.raw_names)
            return Written((), remarks(recording))
        with atomic_write(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
            write_openmetrics(file, recording, span, raw_names=source.raw_names)
    return Written((path,), remarks(recording))


_OPENMETRICS = Format(
    key="openmetrics",
    title="every sample, for Prometheus",
    suffix="prom",
    order=50,
    needs=Need.SAMPLES,
    write=_write_openmetrics,
)


def _write_parquet(source: ExportSource, path: Path | None) -> Written:
    """With a run's number, the samples and tables of that run; otherwise all samples and the tables
    of the newest run, or of the machine if there is none.
    """
    from gputui.playback.opening import chosen_run, open_recording, remarks
    from gputui.render.columnar import samples_of, span_of, write_parquet
    from gputui.render.summary import tables_with_rows
    from gputui.state import Session

    assert path is not None
    span = span_of(source)
    session = Session()

    def tables() -> tuple[Run | None, list[AnyTable]]:
        run = chosen_run(session, source.name, source.number)
        return run, tables_with_rows(session, run)

    with closing(open_recording(source.name, summed=True)) as recording:
        write_parquet(path, samples_of(recording, span, session), tables)
    return Written((path,), remarks(recording))


_PARQUET = Format(
    key="parquet",
    title="a folder of tables and samples",
    order=80,
    needs=Need.SAMPLES,
    needs_path=True,
    package=Package("pyarrow", "export"),
    write=_write_parquet,
)
FORMATS = (
    _JSON,
    _CSV,
    _MD,
    _HTML,
    _TABLE,
    _OPENMETRICS,
    _CHROME,
    _NSYS,
    _COLLAPSED,
    _SPEEDSCOPE,
    _PARQUET,
    _SNAPSHOT,
)
