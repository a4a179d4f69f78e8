"""Watching this machine: what to run, how to trace it, on the screen or recorded without one. Also
the screen itself, whatever its source, and the replay of a recording on it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gputui.base import did_you_mean
from gputui.base.standard_streams import has_colors, read_keys_from_terminal
from gputui.cli.declaration import UsageError, seconds

if TYPE_CHECKING:
    from gputui.collect.live import Live, LiveOptions
    from gputui.collect.serving_reader import ServingOptions
    from gputui.collect.traced_run import RunRequest, TracedRun
    from gputui.inject import CaptureOptions, CaptureRange, TraceSampling
    from gputui.state import Session
    from gputui.store.journal import Limits
    from gputui.tui.early import Shown
    from gputui.tui.running import GoOn
    from gputui.tui.source import Connect, Source


class LiveCommand(NamedTuple):
    """The parsed command line, and what it asks to run."""

    options: argparse.Namespace
    request: RunRequest | None
    arguments: list[str]
    command: list[str] | None


def record(asked: LiveCommand) -> int:
    """Record without a screen; the exit status."""
    import time

    from gputui.base import JournalError, TakenError
    from gputui.cli.record import RecordOptions
    from gputui.cli.record import record as run
    from gputui.store import default_path, make_folder

    options, request = asked.options, asked.request
    _check_only(options)

    def place() -> Path:
        path_here = default_path(request.name if request else "machine", time.time())
        make_folder(path_here.parent)
        return path_here

    if options.output and options.output != "-":
        options.output = expanded_name(options.output)
    path = None if options.output == "-" else Path(options.output) if options.output else place()
    limits = limits_of(options)
    capture = capture_options(options, request)
    pass_through = asked.command is not None and path is not None
    live = _live_options(asked, capture, path, pass_through=pass_through)
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
                    options.keep_running,
                )
            )
        except JournalError as error:
            if live.trace is not None:
                live.trace.discard()
            if options.output or not isinstance(error, TakenError):
                raise
            path = place()  # another gputui was quicker


def screen(asked: LiveCommand) -> int:
    """Show the machine and what runs on it; the exit status, around a command that command's."""

    options, request = asked.options, asked.request
    need_terminal(options)
    output = Path(expanded_name(options.output)) if options.output else None
    _check_only(options)
    shown = show_first(options) if request is None else None
    try:
        limits = limits_of(options)
        capture = capture_options(options, request)
    except BaseException:
        if shown is not None:
            shown.take_back()
        raise
    runs: list[TracedRun] = []
    live: Live | None = None
    notified: list[Callable[[], None]] = []

    def connect(notify: Callable[[], None]) -> Source:
        # Imported behind the first frame: NVML, NumPy and psutil take longer than drawing it.
        from gputui.collect.nvml import start_driver

        nonlocal live
        notified.append(notify)
        start_driver()
        import time

        from gputui.base import JournalError
        from gputui.collect.live import Live
        from gputui.store import default_path
        from gputui.store.journal.writer import JournalWriter, RunRecorder

        watching = _live_options(asked, capture, output, pass_through=False)
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
        live = Live(lambda: notified[-1](), recording, watching)
        if request is not None:
            runs.append(live.start_run(request))
        return live

    def go_on(why: str | None, session: Session | None) -> int | None:
        if live is None or live.run is None or live.run.ended is not None:
            return None
        from gputui.cli.record import record_on

        return record_on(live, why, session, notified.append, options.notify, options.keep_running)

    shows_run = request is not None
    status = run_screen(
        connect, options, shows_run=shows_run, starts_run=shows_run, shown=shown, go_on=go_on
    )
    if status or request is None or request.pid is not None or not runs:
        return status
    from gputui.cli.record import exit_status

    ended = runs[0].ended
    if request.kind == "workload" and ended is not None and ended.stopped:
        return status  # by the person, who saw it
    return exit_status(request.kind, ended)


def _check_only(options: argparse.Namespace) -> None:
    """Before anything is started or written."""
    alerted = {
        condition.gpu: condition.where for condition in options.alert if condition.gpu is not None
    }
    where = next(iter(alerted.values()), "")
    for flag, named in (("--only", options.only), (where, tuple(alerted))):
        if named:
            from gputui.collect.nvml.gpus import missing_gpus

            if reason := missing_gpus(named):
                raise UsageError(reason.replace("--only", flag, 1))
    if hidden := set(alerted) - set(options.only or alerted):
        raise UsageError(f"{where}: --only leaves out GPU {min(hidden)}")


