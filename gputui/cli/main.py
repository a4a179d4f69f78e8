"""gputui without a command: which mode the options select, and which exclude each other."""

from __future__ import annotations

import argparse
import os

from gputui.base.standard_streams import say
from gputui.cli.declaration import modes_text
from gputui.cli.hosts import asked_for
from gputui.cli.options import MAIN
from gputui.cli.parsing import parse
from gputui.cli.values import UsageError


def run(words: list[str], command: list[str] | None) -> int:
    """Do what `words` say; `command` is what came after `--`. The exit status."""
    options = parse(MAIN, words)
    if options.config:
        # Workloads read their part of it.
        os.environ["GPUTUI_CONFIG"] = os.path.abspath(options.config)
    mode = mode_of(options)
    check(options, mode, command)
    if asked_for(options):
        from gputui.cli import hosts

        if mode == "once":
            return hosts.print_once(options)
        run_there = hosts.far_run(options, words, command)
        from gputui.cli import live_hosts

        if mode == "record":
            return live_hosts.record(options, run_there)
        return live_hosts.screen(options, run_there, words)
    if mode == "once":
        from gputui.cli.once import print_once, watch

        if options.watch:
            return watch(options.only, options.interval, as_json=options.json)
        print_once(options.only, as_json=options.json)
        return 0
    if mode in ("replay", "demo"):
        from gputui.cli.screen import replay

        return replay(options)
    if command:
        from gputui.collect.child.process import refusal

        refused = refusal(command[0])
        if refused is not None:
            status, why = refused
            say(why)
            return status
    from gputui.cli.live import Watch, record, request_of, screen

    watching = Watch(options, request_of(options, command), words, command)
    return record(watching) if mode == "record" else screen(watching)


_OF_THIS_MACHINE = ("watch", "speed", "start", "prometheus", "keep_running")
"""Options that do nothing with other hosts."""


def mode_of(options: argparse.Namespace) -> str:
    """The mode that the options select. Raises UsageError."""
    modes = [name for name in ("record", "replay", "demo", "once") if getattr(options, name)]
    if len(modes) > 1:
        raise UsageError(f"--{modes[0]} and --{modes[1]} exclude each other")
    return modes[0] if modes else "screen"


def check(options: argparse.Namespace, mode: str, command: list[str] | None) -> None:
    """Whether the options fit the mode and each other. Raises UsageError."""
    if options.workload and command:
        raise UsageError("give --workload or a command after --, not both")
    runs = options.workload or command
    if runs and mode not in ("screen", "record"):
        raise UsageError(f"--{mode} does not run anything")
    for option in MAIN.options:
        flag = option.flags[0]
        # A setting for another mode is no mistake; what was typed for one is.
        if not options.set_by.get(option.name, "").startswith(option.flags):
            continue
        if option.modes and mode not in option.modes:
            raise UsageError(f"{flag} needs {modes_text(option.modes)}")
        if option.needs and not getattr(options, option.needs):
            raise UsageError(f"{flag} needs {MAIN.option(option.needs).flag}")
    if options.output == "-" and mode != "record":
        raise UsageError("-o - needs --record")
    if options.trace and not (options.output or mode == "record"):
        raise UsageError("--trace needs --record or -o")
    if asked_for(options):
        for name in (*_OF_THIS_MACHINE, *(() if mode == "record" else ("output",))):
            option = MAIN.option(name)
            if options.set_by.get(name, "").startswith(option.flags):
                flag = option.flags[0]
                raise UsageError(
                    f"{flag} does nothing with --host and --via: leave one of them out"
                )
    if options.readonly and runs:
        raise UsageError(
            f"{options.set_by['readonly']} starts nothing: leave out the workload or the command"
        )
