"""The range tree as rows: what each phase costs on the CPU and on the GPU.

Also the notes on phases whose GPU figures are estimated from windows of tracing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gputui.model.events import Payload
from gputui.model.events.distributions import Accumulator
from gputui.model.naming import read_engine_range
from gputui.report.phase_tree import Phase, PhaseKey, PhaseTree, phase_tree, phases_around
from gputui.report.statistics import Mean, half_width
from gputui.report.windows import NOTE, Estimates
from gputui.state import Launched, Process, Run

STEP_NAMES = re.compile(
    r"^(step|iter|iteration|train_step|training_step|decode_step|batch"
    r"|ProfilerStep)([ #_:]{0,2}(\d+|#))?$",
    re.IGNORECASE,
)
"""Common names of one step, numbered or folded, unless the workload declares its own."""


def is_step_name(name: str) -> bool:
    """Whether a range of this name, as it is or folded, is one step: by common use, or an engine's
    rule."""
    if STEP_NAMES.match(name):
        return True
    of_engine = read_engine_range(name)
    return of_engine is not None and of_engine.step_rank is not None


LEAST_LEVEL = 5.0
"""Phases with less than this percentage together are a library's, not the program's."""


def main_step(run: Run, rows: Sequence[PhaseRow]) -> PhaseRow | None:
    """The step that occurred most often. Everything that is not in it is warm-up or preparation."""
    wanted = run.started.step_range
    steps = [row for row in rows if row.instances and (
        row.name == wanted if wanted else is_step_name(row.name))]  # fmt: skip
    return max(steps, key=lambda row: (row.instances, row.cpu_total_ns), default=None)


WARM_UP = "warmup"
"""The range in which workloads warm up: its steps are no row of their tables."""


def are_of_rows(run: Run, rows: Sequence[PhaseRow]) -> bool:
    """Whether the steps that the run declares stand in several ranges, as those of a benchmark,
    each of whose rows does other work."""
    wanted = run.started.step_range
    steps = [row for row in rows if row.name == wanted and row.instances > 1]
    around = {row.key[2][:-1] for row in steps if WARM_UP not in row.key[2]}
    return wanted is not None and len(around) > 1


def is_inside(row: PhaseRow, outer: PhaseRow) -> bool:
    """Whether a phase is another one or inside it, in any process."""
    names = outer.key[2]
    return row.key[1] == outer.key[1] and row.key[2][: len(names)] == names


def in_main_step(run: Run, rows: Sequence[PhaseRow]) -> list[PhaseRow]:
    """The innermost phases of the main step, the longest first; of a program without one, its
    outermost phases."""
    main = main_step(run, rows)
    if main is None:
        step_rows = [row for row in rows if row.depth == 0]
    else:
        step_rows = [
            row
            for row in rows
            if is_inside(row, main)
            and row.key[0] == main.key[0]
            and not row.is_replayed
            and all(node.definition.graph for child in row.phase.children for node in child.nodes)
            and row is not main
        ] or [main]
    return sorted(step_rows, key=lambda row: -(row.per_step_ns or row.cpu_total_ns))


def share_of(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What the shares of `rows` refer to; "" where none has one."""
    if not any(row.share_percent for row in rows):
        return ""
    main = main_step(run, rows)
    each = "the run" if main is None else f"each {main.name}"
    each += " of its row" if are_of_rows(run, rows) else ""
    return f"of the wall time of {each} on the launching thread"


# A process silent for longer than this has not changed: readers take less time to report it.
_SILENCE_NS = 1_000_000_000


