"""The verdict on a run: the leaves whose cure would gain most, each told once.

As top-down analysis has it (A. Yasin, ISPASS 2014): a leaf speaks only under a parent that is
large itself, and that nothing stands out is a result. While a run goes on its headline must not
flicker between two causes of like size (`Headline`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from gputui.model.cards import has_tensor_cores
from gputui.model.leaves import CAUSES, LEAVES, Cause, Leaf, idle_sum, leaf_of_kernel
from gputui.model.naming import short_name
from gputui.report.explain.advice import better_advice, vector_share
from gputui.report.explain.analysis import Analysis, RunRule, computed_once
from gputui.report.explain.evidence import (
    each_cause_once,
    evidence,
    evidence_once,
    place_of,
    planned_by_cudnn,
    where,
)
from gputui.report.explain.finding import Finding, calibrated, capital, gain_of
from gputui.report.explain.gains import forecast, moved_by_doubles
from gputui.report.explain.habits import cpu_percent, lock_held, threads_compute
from gputui.report.explain.leaves import (
    LEAST_PAUSES,
    LEAST_TURNS,
    MANY_WAITS,
    waits_a_step,
    waits_among_launches,
)
from gputui.report.explain.rank_causes import LEAST_LATE
from gputui.report.explain.rank_waits import all_ranks_seen
from gputui.report.explain.ranks import (
    Lateness,
    lack_of_cores,
)
from gputui.report.explain.serving import unasked
from gputui.report.explain.time_tree import LAYER, TimeTree, in_words
from gputui.report.schema import lost_share, why_lost
from gputui.state import Run

SPEAKS = 0.10
"""Recoverable share of the wall time from which a leaf is a finding (TraceML 10 %, TensorFlow 5,
TraceLens 15)."""

PARENT = 0.15
"""Least share of the parent, busy or idle, for a leaf to speak."""

USUAL_IDLE = 0.20
"""Idle share of the time up to which a run is healthy, and launching, reading back, waiting and the
CPU's own code are no finding: every program has some. No fault of 160 recordings is lost by it; two
programs that their authors called healthy idle 13 and 18 % (H200)."""

NEEDLESS = frozenset((Leaf.ALLOCATION, Leaf.COMPILE, Leaf.RANK, Leaf.SCHEDULER))
"""Idle time that no step has to have: a finding from PARENT on."""

ONE_WAIT = 0.25
"""Share from which a single wait a step is a finding."""

A_LAYERS_WAIT = 0.15
"""The same where a step may be a layer: then it is not the one wait that each step needs."""

EVERY_FEW = 0.1
"""Waits for each operation from which they lead over launches: these can neither run ahead nor be
captured before the waits are gone."""

MOST = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a run, the largest first; `headline` says that there are none."""

    word: str
    headline: str
    findings: tuple[Finding, ...] = ()
    tree: TimeTree | None = None
    speed: str = ""
    """What to report about the time where a fact that costs none leads."""
    says_pauses: bool = False
    """Whether the headline says how much of the time pauses take."""

    @property
    def shares_tree(self) -> TimeTree | None:
        """The tree that the findings' shares are of: with the pauses of the loop where these count,
        or a bar of the steps alone says other shares than the sentence above it."""
        counts_pauses = any(finding.with_pauses for finding in self.findings)
        return with_pauses(self.tree) or self.tree if self.tree and counts_pauses else self.tree


