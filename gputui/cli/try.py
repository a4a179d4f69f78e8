"""`gputui try`: cures that answer a program's findings, tried on it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base import FAILED, GputuiError
from gputui.base.sanitize import sanitize
from gputui.base.standard_streams import columns, draw, say
from gputui.cli.declaration import UsageError
from gputui.model import units

if TYPE_CHECKING:
    from gputui.trial.planning import Candidate, Diagnosis

DIAGNOSIS = 0.3
"""Part of the budget that finding out what is slow takes, unless the program is long in loading."""

LEAST_FOR_TRIALS = 0.4
"""Part of the budget that is left for trials, however long that took."""

FREED_S = 5.0
"""How long the driver may take to free what a program had that has ended."""

MOST_SCRATCH_BYTES = 2 << 30
MOST_SCRATCH_FILES = 100_000


class RefusedError(GputuiError):
    """Nothing was tried, and why. One line."""


def run_try(options: argparse.Namespace) -> int:
    """Tries what was asked for and prints the answer; returns the exit status: 0 if the trials went
    through, whatever they found. Raises UsageError, RefusedError, PlanError and JournalError."""
    if options.list:
        _print_list(options)
        return 0
    if options.calibration:
        _print_calibration(options.json)
        return 0
    command = options.command_line
    if not command:
        raise UsageError("nothing to try cures on: give -- CMD ARG ..., or --list")
    if options.readonly:
        raise UsageError(f"{options.set_by['readonly']} starts nothing: nothing can be tried")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RefusedError("nothing was run: this folder was deleted") from None
    from gputui.collect.child import refusal
    from gputui.trial.planning import named

    if (refused := refusal(command[0])) is not None:
        say(refused[1])
        return refused[0]
    # Wrong names are said before anything runs.
    options.cure = [name.strip() for words in options.cure for name in words.strip(" ,").split(",")]
    named(options.cure, ())
    recorded = _recorded(options) if options.recording else None
    _check_room(options)
    if not options.yes:
        _ask(options, command)
    from gputui.trial.runs import Ended, compiled_once, ended_by_signals, trackers_off

    tracking = nullcontext() if options.with_tracking else trackers_off()
    try:
        with (
            ended_by_signals(), tracking, compiled_once() as reuse_in_steps,
            _scratch(options, command) as folder,
        ):  # fmt: skip
            return _try(options, command, folder, reuse_in_steps, recorded)
    except Ended:
        say("ended by a signal: all that was started has ended")
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        say("stopped: all that was started has ended")
        return 128 + signal.SIGINT


def _try(
    options: argparse.Namespace,
    command: Sequence[str],
    folder: Path | None,
    reuse_in_steps: Callable[[], object],
    recorded: Diagnosis | None,
) -> int:
    from gputui.base import JournalError
    from gputui.store import trial_path
    from gputui.trial.calibration import keep_forecasts
    from gputui.trial.outcome import answer_lines, encode, write_beside
    from gputui.trial.planning import COMPILES, named, plan
    from gputui.trial.program_runs import Request
    from gputui.trial.trials import Trials

    began_s = time.monotonic()
    progress = _Progress(options.budget)
    diagnosis = recorded or _diagnosis(options, command, folder, progress)
    if diagnosis.has_crashed and not options.recording:
        progress.tell(f"once more: {diagnosis.failure}")
        diagnosis = _diagnosis(options, command, folder, progress)
    if diagnosis.has_crashed and not options.recording:
        progress.tell(f"without findings: {diagnosis.failure} under capture, twice")
        said = f"Tried without findings: under capture {diagnosis.failure}, twice."
        diagnosis = diagnosis._replace(findings=(), word="", headline=said, failure="")
    spent_s = time.monotonic() - began_s
    if diagnosis.failure:
        for line in diagnosis.last_lines:
            say(f"it said: {sanitize(line, 300)}")
        raise RefusedError(f"the program fails as it is: {diagnosis.failure}")
    if diagnosis.nothing_seen and not diagnosis.has_crashed and not options.recording:
        longer = "" if diagnosis.has_ended else "; give a longer --budget if it loads longer"
        raise RefusedError(
            f"the program neither used a GPU nor made a step that is known "
            f"{'to its end' if diagnosis.has_ended else f'in {spent_s:.0f} s'}: "
            f"nothing can be timed{longer}"
        )
    _check_memory(diagnosis.memory_bytes)
    candidates = named(options.cure, diagnosis.findings)
    is_of_compiling = any(each.cause == COMPILES for each in diagnosis.findings)
    is_of_compiling |= any(each.is_of_pauses for each in candidates)
    if not is_of_compiling:
        reuse_in_steps()
    if not candidates:
        candidates = plan(
            diagnosis.findings,
            diagnosis.functions,
            library=diagnosis.library,
            everything=options.all,
        )
    trials = Trials(
        Request(
            tuple(command),
            tuple(candidates),
            diagnosis,
            max(options.budget - spent_s, LEAST_FOR_TRIALS * options.budget),
            options.seed,
            folder,
            progress.tell,
            progress.pass_on,
        )
    )
    outcome = trials.run()
    draw("")
    if options.json:
        sys.stdout.write(encode(outcome))
    else:
        print("\n".join(answer_lines(outcome, columns(sys.stdout))))
    sys.stdout.flush()
    try:
        keep_forecasts(outcome)
        if diagnosis.recording is not None:
            path = trial_path(diagnosis.recording)
            write_beside(outcome, path)
            say(f"kept in {path}")
    except (GputuiError, JournalError) as error:
        say(str(error))
    if trials.is_interrupted:
        return 128 + signal.SIGINT
    ran = any(trial.verdict != "not tried" for trial in outcome.trials)
    if ran or not outcome.remarks:
        return 0
    if options.json:
        say(outcome.remarks[0])  # the answer has it
    return FAILED


def _diagnosis(
    options: argparse.Namespace, command: Sequence[str], folder: Path | None, progress: _Progress
) -> Diagnosis:
    from gputui.trial.planning import Diagnosis, diagnose

    if options.cure:
        return Diagnosis((), "", "", None, 0)
    progress.tell("under capture: what is slow")
    return diagnose(command, DIAGNOSIS * options.budget, progress.pass_on, folder)


def _recorded(options: argparse.Namespace) -> Diagnosis:
    from gputui.cli.recordings import load_run
    from gputui.trial.planning import diagnosis_of

    loaded = load_run(options.recording, options.run)
    place = Path(options.recording)
    return diagnosis_of(loaded.session, loaded.run, place if place.is_file() else None)


def _check_room(options: argparse.Namespace) -> None:
    """Raises RefusedError where another program computes on a GPU that this one may use."""
    if options.shared:
        return
    from gputui.collect.live import read_once
    from gputui.state import Session

    session = Session.from_events(read_once())
    others = [process for process in session.processes if "C" in (process.kind or "")]
    if others:
        first = others[0]
        what = sanitize(first.command or f"process {first.pid}", 60)
        raise RefusedError(
            f"GPU {first.gpu} is in use by {what} (PID {first.pid}): times would be wrong, and it "
            "would be slowed; wait, choose another GPU by CUDA_VISIBLE_DEVICES, or give --shared"
        )


def _check_memory(needed_bytes: int) -> None:
    """Raises RefusedError where no GPU has as much free as the program has had of one, FREED_S
    after it ended here."""
    until_s = time.monotonic() + FREED_S
    while (free := _free_bytes()) and needed_bytes > max(free):
        if time.monotonic() > until_s:
            raise RefusedError(
                f"the program had {units.size(needed_bytes)} of a GPU's memory, and "
                f"{units.size(max(free))} are free: end what holds the rest, or take a larger GPU"
            )
        time.sleep(FREED_S / 10)


def _free_bytes() -> list[int]:
    """The free memory of each GPU whose driver gives it."""
    from gputui.collect.live import read_once
    from gputui.state import Session

    samples = [gpu.sample for gpu in Session.from_events(read_once()).gpus.values()]
    return [
        each.memory_total_bytes - each.memory_used_bytes
        for each in samples
        if each and each.memory_total_bytes is not None and each.memory_used_bytes is not None
    ]


def _ask(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Raises RefusedError unless a person says yes."""
    where = "a copy of this folder" if options.scratch else os.getcwd()
    writes = ", absolute paths not into the copy" if options.scratch else ": outputs, checkpoints"
    runs = "run" if (most := _most_runs(options)) == 1 else "runs"
    off = "off (W&B, MLflow, Comet, TensorBoard, the hub)"
    tracking = "as they are" if options.with_tracking else off
    print(
        f"gputui try runs  {sanitize(shlex.join(command), 300)}\n"
        f"  in             {sanitize(where, 300)}\n"
        f"  up to          {most} {runs} in {_in_words(options.budget)}, "
        "each ended by SIGTERM once it is measured\n"
        f"  writes         what it writes whenever it runs{writes}\n"
        f"  trackers       {tracking}\n"
        "  changes        nothing in your files; where results are made wrong, to measure\n"
        "                 a cause, nothing is saved",
        file=sys.stderr,
    )  # fmt: skip
    if not sys.stdin.isatty():
        raise RefusedError("nothing was run: standard input is no terminal to ask at; give --yes")
    sys.stderr.write("Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was run")


