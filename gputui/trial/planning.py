"""What is tried: the cures that answer what a run under capture is slow for, the largest forecast
first.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from gputui.base import WRONG_USAGE, GputuiError, did_you_mean
from gputui.collect.live import Live, LiveOptions
from gputui.collect.traced_run import RunRequest
from gputui.cures import ANY, BOUND, DIFFERENT, EXACT, ROUNDING, Cure, answering, cures
from gputui.cures.ablations import Skip
from gputui.model import units
from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain import Analysis, Finding, conclusion, findings
from gputui.report.explain.advice import library
from gputui.report.explain.finding import Gain
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import share_in_the_loop
from gputui.state import Run, Session
from gputui.state.run import MarkedSteps
from gputui.store import default_path, make_folder
from gputui.store.journal.writer import JournalWriter
from gputui.trial.blocks import JOINED
from gputui.trial.proof import LEAST_GAIN, NEAR
from gputui.trial.runs import LAST_LINES, in_folder

# The first run.

LOOK_S = 1.0
"""Between two looks at the verdict."""

STEADY_S, WITH_PAUSES_S, COMPILING_S = 4.0, 8.0, 20.0
"""A verdict holds where it was the same for so long of steady steps, or where they pause, or
compile: first steps tune and compile, and what is then 84 % of the time is none of it later."""

UNMARKED_S = 12.0
"""From when on a program whose steps are not known is looked at as it is."""

LATE_STEPS = 3.0
"""Steps that come no more for so many times as long as they take, and STEADY_S, are not what the
program is about."""

LOADING_S = 60.0
"""Until the first steps at most, or twice the limit, where that is shorter: models are loaded
meanwhile, and without steps there is no verdict."""


class Diagnosis(NamedTuple):
    """What a run is slow for."""

    findings: tuple[Finding, ...]
    word: str
    headline: str
    recording: Path | None
    steps: int
    failure: str = ""
    """Why the program ended, where it failed."""
    has_crashed: bool = False
    """Whether a signal ended it that libraries' faults end in, in which the capture may have a
    part."""
    functions: tuple[str, ...] = ()
    """Of the program, as FILE:FUNCTION, those that the CPU was in, or launched from, most."""
    memory_bytes: int = 0
    """The most that its processes had of one GPU together; 0 where the driver did not say."""
    last_lines: tuple[str, ...] = ()
    """The last lines that the program printed."""
    nothing_seen: bool = False
    """Whether it was captured, and neither used a GPU nor made a step."""
    has_ended: bool = False
    """Whether the program came to its own end."""
    input_share: float = 0.0
    """Of the time that the GPU waits for the next batch, pauses and all."""
    step: str = ""
    """What marked the steps, by source and name; empty where that is not known."""
    library: str | None = None
    """What made its kernels: torch, jax or cupy; None where that is not known."""


CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)

MOST_FUNCTIONS, LEAST_SHARE = 3, 0.2
"""Functions that are worth taking away, and the share of all readings that each has at least."""


def _memory_bytes(run: Run) -> int:
    own = {process.attached.pid for process in run.processes.values()}
    peaks = Counter[int]()
    for occupant in run.readings.occupants.values():
        if occupant.newest.pid in own:
            peaks[occupant.newest.gpu] += occupant.peak_memory_bytes or 0
    return max(peaks.values(), default=0)


_READ = (None, Leaf.LAUNCH, Leaf.SYNC, Leaf.ALLOCATION)


def _functions(analysis: Analysis) -> tuple[str, ...]:
    counts = Counter[str]()
    for leaf in _READ:
        for line in analysis.lines(leaf):
            counts[f"{line.file}:{line.caller}"] += line.seen
    least = LEAST_SHARE * sum(counts.values())
    return tuple(name for name, seen in counts.most_common(MOST_FUNCTIONS) if seen >= least)


def diagnosis_of(session: Session, run: Run | None, recording: Path | None) -> Diagnosis:
    """What was recorded of a run."""
    if run is None:
        return Diagnosis((), "", "no run was recorded", recording, 0)
    analysis = Analysis(session, run)
    answer = conclusion(analysis)
    every = findings(analysis)
    printed = (line.text for line in reversed(run.log) if line.stream != "gputui")
    last = tuple(islice(filter(None, map(str.strip, printed)), LAST_LINES))[::-1]
    functions = _functions(analysis)
    steps = analysis.tree.program_steps if analysis.tree is not None else 0
    ended = run.ended
    failed = ended is not None and not ended.stopped and (ended.signal or ended.exit_code)
    failure = ended.reason if ended is not None and failed else ""
    has_crashed = bool(failure) and ended is not None and ended.signal in CRASHES
    if answer is None:
        return Diagnosis(
            tuple(every), "", run.uncaptured_reason or "nothing ran on a GPU",
            recording, steps, failure, has_crashed, last_lines=last,
            nothing_seen=run.cuda_since_ns is None
            and not run.uncaptured_reason
            and not any(site.marks for site in run.marked_steps.values()),
            has_ended=ended is not None and not ended.stopped,
        )  # fmt: skip
    named = {finding.cause for finding in answer.findings}
    both = (*answer.findings, *(finding for finding in every if finding.cause not in named))
    return Diagnosis(
        both, answer.word, answer.headline, recording, steps, failure, has_crashed,
        functions if both else (), _memory_bytes(run), last,
        input_share=share_in_the_loop(analysis.tree, LEAVES[Leaf.INPUT].key) / 100.0
        if analysis.tree is not None else 0.0,
        step=_marked_step(run, analysis.tree), library=library(analysis),
    )  # fmt: skip


def _marked_step(run: Run, tree: TimeTree | None) -> str:
    """What marks steps as long as those of the verdict: of several what trains before what is only
    called, and the program's loops last."""
    if tree is None or not tree.has_steps:
        return ""
    sites = [
        its for its in run.marked_steps.values()
        if its.source in MARKING and its.marks >= LEAST_MARKS
    ]  # fmt: skip
    # The mean of what compiles for seconds meanwhile is none of a step.
    for steps_ns, is_middle, within in (
        ((tree.step_mean_ns, tree.turn_mean_ns), False, ALIKE),
        ((tree.step_ns.median,), True, NEARLY),
    ):
        lengths_ns = (median(its.lengths_ns or [0]) if is_middle else its.mean_ns for its in sites)
        alike = [
            its for its, ns in zip(sites, lengths_ns, strict=True)
            if ns and ns > 0.0 and _is_near(ns, steps_ns, within)
        ]  # fmt: skip
        if alike:
            step = min(alike, key=lambda its: (MARKING.index(its.source), -its.marks, its.site))
            finer = _tokens_of(step, sites) if step.source == "loop" else None
            step = finer or step
            return f"{step.source} {step.site}".strip()
    return ""


