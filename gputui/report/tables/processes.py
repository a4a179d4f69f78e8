"""Tables of processes: the traced processes of a run (who they are, when they came and went, what
was seen of them), and the processes on the GPUs now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gputui.model import units
from gputui.model.events import ProcessSample
from gputui.model.metrics import metrics_of
from gputui.report.schema import TableSpec, count, number, percent, size, text, time
from gputui.state import Process, Run, Session


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One process of a run that loaded the capture library.

    Times are since the run's start. They are when the process loaded the library, and when it said
    goodbye, by its own clock; for a process that vanished, and in older recordings, they are when
    the reader saw it (it looks every 0.25 s or more often). `end_ns` is None for a process that has
    not gone. `how_ended` is "running", "ended", "vanished" (killed, or gone without a word) or, if
    the recording ends first, "not seen to end". `gpus` are the GPUs that ran something for the
    process.
    """

    process: Process
    start_ns: int
    end_ns: int | None
    how_ended: str
    gpus: tuple[int, ...]

    @property
    def threads(self) -> tuple[str, ...]:
        """Names of its threads, in order of their ids."""
        return tuple(named.name for _, named in sorted(self.process.threads.items()))


def traced_rows(run: Run) -> list[TracedRow]:
    """The traced processes of `run`, in the order in which they were seen."""
    return [_row(run, number, process) for number, process in run.processes.items()]


def _row(run: Run, number: int, process: Process) -> TracedRow:
    began_ns, detached, ended_ns = run.started.time_ns, process.detached, process.ended_ns
    # What was seen after the run's end, at the last poll, happened by then.
    latest_ns = run.duration_ns
    if detached is not None:
        how = "ended" if detached.clean else "vanished"
    else:
        how = "running" if run.is_active else "not seen to end"
    start_ns = min(max(0, process.began_ns - began_ns), latest_ns)
    return TracedRow(
        process=process,
        start_ns=start_ns,
        end_ns=None if ended_ns is None else min(max(start_ns, ended_ns - began_ns), latest_ns),
        how_ended=how,
        gpus=tuple(sorted(gpu for owner, gpu in run.timing.devices if owner == number)),
    )


def thread_words(row: TracedRow) -> str:
    """The names of the process's threads, each once: "python, loader × 4"."""
    names = Counter(row.threads)
    return ", ".join(name if n == 1 else f"{name} × {n}" for name, n in names.items())


PROCESSES: TableSpec[TracedRow] = TableSpec(
    key="processes",
    title="Traced Processes",
    meaning="Processes of the run that loaded the capture library.",
    columns=(
        number("PID", "pid", lambda row: row.process.attached.pid, "The process", label="pid",
               width=7),
        number("Parent", "parent_pid", lambda row: row.process.attached.parent_pid, "Its parent",
               priority=6, label="parent", width=7),
        number("Rank", "rank", lambda row: row.process.attached.rank, "Its rank",
               kind=int | None, priority=2, label="rank", width=4),
        number("Local Rank", "local_rank", lambda row: row.process.attached.local_rank,
               "Its rank on this host", kind=int | None, priority=5, label="local", width=5),
        time("Start", "start_ns", lambda row: row.start_ns,
             "When it loaded the library, since the run's start", priority=1, label="came",
             width=8),
        time("End", "end_ns", lambda row: row.end_ns,
             "When it ended, since the run's start; missing while it runs", kind=int | None,
             priority=1, label="went", width=8),
        text("State", "state", lambda row: row.how_ended,
             "running, ended, vanished, or not seen to end", flexible=False, label="state",
             width=15),
        count("Records", "records", lambda row: row.process.records, "Records read from it",
              priority=3, label="records", width=7),
        count("Dropped", "dropped", lambda row: row.process.dropped, "Records lost", priority=4,
              label="dropped", width=7),
        text("GPUs", "gpus", lambda row: " ".join(map(str, row.gpus)), "GPUs that ran its work",
             kind=list[int], document=lambda row: list(row.gpus), right=True, flexible=False,
             priority=2, label="GPUs", width=4),
        text("CUDA", "cuda_status", lambda row: row.process.attached.cuda_status,
             "Whether its kernels are traced, or why not", flexible=False, priority=6, label="CUDA",
             width=8),
        text("Threads", "threads", thread_words, "Names of its threads", flexible=False,
             priority=7, label="threads", width=20, right=True),
        text("Command", "command", lambda row: row.process.attached.command, "The command line",
             label="command", width=16),
    ),
    rows=lambda _session, run: traced_rows(run),
    order=900,
    in_summary=True,
    note=lambda _run, _rows: "times since the run's start",
)  # fmt: skip

