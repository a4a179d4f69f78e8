"""The first run: under capture, until the verdict holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.collect.live import Live, LiveOptions
from gputui.collect.traced_run import RunRequest
from gputui.model import units
from gputui.report.explain import Analysis, Finding, conclusion, findings
from gputui.state import Run, Session
from gputui.store.journal import JournalWriter, default_path, make_folder
from gputui.trial.runs import in_folder

LOOK_S = 1.0
"""Between two looks at the verdict."""

STEADY_S = 6.0
"""A verdict holds where it was the same for so long of steady steps."""


class Diagnosis(NamedTuple):
    """What a run is slow for."""

    findings: tuple[Finding, ...]
    word: str
    headline: str
    recording: Path | None
    steps: int
    failure: str = ""
    """Why the program ended, where it failed."""


def of_session(session: Session, run: Run | None, recording: Path | None) -> Diagnosis:
    """What was recorded of a run."""
    if run is None:
        return Diagnosis((), "", "no run was recorded", recording, 0)
    analysis = Analysis(session, run)
    answer = conclusion(analysis)
    every = findings(analysis)
    steps = analysis.tree.program_steps if analysis.tree is not None else 0
    ended = run.ended
    failed = ended is not None and not ended.stopped and (ended.signal or ended.exit_code)
    failure = ended.reason if ended is not None and failed else ""
    if answer is None:
        return Diagnosis(tuple(every), "", "nothing ran on a GPU", recording, steps, failure)
    named = {finding.cause for finding in answer.findings}
    both = (*answer.findings, *(finding for finding in every if finding.cause not in named))
    return Diagnosis(both, answer.word, answer.headline, recording, steps, failure)


def diagnose(
    command: Sequence[str],
    limit_s: float,
    tell: Callable[[str], None] = lambda _: None,
    folder: Path | None = None,
) -> Diagnosis:
    """Run the command in `folder`, or here, under capture until its verdict holds, it ends, or
    `limit_s` is over; then end it. Its recording lies with all others. Raises JournalError."""
    path = default_path(RunRequest.of_command(command).name, time.time())
    make_folder(path.parent)
    session = Session()
    arguments = ("gputui", "try", "--", *command)
    live = Live(lambda: None, JournalWriter(path), LiveOptions(arguments=arguments))
    live.start()
    try:
        live.start_run(RunRequest.of_command(in_folder(command, folder)))
        _watch(live, session, limit_s, tell)
    finally:
        live.close()
    session.apply(live.hub.drain())
    return of_session(session, session.run, path)


def _watch(live: Live, session: Session, limit_s: float, tell: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    causes: list[str] = []
    since_s: float | None = None
    while live.has_run and time.monotonic() - began_s < limit_s:
        time.sleep(LOOK_S)
        session.apply(live.hub.drain())
        run = session.run
        if run is None:
            continue
        analysis = Analysis(session, run)
        tree, answer = analysis.tree, conclusion(analysis)
        if tree is None or answer is None or not tree.has_steps:
            continue
        tell(f"{answer.word}, {units.duration(tree.step_ns.median)} a step")
        causes.append(answer.findings[0].cause if answer.findings else "")
        if len(causes) > 1 and causes[-1] != causes[-2]:
            since_s = None
        since_s = since_s or time.monotonic()
        if time.monotonic() - since_s >= STEADY_S:
            return
