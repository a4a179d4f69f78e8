"""What to run, and how to trace it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from gputui.cli.values import UsageError, seconds

if TYPE_CHECKING:
    from gputui.collect.run_request import RunRequest
    from gputui.inject.options import CaptureOptions, TraceSampling


def request_of(options: argparse.Namespace, command: list[str] | None) -> RunRequest | None:
    """The requested workload or command, None without one. Raises UsageError and CatalogueError."""
    if command:
        from gputui.collect.run_request import RunRequest

        return RunRequest.of_command(command)
    if not options.workload:
        return None
    from gputui.collect.catalogue import load_catalogue, parse_parameters
    from gputui.collect.run_request import RunRequest

    words: dict[str, str] = {}
    for word in options.parameter:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"-p {word}: give KEY=VALUE")
        words[name] = value
    workload = load_catalogue().find(options.workload)
    values = parse_parameters(workload, words)
    return RunRequest.of_workload(workload.name, values, workload.step_range)


def capture_options(options: argparse.Namespace, request: RunRequest | None) -> CaptureOptions:
    """What is traced, and when. Raises UsageError."""
    from gputui.inject.options import CaptureOptions, within_cost

    if options.trace_steps and options.no_kernels:
        raise UsageError("--trace-steps selects kernels, which --no-kernels does not trace")
    step_range = request.step_range if request else None
    steps, percent = options.trace_steps, options.max_cost
    if steps and percent is not None and percent < 100:
        raise UsageError(
            f"--trace-steps {steps}: --max-cost {percent:g}% itself decides when kernels are "
            "traced; --max-cost none leaves that to you"
        )
    sampling = _trace_sampling(steps, step_range) if steps else None
    if percent is not None and not steps:
        sampling = within_cost(percent, step_range)
        if sampling is not None and options.graph_trace == "graph":
            raise UsageError(
                f"--max-cost {percent:g}%: --graph-trace graph cannot be switched on in windows"
            )
    return CaptureOptions(
        kernels=not options.no_kernels,
        graph_trace=options.graph_trace,
        annotate=options.annotate,
        lines=not options.no_lines,
        trace_sampling=sampling,
        says_when=bool(steps) or percent is not None,
    )


_SHARE_PERIOD_S = 5.0
"""A percentage applies to every period of this length."""

_SHARES = "1/10, 1/10:RANGE, 10% or 1s/10s"


def _trace_sampling(text: str, step_range: str | None) -> TraceSampling:
    """The numbers are checked before the range. Raises UsageError."""
    from gputui.inject.options import TraceSampling

    share, colon, name = text.partition(":")
    on, slash, period = share.partition("/")
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)%", text, re.ASCII)
    by_steps = all(re.fullmatch(r"\d+", part, re.ASCII) for part in (on, period))
    if percent:
        on_ns = float(percent[1]) / 100 * _SHARE_PERIOD_S * 1e9
        sampling = TraceSampling(int(min(on_ns, 1e18)), int(_SHARE_PERIOD_S * 1e9))
    elif not slash:
        raise UsageError(f"--trace-steps {text}: give {_SHARES}")
    elif by_steps:
        if max(len(on), len(period)) > 9:
            raise UsageError(f"--trace-steps {text}: give numbers of steps below a billion")
        sampling = TraceSampling(int(on), int(period), name or step_range)
    else:
        sampling = TraceSampling(_part_ns(text, on), _part_ns(text, period))
        if any(re.fullmatch(r"[\d.]*[1-9][\d.]*", part, re.ASCII) for part in (on, period)):
            raise UsageError(
                f"--trace-steps {text}: steps are whole, and times have a unit: give {_SHARES}"
            )
    if fault := _fault(sampling):
        raise UsageError(f"--trace-steps {text}: {fault}")
    if by_steps and not name and (colon or step_range is None):
        raise UsageError(
            f"--trace-steps {text}: name the range of a step, as in {share}:train_step"
        )
    if colon and not by_steps:
        raise UsageError(
            f"--trace-steps {text}: a share of the time takes no range: give {share}, or count "
            f"steps, as in 1/10:{name or 'RANGE'}"
        )
    return sampling


def _part_ns(text: str, part: str) -> int:
    """One part of a share of the time. Raises UsageError."""
    if re.fullmatch(r"0+(?:\.0+)?(?:ms|s|m|h)?", part, re.ASCII):
        return 0
    try:
        return int(seconds(part, "--trace-steps") * 1e9)
    except UsageError:
        raise UsageError(
            f"--trace-steps {text}: {part!r} is neither a number of steps nor a time: "
            f"give {_SHARES}"
        ) from None


def _fault(sampling: TraceSampling) -> str | None:
    """Why these numbers are not a share, and what to type instead."""
    if sampling.period == 0:
        return f"nothing is a share of 0: give {_SHARES}"
    if sampling.on == 0:
        return f"that traces nothing: give {_SHARES}, or --no-kernels to trace none at all"
    if sampling.on == sampling.period:
        return "that is everything, the default without --trace-steps"
    if sampling.on > sampling.period:
        return f"that is more than everything: give the part first, then the whole, as in {_SHARES}"
    return None