def _live_options(
    asked: LiveCommand, capture: CaptureOptions, path: Path | None, *, pass_through: bool
) -> LiveOptions:
    """Open the trace beside `path` if requested: last, once nothing else can be wrong."""
    from gputui.collect.live import LiveOptions

    options, command = asked.options, asked.command
    trace = None
    if options.trace:
        if path is None:
            raise UsageError("--trace needs a recording: give -o FILE")
        from gputui.store import trace_path
        from gputui.store.trace import LEAST_LIMIT, TraceWriter

        if options.trace_limit < LEAST_LIMIT:
            raise UsageError(
                f"{options.set_by['trace_limit']} is too small for a step: give 1M or more"
            )
        trace = TraceWriter(trace_path(path), options.trace_limit)
    typed = [*asked.arguments, "--", *command] if command else asked.arguments
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
        serving=_serving(options.metrics),
        **alerts,
    )


def _serving(typed: list[str]) -> ServingOptions:
    """Which pages of metrics are read. Raises UsageError."""
    from gputui.collect.serving_reader import INSTALL, ServingOptions

    if not typed:
        return ServingOptions()
    if "none" in typed:
        if len(typed) > 1:
            raise UsageError("--metrics none reads no metrics: give it alone")
        return ServingOptions(search=False)
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(f"--metrics: {INSTALL}")
    return ServingOptions(tuple(dict.fromkeys(typed)))


def limits_of(options: argparse.Namespace) -> Limits:
    """Of a recording's files. Raises UsageError."""
    from gputui.store.journal import Limits

    rotate_bytes, rotate_ns = options.rotate or (None, None)
    if options.output == "-" and (options.rotate or options.max_size):
        raise UsageError("--rotate and --max-size need a file: standard output has no size")
    return Limits(rotate_bytes=rotate_bytes, rotate_ns=rotate_ns, max_bytes=options.max_size)


def request_of(options: argparse.Namespace, command: list[str] | None) -> RunRequest | None:
    """The requested workload or command, None without one. Raises UsageError and CatalogueError."""
    if command:
        from gputui.collect.traced_run import RunRequest

        return RunRequest.of_command(command)
    if not options.workload:
        return None
    from gputui.collect.catalogue import load_catalogue, parse_parameters
    from gputui.collect.traced_run import RunRequest

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
    from gputui.inject import CaptureOptions, within_cost

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
    part = options.capture_range
    if part is not None:
        part = _captured(part, step_range)
        if options.no_kernels or steps or (percent is not None and percent < 100):
            other = next(
                name
                for name, given in (
                    ("--no-kernels", options.no_kernels),
                    ("--trace-steps", steps),
                    ("--max-cost", True),
                )
                if given
            )
            raise UsageError(f"--capture-range records all of one part: leave out {other}")
    if percent is not None and not steps:
        sampling = within_cost(percent, step_range)
        # It cannot be switched on late, as windows are.
        if sampling is not None and options.graph_trace == "graph":
            raise UsageError(
                f"--max-cost {percent:g}%: --graph-trace graph cannot be switched on in windows"
            )
    return CaptureOptions(
        kernels=not options.no_kernels,
        graph_trace=options.graph_trace,
        annotate=options.annotate,
        line_rate_hz=0 if options.no_lines else options.line_rate,
        step_marks=not options.no_step_marks,
        counters=options.counters and not options.no_kernels,
        trace_sampling=sampling,
        capture_range=part,
        library_calls=options.library_calls,
        says_when=bool(steps) or percent is not None,
    )


def _captured(part: CaptureRange, step_range: str | None) -> CaptureRange:
    """The part with the name of the step that it counts. Raises UsageError."""
    from gputui.inject import CaptureRange

    if not part.steps or part.name:
        return part
    if step_range is None:
        raise UsageError(
            f"--capture-range steps:{part.steps}: name the range of a step, as in "
            f"steps:{part.steps}:train_step"
        )
    return CaptureRange(step_range, part.steps)


# A percentage applies to every period of this length.
_SHARE_PERIOD_S = 5.0

_SHARES = "1/10, 1/10:RANGE, 10% or 1s/10s"


def _trace_sampling(text: str, step_range: str | None) -> TraceSampling:
    """The numbers are checked before the range. Raises UsageError."""
    from gputui.inject import TraceSampling

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
    # All of it is judged before the program's range is asked for.
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


RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")


