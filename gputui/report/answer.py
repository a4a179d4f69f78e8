"""A run in a few lines, the answer first: for the terminal at the end of a run, and the head of a
summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gputui.model import units
from gputui.model.leaves import LEAVES
from gputui.model.units import duration
from gputui.report.alerts import condition_text
from gputui.report.explain import (
    Analysis,
    Finding,
    MachineAnalysis,
    Verdict,
    conclusion,
    findings,
    machine_findings,
)
from gputui.report.explain.evidence import largest_part
from gputui.report.explain.rank_waits import hosts
from gputui.report.explain.time_tree import FEW_STEPS, TimeTree, time_tree
from gputui.report.explain.verdict import gpu_works
from gputui.report.phases import (
    LEAST_LEVEL,
    PhaseRow,
    main_step,
    phase_rows,
    shares_error_points,
)
from gputui.report.scope import beside_benchmark, of_benchmark
from gputui.report.statistics import category_rows
from gputui.report.tables import metric_text
from gputui.report.tables.energy import RunEnergy, run_energy, span_of, used_span
from gputui.report.tables.machine import AlertRow, alert_rows
from gputui.report.tables.memory import among_few
from gputui.report.tables.serving import server_line
from gputui.report.verdict_words import how_sure, loop_mean, verdict_words, why_no_verdict
from gputui.report.windows import tracing_line
from gputui.state import Readings, Run, Session, remarks
from gputui.state.session import ClockOffset

SLOWED = 0.01
"""Share of the time that slow steps take longer than usual ones from which they are worth one."""

WORKS = 2.0
"""What slow steps take longer over all idle time from which the GPU mostly works in them."""

PAUSED = 0.10
"""Share of the loop's time with its pauses from which these are worth a sentence."""

# How many are named is a matter of a readable sentence: chosen, not measured.
MOST = 3
LEAST = 0.02
"""Causes of pauses that are named, and the share of them from which one is."""


def interruptions(verdict_of_run: Verdict | None) -> list[str]:
    """The steps of a run; None if it has no steps."""
    if verdict_of_run is None or verdict_of_run.tree is None or verdict_of_run.tree.benchmark_rows:
        return []
    said = any(FEW_STEPS in finding.sentence for finding in verdict_of_run.findings)
    sentences = [] if said else [*_slow(verdict_of_run.tree)]
    if not verdict_of_run.says_pauses:
        sentences += _paused(verdict_of_run.tree)
    return sentences


def _slow(tree: TimeTree) -> Iterator[str]:
    share = tree.share(tree.slowed_ns * tree.of_processes)
    # Healthy programs had a line on 0.03 % of their time.
    if not tree.slow_steps or share < SLOWED:
        return
    slow = max(1, tree.slow_program_steps)
    steps = f"{slow:,} slow steps take" if slow > 1 else "1 slow step takes"
    usual = "usual ones" if slow > 1 else "a usual one"
    lost = units.duration(tree.of_program(tree.slowed_ns))
    # Whoever looks for what is lost in them finds the GPU at work: they have more of it.
    works = ""
    if share > WORKS * tree.share(tree.idle_ns):
        works = f", and the GPU works in {'them' if slow > 1 else 'it'}"
    yield f"{steps} {lost} longer than {usual}{works}: {units.percent(100 * share)} of the time."


def _paused(tree: TimeTree) -> Iterator[str]:
    paused_ns = sum(tree.paused.values())
    whole_ns = tree.wall_ns / tree.of_processes + paused_ns
    if not tree.pauses or paused_ns < PAUSED * whole_ns:
        return
    pauses = max(1, round(tree.of_program(tree.pauses)))
    count = "1 pause takes" if pauses == 1 else f"{pauses:,} pauses take"
    if gpu_works(tree):
        count = "Work that is in no step takes"
    causes = sorted(tree.paused.items(), key=lambda part: -part[1])[:MOST]
    most = ", ".join(
        f"{LEAVES[leaf].label} {100 * ns / paused_ns:.0f} %"
        for leaf, ns in causes
        if ns >= LEAST * paused_ns
    )
    yield f"{count} {100 * paused_ns / whole_ns:.0f} % of the loop's time ({most} of it)."


