"""What is to be run, and how it is to be traced."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from gputui.commands.words import UsageError, seconds

if TYPE_CHECKING:
    from gputui.capture.options import CaptureOptions, DutyCycle
    from gputui.sources.run import RunRequest


def request_of(options: argparse.Namespace, command: list[str] | None) -> RunRequest | None:
    """The workload or command that was typed, None without one. Raises UsageError and
    CatalogueError."""
    if command:
        from gputui.sources.run import RunRequest

        return RunRequest.of_command(command)
    if not options.workload:
        return None
    from gputui.sources.catalogue import load_catalogue, parse_parameters
    from gputui.sources.run import RunRequest

    words: dict[str, str] = {}
    for word in options.parameters:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"-p {word}: give KEY=VALUE")
        words[name] = value
    workload = load_catalogue().find(options.workload)
    values = parse_parameters(workload, words)
    return RunRequest.of_workload(workload.name, values, workload.step_range)


def capture_options(options: argparse.Namespace, request: RunRequest | None) -> CaptureOptions:
    """What is traced, and when. Raises UsageError."""
    from gputui.capture.options import CaptureOptions

    step_range = request.step_range if request else None
    return CaptureOptions(
        kernels=not options.no_kernels,
        graph_trace=options.graph_trace,
        annotate=options.annotate,
        duty=_duty(options.trace_steps, step_range) if options.trace_steps else None,
    )


_SHARE_PERIOD_S = 5.0
"""A share in percent is of every stretch this long."""


def _duty(text: str, step_range: str | None) -> DutyCycle:
    from gputui.capture.options import DutyCycle

    steps = re.fullmatch(r"(\d{1,9})/(\d{1,9})(?::(.{1,1000}))?", text)
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    times = re.fullmatch(r"([^/]+)/([^/]+)", text)
    if steps:
        step = steps[3] or step_range
        if step is None:
            raise UsageError(
                f"--trace-steps {text}: say which range is a step, as in {text}:train_step"
            )
        duty = DutyCycle(int(steps[1]), int(steps[2]), step)
    elif share:
        duty = DutyCycle(
            int(float(share[1]) / 100 * _SHARE_PERIOD_S * 1e9), int(_SHARE_PERIOD_S * 1e9)
        )
    elif times:
        on_s, period_s = (seconds(part, "--trace-steps") for part in times.groups())
        duty = DutyCycle(int(on_s * 1e9), int(period_s * 1e9))
    else:
        raise UsageError(f"--trace-steps {text}: give 1/10, 1/10:RANGE, 10% or 1s/10s")
    if not 0 < duty.on < duty.period:
        raise UsageError(f"--trace-steps {text}: trace some of it, and less than all")
    return duty
