"""`gputui attach`: a running process, on the screen or recorded."""

from __future__ import annotations

import argparse
import sys

from gputui.cli import options as declared
from gputui.cli.hosts import asked_for
from gputui.cli.options import MAIN
from gputui.cli.values import UsageError, count


def run(options: argparse.Namespace) -> int:
    """The exit status."""
    from gputui.cli.live import Watch, record, screen
    from gputui.cli.main import check, mode_of

    pid = process_of(options)
    if options.annotate == "none":
        options.annotate = None
    for option in MAIN.options:  # those that only a program fits that gputui starts itself
        if not hasattr(options, option.name):
            setattr(options, option.name, [] if option.many else option.default)
    mode = mode_of(options)
    check(options, mode, None)
    if asked_for(options):
        from gputui.cli import hosts
        from gputui.collect.hosts.far_run import RECORDING

        words = hosts.words_there(declared.command("attach") or MAIN, sys.argv[2:])
        run = hosts.begun_now(f"attach-{pid}", ["attach", "-o", RECORDING, "--record", *words])
        return hosts.screen(options, run)
    from gputui.collect.attached_run import request_of_pid

    watch = Watch(options, request_of_pid(pid), sys.argv[1:], None)
    return record(watch) if mode == "record" else screen(watch)


def process_of(options: argparse.Namespace) -> int:
    """The process to attach to, or to detach from. Raises UsageError, also in read-only mode."""
    pid = count(options.pid, "PID")
    if pid <= 1:
        raise UsageError(f"PID {options.pid}: give that of a program")
    if options.readonly:
        raise UsageError(f"{options.set_by['readonly']} leaves every process as it is")
    return pid
