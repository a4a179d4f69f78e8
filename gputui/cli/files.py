"""The subcommands that show what recordings hold: summary, compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gputui.base.standard_streams import columns, say
from gputui.cli.parsing import Parser, UsageError
from gputui.cli.reading import FILE_HELP, add_run, load_run, one_recording, recordings
from gputui.render import formats

if TYPE_CHECKING:
    from gputui.playback.loading import Loaded


def summary(arguments: list[str]) -> int:
    """`gputui summary`; the exit status."""
    parser = Parser(prog="gputui summary", description="Summarize a recorded run.")
    parser.add_argument("file", nargs="+", help=FILE_HELP)
    parser.add_argument("--table", metavar="NAME", help="only this table")
    _add_format(parser, [known.key for known in formats.every() if known.text and known.table])
    parser.add_argument(
        "--domain", dest="domains", metavar="NAME", action="append", default=[],
        help="only the ranges of this NVTX domain ('default': the unnamed one); "
        "may be repeated",
    )  # fmt: skip
    add_run(parser)
    options = parser.parse_args(arguments)
    from gputui.render.summary import one_table
    from gputui.render.trace_tables import EVENT_TABLES
    from gputui.report.domains import domains_of, of_domains

    if options.table in EVENT_TABLES:
        if options.domains:
            raise UsageError(f"--domain: {options.table} has no ranges")
        _write_events(one_recording(options.file), options)
        return 0
    loaded = load_run(one_recording(options.file), options.run)
    session, run = loaded.session, loaded.run
    known = domains_of(run) if run else ()
    for name in options.domains:
        if name.lower() not in map(str.lower, known):
            there = ", ".join(known) or "none"
            raise UsageError(f"--domain: no ranges of {name!r} here; available: {there}")
    if run and options.domains:
        run = of_domains(run, options.domains)
    if options.table:
        table = one_table(session, run, options.table)
        text = formats.one_table(table, options.format, columns(sys.stdout))
        if table.note and options.format == "csv":
            say(f"{table.name}: {table.note}")  # CSV has no place for it
    else:
        text = formats.summary(session, run, options.format, columns(sys.stdout))
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _add_format(parser: Parser, keys: list[str]) -> None:
    default = "table"
    keys.sort(key=lambda key: key != default)
    parser.add_argument("--format", choices=keys, default=default, help=f"default: {default}")


def _write_events(file: str, options: argparse.Namespace) -> None:
    from gputui.render.trace_tables import all_events, event_table
    from gputui.render.traces import open_traced

    write_rows = formats.find(options.format).rows
    with open_traced(file, options.run) as traced:
        for remark in traced.remarks:
            say(remark)
        if write_rows:
            write_rows(*all_events(traced, options.table), sys.stdout)
        else:
            table = event_table(traced, options.table)
            sys.stdout.write(formats.one_table(table, options.format, columns(sys.stdout)))
        sys.stdout.flush()


_CONDITIONS = """\
conditions: WHAT.FIGURE, or a metric's name; > or <; a limit
  'decode.gpu_busy_ns>+5%'       grew by more than 5 % over the first run
  'tokens_per_s<-3%'             shrank by more than 3 %
  'decode.cpu_avg_ns>+200000'    grew by more than 200 µs: + or - without %
  'gpu0.temperature_celsius>80'  is over 80, whatever it was: no sign
WHAT is a phase's path (warmup/step) or its last part where that is the only one,
a kernel's name or short name, or gpu0, gpu1, ...; `--format json` lists every
figure. What the baseline has and a run has not fails its condition. Exit status:
0 nothing failed, 1 a condition holds, 2 a condition cannot be understood."""


def compare(arguments: list[str]) -> int:
    """`gputui compare`; the exit status."""
    parser = Parser(
        prog="gputui compare",
        description="Compare runs, and show which differences exceed the spread between steps.",
        epilog=_CONDITIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("baseline", metavar="FILE", help=FILE_HELP)
    parser.add_argument("others", metavar="FILE", nargs="+", help="compared with the first")
    _add_format(parser, [known.key for known in formats.every() if known.comparison])
    parser.add_argument(
        "--fail-if", dest="conditions", metavar="CONDITION", action="append", default=[],
        help="exit with 1 if this holds for any run after the first; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--run", dest="runs", type=int, metavar="N", action="append", default=[],
        help="the run to compare (default: the newest); once for all files, or once per file",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    files = [options.baseline, *options.others]
    names = recordings(files)
    if len(names) == 1:
        told = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
        raise UsageError(f"{told} are files of one recording: name another to compare it with")
    if names.count("-") > 1:
        raise UsageError("- is standard input, which can be read once: give one FILE as - at most")
    runs = options.runs * len(names) if len(options.runs) == 1 else options.runs
    if runs and len(runs) != len(names):
        raise UsageError(f"--run: give one, or one a recording: {len(names)}")
    from gputui.report.compare import Subject
    from gputui.report.compare import compare as compared
    from gputui.report.gate import Condition

    conditions = [Condition.parse(text) for text in options.conditions]
    comparison = compared(
        [
            Subject(label, loaded.session, loaded.run)
            for label, loaded in _loaded(names, runs or [None] * len(names))
        ]
    )
    tripped = [line for condition in conditions for line in condition.tripped(comparison)]
    sys.stdout.write(formats.comparison(comparison, options.format, columns(sys.stdout)))
    sys.stdout.flush()
    for line in tripped:
        say(f"{line}")
    return 1 if tripped else 0


def _loaded(names: list[str], runs: list[int | None]) -> Iterator[tuple[str, Loaded]]:
    """Each file's run and its title, with the run's number if a file is named twice."""
    for name, number in zip(names, runs, strict=True):
        loaded = load_run(name, number)
        run = loaded.run
        yield f"{name} #{run.started.run}" if run and names.count(name) > 1 else name, loaded