@computed_once
def verdict(analysis: Analysis) -> Verdict | None:
    """What a run is bound by, None where no operation was captured."""
    tree = analysis.tree
    if tree is None:
        return None
    if (sentence := unasked(analysis)) is not None:
        return Verdict("WAITS FOR WORK", sentence, tree=tree)
    paused = paused_share(tree)
    if paused >= WAITS_FOR_WORK and sleeps(tree) and threads_compute(analysis):
        finding = lock_held(analysis, paused)
        return Verdict(finding.word, finding.sentence, (finding,), tree, says_pauses=True)
    if paused >= WAITS_FOR_WORK and (sleeps(tree) or waits_for_requests(analysis, tree)):
        sentence = f"The program sleeps {100 * paused:.0f} % of the time: the GPU gets no work."
        if line := where(analysis):
            sentence += f" {line}."
        return Verdict("WAITS FOR WORK", sentence, tree=tree, says_pauses=True)
    hole = _hole(analysis.run, tree)
    findings = _findings(analysis, with_pauses(tree) or tree)
    if hole is not None:
        # Work that was not seen looks like idle time.
        findings = [finding for finding in findings if not finding.cause.startswith("idle.")]
    if not findings and hole is None and paused >= WAITS_FOR_WORK:
        if gpu_works(tree):
            findings = [other_work(paused)]
            return Verdict(
                findings[0].word, findings[0].sentence, tuple(findings), tree, says_pauses=True
            )
        sentence = f"Pauses between bursts of steps take {100 * paused:.0f} % of the time."
        return Verdict("MOSTLY PAUSED", sentence, tree=tree, says_pauses=True)
    if not findings:
        return Verdict(*(hole or _without_a_cause(analysis, tree)), tree=tree)
    says_pauses = findings[0].with_pauses
    return Verdict(
        findings[0].word, findings[0].text, tuple(findings), tree, says_pauses=says_pauses
    )


HOLE = 0.05
"""Lost records, or time whose launches were not recorded, from which idle time explains nothing."""


def _hole(run: Run, tree: TimeTree) -> tuple[str, str] | None:
    """Why idle time explains nothing here; None where it does."""
    lost = lost_share(run)
    if lost > HOLE:
        why = why_lost(run)
        reason = f" ({why})" if why else ""
        return (
            "INCOMPLETE",
            f"{100 * lost:.0f} % of the records were lost{reason}: what looks idle may be work "
            "that was not seen.",
        )
    unknown = tree.share(tree.leaves.get(Leaf.UNKNOWN, 0))
    if tree.share(tree.idle_ns) < PARENT:
        return None  # so little idle time is no finding, whatever its cause
    if unknown > max(HOLE, tree.share(tree.idle_ns) / 2):
        return (
            "INCOMPLETE",
            f"The GPU idles {100 * tree.share(tree.idle_ns):.0f} % of the time, and most of the "
            "launches after it were not recorded: the cause is not known.",
        )
    return None


def _findings(analysis: Analysis, tree: TimeTree) -> list[Finding]:
    run = analysis.run
    waits = waits_a_step(run, analysis.all_steps) if tree.steps else float("inf")
    idle = tree.share(tree.idle_ns)
    recorded = 1.0 - tree.share(tree.leaves.get(Leaf.UNKNOWN, 0))
    sizes: list[tuple[float, float, Leaf, Cause]] = []
    late = analysis.lateness
    if late is not None and late.share < SPEAKS:
        late = None
    for leaf, whole_ns in tree.leaves.items():
        cause = CAUSES.get(leaf)
        if cause is None or recorded <= 0 or (leaf is Leaf.RANK and late is not None):
            continue
        ns = whole_ns - (late.claimed_ns.get(leaf, 0) if late is not None else 0)
        if leaf is Leaf.MATMUL_SIMT:
            if not has_tensor_cores(analysis.facts):
                continue
            # Recordings of before a vector's products counted as others have them here.
            ns -= round(ns * vector_share(analysis))
        is_idle = LEAVES[leaf].is_idle
        parent = idle if is_idle else 1.0 - idle
        least_parent = USUAL_IDLE if is_idle and leaf not in NEEDLESS else PARENT
        recoverable = tree.share(ns) * cause.recoverable
        if parent < least_parent or recoverable < SPEAKS or tree.share(ns) < cause.usual:
            continue
        least = A_LAYERS_WAIT if tree.operations <= LAYER * tree.steps else ONE_WAIT
        if leaf is Leaf.SYNC and waits < MANY_WAITS and recoverable < least:
            continue
        if leaf is Leaf.MATMUL_SIMT:
            recoverable += moved_by_doubles(analysis, tree) or 0.0
        sizes.append((recoverable, tree.share(ns), leaf, cause))
    sizes.sort(key=lambda size: -size[0])
    findings = [_finding(analysis, tree, *size) for size in sizes]
    if (waits_among_launches(run, analysis.all_steps) or 0.0) >= EVERY_FEW:
        findings = _waits_first(findings)
    findings = evidence_once(each_cause_once(analysis, tree, findings)[:MOST])
    if late is not None:
        findings = [_late_finding(tree, late), *findings][:MOST]
    return [calibrated(planned_by_cudnn(analysis, tree, finding)) for finding in findings]


