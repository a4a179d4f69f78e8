"""Where the time goes: the leaves of a step, the parts of one range, and nested parts. The leaves
of the time tree add up to 100 %. A range has parts on the CPU and on the GPU. Nested parts, an
icicle, cover a whole run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gputui.model import units
from gputui.model.leaves import LEAVES, Leaf, leaf_of_kernel, leaf_of_number
from gputui.model.naming import TOO_MANY, XLA_DOMAIN, is_library_domain
from gputui.model.units import duration
from gputui.report.explain.rank_waits import matched
from gputui.report.explain.time_tree import TimeTree, device_trees, shared_gpus, time_tree
from gputui.report.phase_tree import Phase, PhaseKey, phase_tree
from gputui.report.phases import PhaseRow, main_step, phase_rows
from gputui.report.schema import (
    RANK,
    REASON,
    ROWS,
    Column,
    TableSpec,
    count,
    if_any,
    number,
    percent,
    text,
    time,
)
from gputui.report.scope import of_ranges
from gputui.report.statistics import (
    TableRow,
    api_rows,
    category_rows,
    kernel_rows,
    memory_time_rows,
)
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class LeafRow:
    """A leaf: `share_percent` is of the wall time of the scope."""

    key: str
    label: str
    is_idle: bool
    share_percent: float
    total_ns: int
    step_ns: float | None


def leaf_rows(run: Run) -> list[LeafRow]:
    """The leaves of a run that took time, the largest first."""
    tree = time_tree(run)
    if tree is None:
        return []
    return [
        LeafRow(
            LEAVES[leaf].key,
            LEAVES[leaf].label,
            LEAVES[leaf].is_idle,
            100 * tree.share(ns),
            ns,
            tree.a_step(ns),
        )
        for leaf, ns in sorted(tree.leaves.items(), key=lambda item: -item[1])
        if ns
    ]


def _note(run: Run, _rows: Sequence[LeafRow]) -> str:
    tree = time_tree(run)
    if tree is None:
        return ""
    if not tree.steps:
        return f"100 % = {units.duration(tree.wall_ns)} since the first kernel; no steps were found"
    each = units.duration(tree.step_mean_ns)
    return f"100 % = {each}, the mean of {tree.program_steps:,} steady steps"


def _unavailable(run: Run, rows: Sequence[LeafRow]) -> Mapping[str, str]:
    return {ROWS: REASON} if run.kernels and not rows else {}


TIME: TableSpec[LeafRow] = TableSpec(
    key="time",
    title="Where each step goes",
    meaning="The leaves of the time tree: every nanosecond of the devices in steady steps.",
    columns=(
        text(
            "State",
            "state",
            lambda row: "idle" if row.is_idle else "busy",
            "busy or idle",
            in_table=False,
        ),
        text("Cause", "cause", lambda row: row.label, "The leaf's name"),
        text("Key", "key", lambda row: row.key, "Its name in conditions (--fail-if)"),
        percent("Share", "share_percent", lambda row: row.share_percent, "Of the wall time"),
        time("Per step", "step_ns", lambda row: row.step_ns, "Mean time a step", kind=float | None),
        time("Total", "total_ns", lambda row: row.total_ns, "In all steady steps", priority=1),
    ),
    rows=lambda _session, run: leaf_rows(run),
    order=1,
    in_summary=True,
    document="time",
    note=_note,
    unavailable=_unavailable,
)


@dataclass(frozen=True, slots=True)
class SharedRow:
    """What one process has of a GPU, in shares of the device's time."""

    gpu: int
    rank: int | None
    pid: int
    busy_percent: float
    idle_percent: float
    leaves_ns: dict[str, int]


def _shared_rows(_session: Session, run: Run) -> list[SharedRow]:
    shares = shared_gpus(run, device_trees(run, matched(run)))
    walls: dict[int, int] = defaultdict(int)
    for part in shares:
        walls[part.gpu] += part.busy_ns + part.idle_ns
    return [
        SharedRow(
            part.gpu,
            run.processes[part.process].attached.rank,
            run.processes[part.process].attached.pid,
            100 * part.busy_ns / walls[part.gpu],
            100 * part.idle_ns / walls[part.gpu],
            {LEAVES[leaf].key: ns for leaf, ns in part.leaves.items() if ns},
        )
        for part in shares
    ]