def _most_runs(options: argparse.Namespace) -> int:
    from gputui.cures import cures
    from gputui.trial.runs import MEASURED_S

    most, budget_s = 4 + 2 * len(options.cure), float(options.budget)
    if not options.cure:
        most = 6 + 2 * sum(not cure.in_one_run for cure in cures().values())
    return max(1, min(most, round(budget_s / MEASURED_S)))


@contextmanager
def _scratch(options: argparse.Namespace, command: Sequence[str]) -> Iterator[Path | None]:
    """A copy of the folder with `--scratch`, which goes afterwards; else None. Raises
    RefusedError where that is too large, or a file of it cannot be read."""
    if not options.scratch:
        yield None
        return
    size, files = 0, 0
    for root, _, names in os.walk("."):
        files += len(names)
        size += sum(
            os.lstat(os.path.join(root, name)).st_size
            for name in names
            if os.path.lexists(os.path.join(root, name))
        )
        if size > MOST_SCRATCH_BYTES or files > MOST_SCRATCH_FILES:
            raise RefusedError(
                f"--scratch: this folder has more than {units.size(MOST_SCRATCH_BYTES)} or "
                f"{MOST_SCRATCH_FILES:,} files to copy: run it in a smaller one"
            )
    with tempfile.TemporaryDirectory(prefix="gputui-try-") as place:
        copy = Path(place, os.path.basename(os.getcwd()) or "folder")
        try:
            shutil.copytree(".", copy, symlinks=True, ignore=_special)
        except shutil.Error as error:
            name, _, why = error.args[0][0]
            raise RefusedError(
                f"--scratch: {sanitize(name, 200)} cannot be copied: {why}"
            ) from None
        say(f"in a copy of this folder: absolute paths{_absolute(command)} escape it")
        yield copy


