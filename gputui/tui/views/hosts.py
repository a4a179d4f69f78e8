"""Hosts: the GPUs of all of them, the worst first, and the processes on all these GPUs."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from gputui.model.units import MISSING, percent, watts
from gputui.report.alerts import (
    HostClass,
    HostFold,
    HostRow,
    gpu_problem,
    gpu_sums,
    host_rows,
    hosts_answer,
)
from gputui.report.machine_now import (
    busy_percent,
    memory_role,
)
from gputui.report.schema import Column
from gputui.report.tables.processes import ProcessRow, filter_rows, process_rows
from gputui.state import Gpu
from gputui.state.session import Hosts
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, Span, chosen_row, clip, fit, heading, wrap
from gputui.tui.widgets.processes import ProcessListView, process_columns
from gputui.tui.widgets.table import Cursor, Move, column
from gputui.tui.widgets.view import Details, Lead

# Hosts as rows: one a host with a cell a GPU, those in trouble first, those alike in one line.


NAME_WIDTH = 15
GPU_WIDTH = 5
MOST_CELLS = 16
"""A host of more GPUs is shown by its first ones: what is wrong with others is in words."""
_FIGURES = "  memory   power   CPU"
_BLOCKS = "▁▂▃▄▅▆▇█"
_LEAST_FOLDED = 2
_PROBLEM_WIDTH = 24


Listed = HostRow | HostFold


def key_of(one: Listed) -> str | HostClass:
    """What it is chosen by."""
    return one.host.name if isinstance(one, HostRow) else one.kind


def arranged(
    rows: Sequence[HostRow], room: int, opened: frozenset[HostClass] = frozenset()
) -> list[Listed]:
    """The worst first, in `room` lines if they can be: idle hosts as one, then as many of those
    alike as there is no room for.

    Hosts of one kind stay in the order in which they were named: rows that follow their loads
    would jump at each reading.
    """
    of_kind: dict[HostClass, Sequence[HostRow | HostFold]] = {
        kind: [row for row in rows if row.kind is kind] for kind in HostClass
    }
    for kind in (HostClass.IDLE, HostClass.WITHOUT_GPU, HostClass.BUSY):
        members = [row for row in of_kind[kind] if isinstance(row, HostRow)]
        too_many = len(_joined(of_kind)) - room
        if kind in opened or len(members) < _LEAST_FOLDED or too_many <= 0:
            continue
        kept = max(0, len(members) - too_many - 1) if kind is HostClass.BUSY else 0
        of_kind[kind] = [*members[:kept], HostFold(kind, tuple(members[kept:]), bool(kept))]
    return _joined(of_kind)


def _joined(of_kind: dict[HostClass, Sequence[HostRow | HostFold]]) -> list[Listed]:
    return [one for members in of_kind.values() for one in members]


def short_hosts(hosts: Hosts, width: int, height: int, interval_s: float) -> list[Row]:
    """All hosts in a few rows: the hosts_answer, then those that stand out."""
    now_ns = time.time_ns()
    rows = host_rows(hosts, now_ns, interval_s)
    text, role = hosts_answer(rows)
    gpus = most_gpus(hosts)
    found: list[Row] = [clip(((f" {text}", role),), width), (), head_row(gpus, width)]
    for one in arranged(rows, height - 5):
        if isinstance(one, HostFold):
            found.append(clip(((f" {one.text}", "dim"),), width))
        else:
            found.append(host_line(one, gpus, width, interval_s))
    return [*found[: height - 2], (), (("  Enter or 6 shows them all", "dim"),)]


def most_gpus(hosts: Hosts) -> int:
    """Of one host, as far as they have cells."""
    return min(MOST_CELLS, max((len(host.session.gpus) for host in hosts.values()), default=0))


def head_row(gpus: int, width: int) -> Row:
    """The titles above the lines."""
    cells = "".join(f"{index:>{GPU_WIDTH}}" for index in range(gpus))
    return ((fit(f" {'host':<{NAME_WIDTH - 1}}{cells}{_FIGURES}", width), "head"),)


def host_line(row: HostRow, gpus: int, width: int, interval_s: float) -> Row:
    """A host in `width`: its name and a cell for each of its GPUs, their memory and power, its CPU,
    and what is wrong, before which the figures give way.
    """
    host, session = row.host, row.host.session
    role = (
        "dim" if row.kind is HostClass.LOST else "hot" if row.kind is HostClass.TROUBLE else "text"
    )
    name: Span = (fit(f" {host.name}", NAME_WIDTH), role)
    if row.kind is HostClass.LOST:
        return clip((name, (f" ✗ {row.problem}", "hot" if host.link.reason else "dim")), width)
    if row.kind is HostClass.WITHOUT_GPU:
        return clip((name, (f" {row.problem}", "dim")), width)
    shown = list(session.gpus.values())
    # Bounded: 64 hosts of any number of GPUs are drawn at each tick.
    cells = [_cell(gpu, session.now_ns, interval_s) for gpu in shown[:gpus]]
    cells.append((" " * (GPU_WIDTH * (gpus - len(cells))), "text"))
    used, total, power = gpu_sums(host)
    worst = max((memory_role(gpu.sample) for gpu in shown), key=_ROLES.index, default="dim")
    figures: Row = (
        (f"{percent(100 * used / total) if total else MISSING:>8}", worst),
        (f"{watts(power):>8}", "text"),
        (f"{percent(session.host.cpu_percent if session.host else None):>6}", "dim"),
    )
    if not row.problem:
        return clip((name, *cells, *figures), width)
    problem: Span = (f"  ! {row.problem}", "hot" if row.kind is HostClass.TROUBLE else "warn")
    left = width - NAME_WIDTH - GPU_WIDTH * gpus - len(_FIGURES)
    return clip((name, *cells, *(figures if left >= _PROBLEM_WIDTH else ()), problem), width)


_ROLES = ("dim", "value", "warn", "hot")


def _cell(gpu: Gpu, now_ns: int, interval_s: float) -> Span:
    load = busy_percent(gpu.sample)
    if load is None:
        return (f"{'n/a':>{GPU_WIDTH}}", "dim")
    block = _BLOCKS[min(7, int(load / 100 * 8))]
    role = "hot" if gpu_problem(gpu, now_ns, interval_s) else "utilization"
    return (f"{block}{min(100, round(load)):>3}".rjust(GPU_WIDTH), role)


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of one of the hosts."""

    host: str
    row: ProcessRow

    @property
    def key(self) -> Hashable:
        """What it is chosen by."""
        return self.host, self.row.identity