def _is_near(ns: float, others_ns: Iterable[float | None], within: float) -> bool:
    return any(
        each is not None and each > 0.0 and abs(math.log(ns / each)) < within for each in others_ns
    )


def _tokens_of(turns: MarkedSteps, sites: Sequence[MarkedSteps]) -> MarkedSteps | None:
    """The tokens that are nearly all of turns so long that there is no time for a proof by them."""
    if (turns.mean_ns or 0.0) < LONG_NS:
        return None
    least_ns = FILLED * (turns.last_ns - turns.first_ns)
    return next(
        (
            its for its in sites
            if its.source == "token" and its.marks * median(its.lengths_ns or [0]) >= least_ns
        ),
        None,
    )  # fmt: skip


MARKING = (
    "trainer", "lightning", "accelerate", "keras", "optimizer", "token", "module", "tqdm", "loop",
)  # fmt: skip
"""What a trial may take for the steps (inject/hook/trial.py), in its order."""
TRAINING = MARKING[:5]
"""Those that learn."""
EVALUATED_S = 20.0
"""After so long what a program with an optimizer calls are its steps: nanoGPT evaluates 400 batches
before its first step, in 3.5 s on an H200."""
LEAST_MARKS, ALIKE, NEARLY = 4, 0.15, 0.3
"""Marks, and by which part steps may differ that are the same, in the mean and in the middle."""
LONG_NS, FILLED = 1e9, 0.9
"""A turn that is long: a proof takes 11 pairs of four blocks, each a step at least. And the part of
them that tokens are."""


