"""`gputui stream`: the far end of `gputui --host`."""

from __future__ import annotations

import argparse
import os
import re

from gputui.base.errors import GputuiError
from gputui.cli.declaration import UsageError


def run(options: argparse.Namespace) -> int:
    """Serve readings, or follow a run, on standard output for the near end; return the exit status.
    Raises UsageError."""
    if not re.fullmatch(r"[0-9a-f]{1,64}", options.token):
        raise UsageError(f"--token {options.token}: give hexadecimal digits")
    if options.file or options.run_id:
        return _run(options)
    from gputui.collect.hosts import far_end

    only = tuple(options.only) if options.only else None
    return far_end.serve(options.token, options.interval, only, zstandard=options.zstandard)


def _run(options: argparse.Namespace) -> int:
    try:
        return _followed(options)
    except GputuiError as error:  # the near end may not retry, nor take it for a cut
        from gputui.collect.hosts.pipe import hello_line

        os.write(1, hello_line(options.token, error=str(error)))
        return error.exit_status


def _followed(options: argparse.Namespace) -> int:
    from gputui.collect.hosts import far_end

    if options.file:
        path = far_end.recording_at(options.file)
    else:
        if not re.fullmatch(r"\d{1,10}-[0-9a-f]{1,16}", options.run_id):
            raise UsageError(f"--run-id {options.run_id}: give SECONDS-HEX")
        path = far_end.begin(options.run_id, options.name or "run", options.words)
    return far_end.follow(options.token, path, options.offset or 0, zstandard=options.zstandard)