class HostsView(ProcessListView):
    ABOVE = "hosts"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._opened: frozenset[HostClass] = frozenset()
        self._at = Cursor()
        """Which host is chosen; `cursor` is that of the processes."""
        self._listed: list[Listed] = []
        self._processes: list[HostProcess] = []

    def rows(self, width: int, height: int) -> list[Row]:
        hosts = self.model.hosts
        if hosts is None:
            text = "Only this machine: gputui --host USER@BOX shows others, as many as you name."
            return wrap(text, width - 2, "text", "  ")
        everything = host_rows(hosts, time.time_ns(), self.model.interval_s)
        shown = self.matching(everything, lambda row: row.host.name)
        text, role = hosts_answer(everything)
        self._processes = self._all_processes()
        least = min(2 + max(1, len(self._processes)), max(4, height // 3))
        rows: list[Row] = [clip(((f" {text}", role),), width)]
        rows += self._hosts(shown, width, 0 if self.only_processes else height - least - 1)
        table = min(2 + max(1, len(self._processes)), height - len(rows))
        rows = (rows + [()] * height)[: height - table]
        return rows + self._process_rows(width, table, len(rows))

    # --- keys

    def move(self, move: Move) -> None:
        """Through the hosts, and below the last one through the processes."""
        is_first = move == "up" and self.cursor.index == 0 and not self.only_processes
        if self.focus_on == "processes" and is_first:
            self.focus_on = self.ABOVE
        elif self.focus_on == "processes":
            self.cursor.move(move)
        else:
            self._move_host(move)
        self.draw()

    def activate(self) -> Details | Lead | None:
        """A host's own view, a process in that; folded hosts, each."""
        if self.focus_on == "processes":
            one = self._chosen_process
            return None if one is None else self._lead(one.host, one.row.identity)
        chosen = next((one for one in self._listed if key_of(one) == self._at.key), None)
        if isinstance(chosen, HostFold):
            self._opened |= {chosen.kind}
            self._at.key = chosen.rows[0].host.name
            self.draw()
            return None
        if chosen is None:
            return None
        host = chosen.host
        if host.session.header is None:
            return Details(host.name, tuple(wrap(chosen.problem, 70)))
        return self._lead(host.name, None)

    def follow(self) -> None:
        self._opened = frozenset()
        self.focus_on = self.ABOVE

    @property
    def process(self) -> ProcessRow | None:
        """The chosen process; None while a host is chosen."""
        one = self._chosen_process
        return None if one is None else one.row

    @property
    def process_host(self) -> str:
        one = self._chosen_process
        return self.model.host if one is None else one.host

    # --- parts

    @property
    def _chosen_process(self) -> HostProcess | None:
        one: HostProcess | None = self.item if self.focus_on == "processes" else None
        return one

    def _lead(self, host: str, process: Hashable) -> Lead:
        self.model.show_host(host)
        return Lead("devices", process)

    def _move_host(self, move: Move) -> None:
        beside: dict[Move, Move] = {"left": "up", "right": "down"}
        moved = self._at.move(beside.get(move, move))
        if move == "down" and not moved and self._processes:
            self.focus_on = "processes"

    def _hosts(self, rows: list[HostRow], width: int, height: int) -> list[Row]:
        """Titles, then each host or fold."""
        if height < 2 or self.model.hosts is None:
            return []
        if not rows:
            return [((" no host matches the filter (Esc clears it)", "dim"),)]
        gpus = most_gpus(self.model.hosts)
        opened = frozenset(HostClass) if self.needle else self._opened
        self._listed = arranged(rows, height - 1, opened)
        window = self._at.window([key_of(one) for one in self._listed], height - 1)
        result = [head_row(gpus, width)]
        for number, one in enumerate(self._listed[window], window.start):
            if isinstance(one, HostFold):
                row: Row = clip(((f" {one.text}", "dim"),), width)
            else:
                row = host_line(one, gpus, width, self.model.interval_s)
            is_chosen = number == self._at.index and self.focus_on == "hosts"
            row = chosen_row(row, width) if is_chosen else row
            result.append(self.doing(row, partial(self._click, number)))
        return result

    def _click(self, number: int) -> None:
        again = self.focus_on == "hosts" and self._at.index == number
        self.focus_on = self.ABOVE
        self._at.choose(number)
        if again:
            self.ask("activate")
        self.draw()

    def _all_processes(self) -> list[HostProcess]:
        """In one order; the filter also finds them by their host."""
        found = []
        for host in (self.model.hosts or {}).values():
            if not host.is_up:
                continue  # what it ran then is no news
            named = self.needle.casefold() in host.name.casefold()
            needle = "" if named else self.needle
            rows = filter_rows(process_rows(host.session), needle)
            found += [HostProcess(host.name, row) for row in rows]
        found.sort(key=lambda one: one.row.pid)
        return self.in_order(_columns(), found)

    def _process_rows(self, width: int, height: int, top: int) -> list[Row]:
        note = self.filter_note
        rows = [heading(f"Processes on the GPUs  {len(self._processes)}", width, note)]
        if not self._processes:
            return [*rows, (("  none", "dim"),)][:height]
        keys = [one.key for one in self._processes]
        return rows + self.table(_columns(), self._processes, keys, width, height - 1, top + 1)


def _columns() -> list[Column[HostProcess]]:
    """A process's columns, with its host."""
    return [
        column("host", lambda one: one.host, 0, right=False, width=8),
        *process_columns(False, lambda one: one.row),
    ]