# --- a run in a few lines, the answer first
#
# For the terminal at the end of a run, and the head of a summary.


# How many of each kind are listed: chosen to keep the answer short, not measured.
MOST_GPUS = 4
MOST_LEAVES = 5
LEAST_PERCENT = 0.1
"""Less of the wall time is not named."""

MOST_ALERTS = 3
MOST_METRICS = 4
_FIRST_METRICS = ("tokens_per_s", "ttft_ms", "ttft_p50_ms", "tpot_ms", "tpot_p50_ms")
MOST_PHASES = 5

WHOLE = 0.8
"""A phase with more than this share is the whole program: its parts say more."""


class Line(NamedTuple):
    """A label and its text. Lines of the highest `rank` go first where there is no
    room."""

    label: str
    text: str
    rank: int = 0
    is_typed: bool = False
    """Whether the text is a command, which stays in one line, so that a copy of it works."""


Group = list[Line]
"""Lines that stand together."""


def answer(session: Session, run: Run | None) -> list[Group]:
    """What a run did, or the machine where none was recorded; groups are never empty."""
    groups = _of_machine(session) if run is None else _of_run(Analysis(session, run))
    return [group for group in groups if group]


def _verdict_lines(verdict_of_run: Verdict, inside: str) -> Group:
    """The verdict, where it is, what else was seen, what to try, what that gains, how sure."""
    words = verdict_words(verdict_of_run, inside)
    sure, how = how_sure(verdict_of_run)
    lines = [
        Line(verdict_of_run.word, words.headline),
        Line("Where", words.where),
        Line("Seen", " ".join(words.seen), 3),
        Line("Try", _capital(words.advice)),
        Line("Gain", words.gain),
        Line(sure, how, 4),
        Line("Speed", verdict_of_run.speed),
    ]
    return [line for line in lines if line.text]


def _why_not(run: Run) -> Group:
    """Why there is no verdict, where no remark says it."""
    if remarks(run) and not run.kernels:
        return []
    return [Line("No verdict", why_no_verdict(run))]


def _other_findings(rest: Iterable[Finding], verdict_of_run: Verdict | None) -> Group:
    """The findings that do not lead, and facts."""
    led = (
        verdict_of_run.findings[0].cause
        if verdict_of_run is not None and verdict_of_run.findings
        else ""
    )
    lines: Group = []
    for finding in rest:
        if finding.cause == led:
            continue
        evidence = " ".join(_sentences(finding.evidence))
        lines.append(Line("also", f"{finding.sentence} {evidence}".rstrip(), 2))
        lines.append(Line("", f"Try: {_advice(finding)}", 2))
    return lines


def _advice(finding: Finding) -> str:
    return " ".join(filter(None, (_capital(f"{finding.advice}."), finding.gain_text)))


def _capital(advice: str) -> str:
    """With a capital; a name of code is written as it is."""
    first = advice.split(maxsplit=1)[0].rstrip(":,;.") if advice else ""
    return advice[:1].upper() + advice[1:] if first.isalpha() else advice


def _sentences(evidence: Iterable[str]) -> list[str]:
    return [f"{sentence}." for sentence in evidence]