# --- The processes on the GPUs as a table: one row per process, sorted, filtered, or as a tree.

OUTSIDE = "(outside this container)"
"""The command of a process that only the driver sees."""


class ProcessRow(msgspec.Struct, frozen=True):
    """One process with all its GPUs.

    `uses` has a sample for each GPU, or MIG instance, that it is on. It is empty for a launcher,
    which is not on a GPU itself, and for a process of our own run that the driver does not list by
    this pid (in a container it may list the host's pids). `run` is the run it belongs to, None for
    what gputui did not start; `rank` is its rank there.

    In a tree `ancestors_last` says for each level above, then for the row itself, whether it is
    the last of its siblings: the basis of the lines beside it. In a list it is empty.
    """

    pid: int
    start_time_ns: int | None = None
    parent_pid: int | None = None
    user: str | None = None
    command: str | None = None
    kind: str | None = None
    uses: tuple[ProcessSample, ...] = ()
    cpu_percent: float | None = None
    host_memory_bytes: int | None = None
    run_time_ns: int | None = None
    run: int | None = None
    rank: int | None = None
    is_launcher: bool = False
    ancestors_last: tuple[bool, ...] = ()

    @property
    def identity(self) -> tuple[int, int | None]:
        """The process's start time, which distinguishes it from a later process with the same
        pid."""
        return self.pid, self.start_time_ns

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs it is on, once each."""
        return tuple(sorted({use.gpu for use in self.uses}))

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The process's memory on all of its GPUs together."""
        sizes = [use.gpu_memory_bytes for use in self.uses if use.gpu_memory_bytes is not None]
        return sum(sizes) if sizes else None

    @property
    def sm_percent(self) -> float | None:
        """The mean over its GPUs."""
        return _mean(use.sm_percent for use in self.uses)

    @property
    def memory_bandwidth_percent(self) -> float | None:
        """The mean over its GPUs."""
        return _mean(use.memory_bandwidth_percent for use in self.uses)


PROCESSES_NOW: TableSpec[ProcessRow] = TableSpec(
    key="gpu_processes",
    title="GPU processes",
    meaning="The processes on the GPUs now, one row each with all its GPUs.",
    columns=(
        text("GPU", "gpu", lambda row: row.gpus[0] if row.gpus else None, "The GPUs it is on",
             kind=int | None, words=lambda row: ",".join(map(str, row.gpus)) or units.MISSING),
        text("PID", "pid", lambda row: row.pid, "The process", kind=int,
             words=lambda row: str(row.pid)),
        text("T", "kind", lambda row: row.kind, "C: compute; G: graphics", kind=str | None,
             label="type"),
        text("User", "user", lambda row: row.user, "Who started it", kind=str | None, label="user"),
        size("GPU mem", "gpu_memory_bytes", lambda row: row.gpu_memory_bytes,
             "GPU memory, on all its GPUs", kind=int | None, label="GPU memory"),
        percent("SM", "sm_percent", lambda row: row.sm_percent,
                "Use of the SMs, the mean over its GPUs", kind=float | None),
        percent("Mem BW", "memory_bandwidth_percent", lambda row: row.memory_bandwidth_percent,
                "Use of the DRAM's bandwidth, the mean over its GPUs", kind=float | None,
                label="mem BW", wide=True),
        percent("CPU", "cpu_percent", lambda row: row.cpu_percent, "Use of one core",
                kind=float | None),
        size("Memory", "host_memory_bytes", lambda row: row.host_memory_bytes,
             "Memory of the host", kind=int | None, label="memory"),
        time("Age", "run_time_ns", lambda row: row.run_time_ns, "Since it was started",
             kind=int | None, label="age"),
        text("Command", "command", lambda row: row.command, "The command line", kind=str | None,
             words=lambda row: row.command or OUTSIDE, label="command"),
    ),
    rows=lambda session, _run: process_rows(session),
    order=0,
)  # fmt: skip
"""The table of the processes on the GPUs now. Its columns are also those of the screen's lists of
processes, and what their rows can be sorted by."""


