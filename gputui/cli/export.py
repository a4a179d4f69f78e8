"""The subcommand that writes a recording for another tool."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from gputui.base.standard_streams import say
from gputui.cli.parsing import Parser, UsageError
from gputui.cli.reading import FILE_HELP, add_run, load_run, one_recording

_TEXT_FORMATS = ("csv", "json", "md", "html")


def export(arguments: list[str]) -> int:
    """`gputui export`; the exit status."""
    parser = Parser(prog="gputui export", description="Write a recorded run for another tool.")
    parser.add_argument("file", nargs="+", help=FILE_HELP)
    parser.add_argument(
        "--format", required=True, choices=(*_TEXT_FORMATS, "openmetrics", *_FILE_FORMATS)
    )
    parser.add_argument("-o", "--output", metavar="OUT", default="-", help="default: stdout")
    add_run(parser)
    options = parser.parse_args(arguments)
    options.file = one_recording(options.file)
    to_stdout = options.output == "-"
    if not to_stdout and _is_same_file(options.file, options.output):
        raise UsageError(f"-o {options.output}: that is the file to read; choose another name")
    if options.format in _FILE_FORMATS:
        if to_stdout:
            raise UsageError(f"--format {options.format} needs a file: give -o OUT")
        written = _FILE_FORMATS[options.format](options.file, options.run, Path(options.output))
        for path in written:
            say(f"wrote {path}")
        return 0
    out = None if to_stdout else Path(options.output)
    if options.format == "openmetrics":
        from gputui.render.samples import export_openmetrics

        _tell(export_openmetrics(options.file, options.run, out))
    else:
        from gputui.render.write import export_text, write

        loaded = load_run(options.file, options.run)
        if out is None:
            sys.stdout.write(export_text(loaded.session, loaded.run, options.format))
        else:
            write(loaded.session, loaded.run, options.format, out)
    sys.stdout.flush()
    if out is not None:
        say(f"wrote {out}")
    return 0


def _tell(remarks: tuple[str, ...]) -> None:
    for remark in remarks:
        say(remark)


def _is_same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _parquet(name: str, number: int | None, out: Path) -> list[Path]:
    from gputui.render.samples import export_parquet

    _tell(export_parquet(name, number, out))
    return [out]


def _snapshot(name: str, number: int | None, out: Path) -> list[Path]:
    from gputui.render.snapshot import export_snapshot

    _tell(export_snapshot(name, number, out))
    return [out]


def _chrome(name: str, number: int | None, out: Path) -> list[Path]:
    return _traced(name, number, "chrome", out)


def _nsys(name: str, number: int | None, out: Path) -> list[Path]:
    return _traced(name, number, "nsys", out)


def _traced(name: str, number: int | None, format_name: str, out: Path) -> list[Path]:
    from gputui.render.traces import open_traced, write_trace

    with open_traced(name, number) as traced:
        _tell(traced.remarks)
        return write_trace(traced, format_name, out)


_FILE_FORMATS: dict[str, Callable[[str, int | None, Path], list[Path]]] = {
    "chrome": _chrome,
    "nsys": _nsys,
    "parquet": _parquet,
    "snapshot": _snapshot,
}
"""What is not one text: how it is written, to which files."""