def _waits_first(findings: list[Finding]) -> list[Finding]:
    """Waits right before the launches that are larger."""
    places = {finding.cause: number for number, finding in enumerate(findings)}
    wait, launch = places.get(LEAVES[Leaf.SYNC].key), places.get(LEAVES[Leaf.LAUNCH].key)
    if wait is None or launch is None or wait < launch:
        return findings
    behind = findings[launch]
    behind = msgspec.structs.replace(
        behind, sentence=f"{behind.sentence} Part of it follows from the waits."
    )
    between = findings[launch + 1 : wait]
    return [*findings[:launch], findings[wait], behind, *between, *findings[wait + 1 :]]


def _late_finding(tree: TimeTree, late: Lateness) -> Finding:
    """A late rank costs every GPU the same, its own too: it comes first."""
    ns = tree.leaves.get(Leaf.RANK, 0)
    return Finding(
        cause=LEAVES[Leaf.RANK].key,
        word=late.word,
        sentence=late.sentence,
        advice=late.advice,
        value=100 * late.share,
        threshold=100 * SPEAKS,
        source=_LATE_SOURCE,
        share_percent=100 * tree.share(ns),
        with_pauses=tree.with_pauses,
        step_ns=tree.a_step(ns),
        recoverable=late.share,
        gains=gain_of(0.85 * late.share, late.share),
        evidence=late.evidence,
    )


def _finding(
    analysis: Analysis,
    tree: TimeTree,
    recoverable: float,
    share: float,
    leaf: Leaf,
    cause: Cause,
) -> Finding:
    ns = tree.leaves[leaf]
    scope, time = in_words(tree, [leaf])
    if leaf is Leaf.RANK:
        cause = _of_ranks(analysis.run, cause)
    gains, unknown, model = forecast(analysis, tree, leaf, share)
    gone_ns = tree.idle_ns if LEAVES[leaf].is_idle else ns
    sentence = cause.sentence.format(
        share=f"{100 * tree.share(ns):.0f} %",
        scope=scope,
        time=time,
    )
    return Finding(
        cause=LEAVES[leaf].key,
        word=cause.word,
        sentence=sentence,
        advice=better_advice(analysis, tree.leaves, leaf) or cause.advice,
        value=100 * recoverable,
        # The share from which it is a finding: eager Llamas spend a fourth of their time in chains.
        threshold=100 * max(SPEAKS, cause.usual * cause.recoverable),
        source=cause.source or "recoverable share of the wall time",
        share_percent=100 * tree.share(ns),
        with_pauses=tree.with_pauses,
        step_ns=tree.a_step(ns),
        recoverable=recoverable,
        gains=gains,
        gain_unknown=unknown,
        alone=tree.wall_ns / max(1, tree.wall_ns - gone_ns),
        model=model,
        evidence=evidence(analysis, tree, leaf),
        place=place_of(analysis, leaf),
    )


SOME_RANKS = Cause(
    word="RANKS WAIT",
    sentence=(
        "The GPU waits for other ranks {share} of {scope}{time}, not all of which are in sight."
    ),
    advice="look at all ranks: only together do they show who is late",
)
"""In place of the cause of Leaf.RANK where a job has ranks that were not traced."""

UNSEEN_COLLECTIVES = Cause(
    word="COLLECTIVES WAIT",
    sentence=(
        "The GPU waits for the CPU in collectives {share} of {scope}{time}; no one rank is late."
    ),
    advice=(
        "NCCL, with a GPU for each rank: Gloo moves all data through the CPU; else send less, or "
        "balance the work of the ranks"
    ),
)
"""In place of the cause of Leaf.RANK where no collective ran on the GPU: through the CPU one may
take that long without any rank being late."""


