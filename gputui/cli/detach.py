"""`gputui detach`: puts a process to sleep that another gputui looks at."""

from __future__ import annotations

import argparse

from gputui.base.standard_streams import say


def run(options: argparse.Namespace) -> int:
    """End the tracing of a process, whichever gputui attached to it; return the exit status."""
    from gputui.cli.attach import process_of
    from gputui.inject.attach import detach
    from gputui.state.remarks import CUPTI_STAYS

    pid = process_of(options)
    outcome = detach(pid)
    say(f"process {pid} {'was put to sleep' if outcome.was_awake else 'is asleep already'}")
    if outcome.keeps_cupti:
        say(CUPTI_STAYS)
    return 0