def _special(folder: str, names: list[str]) -> list[str]:
    """What is no file to copy: sockets, pipes, devices."""
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if not any(kind(mode) for kind in kinds)]


def _absolute(command: Sequence[str]) -> str:
    """Those of the command's words that lead into the folder which is copied."""
    here = os.path.join(os.getcwd(), "")
    words = [word for word in command[1:] if here in word]
    return sanitize(f", such as {shlex.join(words)},", 300) if words else ""


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.3g} min"


class _Progress:
    """What goes on, on stderr: on a terminal in one line, with the time; else a line for each of
    what is told."""

    def __init__(self, budget_s: float) -> None:
        self._budget = _in_words(budget_s)
        self._began_s = time.monotonic()
        self._text = self._drawn = ""

    def tell(self, text: str) -> None:
        """What begins now, or is proven, which stays on the terminal."""
        if sys.stderr.isatty() and not text.startswith("proven: "):
            self.pass_on(text)
        else:
            say(f"{text} ({time.monotonic() - self._began_s:.0f} s)")

    def pass_on(self, text: str = "") -> None:
        """What is seen so far, for a terminal alone; without a text the time goes on."""
        if sys.stderr.isatty():
            self._text = text or self._text
            seconds = time.monotonic() - self._began_s
            line = f"● {seconds:.0f} s of {self._budget} · {self._text} · Ctrl-C ends"
            if line != self._drawn:
                draw(sanitize(line, (columns(sys.stderr) or 80) - 1))
            self._drawn = line