def _of_ranks(run: Run, cause: Cause) -> Cause:
    if not all_ranks_seen(run):
        return SOME_RANKS
    on_gpu = any(time.leaf == Leaf.COMMUNICATION for time in run.leaf_times.values())
    # Ranks that wait alike in Gloo were called unbalanced: no collective of theirs runs on the GPU.
    return cause if on_gpu or run.collectives else UNSEEN_COLLECTIVES


UNEVEN = 0.10
"""Share of the steps that are slow (model.steps.SLOW) from which a run is not healthy: 90 of 226
of four ranks that wait for one another, 0 to 6 % in programs without a fault."""


WITHOUT_A_CAUSE = ("IDLE", "UNEVEN STEPS", "HEALTHY", "PARTLY IDLE", "NO SINGLE CAUSE")
"""What a run is called in which no cause speaks."""


def _without_a_cause(analysis: Analysis, tree: TimeTree) -> tuple[str, str]:
    """What a run is where no cause speaks: healthy where the GPU works all but USUAL_IDLE of the
    time, in steps that take equally long, else what it lacks."""
    idle = tree.share(tree.idle_ns)
    busy_leaves = [leaf for leaf in tree.leaves if not LEAVES[leaf].is_idle]
    largest = max(busy_leaves, key=lambda leaf: tree.leaves[leaf], default=None)
    scope_text = "each step" if tree.has_steps else "the time since its first kernel"
    works = f"the GPU works {100 * (1.0 - idle):.0f} % of {scope_text}"
    if largest is None:
        return "IDLE", f"Nothing stands out: {works}."
    if idle >= USUAL_IDLE:
        return _partly_idle(tree, scope_text)
    # Rows of a benchmark are different work, which is no step's fault.
    if tree.steps and not tree.benchmark_rows and tree.slow_steps >= UNEVEN * tree.steps:
        sentence = (
            f"{tree.slow_program_steps:,} of {tree.program_steps:,} steps are slow, together "
            f"{100 * tree.share(tree.slowed_ns):.0f} % of the time longer than usual ones; {works}."
        )
        return "UNEVEN STEPS", sentence
    share = tree.share(tree.leaves[largest])
    limit = _limit(analysis)
    on = f"{LEAVES[largest].label}{_longest_other(analysis, largest)}"
    most = f"{100 * share:.0f} % on {on}{limit}"
    rest = ""
    if idle >= SPEAKS:
        rest = (
            f" If nothing idled ({_idle_leaves(tree)}), it would be {1 / (1 - idle):.1f}× faster."
        )
    return "HEALTHY", f"Nothing stands out: {works}, {most}.{rest}"


def _longest_other(analysis: Analysis, leaf: Leaf) -> str:
    """Of kernels that no category names, the one that takes most, as a clause; else empty."""
    names, times = analysis.kernel_names, Counter[str]()
    for number, (_, ns) in analysis.kernel_sums.items():
        if number in names and leaf_of_kernel(names[number].name) is leaf is Leaf.OTHER:
            times[short_name(names[number].name)] += ns
    return f" (most of it {times.most_common(1)[0][0]})" if times else ""


def _partly_idle(tree: TimeTree, scope_text: str) -> tuple[str, str]:
    has_one = any(2 * ns > tree.idle_ns for leaf, ns in tree.leaves.items() if LEAVES[leaf].is_idle)
    idle = 100 * tree.share(tree.idle_ns)
    return (
        "PARTLY IDLE" if has_one else "NO SINGLE CAUSE",
        f"The GPU idles {idle:.0f} % of {scope_text}: {_idle_leaves(tree)}.",
    )


def _idle_leaves(tree: TimeTree) -> str:
    """The largest leaves of idle time, with their shares."""
    leaves = Counter({leaf: ns for leaf, ns in tree.leaves.items() if LEAVES[leaf].is_idle})
    return ", ".join(
        f"{LEAVES[leaf].label} {100 * tree.share(ns):.0f} %"
        for leaf, ns in leaves.most_common(MOST)
    )


