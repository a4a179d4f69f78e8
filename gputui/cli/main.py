"""The main modes: which one the arguments select, and which exclude each other."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gputui import __version__
from gputui.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from gputui.cli.settings import Settings

_USAGE = """\
gputui [--workload NAME [-p KEY=VALUE ...] | -- CMD ARG ...]
       gputui --record [-o FILE|-] [--duration 30s] [--workload NAME ... | -- CMD ...]
       gputui --replay FILE|- [--speed X] [--start T]   |   gputui --demo
       gputui --once [--json] [--watch [-i SEC]]
       gputui workloads [NAME] [--json]   |   gputui doctor [--json]
       gputui summary FILE [--run N] [--table NAME] [--domain NAME] [--format table|json|csv|md]
       gputui export FILE [--run N] --format FORMAT [-o OUT]
       gputui compare FILE FILE ... [--run N] [--format ...] [--fail-if CONDITION]"""


def _main_parser() -> Parser:
    parser = Parser(prog="gputui", usage=_USAGE, description=_DESCRIPTION, allow_abbrev=False)
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
        help="with --once: repeat every interval; with --json one document per line")  # fmt: skip
    add("-o", "--output", metavar="FILE", help="record to this file; - is standard output")
    add("--duration", metavar="TIME", help="with --record: stop after 30s, 5m, 1h")
    add("--rotate", metavar="SIZE|TIME", help="continue in a new file after 100M or 1h")
    add("--max-size", metavar="SIZE",
        help="size limit of a recording; with --rotate the oldest files go first")  # fmt: skip
    add("--prometheus", metavar="[HOST:]PORT",
        help="with --record: serve the newest figures to Prometheus")  # fmt: skip
    add("--trace", action="store_true",
        help="keep every range, call and kernel in FILE.gputui-trace")  # fmt: skip
    add("--trace-limit", metavar="SIZE", help="size limit of a trace (default 1G); oldest go first")
    add("--speed", type=float, metavar="X", help="with --replay: 0.25 to 64 times")
    add("--follow", action="store_true", help="with --replay: follow a file still being written")
    add("--start", metavar="TIME", help="with --replay: begin at 30s, 5m, 1h")
    add("-i", "--interval", type=float, metavar="SEC",
        help="seconds between samples (default 1, least 0.1)")  # fmt: skip
    add("--only", type=int, nargs="+", metavar="INDEX", help="show only these GPUs")
    add("--no-kernels", action="store_true", help="leave CUDA alone: ranges without kernels")
    add("--graph-trace", choices=("node", "graph"), default="node",
        help="CUDA graphs by kernel (default), or each launch as a whole (cheaper)")  # fmt: skip
    add(
        "--trace-steps",
        metavar="SHARE",
        help="trace kernels of some steps (1/10[:RANGE]) or some of the time (10%%, 1s/10s)",
    )
    add("--annotate", choices=("modules", "autograd"),
        help="put ranges around torch modules, or operators too")  # fmt: skip
    add("--readonly", action="store_true", default=None,
        help="disable everything that starts, stops or signals a process")  # fmt: skip
    add("--theme", metavar="NAME", help="colours of the screen")
    add("--config", type=Path, metavar="FILE", help="read settings from this file")
    add("--no-color", action="store_true", default=None, help="draw without colours")
    add("--ascii", action="store_true", default=None, help="draw only ASCII characters")
    add("-V", "--version", action="version", version=f"gputui {__version__}")
    return parser


_DESCRIPTION = (
    "See inside an LLM workload on NVIDIA GPUs, live: its phases (NVTX ranges), the kernels each "
    "launches and what they cost, beside the machine."
)


def main_mode(arguments: list[str], command: list[str] | None) -> int:
    """Run the mode selected by arguments without a subcommand; `command` is what follows `--`. The
    exit status.
    """
    parser = _main_parser()
    options = parser.parse_args(arguments)
    _check_combination(options, command)
    from gputui.cli.settings import load_settings

    names = ("interval", "theme", "readonly", "no_color", "ascii")
    flags = {name: getattr(options, name) for name in names}
    settings = load_settings(flags, os.environ, options.config)
    if options.once:
        return _once(options, settings)
    if options.replay or options.demo:
        from gputui.cli.screen import replay

        return replay(options, settings)
    from gputui.cli.live import Watch, record, screen
    from gputui.cli.requests import request_of

    watch = Watch(options, settings, request_of(options, command), arguments, command)
    return record(watch) if options.record else screen(watch)


def _once(options: argparse.Namespace, settings: Settings) -> int:
    from gputui.cli.once import print_once, watch

    if options.watch:
        return watch(options.only, settings.interval, as_json=options.json)
    print_once(options.only, as_json=options.json)
    return 0


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
        raise UsageError(f"{modes[0]} and {modes[1]} exclude each other")
    if options.workload and command:
        raise UsageError("give --workload or a command after --, not both")
    runs = options.workload or command
    if runs and modes and modes != ["--record"]:
        raise UsageError(f"{modes[0]} does not run anything")
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
            raise UsageError(f"{flag} needs {needs}")
    if options.readonly and runs:
        raise UsageError("--readonly starts nothing: leave out the workload or the command")
