"""`python -m workloads`: the catalogue, or one workload run by itself.

stdout carries only the JSON document, stderr everything for people. Exit status: 0 success, 1
failure, 2 wrong usage, 128 + N ended by signal N.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TextIO

from .catalogue import SCHEMA_VERSION, catalogue, table_head
from .command_line import older_names, overview, read_arguments
from .declaration import Outcome, Value, Workload
from .errors import CannotRun, MonitorGone, Refusal
from .forecasting import refuse_early, serve
from .new import write_own
from .registry import all_workloads, find
from .report import Report, finite, report_fd, reports_only
from .stopping import die_quietly_on_signals

_FAILED = 1
_SIGNALLED = 128


def main(arguments: Sequence[str]) -> int:
    """Execute `arguments` and return the exit status."""
    die_quietly_on_signals()
    stdout = _reserve_stdout()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview(*all_workloads()), file=stdout, flush=True)
        return 0
    if list(arguments) == ["--catalogue"]:
        _print_json(catalogue(*all_workloads()), stdout)
        return 0
    if list(arguments) == ["--forecast"]:
        serve(sys.stdin, stdout)
        return 0
    try:
        if arguments[0] == "--new" and len(arguments) == 2:
            name = arguments[1]
            is_taken = any(entry.workload.name == name for entry in all_workloads()[0])
            path = write_own(name, is_taken)
            print(f"{path}: edit it, and run it: gputui --workload {name}", file=stdout)
            return 0
        is_shown = reports_only(os.environ)
        report = Report(report_fd(os.environ), sys.stderr)
    except Refusal as error:
        return _complain(str(error), error.exit_status)
    try:
        return _run_by_name(arguments[0], arguments[1:], report, stdout, is_shown=is_shown)
    except MonitorGone:
        return _FAILED


def _run_by_name(
    name: str, arguments: Sequence[str], report: Report, stdout: TextIO, *, is_shown: bool
) -> int:
    """Run a workload. Any failure becomes one line on stderr and one on the pipe."""
    try:
        workload = find(name)
        with redirect_stdout(stdout):
            given = read_arguments(workload, arguments)
        for line in older_names(workload, arguments):
            report.say(line)
        outcome = _run(workload, given, report)
        document = _document(workload, outcome)
        tables = _tables(workload, outcome)
        for table in tables:
            report.table(table)
        report.result(document)
    except Refusal as error:
        report.error(error.kind, str(error))
        return _complain(f"{name}: {error.kind}: {error}", error.exit_status)
    except MonitorGone:
        raise
    except Exception as error:
        # No workload raises this on purpose: the traceback is for whoever fixes it.
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())
        report.error("failed", line)
        return _complain(f"{name}: failed: {line}", _FAILED)
    if not is_shown:
        _print_json({**document, "tables": tables}, stdout)
    return 0 if outcome.stopped_by is None else _SIGNALLED + outcome.stopped_by


def _run(workload: Workload, given: Mapping[str, Value], report: Report) -> Outcome:
    refuse_early(workload, given)
    try:
        implementation = workload.implementation()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CannotRun("torch is not installed; pip install 'gputui[workloads]'") from error
    if not given.get("snapshot"):
        return implementation(given, report)
    from .snapshot import memory_snapshot

    with memory_snapshot(workload.name, str(given.get("device", "auto")), report):
        return implementation(given, report)


def _document(workload: Workload, outcome: Outcome) -> dict[str, object]:
    """The result as printed and reported. `complete` is False if a signal ended it early."""
    return {
        "schema": SCHEMA_VERSION,
        "workload": workload.name,
        "complete": outcome.stopped_by is None,
        "parameters": dict(outcome.parameters),
        "results": {name: finite(value) for name, value in outcome.results.items()},
        "unavailable": dict(outcome.unavailable),
    }


def _tables(workload: Workload, outcome: Outcome) -> list[dict[str, object]]:
    """The declared tables that have rows, `rows` in the order of `columns`."""
    return [
        {
            **table_head(table),
            "rows": [
                [finite(row.get(column.name)) for column in table.columns]
                for row in outcome.tables[table.name]
            ],
        }
        for table in workload.tables
        if outcome.tables.get(table.name)
    ]


def _reserve_stdout() -> TextIO:
    """The process's stdout, reserved: whatever any other code prints goes to stderr."""
    reserved = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return reserved


def _print_json(document: Mapping[str, object], stdout: TextIO) -> None:
    json.dump(document, stdout, indent=2, allow_nan=False)
    stdout.write("\n")
    stdout.flush()


def _complain(line: str, status: int) -> int:
    print(f"workloads: {line}", file=sys.stderr)
    return status


def program() -> int:
    """Run the command line; the exit status. What cannot be printed ends it without a traceback."""
    try:
        return main(sys.argv[1:])
    except BrokenPipeError:
        # The reader of stdout is gone, and there is nobody to report to.
        return _FAILED
    except OSError as error:
        return _complain(f"stdout cannot be written: {error.strerror}", _FAILED)


if __name__ == "__main__":
    sys.exit(program())
