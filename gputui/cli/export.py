"""`gputui export`: a recorded run, for another tool."""

from __future__ import annotations

import argparse
import os
import sys

from gputui.base.standard_streams import say
from gputui.cli.declaration import UsageError
from gputui.cli.summary import one_recording
from gputui.render import formats
from gputui.render.summary import is_event_table


def run(options: argparse.Namespace) -> int:
    """Write a recorded run in a format; return the exit status. Raises UsageError, ExportError and
    JournalError."""
    name = one_recording(options.file)
    out = None if options.output == "-" else options.output
    if out is not None and _is_same_file(name, out):
        raise UsageError(f"-o {out}: that is the file to read; choose another name")
    if out is None and formats.find(options.format).needs_path:
        raise UsageError(f"--format {options.format} needs a file: give -o OUT")
    if options.table and is_event_table(options.table):
        raise UsageError(f"--table {options.table}: gputui summary writes single events")
    source = formats.ExportSource(
        name, options.run, raw_names=options.raw_names, table=options.table
    )
    written = formats.export(source, options.format, out)
    sys.stdout.flush()
    for remark in written.remarks:
        say(remark)
    for path in written.paths:
        say(f"wrote {path}")
    return 0


def _is_same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False
