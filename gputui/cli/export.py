"""The subcommand that writes a recording for another tool."""

from __future__ import annotations

import argparse
import os
import sys

from gputui.base.standard_streams import say
from gputui.cli.parsing import Parser, UsageError
from gputui.cli.reading import FILE_HELP, add_run, one_recording
from gputui.render import formats


def export(arguments: list[str]) -> int:
    """`gputui export`; the exit status."""
    parser = Parser(
        prog="gputui export",
        description="Write a recorded run for another tool.",
        epilog=_listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="+", help=FILE_HELP)
    parser.add_argument(
        "--format",
        required=True,
        metavar="FORMAT",
        choices=[known.key for known in formats.every()],
        help="one of the formats below",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", default="-",
        help="a file, or FOLDER/ for one file per table (default: stdout)",
    )  # fmt: skip
    add_run(parser)
    options = parser.parse_args(arguments)
    name = one_recording(options.file)
    out = None if options.output == "-" else options.output
    if out is not None and _is_same_file(name, out):
        raise UsageError(f"-o {out}: that is the file to read; choose another name")
    if out is None and formats.find(options.format).needs_path:
        raise UsageError(f"--format {options.format} needs a file: give -o OUT")
    written = formats.export(formats.Source(name, options.run), options.format, out)
    sys.stdout.flush()
    for remark in written.remarks:
        say(remark)
    for path in written.paths:
        say(f"wrote {path}")
    return 0


def _listed() -> str:
    """The formats, and what each needs."""
    lines = []
    for known in formats.every():
        words = [known.title, known.requirements, "-o OUT" if known.needs_path else ""]
        lines.append(f"  {known.key:<12} {'; '.join(filter(None, words))}")
    return "\n".join(["formats:", *lines])


def _is_same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False
