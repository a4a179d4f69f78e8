"""Ranges and marks: the range tree with its clocks, NVTX marks, the choice of NVTX domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gputui.model.events import Mark, Payload, payload_text
from gputui.model.naming import is_library_domain
from gputui.model.units import duration
from gputui.model.units import percent as show
from gputui.report.phases import PhaseRow, is_inside, missing_estimates, phase_rows, phases_note
from gputui.report.schema import (
    RANK,
    Cell,
    Column,
    TableSpec,
    count,
    for_programs,
    if_any,
    if_differs,
    number,
    percent,
    size,
    text,
    time,
)
from gputui.report.statistics import category_rows
from gputui.state import MARKS, Run, Session
from gputui.state.history import History

# A run restricted to the ranges of some NVTX domains.

DEFAULT = "default"
"""What the domain without a name is called."""


def domains_of(run: Run) -> list[str]:
    """The domains that have ranges or marks, the default one first."""
    domains = {node.definition.domain or DEFAULT for node in run.ranges.values()}
    domains |= {mark.domain or DEFAULT for mark in run.marks.values()}
    return sorted(domains, key=lambda name: (name != DEFAULT, name.lower()))


def of_domains(run: Run, domains: list[str]) -> Run:
    """The same run, without ranges and marks outside `domains` (by their names, in any case)."""
    wanted = {name.lower() for name in domains}
    kept = {
        number: node
        for number, node in run.ranges.items()
        if (node.definition.domain or DEFAULT).lower() in wanted
    }
    return msgspec.structs.replace(
        run,
        ranges={
            number: msgspec.structs.replace(
                node, children=[child for child in node.children if child in kept]
            )
            for number, node in kept.items()
        },
        marks={
            key: mark
            for key, mark in run.marks.items()
            if (mark.domain or DEFAULT).lower() in wanted
        },
        newest_marks=History(
            Mark,
            MARKS,
            (mark for mark in run.newest_marks if (mark.domain or DEFAULT).lower() in wanted),
        ),
        roots=[number for number, node in kept.items() if node.definition.parent not in kept],
    )


# NVTX marks of a run: how often each occurred, the first and the last, with what payload.


@dataclass(frozen=True, slots=True)
class MarkRow:
    """Marks of one process, domain and name. Times are since the run's start, `payload` is the
    newest, `category` its name or its number.
    """

    pid: int
    rank: int | None
    domain: str
    name: str
    count: int
    first_ns: int
    last_ns: int
    category: str | None = None
    payload: Payload | None = None


def mark_rows(run: Run) -> list[MarkRow]:
    """The marks of `run` by process, domain and name, the most frequent first; times are ns since
    the run's start."""
    began_ns = run.started.time_ns
    rows = []
    categories = {
        (definition.process, definition.domain, definition.name): definition.category
        or str(definition.category_id)
        for definition in run.mark_definitions.values()
        if definition.category_id is not None
    }
    for marks in run.marks.values():
        process, domain, name = marks.process, marks.domain, marks.name
        attached = run.processes[process].attached
        first_ns, last_ns = (
            max(0, time_ns - began_ns) for time_ns in (marks.first_ns, marks.last_ns)
        )
        rows.append(
            MarkRow(
                pid=attached.pid,
                rank=attached.rank,
                domain=domain,
                name=name,
                count=marks.count,
                first_ns=first_ns,
                last_ns=last_ns,
                category=categories.get((process, domain, name)),
                payload=marks.payload,
            )
        )
    return sorted(rows, key=lambda row: (-row.count, row.first_ns, row.name))


class PayloadValue(msgspec.Struct, frozen=True):
    """A payload for programs; NaN and infinity are text."""

    type: str
    value: int | float | str


def payload_value(payload: Payload | None) -> PayloadValue | None:
    """What the program put beside a range or a mark."""
    return None if payload is None else PayloadValue(payload.type, payload.value)


def _payload_cell(payload: Payload | None) -> Cell:
    """A number if it is one."""
    if payload is None:
        return ""
    return payload_text(payload) if payload.type == "bytes" else payload.value


