"""The subcommands that read recordings: summary, export, compare."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.commands.words import Parser, UsageError
from gputui.streams import columns, say

if TYPE_CHECKING:
    from gputui.session import Run, Session

_FILE_HELP = (
    "a recording, an SQLite export of nsys, or CSV tables of nsys stats (a folder, or what their "
    "names begin with); - reads a recording on standard input"
)


def _load_run(name: str) -> tuple[Session, Run]:
    """The folded session of a recording and its newest run; damage is told on stderr."""
    from gputui.journal import JournalError
    from gputui.session import Session
    from gputui.sources.recordings import open_recording

    reader = open_recording(name)
    session = Session()
    session.apply(reader)
    if reader.damage:
        say(f"{reader.damage}")
    if reader.skipped:
        say(f"{name}: {reader.skipped} events of kinds this version does not know were left out")
    if session.run is None:
        raise JournalError(f"{name}: no run was recorded, so there is nothing to sum up")
    return session, session.run


def summary(arguments: list[str]) -> int:
    """`gputui summary`; the exit status."""
    parser = Parser(prog="gputui summary", description="What a recorded run did.")
    parser.add_argument("file", help=_FILE_HELP)
    parser.add_argument("--table", metavar="NAME", help="one table alone")
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "md"), default="table", help="default: table"
    )
    options = parser.parse_args(arguments)
    from gputui.export.errors import ExportError
    from gputui.export.write import export_text, summary_text, table_text

    session, run = _load_run(options.file)
    try:
        if options.table:
            text = table_text(session, run, options.table, options.format, columns(sys.stdout))
        elif options.format == "table":
            text = summary_text(session, run, columns(sys.stdout))
        else:
            text = export_text(session, run, options.format)
    except ExportError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def export(arguments: list[str]) -> int:
    """`gputui export`; the exit status."""
    parser = Parser(prog="gputui export", description="Write a recorded run for another tool.")
    parser.add_argument("file", help=_FILE_HELP)
    parser.add_argument("--format", required=True, choices=(*_TEXT_FORMATS, *_FILE_FORMATS))
    parser.add_argument("-o", "--output", metavar="OUT", default="-", help="default: stdout")
    options = parser.parse_args(arguments)
    if options.output != "-" and _is_same_file(options.file, options.output):
        raise UsageError(f"-o {options.output}: that is the file to read; choose another name")
    if options.format in _FILE_FORMATS:
        if options.output == "-":
            raise UsageError(f"--format {options.format} needs a file: give -o OUT")
        written = _export_files(options.file, options.format, Path(options.output))
        for path in written:
            say(f"wrote {path}")
        return 0
    from gputui.export.write import export_text, write

    session, run = _load_run(options.file)
    if options.output == "-":
        sys.stdout.write(export_text(session, run, options.format))
        sys.stdout.flush()
    else:
        write(session, run, options.format, Path(options.output))
        say(f"wrote {options.output}")
    return 0


def _is_same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


_TEXT_FORMATS = ("csv", "json", "md", "html", "openmetrics")
_FILE_FORMATS = ("chrome", "nsys", "parquet")


def _export_files(name: str, format_name: str, out: Path) -> list[Path]:
    if format_name == "parquet":
        from gputui.events import MachineSample
        from gputui.export.parquet import write_parquet
        from gputui.export.write import tables_with_rows
        from gputui.sources.recordings import open_recording

        session, run = _load_run(name)
        samples = (event for event in open_recording(name) if isinstance(event, MachineSample))
        write_parquet(out, tables_with_rows(session, run), samples)
        return [out]
    from gputui.export.traces import open_traced, write_trace

    with open_traced(name) as traced:
        if traced.trace.dropped:
            say(
                f"{traced.trace.path.name} is full: the oldest {traced.trace.dropped} "
                "records were dropped"
            )
        return write_trace(traced, format_name, out)


def compare(arguments: list[str]) -> int:
    """`gputui compare`; the exit status."""
    parser = Parser(
        prog="gputui compare",
        description="What differs between runs, and whether it exceeds the spread between steps.",
    )
    parser.add_argument("baseline", metavar="FILE", help=_FILE_HELP)
    parser.add_argument("others", metavar="FILE", nargs="+", help="compared with the first")
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "md"), default="table", help="default: table"
    )
    parser.add_argument(
        "--fail-if", dest="conditions", metavar="CONDITION", action="append", default=[],
        help="exit 1 where this holds, as 'decode.gpu_busy_ns>+5%%'; may be repeated",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from gputui.analysis.compare import Subject
    from gputui.analysis.compare import compare as compared
    from gputui.analysis.gate import Condition, GateError
    from gputui.export.comparison import comparison_text

    try:
        conditions = [Condition.parse(text) for text in options.conditions]
        names = [options.baseline, *options.others]
        comparison = compared([Subject(name, *_load_run(name)) for name in names])
        tripped = [line for condition in conditions for line in condition.tripped(comparison)]
    except GateError as error:
        raise UsageError(f"--fail-if {error}") from None
    sys.stdout.write(comparison_text(comparison, options.format, columns(sys.stdout)))
    sys.stdout.flush()
    for line in tripped:
        say(f"{line}")
    return 1 if tripped else 0