def expanded_name(
    name: str, environment: Mapping[str, str] | None = None, host: str | None = None
) -> str:
    """A file name with `{host}` (this one, or `host`), `{rank}` and `{job}` filled in from the
    environment.

    Raises UsageError where one of them is not known.
    """
    variables = os.environ if environment is None else environment

    def value(match: re.Match[str]) -> str:
        word = match[1]
        if word == "host":
            return plain_part(os.uname().nodename if host is None else host)
        names = RANKS if word == "rank" else JOBS
        text = next((variables[variable] for variable in names if variables.get(variable)), None)
        if text is None:
            raise UsageError(f"-o {name}: {{{word}}} is not known: none of {', '.join(names)} set")
        return plain_part(text)

    return re.sub(r"\{(host|rank|job)\}", value, name)


def plain_part(text: str) -> str:
    """As a part of a file's name, whatever the environment holds."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "unknown"


# --- The screen, whatever its source, and replay.


def replay(options: argparse.Namespace) -> int:
    """Show a recording; the exit status."""
    from gputui.playback import AT_END_S

    is_played = options.speed is not None or options.follow or options.replay == "-"
    start_s = 0.0 if is_played else AT_END_S
    if options.start is not None:
        start_s = options.start
    path, folder, is_imported = options.replay, None, False
    if options.demo:
        from gputui.tui.tour import SCENES

        path, start_s = str(SCENES[0].paths[0]), SCENES[0].start_s
    from gputui.playback.opening import check_readable, import_kind
    from gputui.playback.player import Playback

    speed = options.speed if options.speed is not None else 1.0
    need_terminal(options)
    if path == "-":
        if sys.stdin.isatty():
            raise UsageError("--replay - shows a recording piped in, and nothing is")
        try:
            read_keys_from_terminal()
        except OSError:
            raise UsageError("the screen needs a terminal to read keys from") from None

    elif not options.follow:
        check_readable(path)
        is_imported = import_kind(Path(path)) is not None
        # Runs lists what is beside the recording that is replayed.
        folder = Path(path).absolute().parent

    def connect(notify: Callable[[], None]) -> Source:
        return Playback.open(path, notify, speed=speed, start_s=start_s, follow=options.follow)

    return run_screen(
        connect, options, shows_run=True, is_demo=bool(options.demo), folder=folder,
        connects_first=is_imported,
    )  # fmt: skip


def need_terminal(options: argparse.Namespace) -> None:
    """Raises UsageError if standard output is not a terminal, or one that cannot place
    characters, and if there is no such theme.
    """
    if "theme" in options.set_by:
        from gputui.tui.themes import NAMES

        if options.theme not in NAMES:
            raise UsageError(
                f"{options.set_by['theme']}: give one of {', '.join(NAMES)}"
                f"{did_you_mean(options.theme, NAMES)}"
            )
    if not sys.stdout.isatty():
        raise UsageError("the screen needs a terminal; use --record or --once without one")
    # It prints escape sequences instead of obeying them.
    if os.environ.get("TERM") == "dumb":
        raise UsageError(
            "TERM=dumb draws no screen: set TERM to your terminal's, or use --record or --once"
        )


def show_first(options: argparse.Namespace) -> Shown | None:
    """Draw the first frame, where the terminal shows it as it is meant."""
    if options.ascii or options.reader or not sys.stdin.isatty():
        return None
    from gputui.tui.early import Shown

    def frame(width: int, height: int) -> str:
        from gputui.collect.nvml.opening import glance
        from gputui.tui.early import first_frame

        return first_frame(*glance(options.only or None), width, height)

    return Shown(frame)


def run_screen(
    connect: Connect,
    options: argparse.Namespace,
    *,
    shows_run: bool,
    starts_run: bool = False,
    is_demo: bool = False,
    shows_hosts: bool = False,
    shown: Shown | None = None,
    connects_first: bool = False,
    folder: Path | None = None,
    go_on: GoOn = lambda _why, _session: None,
) -> int:
    """Run the screen on what `connect` opens behind its first frame, which may be `shown`
    already; the exit status. `connects_first` and `go_on` as in `run_app`."""
    if options.no_color or not has_colors():
        os.environ["NO_COLOR"] = "1"
    from gputui.tui.running import run_app
    from gputui.tui.source import Options

    look = Options(
        theme=options.theme,
        ascii=options.ascii,
        reader=options.reader,
        shows_run=shows_run,
        shows_hosts=shows_hosts,
        is_demo=is_demo,
        tour=not options.no_tour,
        readonly=options.readonly,
        notify=options.notify,
        folder=folder,
        starts_run=starts_run,
        keep_running=options.keep_running,
    )
    return run_app(connect, look, shown=shown, connects_first=connects_first, go_on=go_on)