def process_rows(session: Session) -> list[ProcessRow]:
    """A row for each process in the newest list, then for each of our own not in it."""
    ours = _own_processes(session)
    grouped: dict[tuple[int, int | None], list[ProcessSample]] = {}
    for sample in session.processes:
        grouped.setdefault((sample.pid, sample.start_time_ns), []).append(sample)
    rows = [_row_of_samples(samples, session.now_ns, ours) for samples in grouped.values()]
    listed = {row.pid for row in rows}
    for pid, (run, rank, command) in ours.items():
        if pid not in listed:
            rows.append(ProcessRow(pid=pid, command=command, run=run, rank=rank))
    return rows


def launcher_rows(session: Session) -> list[ProcessRow]:
    """A row for each ancestor of a process on a GPU."""
    return [
        ProcessRow(
            pid=launcher.pid,
            start_time_ns=launcher.start_time_ns,
            parent_pid=launcher.parent_pid,
            user=launcher.user,
            command=launcher.command,
            run_time_ns=_run_time(launcher.start_time_ns, session.now_ns),
            is_launcher=True,
        )
        for launcher in session.launchers
    ]


def filter_rows(rows: Iterable[ProcessRow], text: str) -> list[ProcessRow]:
    """The processes that have every word of `text` in their pid, user, command or `gpu N`, ignoring
    case."""
    words = text.casefold().split()
    return [row for row in rows if all(word in _haystack(row) for word in words)]


def tree_rows(rows: Sequence[ProcessRow], launchers: Iterable[ProcessRow]) -> list[ProcessRow]:
    """`rows` below their launchers, siblings in the order of `rows`.

    A launcher at the top that only leads to another launcher is left out (the login shell, the
    terminal), so that a tree begins where it branches or at the parent of a single process.
    """
    by_pid = {row.pid: row for row in launchers} | {row.pid: row for row in rows}
    place = _places(rows, by_pid)
    children: dict[int | None, list[int]] = {}
    for pid in sorted(place, key=lambda pid: (place[pid], pid)):
        parent = by_pid[pid].parent_pid
        children.setdefault(parent if parent in place else None, []).append(pid)
    tops = [_top(pid, by_pid, children) for pid in children.get(None, [])]
    left: list[tuple[int, tuple[bool, ...]]] = [
        (pid, (number == len(tops) - 1,)) for number, pid in enumerate(tops)
    ]
    tree: list[ProcessRow] = []
    while left:
        pid, lasts = left.pop(0)
        tree.append(msgspec.structs.replace(by_pid[pid], ancestors_last=lasts))
        below = children.get(pid, [])
        left[:0] = [
            (child, (*lasts, number == len(below) - 1)) for number, child in enumerate(below)
        ]
    return tree


def _places(rows: Sequence[ProcessRow], by_pid: dict[int, ProcessRow]) -> dict[int, int]:
    """For each row and all above it, the position of the first row at or below it.

    A loop, possible only in a forged recording, has no root and is left out of the tree.
    """
    place: dict[int, int] = {}
    for position, row in enumerate(rows):
        current: ProcessRow | None = row
        while current is not None and current.pid not in place:
            place[current.pid] = position
            parent = current.parent_pid
            current = None if parent is None else by_pid.get(parent)
    return place


def _top(pid: int, by_pid: dict[int, ProcessRow], children: dict[int | None, list[int]]) -> int:
    while by_pid[pid].is_launcher:
        below = children.get(pid, [])
        if len(below) != 1 or not by_pid[below[0]].is_launcher:
            break
        pid = below[0]
    return pid