def diagnose(
    command: Sequence[str],
    limit_s: float,
    tell: Callable[[str], None] = lambda _: None,
    folder: Path | None = None,
) -> Diagnosis:
    """Run the command in `folder`, or here, under capture until its verdict holds, it ends, or
    `limit_s` is over, but not before it had steps; then end it. Its recording lies with all others.
    `tell` is told what is seen so far, or with nothing that it goes on. Raises JournalError."""
    path = default_path(RunRequest.of_command(command).name, time.time())
    make_folder(path.parent)
    session = Session()
    arguments = ("gputui", "try", "--", *command)
    live = Live(lambda: None, JournalWriter(path), LiveOptions(arguments=arguments))
    watch = Watch(limit_s)
    live.start()
    try:
        live.start_run(RunRequest.of_command(in_folder(command, folder)))
        _watch(live, session, watch, tell)
    finally:
        live.close()
    session.apply(live.hub.drain())
    diagnosis = diagnosis_of(session, session.run, path)
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first is None or first.cause != COMPILES or not watch.compiling.is_over:
        return diagnosis
    # What a program compiles once, at its start, is no cause of what its steps take.
    others = tuple(each for each in diagnosis.findings if each.cause != COMPILES)
    return diagnosis._replace(
        findings=others, headline=f"{diagnosis.headline} It did so at its start only."
    )


COMPILES = LEAVES[Leaf.COMPILE].key
COMPILED_NS, GROWS = 1e9, 0.05
"""What a program compiles at least that compiles at its start, and the part of the time from one
look to the next from which it still does."""
QUIET_S, QUIETER = 8.0, 2.0
"""It is over after so long, and so many times as long as it had paused before: programs compile
anew at each epoch."""


class Compiling:
    """Whether a program still compiles, from look to look."""

    def __init__(self) -> None:
        self._compiled_ns, self._last_s, self._grew_s, self._longest_s = 0, 0.0, 0.0, 0.0
        self._operations = -1

    def look(self, compiled_ns: int, seconds: float, operations: int) -> None:
        """Take what was compiled, and how many operations ran on the GPU, until so many seconds
        after the start. Compiling is reported when it ends: while nothing runs on the GPU it may
        still go on."""
        if compiled_ns - self._compiled_ns > GROWS * (seconds - self._last_s) * 1e9:
            if self._compiled_ns > COMPILED_NS:
                self._longest_s = max(self._longest_s, seconds - self._grew_s)
            self._grew_s = seconds
        elif operations == self._operations:
            self._grew_s += seconds - self._last_s
        self._operations = operations
        self._compiled_ns, self._last_s = max(compiled_ns, self._compiled_ns), seconds

    @property
    def is_over(self) -> bool:
        """Whether it has compiled, and does no more."""
        quiet_s = self._last_s - self._grew_s
        is_quiet = quiet_s >= max(QUIET_S, QUIETER * self._longest_s)
        return self._compiled_ns > COMPILED_NS and is_quiet


