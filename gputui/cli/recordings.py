"""What recordings give: `gputui summary` and `export` of a run, `gputui compare` of several."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base import FAILED
from gputui.base.standard_streams import columns, say
from gputui.cli.declaration import UsageError
from gputui.render import formats

if TYPE_CHECKING:
    from gputui.playback.opening import Loaded
    from gputui.state import Run


def run_summary(options: argparse.Namespace) -> int:
    """Print the answer, a table or everything; return the exit status: 1 if a condition of
    `--fail-if` holds. Raises UsageError, ExportError, JournalError and ThresholdError."""
    from gputui.render.summary import answer_text, is_event_table, one_table
    from gputui.report.answer import Line
    from gputui.report.tables.phases import domains_of, of_domains

    if events := [*filter(is_event_table, options.table)]:
        for name in ("domain", "phase"):
            if getattr(options, name):
                raise UsageError(f"--{name}: {events[0]} has no ranges")
        if len(options.table) > 1:
            raise UsageError(f"--table {events[0]}: a table of single events is printed by itself")
        _write_events(one_recording(options.file), options)
        return 0
    needs_all = options.domain or options.phase or options.fail_if
    loaded = load_run(
        one_recording(options.file),
        options.run,
        raw_names=options.raw_names,
        tables=() if needs_all else options.table,
    )
    session, recorded = loaded.session, loaded.run
    domains = domains_of(recorded) if recorded else ()
    for name in options.domain:
        if name.lower() not in map(str.lower, domains):
            there = ", ".join(domains) or "none"
            raise UsageError(f"--domain: no ranges of {name!r} here; available: {there}")
    if recorded and options.domain:
        recorded = of_domains(recorded, options.domain)
    if options.phase:
        recorded = _of_phase(options, recorded)
    if options.table:
        tables = [one_table(session, recorded, name) for name in options.table]
        text = formats.tables(tables, options.format, columns(sys.stdout))
        table = tables[0]
        if table.note and options.format == "csv" and len(tables) == 1:
            say(f"{table.name}: {table.note}")  # CSV has no place for it
    elif options.format == "table" and not options.full:
        number = [] if options.run is None else ["--run", str(options.run)]
        words = [*options.file, *number]
        named = shlex.join(words)
        more = [
            Line("try cures", f"gputui try {named} -- COMMAND", 7),
            Line("tables", f"gputui summary {named} --full", 7),
        ]
        if len(options.file) > 1:
            del more[0]  # several hosts
        text = answer_text(session, recorded, columns(sys.stdout), more)
    else:
        text = formats.summary(session, recorded, options.format, columns(sys.stdout))
    lines = _tripped(options, loaded, recorded)
    sys.stdout.write(text)
    sys.stdout.flush()
    for line in lines:
        say(line)
    return 1 if lines else 0


def _of_phase(options: argparse.Namespace, run: Run | None) -> Run | None:
    """The run cut to the ranges of `--phase`. Raises UsageError for a name that no range has, and
    for a table that is not of ranges."""
    from gputui.base import did_you_mean
    from gputui.report.scope import PHASE_TABLES, of_phase, phase_names

    tables = {name.partition(":")[0] for name in options.table}
    if not tables or not tables <= {*PHASE_TABLES}:
        raise UsageError(f"--phase: needs --table with one of {', '.join(PHASE_TABLES)}")
    names = phase_names(run) if run else []
    if run is None or options.phase not in names:
        raise UsageError(
            f"--phase: there is no range {options.phase[:64]!r}"
            f"{did_you_mean(options.phase, names)}; gputui summary FILE --table phases lists them"
        )
    return of_phase(run, options.phase)


def _tripped(options: argparse.Namespace, loaded: Loaded, run: Run | None) -> list[str]:
    """The conditions that hold. Raises ThresholdError."""
    if not options.fail_if:
        return []
    from gputui.report.alerts import needs_readings
    from gputui.report.comparable import Subject
    from gputui.report.compare import Condition, compare

    parsed = [Condition.parse(text) for text in options.fail_if]
    for condition in parsed:
        if condition.relative:
            raise condition.error("a change needs two runs: gputui compare")
    subject = Subject(loaded.name, loaded.session, run)
    comparison = compare([subject, subject])
    # Of some figures no mean is kept: any reading of theirs decides.
    at_once = [condition for condition in parsed if not needs_readings(condition)]
    lines = [line for condition in at_once for line in condition.tripped(comparison)]
    lasting = [condition.text for condition in parsed if needs_readings(condition)]
    return lines + _held(lasting, one_recording(options.file), run)


def _held(conditions: list[str], name: str, run: Run | None) -> list[str]:
    """The conditions that held for as long as they say: of every reading, so that the recording is
    read once more. Raises ThresholdError."""
    from gputui.report.alerts import Alerts, alert_text, parse

    watched = [parse(text, "--fail-if") for text in conditions]
    if not watched:
        return []
    if name == "-":
        raise watched[0].error("a pipe is read once: give a file")
    from gputui.playback.opening import open_recording

    first_ns, last_ns = (0, sys.maxsize)
    if run is not None:
        first_ns, last_ns = run.started.time_ns, run.started.time_ns + run.duration_ns
    alerts = Alerts(watched)
    with closing(open_recording(name)) as recording:
        return [
            f"{name}: {alert_text(alert)}"
            for event in recording
            for alert in alerts.see((event,))
            if alert.raised and first_ns <= alert.time_ns <= last_ns
        ]


def _write_events(file: str, options: argparse.Namespace) -> None:
    from gputui.render.traces import all_events, event_table, open_traced

    write_rows = formats.find(options.format).rows
    with open_traced(file, options.run) as traced:
        for remark in traced.remarks:
            say(remark)
        if write_rows:
            write_rows(*all_events(traced, options.table[0]), sys.stdout)
        else:
            table = event_table(traced, options.table[0])
            sys.stdout.write(formats.one_table(table, options.format, columns(sys.stdout)))
        sys.stdout.flush()


# --- The arguments that name a recording, and a run in it.


def one_recording(names: list[str]) -> str:
    """The one recording named, possibly by several files if it was rotated, as a shell expands
    x*.gputui. Raises UsageError.
    """
    from gputui.store.journal.reader import first_of

    firsts = {str(first_of(Path(name))) for name in names}
    if len(firsts) > 1:
        raise UsageError(
            f"{', '.join(names[:3])} are not the files of one recording: name one "
            "(gputui compare compares several)"
        )
    return names[0] if len(names) == 1 else firsts.pop()


def recordings(names: list[str]) -> list[str]:
    """The recordings named. Files of a rotated one, as a shell expands x*.gputui, count as one; a
    file named by itself is read by itself.
    """
    from gputui.store.journal.reader import first_of, recording_files

    kept: list[str] = []
    gathered: set[Path] = set()
    for name in names:
        first = first_of(Path(name))
        named = {Path(other) for other in names if first_of(Path(other)) == first}
        # Only the headers decide: x and x.2 may also be different recordings.
        if len(named) == 1 or not named <= {*recording_files(first)}:
            kept.append(name)
        elif first not in gathered:
            gathered.add(first)
            kept.append(str(first))
    return kept


def load_run(
    name: str, number: int | None = None, *, raw_names: bool = False, tables: Sequence[str] = ()
) -> Loaded:
    """Run `number` of a file, the newest if None; remarks go to stderr. The others as in load.

    Raises JournalError.
    """
    from gputui.playback.opening import load

    loaded = load(name, number, raw_names=raw_names, tables=tables)
    for remark in loaded.remarks:
        say(remark)
    return loaded


def run_export(options: argparse.Namespace) -> int:
    """Write a recorded run in a format; return the exit status. Raises UsageError, ExportError and
    JournalError."""
    from gputui.render.summary import is_event_table

    name = one_recording(options.file)
    out = None if options.output == "-" else options.output
    if out is not None and _is_same_file(name, out):
        raise UsageError(f"-o {out}: that is the file to read; choose another name")
    if out is None and formats.find(options.format).needs_path:
        raise UsageError(f"--format {options.format} needs a file: give -o OUT")
    if options.table and is_event_table(options.table):
        raise UsageError(f"--table {options.table}: gputui summary writes single events")
    source = formats.ExportSource(
        name, options.run, raw_names=options.raw_names, table=options.table
    )
    written = formats.export(source, options.format, out)
    sys.stdout.flush()
    for remark in written.remarks:
        say(remark)
    for path in written.paths:
        say(f"wrote {path}")
    return 0


def _is_same_file(first: str, second: str) -> bool:
    try:
        # An export over the file that is being read would destroy the recording.
        return os.path.samefile(first, second)
    except OSError:
        return False


def run_compare(options: argparse.Namespace) -> int:
    """Print the comparison; return the exit status: 1 if a condition of `--fail-if` holds, 3 if
    one is of work that the runs do not have in common. Raises UsageError, JournalError and
    ThresholdError."""
    files = [options.baseline, *options.others]
    names = recordings(files)
    if len(names) == 1:
        named = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
        raise UsageError(f"{named} are files of one recording: name another to compare it with")
    if names.count("-") > 1:
        raise UsageError("- is standard input, which can be read once: give one FILE as - at most")
    runs = options.run * len(names) if len(options.run) == 1 else options.run
    if runs and len(runs) != len(names):
        raise UsageError(f"--run: give one, or one a recording: {len(names)}")
    from gputui.render.comparison import comparison_text
    from gputui.report.comparable import Subject
    from gputui.report.compare import NOT_COMPARABLE, Condition, NotComparableError
    from gputui.report.compare import compare as compared

    conditions = [Condition.parse(text) for text in options.fail_if]
    comparison = compared(
        [
            Subject(label, loaded.session, loaded.run)
            for label, loaded in _titled(names, runs or [None] * len(names), options.raw_names)
        ]
    )
    tripped: list[str] = []
    incomparable: list[str] = []
    for condition in conditions:
        try:
            tripped += condition.tripped(comparison)
        except NotComparableError as error:
            incomparable.append(str(error))
    width = columns(sys.stdout)
    if options.format == "table" and not options.full:
        numbers = [word for number in options.run for word in ("--run", str(number))]
        more = f"gputui compare {shlex.join([*files, *numbers])} --full"
        text = comparison_text(comparison, width, more)
    else:
        text = formats.comparison(comparison, options.format, width)
    sys.stdout.write(text)
    sys.stdout.flush()
    for line in (*tripped, *incomparable):
        say(line)
    return FAILED if tripped else NOT_COMPARABLE if incomparable else 0


def _titled(
    names: list[str], runs: list[int | None], raw_names: bool
) -> Iterator[tuple[str, Loaded]]:
    """Each file's run and its title, with the run's number if a file is named twice."""
    for name, number in zip(names, runs, strict=True):
        loaded = load_run(name, number, raw_names=raw_names)
        run = loaded.run
        yield f"{name} #{run.started.run}" if run and names.count(name) > 1 else name, loaded
