"""`gputui compare`: what differs between runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gputui.base.errors import FAILED
from gputui.base.standard_streams import columns, say
from gputui.cli.declaration import UsageError
from gputui.cli.summary import load_run, recordings
from gputui.render import formats

if TYPE_CHECKING:
    from gputui.playback.opening import Loaded


def run(options: argparse.Namespace) -> int:
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
    from gputui.report.comparable import Subject
    from gputui.report.compare import NOT_COMPARABLE, Condition, NotComparableError
    from gputui.report.compare import compare as compared

    conditions = [Condition.parse(text) for text in options.fail_if]
    comparison = compared(
        [
            Subject(label, loaded.session, loaded.run)
            for label, loaded in _loaded(names, runs or [None] * len(names), options.raw_names)
        ]
    )
    tripped: list[str] = []
    incomparable: list[str] = []
    for condition in conditions:
        try:
            tripped += condition.tripped(comparison)
        except NotComparableError as error:
            incomparable.append(str(error))
    sys.stdout.write(formats.comparison(comparison, options.format, columns(sys.stdout)))
    sys.stdout.flush()
    for line in (*tripped, *incomparable):
        say(line)
    return FAILED if tripped else NOT_COMPARABLE if incomparable else 0


def _loaded(
    names: list[str], runs: list[int | None], raw_names: bool
) -> Iterator[tuple[str, Loaded]]:
    """Each file's run and its title, with the run's number if a file is named twice."""
    for name, number in zip(names, runs, strict=True):
        loaded = load_run(name, number, raw_names=raw_names)
        run = loaded.run
        yield f"{name} #{run.started.run}" if run and names.count(name) > 1 else name, loaded
