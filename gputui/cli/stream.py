"""`gputui stream`: the far end of `gputui --host`."""

from __future__ import annotations

import argparse
import re

from gputui.cli.values import UsageError


def run(options: argparse.Namespace) -> int:
    """The exit status."""
    from gputui.collect.hosts import far_end

    if not re.fullmatch(r"[0-9a-f]{1,64}", options.token):
        raise UsageError(f"--token {options.token}: give hexadecimal digits")
    only = tuple(options.only) if options.only else None
    zstandard = options.zstandard and far_end.has_zstandard()
    return far_end.serve(options.token, options.interval, only, zstandard=zstandard)