def _print_list(options: argparse.Namespace) -> None:
    """All cures, or with a recording those that would be tried, in their order."""
    import msgspec

    from gputui.cures import NOT_FROM_OUTSIDE, cures
    from gputui.render.text_tables import to_json, to_text
    from gputui.report.schema import Column, Table, text
    from gputui.trial.planning import CLASS_WORDS, Candidate, plan

    listed: tuple[Column[Candidate], ...] = (
        text("Cure", "cure", lambda each: each.name, "Its name", flexible=False),
        text("Class", "result", lambda each: each.cure.result, "What it leaves of results",
             flexible=False),
        text("Tried", "way", lambda each: "in one run" if each.cure.in_one_run else "a run each",
             "How", flexible=False, priority=2),
        text("Answers", "answers", lambda each: ", ".join(each.cure.answers), "Keys of findings",
             priority=3),
        text("Does", "title", lambda each: each.cure.title, "What it does"),
        text("Write", "change", lambda each: each.cure.change, "What to write", priority=1),
    )  # fmt: skip
    rows = [
        Candidate(f"{name}@{cure.argument}" if cure.argument else name, cure)
        for name, cure in cures().items()
    ]
    note = "; ".join(f"{name}: {words}" for name, words in CLASS_WORDS.items())
    note += ". Only advised: " + "; ".join(f"{n}: {w}" for n, w in NOT_FROM_OUTSIDE.items())
    if options.recording:
        diagnosis = _recorded(options)
        rows = plan(
            diagnosis.findings,
            diagnosis.functions,
            library=diagnosis.library,
            everything=options.all,
        )
        shown = rows
        if not (options.all or options.json):
            # What a person looks for would scroll out of sight.
            shown = [each for each in rows if each.forecast] or [e for e in rows if e.finding]
        others = len(rows) - len(shown)
        rows = shown
        note = f"{diagnosis.word}: {diagnosis.headline} In this order, as far as --budget allows"
        note += f"; then {others} that nothing is promised of: --all." if others else "."
        listed = (
            listed[0],
            msgspec.structs.replace(listed[1], priority=1),
            listed[2],
            text("For", "cause", lambda each: each.finding.cause if each.finding else "",
                 "The finding; none: looked for in every program", flexible=False, priority=1),
            text("Forecast", "forecast", _promised, "What the finding promises of it",
                 flexible=False),
            *listed[4:],
        )  # fmt: skip
    table = Table("cures", "Cures", listed, rows, note)
    wide = columns(sys.stdout)
    sys.stdout.write(to_json(table) if options.json else to_text(table, wide, folds=True))


def _promised(candidate: Candidate) -> str:
    gain = candidate.forecast
    return f"{gain.low:.2g} to {gain.high:.2g}×" if gain is not None else ""


def _print_calibration(as_json: bool) -> None:
    from gputui.render.text_tables import to_json, to_text
    from gputui.trial.calibration import calibration_table

    table = calibration_table()
    sys.stdout.write(to_json(table) if as_json else to_text(table, columns(sys.stdout)))