def _limit(analysis: Analysis) -> str:
    """How near its GPUs came to the peak that limits them most, by their counters, as a clause;
    empty where these were not read."""
    # Not above: the roofline is a table of its own, and imports this package.
    from gputui.report.roofline import STEADY_STEPS, mean_of_kernels, steady_roofs

    # Of kernels, where they were counted: what a step idles is said before.
    of_kernels = mean_of_kernels(analysis.session, analysis.run)
    peaks = [
        (percent_of_peak, what, roof.scope)
        for roof in of_kernels or steady_roofs(analysis)
        for percent_of_peak, what in (
            (roof.tensor_peak_percent, "its tensor cores do"),
            (roof.memory_peak_percent, "its memory moves"),
        )
        if percent_of_peak is not None
    ]
    if not peaks:
        return ""
    percent_of_peak, what, scope = max(peaks)
    could = "they" if "cores" in what else "it"
    limit = f"; {what} {percent_of_peak:.0f} % of what {could} could at most"
    if of_kernels:
        return f"{limit} while kernels run"
    # The machine's own means are of the whole run: 43 % stood beside 25.
    return f"{limit} in these steps" if scope == STEADY_STEPS else limit


def late_beside(analysis: Analysis) -> Iterator[Finding]:
    """A rank that is late, and costs less than a finding, or has no GPU; or why none is named."""
    late = analysis.lateness
    if late is not None and (late.share < SPEAKS or analysis.tree is None):
        yield Finding(
            cause="late_rank",
            view="ranks",
            word=late.word.lower(),
            sentence=late.sentence,
            advice=late.advice,
            value=100 * late.share,
            threshold=100 * LEAST_LATE,
            source=_LATE_SOURCE,
            evidence=late.evidence,
            leads=analysis.tree is None,
        )
    elif unnamed := lack_of_cores(analysis.ranks, analysis.matched):
        share, why = unnamed
        yield Finding(
            cause="ranks_lack_cores",
            view="ranks",
            word="ranks lack CPU cores",
            sentence=f"{capital(why)}.",
            advice=(
                "no more ranks and threads than cores (OMP_NUM_THREADS), or cores of its "
                "own for each"
            ),
            value=100 * share,
            threshold=100 * LEAST_LATE,
            source="run_delay of /proc/PID/task/TID/schedstat",
        )


_LATE_SOURCE = "time that the other ranks wait for it in collectives"


def causes(analysis: Analysis) -> tuple[Finding, ...]:
    """The verdict's findings, as they stand among others."""
    outcome = verdict(analysis)
    return outcome.findings if outcome is not None else ()


RULES = (RunRule(10, causes), RunRule(11, late_beside))


class VerdictDocument(msgspec.Struct, frozen=True):
    """The verdict for programs. Shares and times are of `scope`; `step_error_ns` is the standard
    error of the mean step. `beside_ns` is time that is not in the scope, by what it is."""

    word: str
    headline: str
    scope: Literal["steady steps", "since the first kernel"]
    gpus: int
    wall_ns: int
    busy_percent: float
    idle_percent: float
    steps: int
    step_ns: float | None
    step_error_ns: float | None
    step_median_ns: float | None
    step_p99_ns: float | None
    slow_steps: int
    beside_ns: dict[str, int]


def verdict_document(outcome: Verdict | None) -> VerdictDocument | None:
    """The verdict as a document; None where no operation was captured."""
    tree = outcome.tree if outcome is not None else None
    if outcome is None or tree is None:
        return None
    idle = 100 * tree.share(tree.idle_ns)
    mean = tree.step_mean if tree.has_steps else None
    return VerdictDocument(
        word=outcome.word,
        headline=outcome.headline,
        scope="steady steps" if tree.has_steps else "since the first kernel",
        gpus=tree.devices,
        wall_ns=tree.wall_ns,
        busy_percent=100 - idle,
        idle_percent=idle,
        steps=tree.program_steps,
        step_ns=mean.amount if mean else None,
        step_error_ns=mean.error if mean else None,
        step_median_ns=tree.step_ns.median,
        step_p99_ns=tree.step_ns.percentile(99),
        slow_steps=tree.slow_program_steps,
        beside_ns={scope.name.lower(): ns for scope, ns in sorted(tree.beside_ns.items()) if ns},
    )