def _own_processes(session: Session) -> dict[int, tuple[int, int | None, str]]:
    """For programs that gputui started and that still run: the run, the rank and the command, by
    pid."""
    own: dict[int, tuple[int, int | None, str]] = {}
    for run_number, run in session.runs.items():
        if not run.is_active:
            continue
        for process in run.processes.values():
            if process.detached is None:
                attached = process.attached
                own[attached.pid] = (run_number, attached.rank, attached.command)
    return own


def _row_of_samples(
    samples: Sequence[ProcessSample], now_ns: int, ours: dict[int, tuple[int, int | None, str]]
) -> ProcessRow:
    first = samples[0]
    run, rank, _ = ours.get(first.pid, (None, None, ""))
    kinds = {sample.kind for sample in samples if sample.kind is not None}
    return ProcessRow(
        pid=first.pid,
        start_time_ns=first.start_time_ns,
        parent_pid=first.parent_pid,
        user=first.user,
        command=first.command,
        kind=next(iter(kinds)) if len(kinds) == 1 else "C+G" if kinds else None,
        uses=tuple(samples),
        cpu_percent=first.cpu_percent,
        host_memory_bytes=first.host_memory_bytes,
        run_time_ns=_run_time(first.start_time_ns, now_ns),
        run=run,
        rank=rank,
    )


def _run_time(start_ns: int | None, now_ns: int) -> int | None:
    return None if start_ns is None else max(0, now_ns - start_ns)


def _haystack(row: ProcessRow) -> str:
    gpus = " ".join(f"gpu{gpu} gpu {gpu}" for gpu in row.gpus)
    return f"{row.pid} {row.user or ''} {row.command or ''} {gpus}".casefold()


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


TABLES = (PROCESSES,)


# What the table knows of one process.


def gpus_text(row: ProcessRow, many_instances: bool) -> str:
    """ "0,1", or "0:7" for a MIG instance; "-" if the driver does not say."""
    if not row.uses:
        return "-"
    if not many_instances:
        return ",".join(map(str, row.gpus))
    places = (
        str(use.gpu) if use.gpu_instance_id is None else f"{use.gpu}:{use.gpu_instance_id}"
        for use in row.uses
    )
    return ",".join(dict.fromkeys(places))


_OF_HOST = ("cpu_percent", "host_memory_bytes")
"""Figures of a process on the host, once for all its GPUs."""


def process_facts(row: ProcessRow, session: Session) -> list[tuple[str, str]]:
    """Labels and texts, with all its GPUs and the reasons for what is missing; a title has no
    text."""

    def fact(label: str, text: str, field: str = "") -> tuple[str, str]:
        reason = session.host_unavailable.get(f"processes.{field}", "")
        return label, f"{text}: {reason}" if text == units.MISSING and reason else text

    parent = units.MISSING if row.parent_pid is None else str(row.parent_pid)
    facts = [
        fact("command", row.command or OUTSIDE),
        fact("user", row.user or units.MISSING, "user"),
        fact("parent", parent, "parent_pid"),
        fact("running for", units.duration(row.run_time_ns), "start_time_ns"),
    ]
    if row.run is not None:
        rank = "" if row.rank is None else f", rank {row.rank}"
        facts.append(("of gputui's run", f"{row.run}{rank}"))
    if row.is_launcher:
        return [*facts, (" ", "not on a GPU itself: it started what is")]
    metrics = metrics_of(ProcessSample)
    facts += [
        fact(metrics[field].title, metrics[field].unit.show(getattr(row, field)), field)
        for field in _OF_HOST
    ]
    for use in row.uses:
        place = "" if use.gpu_instance_id is None else f", MIG instance {use.gpu_instance_id}"
        facts.append((f"on GPU {use.gpu}{place}", ""))
        facts += [
            fact(f"  {metric.title}", metric.unit.show(getattr(use, field)), field)
            for field, metric in metrics.items()
            if field not in _OF_HOST
        ]
    return facts