SHARED_GPUS: TableSpec[SharedRow] = TableSpec(
    key="shared_gpus",
    title="Processes on One GPU",
    meaning="What each traced process has of a GPU that several of them use at once.",
    columns=(
        number("GPU", "gpu", lambda row: row.gpu, "The GPU's index"),
        RANK,
        number("PID", "pid", lambda row: row.pid, "The process"),
        percent("Busy", "busy_percent", lambda row: row.busy_percent,
                "It ran something, of the device's time; where others did too, its part of that",
                kind=float),
        percent("Idle", "idle_percent", lambda row: row.idle_percent,
                "Nobody ran anything, in equal parts for those that might have", kind=float),
        Column("Leaves", key="leaves_ns", document=lambda row: row.leaves_ns,
               value=lambda row: len(row.leaves_ns),
               meaning="By leaf; those of all processes of a GPU add up to its wall time",
               kind=dict[str, int], in_table=False, unit="ns"),
    ),
    rows=_shared_rows,
    order=3,
    in_summary=True,
    document="shared_gpus",
)  # fmt: skip


# --- One range as one table: its parts on the CPU and on the GPU, its kernels by category, its
# calls and copies; in all, for each step, and as a share.

REST = "(the rest)"
"""The part of a range that lies in none of the ranges inside it."""

ALL_KERNELS = "all kernels"

MOST_CALLS = 5
"""Calls and copies that are named, of each the longest: all are in tables of their own."""


class ProfileRow(NamedTuple):
    """A line of the profile. CPU times are None for kernels and copies, GPU times for calls.
    `share_percent` is of `share_of`: of a range, the CPU time of the one around it, of a kernel
    the GPU time of all kernels. `steps` is how many steps the range holds, 0 where none is known,
    `captured_steps` of how many kernels and calls are known: of a part of the program, fewer.
    """

    section: str
    name: str
    depth: int
    instances: int
    cpu_ns: int | None
    gpu_ns: int | None
    share_percent: float | None
    gpu_share_percent: float | None
    share_of: str
    steps: int
    captured_steps: int

    @property
    def cpu_per_step_ns(self) -> float | None:
        """The mean over the steps; for calls, over the steps whose calls were captured."""
        steps = self.captured_steps if self.section == "calls" else self.steps
        return self.cpu_ns / steps if steps and self.cpu_ns is not None else None

    @property
    def gpu_per_step_ns(self) -> float | None:
        """The mean over the steps that were captured."""
        steps = self.captured_steps
        return self.gpu_ns / steps if steps and self.gpu_ns is not None else None