LEAST_STEPS = 10
LEAST_NS = 2_000_000_000
"""Steady steps and time before there is a headline (TraceML waits for 2 steps to warn, for 20 to be
sure)."""

CLEARLY_LARGER = 0.05
FOR_NS = 5_000_000_000
"""A new cause leads when it is this much larger, in shares of the wall time, for so long (ingero
has a hysteresis of 0.02)."""


class Headline:
    """The conclusion on the newest run, held steady. Once a run has ended it is the conclusion."""

    def __init__(self) -> None:
        self._run: int | None = None
        self._shown: Verdict | None = None
        self._challenger: tuple[str, int] | None = None

    def update(self, run: Run, outcome: Verdict | None) -> Verdict | None:
        """What to show now, where `outcome` is the run's conclusion; None while too little was
        seen."""
        if run.started.time_ns != self._run:
            self._run, self._shown, self._challenger = run.started.time_ns, None, None
        tree = outcome.tree if outcome is not None else None
        if outcome is None or tree is None or not run.is_active:
            self._shown = outcome
            return outcome
        enough = tree.steps >= LEAST_STEPS * tree.devices and tree.wall_ns >= LEAST_NS
        if self._shown is None and not enough:
            return None
        if self._shown is None or self._leads(outcome, run.updated_ns):
            self._shown, self._challenger = outcome, None
        else:
            self._shown = _renewed(self._shown, outcome)
        return self._shown

    def _leads(self, outcome: Verdict, now_ns: int) -> bool:
        """Whether the new outcome takes the place of what is shown."""
        shown = self._shown
        assert shown is not None
        if _leading_cause(outcome) == _leading_cause(shown):
            return True
        sizes = {finding.cause: finding.recoverable for finding in outcome.findings}
        held, new = sizes.get(_leading_cause(shown), 0.0), sizes.get(_leading_cause(outcome), 0.0)
        if abs(new - held) < CLEARLY_LARGER:
            self._challenger = None
            return False
        if self._challenger is None or self._challenger[0] != _leading_cause(outcome):
            self._challenger = _leading_cause(outcome), now_ns
        return now_ns - self._challenger[1] >= FOR_NS


def _leading_cause(outcome: Verdict) -> str:
    """What leads: a leaf, a rule, or a verdict without findings."""
    return outcome.findings[0].cause if outcome.findings else outcome.word


def _renewed(shown: Verdict, outcome: Verdict) -> Verdict:
    """The same cause in front, with its newest figures."""
    same = next(
        (finding for finding in outcome.findings if finding.cause == _leading_cause(shown)), None
    )
    if same is None:
        return shown
    rest = tuple(finding for finding in outcome.findings if finding is not same)
    return Verdict(same.word, same.text, (same, *rest), outcome.tree, outcome.speed)


# --- Pauses of a run's main loop: whether they are how it goes, and what the program does in them.
# A server that nobody asks sleeps there; a training saves, validates, or starts its workers again.

WAITS_FOR_WORK = 0.5
"""Share of a loop's time in pauses, and of these asleep, from which a program waits for work."""

FEW_PAUSES = 0.25
"""The same from which three pauses are a habit: a checkpoint every 20 steps in a short recording.
Ranks that set up again pause once each, for less."""

PAUSES_COUNT = 0.10
"""Share of a loop's time that its pauses have to idle, awake, to count as a part of it."""


def paused_share(tree: TimeTree) -> float:
    """Of the main loop's time; 0 where pauses are too few to be how it goes."""
    return _share_paused(tree) if _are_habit(tree) else 0.0


def _share_paused(tree: TimeTree) -> float:
    paused_ns = sum(tree.paused.values())
    return paused_ns / (tree.wall_ns + paused_ns) if paused_ns else 0.0