class PhaseTotals:
    """What figures of single phases are computed from."""

    def __init__(self, run: Run, tree: PhaseTree) -> None:
        self.run = run
        self.rows: list[PhaseRow] = []
        self._tree = tree
        devices = run.devices
        self.on_gpu = bool(devices)
        self.gpu_ns = sum(device.busy_ns for device in devices.values())

    @cached_property
    def main_step(self) -> PhaseRow | None:
        """The step that came most often."""
        return main_step(self.run, self.rows)

    @cached_property
    def rows_ns(self) -> dict[PhaseKey, int] | None:
        """The time in the steps of each row of a benchmark; None of any other run."""
        if not are_of_rows(self.run, self.rows):
            return None
        wanted = self.run.started.step_range
        return {row.key: row.cpu.total for row in self.rows if row.name == wanted}

    @cached_property
    def steps_ns(self) -> dict[int, int]:
        """The time in steps, by process."""
        main = self.main_step
        return {
            row.key[0]: row.cpu.total
            for row in self.rows
            if main is not None and row.key[1:] == main.key[1:]
        }

    @cached_property
    def estimates(self) -> Estimates | None:
        """The estimates from windows of tracing; None if all of the time was traced."""
        return Estimates.of_run(self.run)

    @cached_property
    def launched(self) -> dict[Phase, Launched]:
        """What was launched in each phase, together with the phases inside it."""
        sums: dict[Phase, Launched] = {}
        for phase in reversed(self._tree.phases):
            counts = sums[phase] = Launched()
            for node in phase.nodes:
                counts.add(node.launched)
                if node.inherited is not None:
                    counts.add(node.inherited)
            for child in phase.children:
                counts.add(sums[child])
        return sums

    @cached_property
    def inherited(self) -> dict[Phase, int]:
        """Kernels launched for each phase by threads without ranges."""
        sums: dict[Phase, int] = {}
        for phase in reversed(self._tree.phases):
            own = sum(node.inherited.kernels for node in phase.nodes if node.inherited is not None)
            sums[phase] = own + sum(sums[child] for child in phase.children)
        return sums

    def elapsed(self, phase: Phase) -> int:
        """Time in a phase so far, including the instances that are open now."""
        total = 0
        for node in phase.nodes:
            total += node.cpu.total
            if node.open_since_ns is not None:
                total += max(0, self._until_ns(phase) - node.open_since_ns)
        return total

    def _until_ns(self, phase: Phase) -> int:
        # A short range is open in one delta and has ended long before the next is made.
        until_ns = self.run.processes[phase.key[0]].updated_ns
        newest_ns = self.run.updated_ns
        return newest_ns if newest_ns - until_ns > _SILENCE_NS else until_ns

    def enclosing_steps(self, phase: Phase) -> int:
        """Instances of the nearest step at or around a phase, 0 if there is none."""
        wanted = self.run.started.step_range
        # By the parents, not by the names: a file may nest a range in one of another domain.
        for around in phases_around(phase):
            if around.name == wanted if wanted else is_step_name(around.name):
                return sum(node.cpu.count for node in around.nodes)
        return 0


def outside_ns(run: Run) -> int:
    """The time of a run in none of its phases, as its busiest thread saw it; 0 where that is not
    known: of several processes."""
    outermost: Counter[tuple[int, int, str]] = Counter()
    for node in run.ranges.values():
        definition = node.definition
        if not definition.parent:
            outermost[definition.process, definition.thread, definition.domain] += node.cpu.total
    if len({process for process, _, _ in outermost}) != 1:
        return 0
    return max(0, run.duration_ns - max(outermost.values()))


IN_ORDER = 32
"""Groups in which the instances of a folded phase are shown in order."""


