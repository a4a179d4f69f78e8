"""Looking into programs that gputui does not start.

`gputui attach` shows or records one, of other hosts one each; `gputui detach` puts to sleep one
that another gputui looks at; `gputui env` loads the capture library, which sleeps until `attach`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base import GputuiError
from gputui.base.standard_streams import say
from gputui.cli import options as declared
from gputui.cli.declaration import UsageError, count
from gputui.cli.options import MAIN, has_hosts

if TYPE_CHECKING:
    from gputui.collect.hosts import FarRun


def run_attach(options: argparse.Namespace) -> int:
    """Attach to the processes that `options` name, show or record them until they end or the person
    detaches; return the exit status. Raises UsageError and the errors of attaching."""
    from gputui.cli.dispatch import check, mode_of
    from gputui.cli.live import LiveCommand, record, screen

    if options.annotate == "none":
        options.annotate = None
    for option in MAIN.options:  # those that only a program fits that gputui starts itself
        if not hasattr(options, option.name):
            setattr(options, option.name, [] if option.many else option.default)
    pids = _processes_of(options)
    mode = mode_of(options)
    check(options, mode, None)
    if has_hosts(options):
        from gputui.cli import hosts

        show = hosts.record if mode == "record" else hosts.screen
        return show(options, _far_run(pids, options))
    from gputui.collect.processes import cuda_processes, same_process
    from gputui.collect.traced_run import request_of_pid

    pid = pids[0]
    if options.started is not None:
        same_process(pid, options.started)
    computing = cuda_processes(pid)
    if computing and computing[0] != pid:
        # Who serves a model knows the process that answers requests; its child is on the GPU.
        more = f", the first of {len(computing)} below it that do" if computing[1:] else ""
        say(f"process {pid} uses no GPU: attaching to {computing[0]}, its child{more}")
        pid = computing[0]
    asked = LiveCommand(options, request_of_pid(pid), sys.argv[1:], None)
    return record(asked) if mode == "record" else screen(asked)


def process_of(options: argparse.Namespace) -> int:
    """The process to detach from. Raises UsageError, also in read-only mode."""
    return _process(options, options.pid)


def _process(options: argparse.Namespace, typed: str) -> int:
    pid = count(typed, "PID")
    if pid <= 1:
        raise UsageError(f"PID {typed}: give the PID of a program")
    if options.readonly:
        raise UsageError(f"{options.set_by['readonly']} leaves every process as it is")
    return pid


def _processes_of(options: argparse.Namespace) -> list[int]:
    """The processes, in the order of the hosts, each of which `options` names then. Raises
    UsageError, also in read-only mode.
    """
    from gputui.collect.hosts import command_target, distinct

    typed = [word.rpartition(":")[::2] for word in options.pid]
    pids = [_process(options, pid) for _, pid in typed]
    named = [host for host, _ in typed if host]
    if not named:
        if len(pids) > 1:
            raise UsageError("attach to one process of this machine, or to HOST:PID of others")
        if len(options.host) + len(options.via) > 1:
            raise UsageError("give each host its process: gputui attach HOST:PID HOST:PID")
        return pids
    ways = distinct(map(command_target, options.via))
    commands = {way.name: typed for way, typed in zip(ways, options.via, strict=True)}
    if len(named) < len(pids) or {*options.host, *commands} - {*named}:
        raise UsageError("give each host its process: gputui attach HOST:PID HOST:PID")
    # The screen and the recordings have the hosts in this order.
    by_command = sorted(range(len(pids)), key=lambda place: named[place] in commands)
    options.host = [host for host in named if host not in commands]
    options.via = [commands[host] for host in named if host in commands]
    return [pids[place] for place in by_command]


def _far_run(pids: list[int], options: argparse.Namespace) -> FarRun:
    from msgspec.structs import replace

    from gputui.cli.hosts import words_there
    from gputui.collect.hosts import RECORDING, begun_now

    attach = declared.command("attach") or MAIN
    words = words_there(attach, sys.argv[2:], leave_out=options.pid)
    name = f"attach-{pids[0]}" if len(pids) == 1 else "attach"
    run = begun_now(name, ["attach", "-o", RECORDING, "--record", *words])
    return replace(run, pids=tuple(pids), is_of_all=True)


def run_detach(options: argparse.Namespace) -> int:
    """End the tracing of a process, whichever gputui attached to it; return the exit status."""
    from gputui.inject.attach import detach
    from gputui.state.remarks import CUPTI_STAYS

    pid = process_of(options)
    outcome = detach(pid)
    say(f"process {pid} {'was put to sleep' if outcome.was_awake else 'is asleep already'}")
    if outcome.keeps_cupti:
        say(CUPTI_STAYS)
    return 0


def run_env(options: argparse.Namespace) -> int:
    """Print the variables for a shell; return the exit status."""
    from gputui.inject.build import CAPTURE
    from gputui.inject.environment import LOADERS, holder_of, library_path, missing_library_reason

    library = library_path()
    if library is None and not options.unset:
        raise GputuiError(missing_library_reason())
    for variable in LOADERS:
        holder = os.environ.get(variable, "")
        if holder and Path(holder).name != CAPTURE.path.name:
            say(f"{variable} is left alone: it is held by {holder_of(holder)}")
        else:
            print(_line(options.shell, variable, None if options.unset else str(library)))
    sys.stdout.flush()
    return 0


def _line(shell: str, variable: str, value: str | None) -> str:
    if shell == "fish":
        if value is None:
            return f"set -e {variable};"
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {variable} '{quoted}';"
    if value is None:
        return f"unset {variable};"
    import shlex

    return f"export {variable}={shlex.quote(value)};"
