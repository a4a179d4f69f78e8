"""Watching live: on the screen, or recorded without one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.cli.parsing import UsageError, seconds, size_bytes
from gputui.cli.requests import capture_options

if TYPE_CHECKING:
    from gputui.cli.settings import Settings
    from gputui.collect.live import LiveOptions
    from gputui.collect.traced_run import Run, RunRequest
    from gputui.inject.options import CaptureOptions
    from gputui.store.journal import Limits
    from gputui.tui import Source


@dataclass(frozen=True, slots=True)
class Watch:
    """The parsed command line, and what it asks to run."""

    options: argparse.Namespace
    settings: Settings
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

    path = None if options.output == "-" else Path(options.output) if options.output else place()
    duration = seconds(options.duration, "--duration") if options.duration else None
    address = _address(options.prometheus) if options.prometheus else None
    limits = _limits(options)
    capture = capture_options(options, request)
    pass_through = watch.command is not None and path is not None
    live = _live_options(watch, capture, path, pass_through=pass_through)
    while True:
        try:
            return run(RecordOptions(path, live, request, duration, limits, address))
        except JournalError as error:
            if live.trace is not None:
                live.trace.discard()
            if options.output or not isinstance(error, TakenError):
                raise
            path = place()  # another gputui was quicker


def screen(watch: Watch) -> int:
    """Show the machine and what runs on it; the exit status, around a command that command's."""
    from gputui.cli.screen import need_terminal, run_screen

    need_terminal()
    options, request = watch.options, watch.request
    output = Path(options.output) if options.output else None
    limits = _limits(options)
    capture = capture_options(options, request)
    _check_only(options)
    runs: list[Run] = []

    def connect(notify: Callable[[], None]) -> Source:
        # Imported behind the first frame: NVML, NumPy and psutil take longer than drawing it.
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

    status = run_screen(connect, watch.settings, shows_run=request is not None)
    if status or watch.command is None or not runs:
        return status
    from gputui.cli.record import exit_status

    return exit_status(runs[0].request.kind, runs[0].ended)


def _check_only(options: argparse.Namespace) -> None:
    """Before anything is started or written."""
    if options.only:
        from gputui.collect.nvml.gpus import missing_gpus

        reason = missing_gpus(options.only)
        if reason:
            raise UsageError(reason)


def _live_options(
    watch: Watch, capture: CaptureOptions, path: Path | None, *, pass_through: bool
) -> LiveOptions:
    """Open the trace beside `path` if requested: last, once nothing else can be wrong."""
    from gputui.collect.live import LiveOptions

    options, command = watch.options, watch.command
    trace = None
    if options.trace:
        if path is None:
            raise UsageError("--trace needs a file to lie beside: give -o FILE")
        from gputui.store.trace import LEAST_LIMIT, TraceWriter, trace_path

        limit = size_bytes(options.trace_limit or "1G", "--trace-limit")
        if limit < LEAST_LIMIT:
            raise UsageError(
                f"--trace-limit {options.trace_limit} is too small for a step: give 1M or more"
            )
        trace = TraceWriter(trace_path(path), limit)
    typed = [*watch.arguments, "--", *command] if command else watch.arguments
    return LiveOptions(
        interval_s=watch.settings.interval,
        only=tuple(options.only) if options.only else None,
        arguments=("gputui", *typed),
        capture=capture,
        pass_through=pass_through,
        trace=trace,
    )


def _limits(options: argparse.Namespace) -> Limits:
    from gputui.store.journal import Limits

    rotate = options.rotate or ""
    by_time = rotate.endswith(("s", "m", "h"))
    most = size_bytes(options.max_size, "--max-size") if options.max_size else None
    if options.output == "-" and (rotate or most):
        raise UsageError("--rotate and --max-size need a file: standard output has no size")
    return Limits(
        rotate_bytes=size_bytes(rotate, "--rotate") if rotate and not by_time else None,
        rotate_ns=int(seconds(rotate, "--rotate") * 1e9) if by_time else None,
        max_bytes=most,
    )


def _address(text: str) -> tuple[str, int]:
    from gputui.render.prometheus_server import parse_address

    return parse_address(text)