NVTX_MARKS: TableSpec[MarkRow] = TableSpec(
    key="nvtx_marks",
    title="NVTX Marks",
    meaning="NVTX marks by process, domain and name. nsys has no such table: its nvtx_sum leaves "
    "marks out.",
    columns=(
        count("Marks", "count", lambda row: row.count, "How many", label="count", width=6),
        time("First", "first_ns", lambda row: row.first_ns, "The first, since the run's start",
             priority=2, label="first", width=8),
        time("Last", "last_ns", lambda row: row.last_ns, "The last, since the run's start",
             priority=1, label="last", width=8),
        number("Rank", "rank", lambda row: row.rank, "The process's rank", kind=int | None,
               priority=4, seen=if_any, label="rank", width=4),
        number("PID", "pid", lambda row: row.pid, "The process", priority=4),
        text("Domain", "domain", lambda row: row.domain or DEFAULT, "The NVTX domain",
             document=lambda row: row.domain, flexible=False, priority=3, label="domain", width=8),
        text("Category", "category", lambda row: row.category or "",
             "The NVTX category's name, or its number", kind=str | None,
             document=lambda row: row.category, flexible=False, priority=5, label="category",
             width=8),
        text("Payload", "payload", lambda row: _payload_cell(row.payload), "The newest payload",
             kind=PayloadValue | None, document=lambda row: payload_value(row.payload),
             words=lambda row: payload_text(row.payload) if row.payload else "", right=True,
             flexible=False, priority=3, label="payload", width=9),
        text("Name", "name", lambda row: row.name, "The mark", label="mark", width=24),
    ),
    rows=lambda _session, run: mark_rows(run),
    order=200,
    in_summary=True,
    document="marks",
    note=lambda _run, _rows: "times since the run's start",
)  # fmt: skip


def _clock(key: str, attribute: str, meaning: str, kind: object,
           label: str = "") -> Column[PhaseRow]:  # fmt: skip
    """A figure of the instances' CPU times, which tables have no room for."""
    return time(key, key, lambda row: getattr(row.cpu, attribute), meaning, kind=kind,
                in_table=False, priority=4, label=label, width=8)  # fmt: skip


