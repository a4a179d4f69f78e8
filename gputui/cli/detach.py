"""`gputui detach`: puts a process to sleep that another gputui looks at."""

from __future__ import annotations

import argparse

from gputui.base.standard_streams import say


def run(options: argparse.Namespace) -> int:
    """The exit status."""
    from gputui.cli.attach import process_of
    from gputui.inject.attach import detach

    pid = process_of(options)
    say(f"process {pid} {'was put to sleep' if detach(pid) else 'is asleep already'}")
    return 0
