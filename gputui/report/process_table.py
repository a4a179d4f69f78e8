"""The processes on the GPUs as a table: one row per process, sorted, filtered, or as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gputui.model.events import LauncherSample, ProcessSample
from gputui.state import Session

OUTSIDE = "(outside this container)"
"""The command of a process that only the driver sees."""


class GpuUse(msgspec.Struct, frozen=True):
    """A process's use of one GPU, or of one MIG instance of it."""

    gpu: int
    gpu_instance_id: int | None = None
    memory_bytes: int | None = None
    sm_percent: float | None = None
    memory_bandwidth_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None


class ProcessRow(msgspec.Struct, frozen=True):
    """One process with all its GPUs.

    `uses` is empty for a launcher, which is not on a GPU itself, and for a process of our own run
    that the driver does not list by this pid (in a container it may list the host's pids). `run` is
    the run it belongs to, None for what gputui did not start; `rank` is its rank there.
    """

    pid: int
    start_time_ns: int | None = None
    parent_pid: int | None = None
    user: str | None = None
    command: str | None = None
    kind: str | None = None
    uses: tuple[GpuUse, ...] = ()
    cpu_percent: float | None = None
    host_memory_bytes: int | None = None
    run_time_ns: int | None = None
    run: int | None = None
    rank: int | None = None
    is_launcher: bool = False

    @property
    def identity(self) -> tuple[int, int | None]:
        """Distinguishes it from a later process with the same pid."""
        return self.pid, self.start_time_ns

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs it is on, once each."""
        return tuple(sorted({use.gpu for use in self.uses}))

    @property
    def gpu_memory_bytes(self) -> int | None:
        """On all its GPUs together."""
        known = [use.memory_bytes for use in self.uses if use.memory_bytes is not None]
        return sum(known) if known else None

    @property
    def sm_percent(self) -> float | None:
        """The mean over its GPUs."""
        return _mean(use.sm_percent for use in self.uses)

    @property
    def memory_bandwidth_percent(self) -> float | None:
        """The mean over its GPUs."""
        return _mean(use.memory_bandwidth_percent for use in self.uses)


class TreeRow(msgspec.Struct, frozen=True):
    """A row of the tree. `ancestors_last` says for each level above, then for the row itself,
    whether it is the last of its siblings: the basis of the lines beside it.
    """

    row: ProcessRow
    depth: int = 0
    ancestors_last: tuple[bool, ...] = ()


SORT_KEYS: dict[str, Callable[[ProcessRow], str | int | float | None]] = {
    "gpu": lambda row: row.gpus[0] if row.gpus else None,
    "pid": lambda row: row.pid,
    "user": lambda row: row.user,
    "gpu_memory_bytes": lambda row: row.gpu_memory_bytes,
    "sm_percent": lambda row: row.sm_percent,
    "memory_bandwidth_percent": lambda row: row.memory_bandwidth_percent,
    "cpu_percent": lambda row: row.cpu_percent,
    "host_memory_bytes": lambda row: row.host_memory_bytes,
    "run_time_ns": lambda row: row.run_time_ns,
    "command": lambda row: row.command,
}
"""What rows can be sorted by."""


def process_rows(session: Session) -> list[ProcessRow]:
    """A row for each process in the newest list, then for each of our own not in it."""
    ours = _own_processes(session)
    grouped: dict[tuple[int, int | None], list[ProcessSample]] = {}
    for sample in session.processes:
        grouped.setdefault((sample.pid, sample.start_time_ns), []).append(sample)
    rows = [_row(samples, session.now_ns, ours) for samples in grouped.values()]
    listed = {row.pid for row in rows}
    for pid, (run, rank, command) in ours.items():
        if pid not in listed:
            rows.append(ProcessRow(pid=pid, command=command, run=run, rank=rank))
    return rows


def launcher_rows(session: Session) -> list[ProcessRow]:
    """A row for each ancestor of a process on a GPU."""
    return [_launcher(one, session.now_ns) for one in session.launchers]


def sort_rows(
    rows: Iterable[ProcessRow], column: str, *, descending: bool = False
) -> list[ProcessRow]:
    """By a column of `SORT_KEYS` (KeyError for another); rows without a value come last."""
    key = SORT_KEYS[column]
    known: list[ProcessRow] = []
    unknown: list[ProcessRow] = []
    for row in sorted(rows, key=lambda row: row.pid):
        (unknown if key(row) is None else known).append(row)
    return [*sorted(known, key=key, reverse=descending), *unknown]  # type: ignore[arg-type]


def filter_rows(rows: Iterable[ProcessRow], text: str) -> list[ProcessRow]:
    """Those with every word of `text` in their pid, user, command or `gpu N`, ignoring case."""
    words = text.casefold().split()
    return [row for row in rows if all(word in _haystack(row) for word in words)]


def tree_rows(rows: Sequence[ProcessRow], launchers: Iterable[ProcessRow]) -> list[TreeRow]:
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
    tree: list[TreeRow] = []
    while left:
        pid, lasts = left.pop(0)
        tree.append(TreeRow(by_pid[pid], len(lasts) - 1, lasts))
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
    for number, row in enumerate(rows):
        current: ProcessRow | None = row
        while current is not None and current.pid not in place:
            place[current.pid] = number
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
    """By pid, the run, the rank and the command of what gputui started and is still running."""
    own: dict[int, tuple[int, int | None, str]] = {}
    for number, run in session.runs.items():
        if not run.is_active:
            continue
        for process in run.processes.values():
            if process.detached is None:
                told = process.attached
                own[told.pid] = (number, told.rank, told.command)
    return own


def _row(
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
        uses=tuple(
            GpuUse(
                sample.gpu,
                sample.gpu_instance_id,
                sample.gpu_memory_bytes,
                sample.sm_percent,
                sample.memory_bandwidth_percent,
                sample.encoder_percent,
                sample.decoder_percent,
            )
            for sample in samples
        ),
        cpu_percent=first.cpu_percent,
        host_memory_bytes=first.host_memory_bytes,
        run_time_ns=_run_time(first.start_time_ns, now_ns),
        run=run,
        rank=rank,
    )


def _launcher(one: LauncherSample, now_ns: int) -> ProcessRow:
    return ProcessRow(
        pid=one.pid,
        start_time_ns=one.start_time_ns,
        parent_pid=one.parent_pid,
        user=one.user,
        command=one.command,
        run_time_ns=_run_time(one.start_time_ns, now_ns),
        is_launcher=True,
    )


def _run_time(start_ns: int | None, now_ns: int) -> int | None:
    return None if start_ns is None else max(0, now_ns - start_ns)


def _haystack(row: ProcessRow) -> str:
    gpus = " ".join(f"gpu{gpu} gpu {gpu}" for gpu in row.gpus)
    return f"{row.pid} {row.user or ''} {row.command or ''} {gpus}".casefold()


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