PHASES: TableSpec[PhaseRow] = TableSpec(
    key="phases",
    title="Phases (NVTX ranges)",
    meaning="The tree of NVTX ranges, parents before children: threads of a process added up.",
    columns=(
        text("Phase", "name", lambda row: "  " * row.depth + row.name, "The range's name",
             document=lambda row: row.name, label="phase", width=30),
        text("Domain", "domain", lambda row: row.domain or DEFAULT, "The NVTX domain",
             document=lambda row: row.domain, seen=if_differs),
        RANK,
        number("PID", "pid", lambda row: row.pid, "The process", seen=if_differs),
        text("Thread", "threads", lambda row: ", ".join(row.threads) or None,
             "Names and ids of the threads, where the main one is not among them",
             kind=list[str], document=lambda row: list(row.threads), seen=if_any, flexible=False,
             priority=3),
        percent("Share", "share_percent", lambda row: row.share_percent,
                "Time inside it on its thread, of the time of its process's steps; empty for "
                "phases outside of steps. In a run without steps, of the run's time",
                kind=float | None, priority=1, label="share", width=7,
                words=lambda row: "" if row.share_percent is None else show(row.share_percent)),
        count("Names", "names", lambda row: row.names,
              "Names of its ranges, whose numbering was folded", priority=6,
              seen=lambda cells: any(cell != 1 for cell in cells)),
        count("Instances", "instances", lambda row: row.instances, "How many have ended",
              priority=2, label="count", width=6),
        count("Incomplete", "incomplete_instances", lambda row: row.incomplete,
              "Of these, those in which records were lost: their figures are too small",
              kind=int | None, priority=2, seen=if_any, label="holes", width=6),
        time("CPU Total", "cpu_total_ns", lambda row: row.cpu_total_ns,
             "Wall time inside it on its thread, which runs, waits or sleeps there", priority=1,
             label="CPU time", width=8),
        time("CPU Exclusive", "cpu_exclusive_ns", lambda row: row.cpu_exclusive_ns,
             "Wall time inside it, but in none of the ranges inside it, on its thread",
             priority=5, label="exclusive", width=8),
        time("CPU / Step", "cpu_per_step_ns", lambda row: row.per_step_ns,
             "Wall time inside it on its thread, for each step of the nearest enclosing step",
             kind=float | None, priority=1, label="per step", width=7),
        time("GPU Busy", "gpu_busy_ns", lambda row: row.gpu_busy_ns if row.on_gpu else None,
             "Time in which a GPU ran something launched inside it, or meanwhile by threads "
             "without ranges (autograd's)", kind=int | None, priority=2,
             label="GPU busy", width=8),
        percent("of GPU Busy", "gpu_busy_percent", lambda row: row.gpu_busy_percent,
                "That time, of the time in which a GPU ran anything", kind=float | None, priority=4,
                seen=if_any),
        # In points of percent, a unit of its own: a share's error is no share.
        Column("±", show, "gpu_busy_error_points", lambda row: row.gpu_busy_error_points,
               "points",
               "Half the 95 % interval of that, where it is estimated from windows of tracing",
               float | None, priority=4, seen=if_any, label="±", width=5),
        time("GPU Estimated", "gpu_estimated_ns",
             lambda row: None if (estimate := row.gpu_estimate) is None else round(estimate.amount),
             "GPU time of all that was launched inside it, estimated from windows of tracing by "
             "occurrences; the other GPU figures are of the windows", kind=int | None, priority=3,
             seen=if_any, label="GPU ≈", width=8),
        time("GPU Idle", "gpu_idle_ns", lambda row: row.gpu_idle_ns,
             "Time between its first and last operation in which no GPU ran any of it",
             kind=int | None, priority=3),
        time("GPU Projected", "gpu_projected_ns", lambda row: row.gpu_projected_ns,
             "First operation's start to last one's end, added up over instances; n/a where other "
             "threads launched most",
             kind=int | None, priority=7, label="projected", width=9),
        count("Kernels", "kernels", lambda row: row.known_kernels,
              "Kernels launched inside it", kind=int | None, priority=3, label="kernels", width=7),
        count("Replayed", "replayed_kernels",
              lambda row: (row.launched.replayed or None) if row.on_gpu else None,
              "Of the kernels, those that CUDA graphs replayed: each counts in the phase that "
              "captured it, below the one that launched its graph", kind=int | None, priority=6,
              seen=if_any, label="replayed", width=8),
        count("Launches", "launches", lambda row: row.launches if row.on_gpu else None,
              "CUDA calls that launched them", kind=int | None, priority=6, label="launches",
              width=8),
        size("Memcpy", "memcpy_bytes", lambda row: row.memcpy_bytes if row.on_gpu else None,
             "Bytes of copies launched inside it", kind=int | None, priority=8, label="copied",
             width=8),
        text("Path", "path", lambda row: row.path, "Names from the outermost range on",
             seen=for_programs),
        text("Depth", "depth", lambda row: row.depth, "Ranges around it", kind=int,
             seen=for_programs),
        text("Style", "style", lambda row: row.style, "PushPop or StartEnd", in_table=False),
        text("Category", "category", lambda row: row.category,
             "The NVTX category's name, or its number", kind=str | None, in_table=False),
        Column("Payload", None, "payload", meaning="The newest payload", kind=PayloadValue | None,
               document=lambda row: payload_value(row.payload), in_table=False),
        _clock("cpu_avg_ns", "average", "Mean time of an instance", float | None),
        _clock("cpu_med_ns", "median", "Median time of an instance", float | None,
               "median"),
        _clock("cpu_min_ns", "minimum", "The shortest instance", int | None),
        _clock("cpu_max_ns", "maximum", "The longest instance", int | None),
        _clock("cpu_stddev_ns", "deviation", "Sample standard deviation of an instance",
               float | None),
        Column("CPU in Order", None, "cpu_in_order_ns", unit="ns", kind=list[float] | None,
               meaning="Where numbering was folded: mean times of an instance, the names in order, "
               "in up to 32 groups", document=lambda row: row.in_order_ns, in_table=False),
        time("GPU Total", "gpu_total_ns", lambda row: row.gpu_total_ns if row.on_gpu else None,
             "Times of its GPU operations added up", kind=int | None, in_table=False),
        time("Kernel Total", "kernel_total_ns",
             lambda row: row.kernel_ns if row.known_kernels is not None else None,
             "Times of its kernels added up", kind=int | None, in_table=False),
    ),
    rows=lambda _session, run: phase_rows(run),
    order=100,
    in_summary=True,
    document="phases",
    note=phases_note,
    unavailable=missing_estimates,
)  # fmt: skip

NamedRange = tuple[str, str, int, int, float | None, int | None]
"""Path of the phase, name of the range, instances, CPU total and mean, GPU busy."""


def _names(_session: Session, run: Run) -> list[NamedRange]:
    return [
        (
            row.path,
            node.definition.name,
            node.cpu.count,
            node.cpu.total,
            node.cpu.average,
            node.gpu_busy_ns if row.on_gpu else None,
        )
        for row in phase_rows(run)
        if row.names > 1
        for node in row.phase.nodes
    ]