def _are_habit(tree: TimeTree) -> bool:
    """Whether each device has enough of them, or a few that take longer than the steps: ranks that
    all set up again pause once each, or some times and not for long; where the program says where
    steps begin, a pause is one of them, and one is enough. Where a rank does something by itself,
    the pauses of the others are for it."""
    if tree.apart or tree.benchmark_rows:
        return False
    each = tree.pauses / max(1, tree.devices)
    few = 1 if tree.is_marked else LEAST_TURNS
    return each >= LEAST_PAUSES or (each >= few and _share_paused(tree) >= FEW_PAUSES)


def gpu_works(tree: TimeTree) -> bool:
    """Whether the GPU works most of the time of the pauses: on an evaluation, or in a stretch in
    which no steps were recognised."""
    return idle_sum(tree.paused) < sum(tree.paused.values()) / 2


def other_work(share: float) -> Finding:
    """What the GPU does in so much of the time where it works in the pauses."""
    return Finding(
        cause="other_work",
        view="timeline",
        word="OTHER WORK",
        sentence=(
            f"Between bursts of steps the GPU works on something else, {100 * share:.0f} % of the "
            "time."
        ),
        advice=(
            "if that is validation, validate less often or on fewer batches (eval_steps, "
            "val_check_interval, limit_val_batches)"
        ),
        value=100 * share,
        threshold=100 * WAITS_FOR_WORK,
        source="time between the steps of the main loop in which the GPU is mostly busy",
    )


def sleeps(tree: TimeTree) -> bool:
    """Whether the program is mostly asleep in its pauses: it has nothing to do."""
    return tree.paused.get(Leaf.WAIT, 0) >= WAITS_FOR_WORK * sum(tree.paused.values())


def with_pauses(tree: TimeTree) -> TimeTree | None:
    """The tree with what the program did awake in the pauses of its loop: None where that is
    little, or no habit."""
    if not _are_habit(tree):
        return None
    awake: dict[Leaf, int] = {**tree.paused}
    awake.pop(Leaf.WAIT, None)
    idle_ns = idle_sum(awake)
    # What the program does awake in pauses counts, too: a loop that saved its model every ten steps
    # was called healthy.
    wall_ns = tree.wall_ns + sum(awake.values())
    if idle_ns < PAUSES_COUNT * wall_ns:
        return None
    leaves = {
        leaf: tree.leaves.get(leaf, 0) + awake.get(leaf, 0) for leaf in (*tree.leaves, *awake)
    }
    return replace(tree, wall_ns=wall_ns, leaves=leaves, with_pauses=True)


def share_in_the_loop(tree: TimeTree, name: str) -> float:
    """The share, in percent, of a leaf or of all that is idle or busy, as the verdict counts it:
    with the pauses of the loop where these are a part of it."""
    whole = with_pauses(tree) or tree
    if name in ("idle", "busy"):
        idle = 100 * whole.share(whole.idle_ns)
        return idle if name == "idle" else 100 - idle
    ns = [ns for leaf, ns in whole.leaves.items() if LEAVES[leaf].key == name]
    return 100 * whole.share(sum(ns))


AT_REST_PERCENT = 30.0
"""CPU of a process up to which no thread of it prepares work for the GPU: a server without requests
takes 5 to 25 % of a core for its own timers, a producer thread 78 % (recorded on an H100)."""

_LOADER = re.compile(r"dataloader|torch/utils/data|data_loader|webdataset|/dali|prefetch", re.I)


def waits_for_requests(analysis: Analysis, tree: TimeTree) -> bool:
    """Whether a program that fetches input in its pauses has nobody who prepares any: it reads a
    queue or a socket, no data loader's, and its process is at rest."""
    waited_ns = tree.paused.get(Leaf.INPUT, 0) + tree.paused.get(Leaf.WAIT, 0)
    percent = cpu_percent(analysis)
    if percent is None or percent > AT_REST_PERCENT or not paused_share(tree):
        return False
    lines = analysis.lines(Leaf.INPUT)
    loads = any(_LOADER.search(f"{line.file} {line.inside} {line.caller}") for line in lines[:3])
    return not loads and 2 * waited_ns >= sum(tree.paused.values())