def _of_run(analysis: Analysis) -> list[Group]:
    session, run = analysis.session, analysis.run
    conclusion_of_run = conclusion(analysis)
    tree = conclusion_of_run.tree if conclusion_of_run is not None else None
    where: Group = []
    if tree is not None:
        where += _time(run, tree)
        where += _casts(session, run, tree)
    if figures := _metrics(run):
        where.append(Line("reported", figures, 4))
    if phases := _phases(run):
        where.append(Line("by phase", phases, 3))
    where += _engines(session)
    energies = run_energy(run, analysis.tree)
    for gpu in (sorted(analysis.devices) or sorted(session.gpus))[:MOST_GPUS]:
        if figures := _gpu(session, run.readings, gpu, run, energies):
            where.append(Line(f"GPU {gpu}", figures, 5))
    benchmark = _benchmark(run, tree)
    if conclusion_of_run is None:
        verdict_lines = _why_not(run)
    else:
        first = next(iter(conclusion_of_run.findings), None)
        inside = largest_part(session, run, first) if first is not None else ""
        verdict_lines = _verdict_lines(conclusion_of_run, inside)
    beside = _other_findings(findings(analysis), conclusion_of_run)
    if benchmark:  # it does on purpose what it measures
        verdict_lines = [line for line in verdict_lines if line.label not in ("Try", "Gain")]
        beside = [line for line in beside if not line.text.startswith("Try: ")]
    notes = [Line("note", remark.line, 1) for remark in remarks(run)]
    if clocks := clocks_line(session, run):
        notes.insert(0, Line("note", clocks, 1))
    if (job := job_of(session, run)) is not None and job.missing_ranks:
        notes.insert(0, Line("note", job.line, 1))
    if tracing := tracing_line(run, shares_error_points(run)):
        notes.append(Line("note", tracing, 1))
    return [
        [Line("", _title(run))],
        _alerts(session, run),
        benchmark,
        verdict_lines,
        where,
        beside + [Line("also", text, 6) for text in interruptions(conclusion_of_run)] + notes,
    ]


def _benchmark(run: Run, tree: TimeTree | None) -> Group:
    """What the answer is of, where that is not one program's step."""
    if tree is None or not tree.benchmark_rows:
        return []
    return [Line("BENCHMARK", f"{of_benchmark(run, tree)} What follows is of all of them.")]


def _of_machine(session: Session) -> list[Group]:
    length = units.duration(session.readings.duration_ns)
    gpus = [
        Line(f"GPU {gpu}", _gpu(session, session.readings, gpu, None, ()), 5)
        for gpu in sorted(session.gpus)[: 2 * MOST_GPUS]
    ]
    samples = units.count(session.readings.samples)
    return [
        [Line("", f"machine only: no run was recorded · {length}, {samples} samples")],
        _alerts(session, None),
        gpus,
        _engines(session),
        _other_findings(machine_findings(MachineAnalysis(session)), None),
    ]


def _alerts(session: Session, run: Run | None) -> Group:
    """A line for each of the newest alerts, and how many more there were."""
    rows = alert_rows(session, run)
    lines = [Line("ALERT", _alert(row), 6) for row in rows[-MOST_ALERTS:]]
    if more := len(rows) - len(lines):
        lines.append(Line("", f"{more} more before: --table alerts"))
    return lines


def _alert(row: AlertRow) -> str:
    # An alert may be older than the run.
    since = units.duration(row.since_ns) if row.since_ns >= 0 else "before the start"
    held = f"from {since} to the end"
    if row.held_ns is not None:
        held = f"for {units.duration(row.held_ns)} from {since}"
    return f"{condition_text(row.span.raised)}: {row.worst} at worst, {held}"


def _engines(session: Session) -> Group:
    return [Line("engine", server_line(server), 3) for server in session.servers.values()]


def outcome_words(run: Run, *, lost_end: bool = False) -> str:
    """How a run ended, and after how long; `lost_end` if no more of it is to come."""
    took = units.duration(run.duration_ns)
    if run.ended is None and lost_end:
        return f"no end was recorded after {took}"
    if run.outcome == "ended" and not run.duration_ns:  # tables of nsys have no times of day
        return "its length is not in what was imported"
    return {
        "running": f"running {took}",
        "done": f"done in {took}",
        "stopped": f"stopped after {took}",
        "detached": f"detached after {took}",
        "failed": f"FAILED after {took}",
        "ended": f"ended after {took}",
    }[run.outcome]


def _title(run: Run) -> str:
    took = outcome_words(run)
    if run.outcome == "running":
        took = f"{units.duration(run.duration_ns)} so far"
    why = f": {run.ended.reason}" if run.ended and run.outcome == "failed" else ""
    return f"{run.started.name} · run {run.started.run} · {took}{why}"