class Watch:
    """Says when a run under capture has shown what it is slow for: its verdict was the same for a
    while, of steps that go on. Those of a set-up, which a program makes before it compiles for
    20 s, had a verdict of their own, and so has what it evaluates before it trains. `limit_s` is
    how long that may take, but for the time until its first steps, and while none come."""

    def __init__(self, limit_s: float) -> None:
        self.compiling = Compiling()
        self._limit_s = limit_s
        # A program that loads long has no steps until then.
        self._until_s = max(limit_s, min(LOADING_S, 2.0 * limit_s))
        self._most_s = max(self._until_s, 2.0 * limit_s)
        self._is_loading, self._trains = True, False
        self._steps = 0
        self._first_s = self._stepped_s = self._looked_s = 0.0
        self._causes: list[str] = []
        self._held_s = 0.0
        """How long the verdict was the same, while steps went on."""

    def is_late(self, seconds: float) -> bool:
        """Whether the time is over, so many seconds after the start."""
        return seconds > self._until_s

    def look(self, analysis: Analysis, seconds: float) -> bool:
        """Whether it is over, given what was seen until now."""
        tree, answer = analysis.tree, conclusion(analysis)
        if tree is None or answer is None:
            return False
        compiled_ns = tree.leaves.get(Leaf.COMPILE, 0) + tree.paused.get(Leaf.COMPILE, 0)
        operations = sum(device.operations for device in analysis.devices.values())
        self.compiling.look(compiled_ns, seconds, operations)
        passed_s, self._looked_s = seconds - self._looked_s, seconds
        if not tree.has_steps and not (seconds > UNMARKED_S and self.compiling.is_over):
            return False
        if self._is_loading:
            self._is_loading, self._first_s, self._stepped_s = False, seconds, seconds
            self._until_s = max(self._limit_s, seconds + 1.5 * WITH_PAUSES_S)
        if self._is_before_training(analysis.run, seconds):
            self._steps, self._stepped_s = tree.steps, seconds
            return False
        longest_s = max(STEADY_S, LATE_STEPS * (tree.step_ns.median or 0.0) / 1e9)
        since_s = seconds - self._stepped_s
        if tree.steps != self._steps:
            self._held_s += since_s if since_s <= longest_s else 0.0
            self._steps, self._stepped_s = tree.steps, seconds
        elif tree.has_steps and since_s > longest_s:
            self._until_s = min(self._most_s, self._until_s + passed_s)
        elif not tree.has_steps:
            self._held_s += passed_s
        first = answer.findings[0] if answer.findings else None
        self._causes.append(first.cause if first is not None else "")
        if len(self._causes) > 1 and self._causes[-1] != self._causes[-2]:
            self._held_s = 0.0
        steady_s = WITH_PAUSES_S if first is not None and first.with_pauses else STEADY_S
        if first is not None and first.cause == COMPILES and not self.compiling.is_over:
            steady_s = COMPILING_S
        return self._held_s >= steady_s

    def _is_before_training(self, run: Run, seconds: float) -> bool:
        """Whether what marks steps is called only, in a program that has made an optimizer."""
        trains = any(its.source in TRAINING for its in run.marked_steps.values())
        if trains != self._trains:
            self._trains, self._held_s = trains, 0.0
        if trains or seconds - self._first_s > EVALUATED_S:
            return False
        return any(seen.call == "optimizer.made" for seen in run.line_calls.values())


