"""Words typed → one of the modes. Each imports what it needs, so that none pays for another."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gputui import __version__
from gputui.streams import columns, read_keys_from_terminal, release, say, tolerate

if TYPE_CHECKING:
    from gputui.capture.options import CaptureOptions, DutyCycle
    from gputui.journal import Limits
    from gputui.session import Run, Session
    from gputui.settings import Settings
    from gputui.sources.live import LiveOptions
    from gputui.sources.run import RunRequest
    from gputui.ui import Connect, Source

USAGE_ERROR = 2

_USAGE = """\
gputui [--workload NAME [-p KEY=VALUE ...] | -- CMD ARG ...]
       gputui --record [-o FILE|-] [--duration 30s] [--workload NAME ... | -- CMD ...]
       gputui --replay FILE|- [--speed X] [--start T]   |   gputui --demo
       gputui --once [--json] [--watch [-i SEC]]
       gputui workloads [NAME] [--json]   |   gputui doctor [--json]
       gputui summary FILE [--table NAME] [--format table|json|csv|md]
       gputui export FILE --format FORMAT [-o OUT]
       gputui compare FILE FILE ... [--format ...] [--fail-if CONDITION]"""


class _UsageError(Exception):
    """What was typed is wrong. One line."""


class _Parser(argparse.ArgumentParser):
    """argparse that answers a mistake with one line and status 2."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see gputui --help")


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say; the exit status."""
    tolerate()
    try:
        return _dispatch(list(arguments))
    except BrokenPipeError:
        # The reader of our output has seen enough.
        return 0
    except KeyboardInterrupt:
        return 130
    except _UsageError as error:
        return _fail(error, USAGE_ERROR)
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & _ONE_LINE_USAGE:
            return _fail(error, USAGE_ERROR)
        if kinds & _ONE_LINE:
            return _fail(error, 1)
        raise
    finally:
        release()


_ONE_LINE_USAGE = {"SettingsError", "CatalogueError", "AddressError", "OnlyError"}
_ONE_LINE = {"JournalError", "ExportError", "PrometheusError"}


def _fail(error: Exception, status: int) -> int:
    say(str(error))
    return status


def _dispatch(arguments: list[str]) -> int:
    command: list[str] | None = None
    if "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
        if not command:
            raise _UsageError("nothing to run after --; see gputui --help")
    if arguments and arguments[0] in _SUBCOMMANDS and command is None:
        return _SUBCOMMANDS[arguments[0]](arguments[1:])
    return _main_mode(arguments, command)


# --- the screen, recording, replay, one reading ------------------------------------------------


def _main_parser() -> _Parser:
    parser = _Parser(prog="gputui", usage=_USAGE, description=_DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("--workload", metavar="NAME", help="start this workload (see: gputui workloads)")
    add("-p", dest="parameters", metavar="KEY=VALUE", action="append", default=[],
        help="a parameter of the workload; may be repeated")  # fmt: skip
    add("--record", action="store_true", help="record without a screen")
    add("--replay", metavar="FILE", help="show a recording; - reads standard input")
    add("--demo", action="store_true", help="replay a short session of a real H200")
    add("--once", action="store_true", help="print one reading of the machine")
    add("--json", action="store_true", help="with --once: as JSON")
    add("--watch", action="store_true",
        help="with --once: again each interval; with --json a document a line")  # fmt: skip
    add("-o", "--output", metavar="FILE", help="record to this file; - is standard output")
    add("--duration", metavar="TIME", help="with --record: stop after 30s, 5m, 1h")
    add("--rotate", metavar="SIZE|TIME", help="go on in a new file after 100M or 1h")
    add("--max-size", metavar="SIZE",
        help="most a recording may take; with --rotate the oldest files go")  # fmt: skip
    add("--prometheus", metavar="[HOST:]PORT",
        help="with --record: serve the newest figures to Prometheus")  # fmt: skip
    add("--trace", action="store_true",
        help="keep every range, call and kernel in FILE.gputui-trace")  # fmt: skip
    add("--trace-limit", metavar="SIZE", help="most a trace may take (default 1G); oldest go first")
    add("--speed", type=float, metavar="X", help="with --replay: 0.25 to 64 times")
    add("--follow", action="store_true", help="with --replay: wait for what is still written")
    add("--start", metavar="TIME", help="with --replay: begin at 30s, 5m, 1h")
    add("-i", "--interval", type=float, metavar="SEC",
        help="seconds between samples (default 1, least 0.1)")  # fmt: skip
    add("--only", type=int, nargs="+", metavar="INDEX", help="show these GPUs alone")
    add("--no-kernels", action="store_true", help="leave CUDA alone: ranges without kernels")
    add("--graph-trace", choices=("node", "graph"), default="node",
        help="CUDA graphs kernel by kernel (default), or each launch whole: cheaper")  # fmt: skip
    add(
        "--trace-steps",
        metavar="SHARE",
        help="trace kernels of some steps (1/10[:RANGE]) or some of the time (10%%, 1s/10s)",
    )
    add("--annotate", choices=("modules", "autograd"),
        help="put ranges around what torch does: modules, or operators too")  # fmt: skip
    add("--readonly", action="store_true", default=None,
        help="offer nothing that starts or stops a process")  # fmt: skip
    add("--theme", metavar="NAME", help="colours of the screen")
    add("--config", type=Path, metavar="FILE", help="read settings from this file")
    add("--no-color", action="store_true", default=None, help="draw without colours")
    add("--ascii", action="store_true", default=None, help="draw with ASCII characters alone")
    add("-V", "--version", action="version", version=f"gputui {__version__}")
    return parser


_DESCRIPTION = (
    "See inside an LLM workload on NVIDIA GPUs, live: its phases (NVTX ranges), the kernels each "
    "launches and what they cost, beside the machine."
)


def _main_mode(arguments: list[str], command: list[str] | None) -> int:
    parser = _main_parser()
    options = parser.parse_args(arguments)
    _check_combination(options, command)
    from gputui.settings import load_settings

    names = ("interval", "theme", "readonly", "no_color", "ascii")
    flags = {name: getattr(options, name) for name in names}
    settings = load_settings(flags, os.environ, options.config)
    if options.once:
        return _once(options, settings)
    if options.replay or options.demo:
        return _replay(options, settings)
    request = _request(options, command)
    if options.record:
        return _record(options, settings, request, arguments, command)
    return _screen(options, settings, request, arguments, command)


def _check_combination(options: argparse.Namespace, command: list[str] | None) -> None:
    modes = [
        name
        for name, on in (
            ("--record", options.record),
            ("--replay", options.replay),
            ("--demo", options.demo),
            ("--once", options.once),
        )
        if on
    ]
    if len(modes) > 1:
        raise _UsageError(f"{modes[0]} and {modes[1]} exclude each other")
    if options.workload and command:
        raise _UsageError("give --workload or a command after --, not both")
    runs = options.workload or command
    if runs and modes and modes != ["--record"]:
        raise _UsageError(f"{modes[0]} does not run anything")
    for flag, needs, fits in (
        ("-p", "--workload", not options.parameters or options.workload),
        ("--json", "--once", not options.json or options.once),
        ("--watch", "--once", not options.watch or options.once),
        ("--duration", "--record", not options.duration or options.record),
        ("--prometheus", "--record", not options.prometheus or options.record),
        ("--speed", "--replay or --demo", not options.speed or options.replay or options.demo),
        ("--follow", "--replay", not options.follow or options.replay),
        ("--start", "--replay or --demo", not options.start or options.replay or options.demo),
        ("-o -", "--record", options.output != "-" or options.record),
        ("-o", "a recording", not options.output or not modes or options.record),
        ("--rotate", "a recording", not options.rotate or not modes or options.record),
        ("--trace", "--record or -o", not options.trace or options.record or options.output),
        ("--trace-limit", "--trace", not options.trace_limit or options.trace),
        ("--max-size", "a recording", not options.max_size or not modes or options.record),
    ):
        if not fits:
            raise _UsageError(f"{flag} needs {needs}")
    if options.readonly and runs:
        raise _UsageError("--readonly starts nothing: leave out the workload or the command")


def _seconds(text: str, flag: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if not match or not 0 < float(match[1]) < 1e9 / 3600:
        raise _UsageError(f"{flag} {text}: give a time like 30s, 5m or 1h")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def _bytes(text: str, flag: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", text)
    size = float(match[1]) * 1024 ** " kMGT".index(match[2] or " ") if match else 0
    if not 1 <= size < 2**60:
        raise _UsageError(f"{flag} {text}: give a size like 500k, 100M or 2G")
    return int(size)


def _limits(options: argparse.Namespace) -> Limits:
    from gputui.journal import Limits

    rotate = options.rotate or ""
    by_time = rotate.endswith(("s", "m", "h"))
    most = _bytes(options.max_size, "--max-size") if options.max_size else None
    if options.output == "-" and (rotate or most):
        raise _UsageError("--rotate and --max-size need a file: standard output has no size")
    return Limits(
        rotate_bytes=_bytes(rotate, "--rotate") if rotate and not by_time else None,
        rotate_ns=int(_seconds(rotate, "--rotate") * 1e9) if by_time else None,
        max_bytes=most,
    )


def _request(options: argparse.Namespace, command: list[str] | None) -> RunRequest | None:
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
            raise _UsageError(f"-p {word}: give KEY=VALUE")
        words[name] = value
    workload = load_catalogue().find(options.workload)
    values = parse_parameters(workload, words)
    return RunRequest.of_workload(workload.name, values, workload.step_range)


def _live_options(
    options: argparse.Namespace,
    settings: Settings,
    typed: Sequence[str],
    pass_through: bool,
    path: Path | None,
    capture: CaptureOptions,
) -> LiveOptions:
    from gputui.sources.live import LiveOptions

    trace = None
    if options.trace:
        if path is None:
            raise _UsageError("--trace needs a file to lie beside: give -o FILE")
        from gputui.sources.trace import TraceWriter, trace_path

        limit = _bytes(options.trace_limit or "1G", "--trace-limit")
        trace = TraceWriter(trace_path(path), limit)

    return LiveOptions(
        interval_s=settings.interval,
        only=tuple(options.only) if options.only else None,
        arguments=("gputui", *typed),
        capture=capture,
        pass_through=pass_through,
        trace=trace,
    )


def _capture_options(options: argparse.Namespace, request: RunRequest | None) -> CaptureOptions:
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
            raise _UsageError(
                f"--trace-steps {text}: say which range is a step, as in {text}:train_step"
            )
        duty = DutyCycle(int(steps[1]), int(steps[2]), step)
    elif share:
        duty = DutyCycle(
            int(float(share[1]) / 100 * _SHARE_PERIOD_S * 1e9), int(_SHARE_PERIOD_S * 1e9)
        )
    elif times:
        on_s, period_s = (_seconds(part, "--trace-steps") for part in times.groups())
        duty = DutyCycle(int(on_s * 1e9), int(period_s * 1e9))
    else:
        raise _UsageError(f"--trace-steps {text}: give 1/10, 1/10:RANGE, 10% or 1s/10s")
    if not 0 < duty.on < duty.period:
        raise _UsageError(f"--trace-steps {text}: trace some of it, and less than all")
    return duty


def _typed(arguments: list[str], command: list[str] | None) -> list[str]:
    return [*arguments, "--", *command] if command else arguments


def _record(
    options: argparse.Namespace,
    settings: Settings,
    request: RunRequest | None,
    arguments: list[str],
    command: list[str] | None,
) -> int:
    import time

    from gputui.journal import JournalError, TakenError, default_path, make_folder
    from gputui.record import RecordOptions, record

    _check_only(options)

    def place() -> Path:
        found = default_path(request.name if request else "machine", time.time())
        make_folder(found.parent)
        return found

    path = None if options.output == "-" else Path(options.output) if options.output else place()
    pass_through = command is not None and path is not None
    capture = _capture_options(options, request)
    typed = _typed(arguments, command)
    live = _live_options(options, settings, typed, pass_through, path, capture)
    duration = _seconds(options.duration, "--duration") if options.duration else None
    address = _address(options.prometheus) if options.prometheus else None
    limits = _limits(options)
    while True:
        try:
            return record(RecordOptions(path, live, request, duration, limits, address))
        except JournalError as error:
            if live.trace is not None:
                live.trace.discard()
            if options.output or not isinstance(error, TakenError):
                raise
            path = place()  # another gputui was quicker


def _check_only(options: argparse.Namespace) -> None:
    """Before anything is started or written."""
    if options.only:
        from gputui.sources.nvml import missing_gpus

        reason = missing_gpus(options.only)
        if reason:
            raise _UsageError(reason)


def _address(text: str) -> tuple[str, int]:
    from gputui.prometheus import parse_address

    return parse_address(text)


def _screen(
    options: argparse.Namespace,
    settings: Settings,
    request: RunRequest | None,
    arguments: list[str],
    command: list[str] | None,
) -> int:
    _need_terminal()
    output = Path(options.output) if options.output else None
    limits = _limits(options)
    capture = _capture_options(options, request)
    _check_only(options)

    def connect(notify: Callable[[], None]) -> Source:
        # Imported behind the first frame: NVML, NumPy and psutil take longer than drawing it.
        import time

        from gputui.journal import JournalError, JournalWriter, RunRecorder, default_path
        from gputui.sources.live import Live

        typed = _typed(arguments, command)
        watching = _live_options(options, settings, typed, False, output, capture)
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
            live.start_run(request)
        return live

    return _run_app(connect, settings, shows_run=request is not None)


def _run_app(connect: Connect, settings: Settings, *, shows_run: bool) -> int:
    if settings.no_color:
        os.environ["NO_COLOR"] = "1"
    from gputui.session import Session
    from gputui.ui import Options, run_app

    look = Options(
        theme=settings.theme,
        ascii=settings.ascii,
        shows_run=shows_run,
        readonly=settings.readonly,
    )
    return run_app(connect, Session(), look)


def _replay(options: argparse.Namespace, settings: Settings) -> int:
    start_s = _seconds(options.start, "--start") if options.start else 0.0
    path = str(Path(__file__).with_name("demo.gputui")) if options.demo else options.replay
    from gputui.playback import MAXIMUM_SPEED, MINIMUM_SPEED, Playback

    speed = options.speed if options.speed is not None else 1.0
    if not MINIMUM_SPEED <= speed <= MAXIMUM_SPEED:
        raise _UsageError(f"--speed {speed:g}: give {MINIMUM_SPEED:g} to {MAXIMUM_SPEED:g}")
    _need_terminal()
    if path == "-":
        if sys.stdin.isatty():
            raise _UsageError("--replay - shows a recording that is piped in, and nothing is")
        try:
            read_keys_from_terminal()
        except OSError:
            raise _UsageError("the screen needs a terminal to read keys from") from None

    def connect(notify: Callable[[], None]) -> Source:
        return Playback.open(path, notify, speed=speed, start_s=start_s, follow=options.follow)

    return _run_app(connect, settings, shows_run=True)


def _need_terminal() -> None:
    if not sys.stdout.isatty():
        raise _UsageError("the screen needs a terminal; use --record or --once without one")


def _once(options: argparse.Namespace, settings: Settings) -> int:
    from gputui.once import print_once, watch

    if options.watch:
        return watch(options.only, settings.interval, as_json=options.json)
    print_once(options.only, as_json=options.json)
    return 0


def _print_json(document: object) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


# --- subcommands -------------------------------------------------------------------------------


def _workloads(arguments: list[str]) -> int:
    parser = _Parser(prog="gputui workloads", description="The workloads there are.")
    parser.add_argument("name", nargs="?", help="show this one's parameters")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    import msgspec

    from gputui.sources.catalogue import load_catalogue, workload_text

    catalogue = load_catalogue()
    if options.name:
        workload = catalogue.find(options.name)
        if options.json:
            _print_json({"schema": catalogue.schema, **msgspec.to_builtins(workload)})
        else:
            print(workload_text(workload), end="")
        return 0
    if options.json:
        _print_json(catalogue)
        return 0
    width = max((len(workload.name) for workload in catalogue.workloads), default=0)
    for workload in catalogue.workloads:
        print(f"{workload.name:<{width}}  {workload.summary}")
    for broken in catalogue.broken:
        say(f"{broken.name} cannot be run: {broken.error}")
    return 0


_FILE_HELP = (
    "a recording, an SQLite export of nsys, or CSV tables of nsys stats (a folder, or what their "
    "names begin with); - reads a recording on standard input"
)


def _load_run(name: str) -> tuple[Session, Run]:
    """The folded session of a recording and its newest run; damage is told on stderr."""
    from gputui.journal import JournalError
    from gputui.session import Session
    from gputui.sources.recordings import open_recording

    reader = open_recording(name)
    session = Session()
    session.apply(reader)
    if reader.damage:
        say(f"{reader.damage}")
    if reader.skipped:
        say(f"{name}: {reader.skipped} events of kinds this version does not know were left out")
    if session.run is None:
        raise JournalError(f"{name}: no run was recorded, so there is nothing to sum up")
    return session, session.run


def _summary(arguments: list[str]) -> int:
    parser = _Parser(prog="gputui summary", description="What a recorded run did.")
    parser.add_argument("file", help=_FILE_HELP)
    parser.add_argument("--table", metavar="NAME", help="one table alone")
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "md"), default="table", help="default: table"
    )
    options = parser.parse_args(arguments)
    from gputui.export.errors import ExportError
    from gputui.export.write import export_text, summary_text, table_text

    session, run = _load_run(options.file)
    try:
        if options.table:
            text = table_text(session, run, options.table, options.format, columns(sys.stdout))
        elif options.format == "table":
            text = summary_text(session, run, columns(sys.stdout))
        else:
            text = export_text(session, run, options.format)
    except ExportError as error:
        raise _UsageError(str(error)) from None
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _export(arguments: list[str]) -> int:
    parser = _Parser(prog="gputui export", description="Write a recorded run for another tool.")
    parser.add_argument("file", help=_FILE_HELP)
    parser.add_argument("--format", required=True, choices=(*_TEXT_FORMATS, *_FILE_FORMATS))
    parser.add_argument("-o", "--output", metavar="OUT", default="-", help="default: stdout")
    options = parser.parse_args(arguments)
    if options.output != "-" and _is_same_file(options.file, options.output):
        raise _UsageError(f"-o {options.output}: that is the file to read; choose another name")
    if options.format in _FILE_FORMATS:
        if options.output == "-":
            raise _UsageError(f"--format {options.format} needs a file: give -o OUT")
        written = _export_files(options.file, options.format, Path(options.output))
        for path in written:
            say(f"wrote {path}")
        return 0
    from gputui.export.write import export_text, write

    session, run = _load_run(options.file)
    if options.output == "-":
        sys.stdout.write(export_text(session, run, options.format))
        sys.stdout.flush()
    else:
        write(session, run, options.format, Path(options.output))
        say(f"wrote {options.output}")
    return 0


def _is_same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


_TEXT_FORMATS = ("csv", "json", "md", "html", "openmetrics")
_FILE_FORMATS = ("chrome", "nsys", "parquet")


def _export_files(name: str, format_name: str, out: Path) -> list[Path]:
    if format_name == "parquet":
        from gputui.events import MachineSample
        from gputui.export.parquet import write_parquet
        from gputui.export.write import tables_with_rows
        from gputui.sources.recordings import open_recording

        session, run = _load_run(name)
        samples = (event for event in open_recording(name) if isinstance(event, MachineSample))
        write_parquet(out, tables_with_rows(session, run), samples)
        return [out]
    from gputui.export.traces import open_traced, write_trace

    with open_traced(name) as traced:
        if traced.trace.dropped:
            say(
                f"{traced.trace.path.name} is full: the oldest {traced.trace.dropped} "
                "records were dropped"
            )
        return write_trace(traced, format_name, out)


def _compare(arguments: list[str]) -> int:
    parser = _Parser(
        prog="gputui compare",
        description="What differs between runs, and whether it exceeds the spread between steps.",
    )
    parser.add_argument("baseline", metavar="FILE", help=_FILE_HELP)
    parser.add_argument("others", metavar="FILE", nargs="+", help="compared with the first")
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "md"), default="table", help="default: table"
    )
    parser.add_argument(
        "--fail-if", dest="conditions", metavar="CONDITION", action="append", default=[],
        help="exit 1 where this holds, as 'decode.gpu_busy_ns>+5%%'; may be repeated",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from gputui.analysis.compare import Subject, compare
    from gputui.analysis.gate import Condition, GateError
    from gputui.export.comparison import comparison_text

    try:
        conditions = [Condition.parse(text) for text in options.conditions]
        names = [options.baseline, *options.others]
        comparison = compare([Subject(name, *_load_run(name)) for name in names])
        tripped = [line for condition in conditions for line in condition.tripped(comparison)]
    except GateError as error:
        raise _UsageError(f"--fail-if {error}") from None
    sys.stdout.write(comparison_text(comparison, options.format, columns(sys.stdout)))
    sys.stdout.flush()
    for line in tripped:
        say(f"{line}")
    return 1 if tripped else 0


def _doctor(arguments: list[str]) -> int:
    parser = _Parser(prog="gputui doctor", description="What works on this machine, and the mend.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    from gputui.doctor import document, examine, text

    checks = examine()
    if options.json:
        _print_json(document(checks))
    else:
        sys.stdout.write(text(checks))
        sys.stdout.flush()
    return 0


_SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "workloads": _workloads,
    "summary": _summary,
    "export": _export,
    "compare": _compare,
    "doctor": _doctor,
}