def _time(run: Run, tree: TimeTree) -> Group:
    lines: Group = []
    if tree.has_steps:
        middle = units.duration(tree.step_ns.median)
        figures = [f"{units.duration(tree.step_mean_ns)} mean, {middle} median"]
        figures[0] += f", {units.duration(tree.step_ns.percentile(99))} p99"
        figures.append(f"{tree.program_steps:,} steady steps")
        if of_loop := loop_mean(tree):
            figures = [of_loop, f"{figures[1]}: {figures[0]}"]
        lines.append(Line("step", "; ".join(figures)))
        if meaning := beside_benchmark(run, tree):  # which stands above
            lines.append(Line("", meaning))
    for state in ("busy", "idle"):
        leaves = [
            (LEAVES[leaf].label, ns)
            for leaf, ns in tree.leaves.items()
            if LEAVES[leaf].is_idle == (state == "idle") and ns
        ]
        lines.append(_state(state, leaves, tree))
    return lines


CASTS, MOSTLY_CASTS = 0.2, 0.9
"""Share of the kernels' time from which copies and casts are worth a line where the GPU mostly
waits (1 to 13 % of it in programs without such a fault), and from which copying is what the program
is for."""


def _casts(session: Session, run: Run, tree: TimeTree) -> Group:
    """What conversions are of the GPU's work, where that is so little of the time that no cure of
    them would be felt: it would be once the launches are mended."""
    if tree.share(tree.idle_ns) < 0.5:
        return []
    rows = {name: percent for name, _, _, percent in category_rows(session, run)}
    share = rows.get("copy", 0.0)
    if not CASTS <= share / 100 <= MOSTLY_CASTS:
        return []
    return [
        Line("", f"Kernels that copy or cast tensors are {units.percent(share)} of the GPU's work.")
    ]


def _state(state: str, leaves: list[tuple[str, int]], tree: TimeTree) -> Line:
    leaves.sort(key=lambda leaf_and_share: -leaf_and_share[1])
    whole = 100 * tree.share(sum(ns for _, ns in leaves))
    worth = sum(100 * tree.share(ns) >= LEAST_PERCENT for _, ns in leaves)
    named, rest = leaves[: min(worth, MOST_LEAVES)], leaves[min(worth, MOST_LEAVES) :]
    shares = [100 * tree.share(ns) for _, ns in named]
    words = [f"{label} {share:.1f}" for (label, _), share in zip(named, shares, strict=True)]
    left = 100 * tree.share(sum(ns for _, ns in rest))
    if left >= LEAST_PERCENT:
        words.append(f"{len(rest)} more {left:.1f}")
    return Line(f"{state}  {whole:5.1f} %", "   ".join(words))


def _metrics(run: Run) -> str:
    """The figures about speed first, which a person compares: tokens a second, the two latencies
    that a user waits for, further rates."""
    names = [
        name
        for name, value in run.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]

    def rank(name: str) -> int:
        if name in _FIRST_METRICS:
            return _FIRST_METRICS.index(name)
        return len(_FIRST_METRICS) + (not name.endswith("_per_s"))

    names.sort(key=rank)
    pairs = [metric_text(name, run.metrics[name]) for name in names[:MOST_METRICS]]
    return "   ".join(f"{label} {text}" for label, text in pairs)


def _phases(run: Run) -> str:
    """What the phases of a step have of the GPU's work, or without a GPU of the time on the thread
    that they are on: a thread that waits in `load` for the step before has not loaded all the time.
    Steps of all ranks and all rows of a benchmark are taken together."""
    rows = phase_rows(run)
    main = main_step(run, rows)
    on_gpu = any(row.on_gpu and _gpu_ns(row) for row in rows)
    whole_ns = 0.0
    times: dict[tuple[str, ...], float] = {}
    for row in rows:
        names = row.key[2]
        if main is not None:
            outer = next((place for place, name in enumerate(names) if name == main.name), None)
            if outer is None or row.domain != main.domain:
                continue
            names = names[outer + 1 :]
        elif row.share_percent is None:
            continue
        time_ns = _gpu_ns(row) if on_gpu else row.cpu_total_ns
        if on_gpu and main is None:  # libraries' own ranges may be all there are, and hold little
            time_ns, whole_ns = row.gpu_busy_percent or 0.0, 100.0
        if names and not row.is_replayed:
            times[names] = times.get(names, 0.0) + time_ns
        if main is not None and not names:
            whole_ns += time_ns
    if main is None and not on_gpu:
        whole_ns = run.duration_ns
    if not whole_ns:
        return ""
    shares = {names: 100.0 * ns / whole_ns for names, ns in times.items() if ns}
    level = _level(shares)
    if sum(level.values()) < LEAST_LEVEL:
        return ""
    named = sorted(level.items(), key=lambda names_and_share: -names_and_share[1])
    shown = [f"{names[-1]} {units.percent(share)}" for names, share in named[:MOST_PHASES]]
    if len(named) > MOST_PHASES:
        shown.append(f"{len(named) - MOST_PHASES} more")
    each = "the run" if main is None else f"each {main.name}"
    what = "the GPU's work in" if on_gpu else "the wall time of"
    return f"{'   '.join(shown)}   of {what} {each}"


