"""Hosts: the GPUs of all of them, the worst first, and the processes on all these GPUs."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

from gputui.report.schema import Column
from gputui.report.tables.processes import ProcessRow, sort_rows
from gputui.tui.model import Model
from gputui.tui.widgets import hosts as lines
from gputui.tui.widgets.canvas import Row, chosen_row, clip, heading, wrap
from gputui.tui.widgets.hosts import Class, HostFold, HostRow, Listed
from gputui.tui.widgets.processes import ProcessListView, listed, process_columns
from gputui.tui.widgets.table import Cursor, Move, column
from gputui.tui.widgets.view import (
    Details,
    Lead,
    Place,
)

_GAP = 2


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
        self._opened: frozenset[Class] = frozenset()
        self._at = Cursor()
        """Which host is chosen; `cursor` is that of the processes."""
        self._listed: list[Listed] = []
        self._processes: list[HostProcess] = []
        self._per_line = 1

    def rows(self, width: int, height: int) -> list[Row]:
        """The answer, the hosts, the processes."""
        hosts = self.model.hosts
        if hosts is None:
            text = "Only this machine: gputui --host USER@BOX shows others, as many as you name."
            return wrap(text, width - 2, "text", "  ")
        everything = lines.host_rows(hosts, time.time_ns(), self.model.interval_s)
        needle = self.needle.casefold()
        shown = [row for row in everything if needle in row.host.name.casefold()]
        text, role = lines.answer(everything)
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
        chosen = next((one for one in self._listed if lines.key_of(one) == self._at.key), None)
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
        """Fold what was opened."""
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
        if self.focus_on != "processes":
            return None
        return next((one for one in self._processes if one.key == self.cursor.key), None)

    def _lead(self, host: str, process: Hashable) -> Lead:
        self.model.show_host(host)
        return Lead("devices", process)

    def _move_host(self, move: Move) -> None:
        last = len(self._at.keys) - 1
        sideways = {"left": -1, "right": 1, "up": -self._per_line, "down": self._per_line}
        if move in sideways:
            target = self._at.index + sideways[move]
            if move == "down" and self._at.index == last and self._processes:
                self.focus_on = "processes"
                return
            self._at.choose(max(0, min(last, target)))
        else:
            self._at.move(move)

    def _hosts(self, rows: list[HostRow], width: int, height: int) -> list[Row]:
        """Titles, then each host or fold; those with nothing to say side by side."""
        if height < 2 or self.model.hosts is None:
            return []
        if not rows:
            return [((" no host matches the filter (Esc clears it)", "dim"),)]
        gpus = lines.most_gpus(self.model.hosts)
        wanted = lines.line_width(gpus)
        self._per_line = max(1, (width + _GAP) // (wanted + _GAP))
        each = (width - _GAP * (self._per_line - 1)) // self._per_line
        opened = frozenset(Class) if self.needle else self._opened
        self._listed = lines.arranged(rows, height - 1, self._per_line, opened)
        self._at.window([lines.key_of(one) for one in self._listed], len(self._listed))
        drawn = self._lines()
        at = next((n for n, line in enumerate(drawn) if self._at.index in line), 0)
        first = max(0, min(at - (height - 1) // 2, len(drawn) - (height - 1)))
        gap: Row = ((" " * _GAP, "text"),)
        head = lines.head_row(gpus, each)
        beside = max(map(len, drawn), default=1)
        heads = [span for _ in range(beside) for span in (*head, *gap)]
        result: list[Row] = [tuple(heads[:-1])]
        for line in drawn[first : first + height - 1]:
            spans: list[tuple[str, str]] = []
            for place, number in enumerate(line):
                one = self._listed[number]
                room = each if _is_short(one) else width
                row = self._line(one, gpus, room, chosen=number == self._at.index)
                used = sum(len(text) for text, _ in row)
                spans += [*row, (" " * max(0, room - used), "text"), *gap]
                start = place * (each + _GAP)
                act = partial(self._click, number)
                self.places.append(Place(1 + len(result), start, start + room, act))
            result.append(tuple(spans[:-1]))
        return result

    def _lines(self) -> list[list[int]]:
        """Which of the listed stand on each line."""
        found: list[list[int]] = []
        for number, one in enumerate(self._listed):
            before = self._listed[found[-1][-1]] if found else None
            if (
                before is not None
                and _is_short(one)
                and _is_short(before)
                and len(found[-1]) < self._per_line
            ):
                found[-1].append(number)
            else:
                found.append([number])
        return found

    def _line(self, one: Listed, gpus: int, width: int, *, chosen: bool) -> Row:
        if isinstance(one, HostFold):
            row: Row = clip(((f" {one.text}", "dim"),), width)
        else:
            row = lines.host_line(one, gpus, width, self.model.interval_s)
        if chosen and self.focus_on == "hosts":
            return chosen_row(row, width)
        return row

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
            found += [HostProcess(host.name, one) for one in
                      listed(host.session, replace(self.order, tree=False), needle)]  # fmt: skip
        ordered = sort_rows(
            [one.row for one in found], self.order.column, descending=self.order.descending
        )
        place = {id(row): number for number, row in enumerate(ordered)}
        return sorted(found, key=lambda one: place[id(one.row)])

    def _process_rows(self, width: int, height: int, top: int) -> list[Row]:
        note = self.filter_note
        rows = [heading(f"Processes on the GPUs  {len(self._processes)}", width, note)]
        if not self._processes:
            return [*rows, (("  none", "dim"),)][:height]
        keys = [one.key for one in self._processes]
        return rows + self.list_rows(_columns(), self._processes, keys, (width, height), top)


def _is_short(one: Listed) -> bool:
    """Whether it leaves room for another beside it."""
    return isinstance(one, HostRow) and not one.problem


def _columns() -> list[Column[HostProcess]]:
    """A process's columns, with its host."""
    return [
        column("host", lambda one: one.host, 0, right=False, width=8),
        *(_of_line(one) for one in process_columns(many_instances=False)),
    ]


def _of_line(one: Column[ProcessRow]) -> Column[HostProcess]:
    role = one.role
    return column(
        one.heading,
        lambda row: one.text(row.row),
        one.priority,
        flexible=one.flexible,
        right=one.is_right,
        width=one.width,
        role=role if isinstance(role, str) else lambda row: role(row.row),
    )