@dataclass(frozen=True, eq=False)
class PhaseRow:
    """One path of the range tree in one rank; threads of a process are summed.

    Figures are computed when they are asked for: of many phases few are shown. `per_step_ns` is the
    CPU time per step of the nearest enclosing step. `open_since_ns` is set while an instance is
    open; `cpu_total_ns` and `cpu_exclusive_ns` include its time so far, `instances` and `cpu` only
    what ended.
    """

    phase: Phase
    _totals: PhaseTotals

    @property
    def key(self) -> PhaseKey:
        """What tells the phase from all others of the run."""
        return self.phase.key

    @property
    def path(self) -> str:
        """Names from the outermost range on."""
        return self.phase.path

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.phase.name

    @property
    def depth(self) -> int:
        """How many phases are around it."""
        return len(self.phase.key[2]) - 1

    @property
    def domain(self) -> str:
        """The NVTX domain of its ranges."""
        return self.phase.key[1]

    @property
    def style(self) -> str:
        """How its ranges were opened, by nsys's names: PushPop or StartEnd."""
        return self.phase.nodes[0].definition.style

    @property
    def rank(self) -> int | None:
        """The rank of the process that it is of; None without a job."""
        return self._process.attached.rank

    @property
    def pid(self) -> int:
        """The id of the process that it is of."""
        return self._process.attached.pid

    @property
    def instances(self) -> int:
        """How many of its ranges have ended."""
        return sum([node.cpu.count for node in self.phase.nodes])

    @property
    def names(self) -> int:
        """How many different names its ranges have."""
        return len({node.definition.name for node in self.phase.nodes})

    @property
    def in_order_ns(self) -> list[float] | None:
        """Mean times of an instance, its names in order, in up to IN_ORDER groups; None for a
        phase of one name."""
        if self.names < 2:
            return None
        ended = [node.cpu for node in self.phase.nodes if node.cpu.count]
        size = max(1, -(-len(ended) // IN_ORDER))
        return [
            sum(times.total for times in group) / sum(times.count for times in group)
            for start in range(0, len(ended), size)
            for group in [ended[start : start + size]]
        ]

    @cached_property
    def cpu(self) -> Accumulator:
        """Times of the instances on their threads."""
        return _together([node.cpu for node in self.phase.nodes])

    @cached_property
    def projected(self) -> Accumulator:
        """Times of the instances on the GPU, from first to last operation."""
        return _together([node.projected for node in self.phase.nodes])

    @property
    def cpu_ended_ns(self) -> int:
        """Time in the instances that ended."""
        return sum([node.cpu.total for node in self.phase.nodes])

    @cached_property
    def cpu_total_ns(self) -> int:
        """The time on the CPU inside the phase's ranges, including those that are still open."""
        elapsed = self._totals.elapsed(self.phase)
        # What ended inside may have been read slightly after the delta's time.
        return max(elapsed, self._inside_ns) if self.is_open else elapsed

    @property
    def cpu_exclusive_ns(self) -> int:
        """The time on the CPU in the phase, but in none of the phases inside it."""
        return max(0, self.cpu_total_ns - self._inside_ns)

    @cached_property
    def _inside_ns(self) -> int:
        return sum(map(self._totals.elapsed, self.phase.children))

    @property
    def gpu_busy_ns(self) -> int:
        """Time in which a GPU ran something launched inside."""
        return sum([node.gpu_busy_ns for node in self.phase.nodes])

    @property
    def gpu_total_ns(self) -> int:
        """Times of its operations, added up."""
        return sum([node.gpu_total_ns for node in self.phase.nodes])

    @property
    def is_replayed(self) -> bool:
        """Whether only CUDA graphs do something here: the CPU is in no range of that name."""
        return all(node.definition.graph for node in self.phase.nodes)

    @property
    def per_step_ns(self) -> float | None:
        """CPU time a step; None for what CUDA graphs replay."""
        if self.is_replayed:
            return None
        steps = self._totals.enclosing_steps(self.phase)
        return self.cpu_ended_ns / steps if steps else None

    @property
    def kernels(self) -> int:
        """How many kernels were launched inside."""
        return self.launched.kernels

    @property
    def known_kernels(self) -> int | None:
        """None if the run used no GPU that is known."""
        return self.kernels or (0 if self.on_gpu else None)

    @property
    def kernel_ns(self) -> int:
        """The times of the kernels launched inside, added up though some overlap."""
        return self.launched.kernel_ns

    @property
    def share_percent(self) -> float | None:
        """Time inside it on its thread, of the time of its process's steps, of a benchmark of those
        of its row; None for phases outside of steps. In a run without steps, of the run's time.
        None too for what CUDA graphs replay, and without a time axis, as in tables of nsys stats:
        which range is in which is unknown."""
        totals = self._totals
        if not totals.run.duration_ns or self.is_replayed:
            return None
        main = totals.main_step
        if (rows_ns := totals.rows_ns) is not None:
            process, domain, names = self.phase.key
            steps = ((process, domain, names[:length]) for length in range(1, len(names) + 1))
            whole_ns = next((rows_ns[step] for step in steps if step in rows_ns), 0)
            return 100.0 * self.cpu.total / whole_ns if whole_ns else None
        if main is None:
            return 100.0 * self.cpu_total_ns / totals.run.duration_ns
        whole_ns = totals.steps_ns.get(self.phase.key[0], 0)
        return 100.0 * self.cpu.total / whole_ns if whole_ns and is_inside(self, main) else None

    @property
    def gpu_busy_percent(self) -> float | None:
        """The phase's share of the GPUs' busy time in the run, estimated if only windows were
        traced; None if none is known, or if no window saw the phase."""
        if self._totals.estimates is not None:
            return None if self._gpu_share is None else self._gpu_share.amount
        gpu_ns = self._totals.gpu_ns if self.on_gpu else 0
        return 100.0 * self.gpu_busy_ns / gpu_ns if gpu_ns else None

    @property
    def gpu_busy_error_points(self) -> float | None:
        """Half the 95 % interval of the estimate; None where all was traced, or it is unknown."""
        return None if self._gpu_share is None else half_width(self._gpu_share)

    @cached_property
    def _gpu_share(self) -> Mean | None:
        estimates = self._totals.estimates
        return None if estimates is None else estimates.share_percent(self.phase)

    @cached_property
    def gpu_estimate(self) -> Mean | None:
        """GPU time of the operations launched inside, where only windows were traced; None where
        all was, or no window saw the phase."""
        estimates = self._totals.estimates
        return None if estimates is None else estimates.gpu_ns(self.phase)

    @property
    def has_children(self) -> bool:
        """Whether there are phases inside."""
        return bool(self.phase.children)

    @property
    def category(self) -> str | None:
        """The name, or the program's number if it has no name."""
        definition = self.phase.nodes[0].definition
        return definition.category or (
            None if definition.category_id is None else str(definition.category_id)
        )

    @property
    def payload(self) -> Payload | None:
        """The payload of the newest instance that had one, for each thread."""
        return next((node.payload for node in reversed(self.phase.nodes) if node.payload), None)

    @property
    def on_gpu(self) -> bool:
        """Whether the run used a GPU; where a part of the program was captured, in this phase."""
        if self._totals.run.started.captured_part is None:
            return self._totals.on_gpu
        return bool(self.launched.launches or self.launched.memcpy_bytes or self.gpu_busy_ns)

    @property
    def threads(self) -> tuple[str, ...]:
        """Names and ids of the threads on which the phase ran, unless the main thread is among
        them; threads without a name are left out."""
        process = self._process
        threads = {node.definition.thread for node in self.phase.nodes}
        if process.attached.pid in threads:
            return ()
        named = sorted(thread for thread in threads if thread in process.threads)
        return tuple(f"{process.threads[thread].name} ({thread})" for thread in named)

    @property
    def launches(self) -> int | None:
        """How many CUDA calls launched the phase's kernels. None if the kernels are counted there
        but their calls are not: a call is counted only in the innermost Push/Pop range of the
        program, not in Start/End ranges and other domains."""
        launches = self.launched.launches
        return None if self.kernels and not launches else launches

    @property
    def incomplete(self) -> int | None:
        """Instances in which records were lost; None where there are none."""
        return sum(node.incomplete for node in self.phase.nodes) or None

    @property
    def memcpy_bytes(self) -> int | None:
        """Copied by operations launched inside; None where copies are not counted, as calls."""
        copied = self.launched.memcpy_bytes
        elsewhere = self.launches is None or self.style == "StartEnd"
        return None if elsewhere and not copied else copied

    @property
    def gpu_projected_ns(self) -> int | None:
        """The time from the start of the first operation to the end of the last, summed over
        instances. None before the operations of an instance have arrived, and if other threads
        launched operations before or after those."""
        if not any(node.projected.count for node in self.phase.nodes):
            return None
        is_less = self.projected.total < self.gpu_busy_ns and self.inherited_kernels
        # BACKWARD's work is launched by other threads: its projection was 63 µs of 4.3 s.
        return None if is_less else self.projected.total

    @property
    def gpu_idle_ns(self) -> int | None:
        """The time in which the GPU ran nothing of this phase between the first start and the last
        end of its operations; None where those are not known."""
        projected_ns = self.gpu_projected_ns if self.on_gpu else None
        return None if projected_ns is None else max(0, projected_ns - self.gpu_busy_ns)

    @property
    def is_open(self) -> bool:
        """Whether the program is in this phase now."""
        return any(node.open_since_ns is not None for node in self.phase.nodes)

    @property
    def _process(self) -> Process:
        return self._totals.run.processes[self.phase.key[0]]

    @property
    def inherited_kernels(self) -> int:
        """How many of the phase's kernels were launched by threads without a range of their own
        (autograd's)."""
        return self._totals.inherited[self.phase]

    @cached_property
    def launched(self) -> Launched:
        """What was launched in the phase, together with the phases below it."""
        return self._totals.launched[self.phase]


def phase_rows(run: Run, *, library_domains: bool = False) -> list[PhaseRow]:
    """The run's range tree, parents before children, in order of first appearance.

    What threads launch that have no range of their own (autograd's) counts in the range open on
    the process's main thread; in nsys's tables it counts in none. `library_domains` adds the ranges
    of NCCL, CUB and their like.
    """
    tree = phase_tree(run, library_domains=library_domains)
    totals = PhaseTotals(run, tree)
    totals.rows = [PhaseRow(phase, totals) for phase in tree.phases]
    return list(totals.rows)


def _together(accumulators: list[Accumulator]) -> Accumulator:
    """One accumulator for several ranges; the usual single one is not copied."""
    return accumulators[0] if len(accumulators) == 1 else Accumulator.merged(accumulators)


# Notes on phases whose GPU figures are estimated from windows of tracing.

MOST_RANGES = 2000
"""Ranges of a run of which the largest error is looked for: the screen asks in every frame."""


def phases_note(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What must be known beside the rows."""
    share = share_of(run, rows)
    estimated = NOTE if Estimates.of_run(run) is not None else ""
    part = run.started.captured_part
    captured = f"kernels, launches and copies of {part} only" if part else ""
    return "; ".join(filter(None, (captured, share and f"share {share}", estimated)))


def shares_error_points(run: Run) -> float | None:
    """The largest error of the estimated shares of GPU time that are at least a percent; None
    without one."""
    if len(run.ranges) > MOST_RANGES or Estimates.of_run(run) is None:
        return None
    errors = [
        row.gpu_busy_error_points
        for row in phase_rows(run)
        if row.gpu_busy_error_points is not None and (row.gpu_busy_percent or 0.0) >= 1.0
    ]
    return max(errors, default=None)


def missing_estimates(run: Run, rows: Sequence[PhaseRow]) -> dict[str, str]:
    """Why phases lack estimated figures."""
    if Estimates.of_run(run) is None:
        return {}
    missing: dict[str, str] = {}
    if any(row.gpu_busy_percent is None for row in rows):
        missing["gpu_busy_percent"] = missing["gpu_estimated_ns"] = "no window of tracing saw it"
    if any(row.gpu_busy_error_points is None for row in rows):
        missing["gpu_busy_error_points"] = "too few windows of tracing saw it"
    return missing