def _gpu_ns(row: PhaseRow) -> float:
    estimate = row.gpu_estimate
    return row.gpu_busy_ns if estimate is None else estimate.amount


def _level(shares: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """The outermost phases, or the parts of one that is nearly everything."""
    inner = dict(shares)
    while inner:
        depth = min(map(len, inner))
        level = {names: share for names, share in inner.items() if len(names) == depth}
        largest = max(level, key=lambda names: level[names])
        deeper = {names: share for names, share in inner.items()
                  if len(names) > depth and names[:depth] == largest}  # fmt: skip
        if level[largest] < WHOLE * sum(level.values()) or not deeper:
            return level
        inner = deeper
    return {}


def _gpu(
    session: Session,
    readings: Readings,
    gpu: int,
    run: Run | None,
    energies: Iterable[RunEnergy],
) -> str:
    gpu_state = session.gpus.get(gpu)
    words = [gpu_state.facts.name] if gpu_state is not None else []
    memory = readings.series(gpu, "memory_used_bytes")
    total = gpu_state.facts.memory_total_bytes if gpu_state is not None else None
    if memory is not None and memory.count:
        of_total = f" of {units.size(total)}" if total else ""
        words.append(
            f"{units.size(int(memory.maximum))}{of_total} at most{among_few(memory.count)}"
        )
    if means := _means(readings, gpu, run):
        words.append(means)
    energy = [row for row in energies if row.gpu == gpu]
    if energy and energy[0].token_joules is not None:
        words.append(f"{units.joules(energy[0].token_joules)}/token")
    elif energy and energy[0].step_joules is not None:
        words.append(f"{units.joules(energy[0].step_joules)}/step")
    return "   ".join(words)


def _means(readings: Readings, gpu: int, run: Run | None) -> str:
    """Power and activity while the run used the GPU; over all the time where it did not, and
    where there is no run."""
    device = run.devices.get(gpu) if run is not None else None
    whole = span_of(run) if run is not None else (readings.first_ns, readings.last_ns)
    words = []
    for field, show in (("power_watts", units.watts), ("sm_active_percent", units.percent)):
        series = readings.series(gpu, field)
        if series is None:
            continue
        mean = series.mean(used_span(device))
        if mean is None and series.count and device is None:
            mean = series.mean_of_all(whole)
        if mean is not None:
            words.append(f"SM active {show(mean)}" if field != "power_watts" else show(mean))
    if not words:
        return ""
    return f"{'in use' if device is not None else 'mean'} {', '.join(words)}"


def short_line(run: Run) -> list[str]:
    """Where the time goes, as one line for a run that goes on."""
    tree = time_tree(run)
    if tree is None:
        return []
    words = [f"step {units.duration(tree.newest[-1])}"] if tree.newest else []
    words.append(f"busy {units.percent(100 * (1 - tree.share(tree.idle_ns)))}")
    leaf = max(tree.leaves, key=lambda leaf: LEAVES[leaf].is_idle * tree.leaves[leaf])
    if LEAVES[leaf].is_idle and tree.leaves[leaf]:
        share = units.percent(100 * tree.share(tree.leaves[leaf]))
        words.append(f"{LEAVES[leaf].label} {share}")
    return words


# --- The job that a run is of: its name, its ranks, those that are not here.

LISTED = 20
"""Missing ranks that are listed one by one."""


class HostClock(msgspec.Struct, frozen=True):
    """How far a host's clock is ahead of the first's, and by how much that may be wrong; null where
    the two were not compared.
    """

    host: str
    offset_ns: int | None = None
    error_ns: int | None = None

    @property
    def offset(self) -> ClockOffset | None:
        """The offset with its error; None where the two clocks were not compared."""
        if self.offset_ns is None or self.error_ns is None:
            return None
        return ClockOffset(self.offset_ns, self.error_ns)


class Job(msgspec.Struct, frozen=True):
    """The job that the run belongs to. `missing_ranks` are the ranks of which nothing was recorded;
    it and `world_size` are null if the job's size is not known. `hosts` are named if there are
    several; `clocks` compares the clocks of all but the first."""

    id: str | None
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int] | None
    hosts: list[str]
    clocks: list[HostClock]

    @property
    def line(self) -> str:
        """The job in one line: its name, how many ranks, and which are missing."""
        of_size = "" if self.world_size is None else f" of {self.world_size}"
        words = [f"job {self.id or 'without an id'}: {len(self.ranks)}{of_size} ranks"]
        if len(self.hosts) > 1:
            words.append(f"on {len(self.hosts)} hosts")
        if self.missing_ranks:
            names = ", ".join(map(str, self.missing_ranks[:LISTED]))
            more = len(self.missing_ranks) - LISTED
            many = "ranks" if len(self.missing_ranks) > 1 else "rank"
            words.append(f"without {many} {names}" + (f" and {more} more" if more > 0 else ""))
        return " ".join(words)


