"""Watching live: on the screen, or recorded without one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gputui.cli.output_name import expanded
from gputui.cli.requests import capture_options
from gputui.cli.values import UsageError

if TYPE_CHECKING:
    from gputui.collect.live import LiveOptions
    from gputui.collect.run_request import RunRequest
    from gputui.collect.traced_run import Run
    from gputui.inject.options import CaptureOptions
    from gputui.store.journal import Limits
    from gputui.tui.source import Source


class Watch(NamedTuple):
    """The parsed command line, and what it asks to run."""

    options: argparse.Namespace
    request: RunRequest | None
    arguments: list[str]
    command: list[str] | None


def record(watch: Watch) -> int:
    """Record without a screen; the exit status."""
    import time

    from gputui.cli.record import RecordOptions
    from gputui.cli.record import record as run
    from gputui.store.journal import JournalError, TakenError, default_path, make_folder

    options, request = watch.options, watch.request
    _check_only(options)

    def place() -> Path:
        found = default_path(request.name if request else "machine", time.time())
        make_folder(found.parent)
        return found

    if options.output and options.output != "-":
        options.output = expanded(options.output)
    path = None if options.output == "-" else Path(options.output) if options.output else place()
    limits = limits_of(options)
    capture = capture_options(options, request)
    pass_through = watch.command is not None and path is not None
    live = _live_options(watch, capture, path, pass_through=pass_through)
    while True:
        try:
            return run(
                RecordOptions(
                    path,
                    live,
                    request,
                    options.duration,
                    limits,
                    options.prometheus,
                    options.notify,
                )
            )
        except JournalError as error:
            if live.trace is not None:
                live.trace.discard()
            if options.output or not isinstance(error, TakenError):
                raise
            path = place()  # another gputui was quicker


def screen(watch: Watch) -> int:
    """Show the machine and what runs on it; the exit status, around a command that command's."""
    from gputui.cli.screen import need_terminal, run_screen, show_first

    options, request = watch.options, watch.request
    need_terminal(options)
    output = Path(expanded(options.output)) if options.output else None
    _check_only(options)
    shown = show_first(options) if request is None else None
    try:
        limits = limits_of(options)
        capture = capture_options(options, request)
    except BaseException:
        if shown is not None:
            shown.take_back()
        raise
    runs: list[Run] = []

    def connect(notify: Callable[[], None]) -> Source:
        # Imported behind the first frame: NVML, NumPy and psutil take longer than drawing it.
        from gputui.collect.nvml.bindings import start_driver

        start_driver()
        import time

        from gputui.collect.live import Live
        from gputui.store.journal import JournalError, JournalWriter, RunRecorder, default_path

        watching = _live_options(watch, capture, output, pass_through=False)
        try:
            recording = (
                JournalWriter(output, limits)
                if output
                else RunRecorder(lambda name: default_path(name, time.time()), limits)
            )
        except JournalError:
            if watching.trace is not None:
                watching.trace.discard()
            raise
        live = Live(notify, recording, watching)
        if request is not None:
            runs.append(live.start_run(request))
        return live

    status = run_screen(connect, options, shows_run=request is not None, shown=shown)
    if status or watch.command is None or not runs:
        return status
    from gputui.cli.exit_status import exit_status

    return exit_status(runs[0].request.kind, runs[0].ended)


def _check_only(options: argparse.Namespace) -> None:
    """Before anything is started or written."""
    alerted = {one.gpu: one.where for one in options.alert if one.gpu is not None}
    where = next(iter(alerted.values()), "")
    for flag, named in (("--only", options.only), (where, tuple(alerted))):
        if named:
            from gputui.collect.nvml.gpus import missing_gpus

            if reason := missing_gpus(named):
                raise UsageError(reason.replace("--only", flag, 1))
    if hidden := set(alerted) - set(options.only or alerted):
        raise UsageError(f"{where}: --only leaves out GPU {min(hidden)}")


def _live_options(
    watch: Watch, capture: CaptureOptions, path: Path | None, *, pass_through: bool
) -> LiveOptions:
    """Open the trace beside `path` if requested: last, once nothing else can be wrong."""
    from gputui.collect.live import LiveOptions

    options, command = watch.options, watch.command
    trace = None
    if options.trace:
        if path is None:
            raise UsageError("--trace needs a recording: give -o FILE")
        from gputui.store.trace import LEAST_LIMIT, TraceWriter, trace_path

        if options.trace_limit < LEAST_LIMIT:
            raise UsageError(
                f"{options.set_by['trace_limit']} is too small for a step: give 1M or more"
            )
        trace = TraceWriter(trace_path(path), options.trace_limit)
    typed = [*watch.arguments, "--", *command] if command else watch.arguments
    alerts: dict[str, Any] = {}
    if options.alert:
        from gputui.report.alerts import Alerts

        alerts["watch"] = Alerts(options.alert).see
    return LiveOptions(
        interval_s=options.interval,
        only=tuple(options.only) if options.only else None,
        arguments=("gputui", *typed),
        capture=capture,
        pass_through=pass_through,
        trace=trace,
        **alerts,
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """Of a recording's files. Raises UsageError."""
    from gputui.store.journal import Limits

    rotate_bytes, rotate_ns = options.rotate or (None, None)
    if options.output == "-" and (options.rotate or options.max_size):
        raise UsageError("--rotate and --max-size need a file: standard output has no size")
    return Limits(rotate_bytes=rotate_bytes, rotate_ns=rotate_ns, max_bytes=options.max_size)