class _Part:
    """Ranges of one path below the outermost one, of all ranks and threads."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.cpu_ns = self.exclusive_ns = self.gpu_ns = self.instances = 0

    def add(self, row: PhaseRow) -> None:
        self.cpu_ns += row.cpu_total_ns
        self.exclusive_ns += row.cpu_exclusive_ns
        self.gpu_ns += row.gpu_total_ns
        self.instances += row.instances


class ProfileSteps(NamedTuple):
    """How many there are, and how many were captured."""

    steps: int
    captured_steps: int


def step_profile(session: Session, run: Run) -> list[ProfileRow]:
    """The profile of a run that is cut to one range (`of_ranges`); for a whole run, the profile of
    the ranges of its main step; None for a run without ranges."""
    outermost = {
        node.definition.name
        for number in run.roots
        if not is_library_domain((node := run.ranges[number]).definition.domain)
    }
    if len(outermost) > 1 and (main := main_step(run, phase_rows(run))) is not None:
        run = of_ranges(
            run,
            [
                node.definition.range
                for row in phase_rows(run)
                if row.key[1:] == main.key[1:]
                for node in row.phase.nodes
            ],
        )
    rows = [row for row in phase_rows(run) if not row.is_replayed]
    main = main_step(run, rows)
    steps = ProfileSteps(0, 0)
    if main is not None:
        its = [row for row in rows if row.name == main.name]
        count = sum(row.instances for row in its)
        is_part = run.started.captured_part is not None
        steps = ProfileSteps(count, sum(row.projected.count for row in its) if is_part else count)
    by_path: dict[tuple[str, ...], _Part] = {}
    for row in rows:
        names = row.key[2]
        by_path.setdefault(names, _Part(names)).add(row)
    return [
        *_ranges(by_path, steps),
        *_kernels(session, run, steps),
        *_calls(api_rows(run), steps),
        *_copies(memory_time_rows(run), steps),
    ]


def _ranges(by_path: Mapping[tuple[str, ...], _Part], steps: ProfileSteps) -> Iterator[ProfileRow]:
    """Every part, after the parts inside it, and the rest of it that they leave."""
    children: dict[tuple[str, ...], list[_Part]] = {}
    for names, part in by_path.items():
        children.setdefault(names[:-1], []).append(part)
    # The rest of a part is put below its last child: an explicit stack, as ranges nest deeply.
    waiting: list[tuple[_Part, bool]] = [(part, False) for part in reversed(children.get((), []))]
    while waiting:
        part, is_rest = waiting.pop()
        inner = children.get(part.names, [])
        name = part.names[-1]
        if is_rest:
            inner_gpu_ns = sum(child.gpu_ns for child in inner)
            yield _range(
                REST, len(part.names), 0, part.exclusive_ns,
                max(0, part.gpu_ns - inner_gpu_ns), part, steps,
            )  # fmt: skip
            continue
        around = by_path.get(part.names[:-1])
        depth = len(part.names) - 1
        yield _range(name, depth, part.instances, part.cpu_ns, part.gpu_ns, around, steps)
        if inner:
            waiting.append((part, True))
            waiting += [(child, False) for child in reversed(inner)]


def _range(
    name: str, depth: int, instances: int, cpu_ns: int, gpu_ns: int, around: _Part | None,
    steps: ProfileSteps,
) -> ProfileRow:  # fmt: skip
    return ProfileRow(
        section="ranges",
        name=name,
        depth=depth,
        instances=instances,
        cpu_ns=cpu_ns,
        gpu_ns=gpu_ns,
        share_percent=_percent(cpu_ns, around.cpu_ns if around else 0),
        gpu_share_percent=_percent(gpu_ns, around.gpu_ns if around else 0),
        share_of=around.names[-1] if around else "",
        **steps._asdict(),
    )


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def _kernels(session: Session, run: Run, steps: ProfileSteps) -> Iterator[ProfileRow]:
    by_category = category_rows(session, run)
    whole_ns = sum(total for _, _, total, _ in by_category)
    if not by_category:
        return
    kernels = sum(instances for _, instances, _, _ in by_category)
    yield _of_gpu("kernels", ALL_KERNELS, 0, kernels, whole_ns, 0, "", steps)
    for name, instances, total, _ in by_category:
        yield _of_gpu("kernels", name, 1, instances, total, whole_ns, ALL_KERNELS, steps)
    for kernel in kernel_rows(session, run)[:1]:
        yield _of_gpu("longest kernel", kernel.short_name, 0, kernel.instances, kernel.total,
                      whole_ns, ALL_KERNELS, steps)  # fmt: skip


def _of_gpu(
    section: str, name: str, depth: int, instances: int, gpu_ns: int, whole_ns: int, whole: str,
    steps: ProfileSteps,
) -> ProfileRow:  # fmt: skip
    return ProfileRow(
        section=section,
        name=name,
        depth=depth,
        instances=instances,
        cpu_ns=None,
        gpu_ns=gpu_ns,
        share_percent=None,
        gpu_share_percent=_percent(gpu_ns, whole_ns),
        share_of=whole,
        **steps._asdict(),
    )


def _calls(rows: Sequence[TableRow], steps: ProfileSteps) -> Iterator[ProfileRow]:
    whole_ns = sum(row.total for row in rows)
    head = (("all CUDA calls", 0, sum(row.instances for row in rows), whole_ns),)
    named = ((row.name, 1, row.instances, row.total) for row in rows[:MOST_CALLS])
    lines: Iterable[tuple[str, int, int, int]] = (*head, *named) if rows else ()
    for name, depth, instances, cpu_ns in lines:
        yield ProfileRow(
            section="calls",
            name=name,
            depth=depth,
            instances=instances,
            cpu_ns=cpu_ns,
            gpu_ns=None,
            share_percent=_percent(cpu_ns, whole_ns) if depth else None,
            gpu_share_percent=None,
            share_of=head[0][0] if depth else "",
            **steps._asdict(),
        )


def _copies(rows: Sequence[TableRow], steps: ProfileSteps) -> Iterator[ProfileRow]:
    whole_ns = sum(row.total for row in rows)
    whole = "all copies and fills"
    if rows:
        instances = sum(row.instances for row in rows)
        yield _of_gpu("copies", whole, 0, instances, whole_ns, 0, "", steps)
    for row in rows[:MOST_CALLS]:
        yield _of_gpu("copies", row.name, 1, row.instances, row.total, whole_ns, whole, steps)


def _why_no_rows(_run: Run, rows: Sequence[ProfileRow]) -> Mapping[str, str]:
    return {} if rows else {ROWS: "the program has no ranges"}


def _profile_note(_run: Run, rows: Sequence[ProfileRow]) -> str:
    if not rows or not rows[0].steps:
        return ""
    steps, captured = rows[0].steps, rows[0].captured_steps
    of_them = "" if captured == steps else f"; kernels, calls and copies of the {captured} captured"
    return f"of {units.count(steps)} steps{of_them}"


STEP_PROFILE: TableSpec[ProfileRow] = TableSpec(
    key="step_profile",
    title="Step Profile",
    meaning="One range, the main step or that of --phase: its parts on the CPU and on the GPU, its "
    "kernels by category, its calls and copies; in all, for each step, and as a share.",
    columns=(
        text("Section", "section", lambda row: row.section,
             "ranges, kernels, calls or copies", flexible=False),
        text("Part", "name", lambda row: "  " * row.depth + row.name,
             "A range, a category of kernels, a call or a copy", document=lambda row: row.name),
        count("Count", "instances", lambda row: row.instances, "How many", priority=3),
        time("CPU Total", "cpu_total_ns", lambda row: row.cpu_ns,
             "Time inside it on the launching thread", kind=int | None),
        time("CPU / Step", "cpu_per_step_ns", lambda row: row.cpu_per_step_ns, "For each step",
             kind=float | None, priority=1),
        percent("CPU Share", "share_percent", lambda row: row.share_percent,
                "Of the CPU time of the line that `of` names", kind=float | None, priority=1),
        time("GPU Total", "gpu_total_ns", lambda row: row.gpu_ns,
             "Times of what was launched inside it, or meanwhile by threads without ranges "
             "(autograd's), added up", kind=int | None, seen=if_any),
        time("GPU / Step", "gpu_per_step_ns", lambda row: row.gpu_per_step_ns, "For each step",
             kind=float | None, priority=1, seen=if_any),
        percent("GPU Share", "gpu_share_percent", lambda row: row.gpu_share_percent,
                "Of the GPU time of the line that `of` names", kind=float | None, priority=1,
                seen=if_any),
        text("of", "share_of", lambda row: row.share_of, "What the shares are of", priority=2,
             flexible=False),
    ),
    rows=step_profile,
    order=101,
    note=_profile_note,
    unavailable=_why_no_rows,
)  # fmt: skip


# --- Where the time goes as nested parts: phases, and in each what its GPU did and why it idled,
# whose widths add up to the time of what is around them.


@dataclass(slots=True)
class IciclePart:
    """A phase, or a leaf of the time in one: `key` or `leaf` says which. `ns` is wall time of the
    GPU, busy or idle, over everything that was recorded, and includes the parts inside."""

    name: str
    ns: int = 0
    key: PhaseKey | None = None
    leaf: Leaf | None = None
    parts: list[IciclePart] = field(default_factory=list)

    def stacks(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
        """Each innermost part with the names around it, from the outermost, and its time."""
        names = (*above, self.name)
        for part in self.parts:
            yield from part.stacks(names)
        own_ns = self.ns - sum(part.ns for part in self.parts)
        if own_ns > 0:
            yield names, own_ns


def icicle(run: Run) -> IciclePart:
    """All of the run's time on its GPUs, as far as it was accounted for by range. Phases are in the
    order in which they first began; after them comes the time in no phase."""
    own: dict[int, dict[Leaf, int]] = defaultdict(lambda: defaultdict(int))
    for leaf_time in run.timing.range_leaves.values():
        leaf = leaf_of_number(leaf_time.leaf)
        if leaf in LEAVES:
            own[leaf_time.range][leaf] += leaf_time.ns
    whole = IciclePart(run.started.name or "run")
    made: dict[Phase, IciclePart] = {}
    for phase in phase_tree(run).phases:
        part = made[phase] = IciclePart(phase.name, key=phase.key)
        around = made[phase.parent] if phase.parent is not None else whole
        around.parts.append(part)
        for node in phase.nodes:
            _add(part, own.pop(node.definition.range, {}))
    for leaves in own.values():  # outside every phase
        _add(whole, leaves)
    _sum(whole)
    return whole


def icicle_of_step(run: Run, tree: TimeTree | None) -> tuple[IciclePart, int]:
    """The part that is the program's main step, and how many steps it adds up. Where the program
    names no phase, the causes of the steps that were found in it; where it names no step, all that
    was recorded, once."""
    whole = icicle(run)
    step = main_step(run, phase_rows(run))
    pending = [whole] if step is not None else []
    while pending and step is not None:
        part = pending.pop()
        if part.key == step.key and part.ns:
            return part, max(1, step.instances)
        pending += part.parts
    named = [part.key for part in whole.parts if part.key is not None]
    # What XLA names is mostly its compiling.
    if tree is None or any(key[1] != XLA_DOMAIN and key[2] != (TOO_MANY,) for key in named):
        return whole, 1
    causes = IciclePart("step" if tree.has_steps else whole.name)
    _add(causes, tree.leaves)
    _sum(causes)
    times = tree.steps * tree.of_processes if tree.has_steps else tree.devices
    if tree.with_pauses:
        times = tree.wall_ns / (tree.turn_mean_ns or 1.0)
    return causes, max(1, round(times))


def divide_by_kernel(whole: IciclePart, session: Session, run: Run) -> None:
    """Divide the causes of a program without phases by the kernels of each, in the proportions of
    the whole run: of single steps these are not kept."""
    if any(part.leaf is None for part in whole.parts):
        return
    kernels: dict[Leaf, list[TableRow]] = defaultdict(list)
    for row in kernel_rows(session, run):
        kernels[leaf_of_kernel(row.name)].append(row)
    for part in whole.parts:
        rows = kernels.get(part.leaf, []) if part.leaf is not None else []
        in_all = sum(row.total for row in rows)
        shares = [(row.short_name, round(part.ns * row.total / in_all)) for row in rows if in_all]
        part.parts = [IciclePart(name, ns, leaf=part.leaf) for name, ns in shares if ns]


def _add(part: IciclePart, leaves: Mapping[Leaf, int]) -> None:
    by_leaf = {inner.leaf: inner for inner in part.parts if inner.leaf is not None}
    for leaf, ns in leaves.items():
        if leaf in by_leaf:
            by_leaf[leaf].ns += ns
        else:
            part.parts.append(IciclePart(LEAVES[leaf].label, ns, leaf=leaf))


def _sum(whole: IciclePart) -> None:
    """Add up from the inside, drop what took nothing, and let leaves follow phases by size. Without
    recursion: a program may nest deeper than Python does."""
    order = [whole]
    for part in order:
        order += part.parts
    for part in reversed(order):
        part.parts = [inner for inner in part.parts if inner.ns > 0]
        part.parts.sort(key=lambda inner: (inner.leaf is not None, -inner.ns if inner.leaf else 0))
        if part.leaf is None:
            part.ns = sum(inner.ns for inner in part.parts)


TABLES = (TIME, SHARED_GPUS, STEP_PROFILE)


# The shares of a time tree as people read them.


def by_size(tree: TimeTree) -> list[Leaf]:
    """The leaves that took time, the largest first."""
    return sorted(tree.leaves, key=lambda leaf: (-tree.leaves[leaf], leaf))


class LeafShares(NamedTuple):
    """The leaves of a tree, the largest first. Shares are rounded each for itself, as in the
    summary: made to add up to 100.0 % some of them were a tenth off."""

    leaves: list[Leaf]
    tree: TimeTree

    def tenths(self, leaves: Iterable[Leaf]) -> float:
        """The share of some leaves together, in percent with one decimal."""
        return round(100 * self.tree.share(sum(self.tree.leaves[leaf] for leaf in leaves)), 1)

    def text(self, leaves: Iterable[Leaf]) -> str:
        tenths = self.tenths(leaves)
        return f"{tenths:.1f} %" if tenths or not self.leaves else "<0.1 %"

    @property
    def busy(self) -> list[Leaf]:
        """The leaves in which something ran."""
        return [leaf for leaf in self.leaves if not LEAVES[leaf].is_idle]

    @property
    def idle(self) -> list[Leaf]:
        """The leaves in which nothing ran."""
        return [leaf for leaf in self.leaves if LEAVES[leaf].is_idle]


def leaf_shares(tree: TimeTree) -> LeafShares:
    """The shares of a tree as they are written everywhere on the screen."""
    return LeafShares(by_size(tree), tree)


def whole_in_words(tree: TimeTree) -> str:
    """What 100 % of a time tree's shares is."""
    if tree.with_pauses:
        return f"100 % = {duration(tree.turn_mean_ns)} with pauses"
    if tree.has_steps:
        return f"100 % = {duration(tree.step_mean_ns)}"
    return f"100 % = {duration(tree.wall_ns / max(1, tree.devices))} since the first kernel"


def time_a_step(tree: TimeTree, ns: float) -> str:
    """A time of the tree a step, of which a pause is one where they count, or of the whole scope
    where there are no steps."""
    a_step = tree.share(ns) * tree.turn_mean_ns if tree.with_pauses else tree.a_step(ns)
    if a_step is None:
        return duration(ns / max(1, tree.devices))
    return duration(a_step) if a_step >= 1 or not ns else "<1 ns"