def _watch(live: Live, session: Session, watch: Watch, tell: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    while live.has_run:
        seconds = time.monotonic() - began_s
        if watch.is_late(seconds):
            return
        tell("")
        time.sleep(LOOK_S)
        session.apply(live.hub.drain())
        run = session.run
        if run is None:
            continue
        if run.uncaptured_reason:
            return  # there will be no findings
        if run.cuda_since_ns is None and any(
            site.marks > 1 and site.last_ns - site.first_ns > STEADY_S * 1e9
            for site in run.marked_steps.values()
        ):
            return  # its steps use no GPU
        analysis = Analysis(session, run)
        tree, answer = analysis.tree, conclusion(analysis)
        if tree is not None and answer is not None and tree.has_steps:
            tell(f"under capture: {answer.word}, {units.duration(tree.step_ns.median)} a step")
        if watch.look(analysis, seconds):
            return


# Cures for it.


class PlanError(GputuiError):
    """What was asked for cannot be tried. One line."""

    exit_status = WRONG_USAGE


class Candidate(NamedTuple):
    """A cure to try: `name` with its argument, as a person would type it for --cure."""

    name: str
    cure: type[Cure]
    finding: Finding | None = None
    forecast: Gain | None = None

    @property
    def order(self) -> tuple[float, int]:
        """The largest forecast first, by its lower end: of a wide one the middle says little, and
        the finding that the verdict is about promises most. Then as the advice names them."""
        least = self.forecast.low if self.forecast is not None else 0.0
        place = _place_in_advice(self.finding, self.cure) if self.finding is not None else None
        return -least, _UNNAMED if place is None else place

    @property
    def is_of_pauses(self) -> bool:
        """Whether it answers pauses between steps, of which the middle of many shows nothing: its
        finding says so, or where it is tried without one, what it is for at first."""
        if self.finding is None:
            return COMPILES in self.cure.answers[:2]
        return self.finding.with_pauses or self.finding.cause == COMPILES


_UNNAMED = 1 << 20


def _place_in_advice(finding: Finding, cure: type[Cure]) -> int | None:
    """Where a finding's advice names a cure; None where it does not."""
    named = re.search(cure.advice, finding.advice) if cure.advice else None
    return named.start() if named is not None else None


# A line of the program as findings have it: train.py:62 report.
_PLACE = re.compile(r"(?P<file>[^/:\s]+\.py):\d+ (?:[\w<>]+\.)*(?P<function>\w+)")


def plan(
    findings: Sequence[Finding],
    functions: Sequence[str] = (),
    *,
    library: str | None = None,
    everything: bool = False,
) -> list[Candidate]:
    """The cures that answer these findings, and with `everything` all that leave results as they
    are, the largest forecast first; then those for faults that no finding shows; ablations last:
    for each finding those of its cause and of the function at its line, and of these functions of
    the program if there are findings. `library` makes its kernels: of cures of another nothing is
    promised."""

    def is_foreign(cure: type[Cure]) -> bool:
        return library is not None and _library_of(cure) not in (library, None)

    chosen: dict[str, Candidate] = {}
    all_cures = cures()
    for finding in findings:
        for cure in all_cures.values():
            if cure.result not in (EXACT, ROUNDING) or finding.cause not in cure.answers:
                continue
            names = [cure.name]
            if cure.argument:
                names = [f"{cure.name}@{place}" for place in _places(finding, functions)]
            for name in names:
                forecast = None if is_foreign(cure) else _forecast(finding, cure)
                candidate = Candidate(name, cure, finding, forecast)
                before = chosen.get(name)
                # What a finding's advice names is tried first.
                if before is None or candidate.order < before.order:
                    chosen[name] = candidate
    for cure in all_cures.values():
        is_wanted = (everything or ANY in cure.answers) and not cure.argument
        if cure.result in (EXACT, ROUNDING) and is_wanted:
            chosen.setdefault(cure.name, Candidate(cure.name, cure))
    causes = [finding.cause for finding in findings]

    def order(each: Candidate) -> tuple[bool, float, bool, int, int, bool]:
        least, place = each.order
        number = causes.index(each.finding.cause) if each.finding is not None else len(causes)
        # A finding that leads although nothing can be forecast of it, as of texts that are gone
        # through again, is what the run is slow for: others follow from it.
        is_first = each.finding is not None and number == 0
        leads = is_first and not findings[0].gains and place != _UNNAMED
        # Of those that nothing is promised of first what answers the first finding, and what is
        # known to be there.
        is_vague = not least and not each.cure.is_certain
        return not leads, least, is_foreign(each.cure), number, place, is_vague

    return [*sorted(chosen.values(), key=order), *_ablations(findings, functions)]


def _library_of(cure: type[Cure]) -> str | None:
    """Which of `Diagnosis.library` a cure needs; None for one that needs none, as those of loaders,
    which feed any."""
    if (cure.library or "").startswith("torch.utils.data"):
        return None
    root = (cure.library or "").partition(".")[0]
    return {"": None, "jax": "jax", "optax": "jax", "cupy": "cupy", "numpy": None}.get(
        root, "torch"
    )


def named(words: Iterable[str], findings: Sequence[Finding]) -> list[Candidate]:
    """The cures of these names, in their order, whatever class they are of. Raises PlanError."""
    all_cures = cures()
    candidates = []
    for word in dict.fromkeys(words):
        name, _, argument = word.partition("@")
        cure = all_cures.get(name)
        if cure is None:
            raise PlanError(
                f"--cure {word}: there is no such cure{did_you_mean(name, tuple(all_cures))}; "
                "gputui try --list has them"
            )
        if bool(cure.argument) != bool(argument):
            form = f"{name}@{cure.argument}" if cure.argument else name
            raise PlanError(f"--cure {word}: give {form}")
        finding = next((each for each in findings if each.cause in cure.answers), None)
        forecast = _forecast(finding, cure) if finding is not None else None
        candidates.append(Candidate(word, cure, finding, forecast))
    return candidates


_NOT_SKIPPED = ("module", "main", "forward", "training_step", "train_step")
"""Functions that are nearly the whole step: without them there is nothing to compare."""


def _places(finding: Finding | None, functions: Sequence[str] = ()) -> list[str]:
    """The functions, as FILE:FUNCTION, that a finding is about: at its line, and of these those
    that are not nearly the whole step; none whose file's name would be that of several cures."""
    place = _PLACE.search(finding.place) if finding is not None else None
    at_line = [f"{place['file']}:{place['function']}"] if place is not None else []
    return [
        each for each in dict.fromkeys((*at_line, *functions))
        if (name := each.rpartition(":")[2]).isidentifier() and name not in _NOT_SKIPPED
        and JOINED not in each
    ]  # fmt: skip


def _ablations(findings: Sequence[Finding], functions: Sequence[str]) -> list[Candidate]:
    chosen: dict[str, Candidate] = {}

    def choose(name: str, cure: type[Cure], finding: Finding | None) -> None:
        answers = finding is not None and finding.cause in cure.answers
        forecast = _forecast(finding, cure) if finding is not None and answers else None
        chosen.setdefault(name, Candidate(name, cure, finding, forecast))

    for finding in findings:
        bounds = [cure for cure in answering(finding.cause) if cure.result == BOUND]
        # What its advice names first, as of cures.
        for cure in sorted(bounds, key=lambda cure: _place_in_advice(finding, cure) is None):
            if not cure.argument:
                choose(cure.name, cure, finding)
        # Whatever it is about: without the function at its line there is none of it.
        for place in _places(finding):
            choose(f"{Skip.name}@{place}", Skip, finding)
    first = findings[0] if findings else None
    for place in _places(None, functions):
        choose(f"{Skip.name}@{place}", Skip, first)
    return list(chosen.values())


def _forecast(finding: Finding, cure: type[Cure]) -> Gain | None:
    """Of the finding's gains that of the cure: of its name for it, or of the advice as it is, where
    that names it. What the advice names with an if may be about something else: of that nothing is
    promised."""
    if cure.forecast is None:
        return None
    if cure.advice:
        named = re.search(cure.advice, finding.advice)
        if named is None or finding.advice.startswith(" if ", named.end()):
            return None
    for gain in finding.gains:
        if gain.cure == cure.forecast or (cure.advice and re.search(cure.advice, gain.cure)):
            return gain
    first = finding.gains[0] if finding.gains else None
    is_of_another = first is not None and cure.forecast and (first.cure or not cure.advice)
    return None if is_of_another else first


def by_name_only(
    findings: Sequence[Finding], proven: Mapping[str | None, float], *, trains: bool
) -> str:
    """In a line the cures that give other results and promise more of their finding than what is
    `proven` of that, by its cause, of the first finding that has such; empty where there are none.
    `trains`: the program calls backward."""
    for finding in findings:
        least = NEAR * max(LEAST_GAIN, proven.get(finding.cause, 0.0))
        gains = {
            cure: _forecast(finding, cure)
            for cure in answering(finding.cause)
            if cure.result == DIFFERENT and not (trains and cure.of_inference)
        }
        promising = {
            cure: gain for cure, gain in gains.items()
            if gain is not None and math.sqrt(gain.low * gain.high) > least
        }  # fmt: skip
        if promising:
            gain = next(iter(promising.values()))
            return (
                f"--cure {','.join(cure.name for cure in promising)}: {gain.low:.1f} to "
                f"{gain.high:.1f}× by forecast; tried by name only, because results change "
                f"({', or '.join(cure.title for cure in promising)})"
            )
    return ""


CLASS_WORDS = {
    EXACT: "results are the same",
    ROUNDING: "results differ by rounding",
    DIFFERENT: "other results: by name only",
    BOUND: "no cure: what its cause costs, with wrong results",
}
"""What a class means, in a few words."""