NAMES: TableSpec[NamedRange] = TableSpec(
    key="phase_names",
    title="Names of Phases Whose Numbering Was Folded",
    meaning="The ranges of each phase that stands for several names, in order of appearance.",
    columns=(
        text("Phase", "phase", meaning="The phase's path"),
        text("Name", "name", meaning="The range's own name"),
        count("Instances", "instances", meaning="How many have ended"),
        time("CPU Total", "cpu_total_ns", meaning="Time of those on their thread"),
        time("CPU Avg", "cpu_avg_ns", meaning="Mean of an instance", kind=float | None),
        time("GPU Busy", "gpu_busy_ns", kind=int | None,
             meaning="Time in which a GPU ran something launched inside it"),
    ),
    rows=_names,
    order=110,
)  # fmt: skip

Category = tuple[str, int, int, float]

CATEGORIES: TableSpec[Category] = TableSpec(
    key="kernel_categories",
    title="GPU Kernel Time by Category",
    meaning="GPU time by the kind of work that kernels' names stand for.",
    columns=(
        percent("Time", "time_percent", lambda row: row[3], "Of all kernels' time"),
        time("Total Time", "total_ns", lambda row: row[2], "All of them together"),
        count("Instances", "instances", lambda row: row[1], "Kernels"),
        text("Category", "category", lambda row: row[0], "The kind of work"),
    ),
    rows=category_rows,
    order=300,
    in_summary=True,
)  # fmt: skip

TABLES = (NVTX_MARKS, PHASES, NAMES, CATEGORIES)


# Phases in another order, what 100 % of their shares is, and why there are none.


SORTS = ("time", "program's order", "count", "per step", "average", "GPU time", "kernels")
"""Sort orders of sibling phases; children stay inside their parent."""

_BESIDE_NS = 10**18
"""More than any time: 30 years."""


def order_phases(
    rows: Sequence[PhaseRow], by: str, *, other_way: bool, main: PhaseRow | None = None
) -> Sequence[PhaseRow]:
    """Rows with siblings by one of SORTS, highest first, or lowest with `other_way`.

    The time is the wall time on the launching thread; what is neither in the `main` step nor around
    it, such as a warm-up, comes after what is.
    """
    if by == SORTS[1] and not other_way:
        return rows

    def figure(row: PhaseRow) -> float:
        if by == "time":
            beside = main is not None and not (is_inside(row, main) or is_inside(main, row))
            return row.cpu_total_ns - (_BESIDE_NS if beside else 0)
        figures = {
            "count": row.instances,
            "per step": row.per_step_ns,
            "average": row.cpu.average,
            "GPU time": row.gpu_busy_ns,
            "kernels": row.kernels,
        }
        return figures.get(by) or 0.0

    # A row's key is its ancestors' keys before its own: sorting by it keeps the tree.
    places: dict[int, tuple[tuple[float, int], ...]] = {}
    above: list[tuple[tuple[float, int], ...]] = []
    for row_number, row in enumerate(rows):
        del above[row.depth :]
        value, order = -figure(row), row_number
        place = (*(above[-1] if above else ()), (-value, -order) if other_way else (value, order))
        places[row_number] = place
        above.append(place)
    return [rows[row_number] for row_number in sorted(places, key=places.__getitem__)]


def library_roots(run: Run) -> list[int]:
    """The outermost ranges that libraries made for themselves."""
    return [n for n in run.roots if is_library_domain(run.ranges[n].definition.domain)]


def scope_text(run: Run, main: PhaseRow | None) -> str:
    """What shares of phases are of."""
    if main is None:
        return f"100 % = {duration(run.duration_ns)}, the run"
    return f"100 % = {duration(main.cpu.average)}, a {main.name}"


def why_no_phases(run: Run) -> str:
    """Why there are no phases."""
    if run.unseen_reason:
        return f"no phase so far; {run.unseen_reason}"
    if run.is_active:
        return "waiting for the program's first NVTX range…"
    return f"the program opened no NVTX range{_annotated(run)}"


def why_little(run: Run, rows: Sequence[PhaseRow]) -> str:
    """What to say where ranges cover little of the run: they are a library's."""
    covered = show(100 * sum(row.cpu_total_ns for row in rows) / max(1, run.duration_ns))
    return f"these ranges cover {covered} of the run{_annotated(run)}"


def _annotated(run: Run) -> str:
    return "" if run.started.annotate else "; --annotate modules shows torch's modules"
