"""Words typed → a command or a mode, and what their errors come to.

For the entry point `gputui`. Which mode the options select without a command, and which of them
exclude each other, is decided here; commands are in modules that none of the others pays for.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gputui.base.errors import FAILED, GputuiError
from gputui.base.standard_streams import complete, release, say, tolerate
from gputui.cli import options
from gputui.cli.declaration import Command, UsageError, modes_text
from gputui.cli.options import MAIN, has_hosts
from gputui.cli.parsing import parse


def run_mode(words: list[str], command: list[str] | None) -> int:
    """Do what `words` say; `command` is what came after `--`. The exit status."""
    options = parse(MAIN, words)
    if options.config:
        # Workloads read their part of it.
        os.environ["GPUTUI_CONFIG"] = os.path.abspath(options.config)
    mode = mode_of(options)
    check(options, mode, command)
    if has_hosts(options):
        from gputui.cli import hosts

        if mode == "once":
            return hosts.print_once(options)
        run_there = hosts.far_run(options, words, command)

        if mode == "record":
            return hosts.record(options, run_there)
        return hosts.screen(options, run_there, words)
    if mode == "once":
        from gputui.cli.once import print_once, watch

        if options.watch:
            return watch(options.only, options.interval, as_json=options.json)
        print_once(options.only, as_json=options.json)
        return 0
    if mode in ("replay", "demo"):
        from gputui.cli.live import replay

        return replay(options)
    if command:
        from gputui.collect.child import refusal

        refused = refusal(command[0])
        if refused is not None:
            status, why = refused
            say(why)
            return status
    from gputui.cli.live import Watch, record, request_of, screen

    watching = Watch(options, request_of(options, command), words, command)
    return record(watching) if mode == "record" else screen(watching)


# Options that do nothing with other hosts.
_OF_THIS_MACHINE = ("watch", "speed", "start", "prometheus", "keep_running")


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
    if has_hosts(options):
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


# Of a stream, which has no file name: files are written under their names.
_CANNOT_WRITE = {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say; the exit status."""
    complete()
    tolerate()
    try:
        return _dispatch(list(arguments))
    except BrokenPipeError:
        # The reader of our output has seen enough.
        return 0
    except KeyboardInterrupt:
        return 130
    except GputuiError as error:
        say(str(error))
        return error.exit_status
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        say(f"cannot write to standard output: {(error.strerror or str(error)).lower()}")
        return FAILED
    finally:
        release()


def _parsed(command: Command, words: list[str]) -> argparse.Namespace:
    if not command.runs_command:
        return parse(command, words)
    place = words.index("--") if "--" in words else len(words)
    options = parse(command, words[:place])
    options.command_line = words[place + 1 :]
    return options


def _dispatch(words: list[str]) -> int:
    command = options.command(words[0]) if words else None
    if command is not None:
        module = import_module(f"gputui.cli.{command.module or command.name}")
        if words[:2] == ["completion", "words"]:
            module.words(words[2:])  # of any kind, none of them meant for our parser
            return 0
        run_command: Callable[[argparse.Namespace], int] = getattr(module, f"run_{command.name}")
        status = run_command(_parsed(command, words[1:]))
        sys.stdout.flush()  # what cannot be written is an error now, not at the exit
        return status
    typed: list[str] | None = None
    if "--" in words:
        place = words.index("--")
        words, typed = words[:place], words[place + 1 :]
        if not typed:
            raise UsageError("nothing to run after --; see gputui --help")
    return run_mode(words, typed)