def clocks_of(session: Session, run: Run) -> list[HostClock]:
    """The clock of each host but the first, against the first; nothing if there is only one host. A
    difference of two comparisons is as wrong as both together."""
    first, *others = sorted(hosts(run)) or [""]
    offsets = session.clocks
    clocks = []
    for host in others:
        if first in offsets and host in offsets and offsets[first].by == offsets[host].by:
            offset_ns = offsets[host].offset_ns - offsets[first].offset_ns
            error_ns = offsets[host].error_ns + offsets[first].error_ns
            clocks.append(HostClock(host, offset_ns, error_ns))
        else:
            clocks.append(HostClock(host))
    return clocks


def clocks_line(session: Session, run: Run) -> str:
    """How far the clocks of a job's hosts are apart, "" of one host."""
    clocks = clocks_of(session, run)
    if not clocks:
        return ""
    first = min(hosts(run))
    offsets = {
        host_clock.host: clock for host_clock in clocks if (clock := host_clock.offset) is not None
    }
    texts = [f"{host} {clock.text}" for host, clock in offsets.items()]
    unknown = len(clocks) - len(texts)
    if not texts:
        return f"the clocks of {len(clocks) + 1} hosts were not compared: each time is of its own"
    if len(texts) > CLOCKS_LISTED:
        error_ns = max(clock.error_ns for clock in offsets.values())
        texts = [f"{len(texts)} hosts, each to ± {duration(error_ns)} or better"]
    texts += [f"{unknown} not compared"] if unknown else []
    return f"clocks beside that of {first}: {', '.join(texts)}"


CLOCKS_LISTED = 4
"""Hosts whose clocks are given one by one."""


def job_of(session: Session, run: Run) -> Job | None:
    """None where no process is a rank."""
    attached = [
        process.attached for process in run.processes.values() if process.attached.rank is not None
    ]
    if not attached:
        return None
    names = Counter(
        process.job.id for process in attached if process.job is not None and process.job.id
    )
    sizes = [
        process.job.world_size
        for process in attached
        if process.job is not None and process.job.world_size
    ]
    present = sorted({process.rank for process in attached if process.rank is not None})
    size = max(sizes, default=None)
    missing = None
    if size is not None and size <= MOST_RANKS:
        missing = sorted(set(range(size)) - set(present))
    return Job(
        names.most_common(1)[0][0] if names else None,
        size,
        present,
        missing,
        sorted(hosts(run)),
        clocks_of(session, run),
    )


# Missing ranks are listed up to the world size, so a hostile one would take all memory.
MOST_RANKS = 100_000
"""More are no job's: the number is a recording's word."""
