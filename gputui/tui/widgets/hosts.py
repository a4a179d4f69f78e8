"""Hosts as rows: one a host with a cell a GPU, those in trouble first, those alike in one line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum
from math import ceil

import msgspec

from gputui.model.units import MISSING, duration, percent, size, watts
from gputui.state import Gpu
from gputui.state.session import Host, Hosts
from gputui.tui.widgets.canvas import Row, Span, clip, fit
from gputui.tui.widgets.gpu_figures import (
    busy,
    health,
    memory_role,
    out_of_line,
    recent_load,
    temperature,
    throttling,
    trouble,
)

IDLE = 1.0
"""Percent: hosts none of whose GPUs did more in the last readings are idle."""

NAME_WIDTH = 15
GPU_WIDTH = 5
MOST_CELLS = 16
"""A host of more GPUs is shown by its first ones: what is wrong with others is in words."""
_FIGURES = "  memory   power   CPU"
_BLOCKS = "▁▂▃▄▅▆▇█"
_LEAST_FOLDED = 2
_PROBLEM_WIDTH = 24
_LEAST_COMPARED = 3
_MUCH = 50.0


class Class(IntEnum):
    """How urgent a host is, the worst first."""

    LOST = 0
    TROUBLE = 1
    ODD = 2
    BUSY = 3
    IDLE = 4
    WITHOUT_GPU = 5


class HostRow(msgspec.Struct, frozen=True):
    """One host, and what is wrong with it."""

    host: Host
    kind: Class
    problem: str = ""
    load: float | None = None
    """Percent, the mean of its GPUs over the last readings."""


class HostFold(msgspec.Struct, frozen=True):
    """Hosts that are alike, as one line."""

    kind: Class
    rows: tuple[HostRow, ...]
    are_more: bool = False
    """Whether others of the kind stand above."""

    @property
    def text(self) -> str:
        """What they have in common."""
        names = ", ".join(row.host.name for row in self.rows[:8])
        names += ", …" if len(self.rows) > 8 else ""
        if self.kind is Class.IDLE:
            held = sum(_sums(row.host)[0] for row in self.rows)
            return f"▸ {len(self.rows)} hosts idle, holding {size(held)}: {names}"
        if self.kind is Class.WITHOUT_GPU:
            return f"▸ {len(self.rows)} hosts without a GPU: {names}"
        loads = [row.load for row in self.rows if row.load is not None]
        more = "more " * self.are_more
        return f"▸ {len(self.rows)} {more}hosts {_range(loads)} busy, nothing throttled: {names}"


Listed = HostRow | HostFold


def key_of(one: Listed) -> str | Class:
    """What it is chosen by."""
    return one.host.name if isinstance(one, HostRow) else one.kind


def host_row(host: Host, now_ns: int, interval_s: float) -> HostRow:
    """How a host is, by this end's clock."""
    if not host.is_up:
        return HostRow(host, Class.LOST, link_text(host, now_ns))
    session = host.session
    gpus = list(session.gpus.values())
    if not gpus:
        reason = session.header.gpu_unavailable_reason if session.header else None
        return HostRow(host, Class.WITHOUT_GPU, f"no GPU: {reason or 'none was found'}")
    loads = [load for gpu in gpus if (load := recent_load(gpu)) is not None]
    mean = sum(loads) / len(loads) if loads else None
    found = [
        f"GPU {gpu.facts.index} {what}"
        for gpu in gpus
        if (what := gpu_problem(gpu, session.now_ns, interval_s))
    ]
    if found:
        return HostRow(host, Class.TROUBLE, "; ".join(found), mean)
    if odd := out_of_line(gpus):
        return HostRow(host, Class.ODD, "; ".join(odd), mean)
    is_idle = all(load < IDLE for load in loads)
    return HostRow(host, Class.IDLE if is_idle else Class.BUSY, "", mean)


def gpu_problem(gpu: Gpu, now_ns: int, interval_s: float) -> str:
    """What is wrong with a GPU, "" for nothing."""
    if lost := trouble(gpu, now_ns, interval_s):
        return lost
    for label, text, role in health(gpu):
        if role == "hot":
            return f"{label} {text}"
    heat, role = temperature(gpu)
    if role == "hot":
        return heat
    state, role = throttling(gpu)
    return state.lower() if role == "hot" else ""


def link_text(host: Host, now_ns: int) -> str:
    """How the link is where it is not up, and since when."""
    link = host.link
    if link.state in ("connecting", "up"):
        return "connecting" if link.state == "connecting" else "reading the machine"
    seen = ""
    if host.session.samples and link.since_ns:
        seconds = max(0, now_ns - link.since_ns) // 10**9
        seen = f", last seen {duration(seconds * 10**9) if seconds else 'just now'}"
        seen += " ago" if seconds else ""
    return f"{link.reason}{seen}"


def host_rows(hosts: Hosts, now_ns: int, interval_s: float) -> list[HostRow]:
    """Every host, those marked that do little while most work."""
    rows = [host_row(host, now_ns, interval_s) for host in hosts.values()]
    loads = sorted(row.load for row in rows if row.kind <= Class.BUSY and row.load is not None)
    usual = loads[len(loads) // 2] if len(loads) >= _LEAST_COMPARED else 0.0
    if usual < _MUCH:
        return rows
    return [
        msgspec.structs.replace(
            row, kind=Class.ODD, problem=f"{percent(row.load)} busy, most {percent(usual)}"
        )
        if row.kind is Class.BUSY and row.load is not None and row.load < usual / 2
        else row
        for row in rows
    ]


def arranged(
    rows: Sequence[HostRow], room: int, per_line: int = 1, opened: frozenset[Class] = frozenset()
) -> list[Listed]:
    """The worst first, in `room` lines if they can be: idle hosts as one, then as many of those
    alike as there is no room for.

    Hosts of one kind stay in the order in which they were named: rows that follow their loads
    would jump at each reading.
    """
    of_kind: dict[Class, Sequence[HostRow | HostFold]] = {
        kind: [row for row in rows if row.kind is kind] for kind in Class
    }

    def lines() -> int:
        whole = sum(isinstance(one, HostFold) or bool(one.problem) for one in _joined(of_kind))
        return whole + ceil((len(_joined(of_kind)) - whole) / per_line)

    for kind in (Class.IDLE, Class.WITHOUT_GPU, Class.BUSY):
        members = [row for row in of_kind[kind] if isinstance(row, HostRow)]
        if kind in opened or len(members) < _LEAST_FOLDED or lines() <= room:
            continue
        kept = 0
        if kind is Class.BUSY:
            kept = max(0, len(members) - (lines() - room + 1) * per_line)
        of_kind[kind] = [*members[:kept], HostFold(kind, tuple(members[kept:]), bool(kept))]
    return _joined(of_kind)


def _joined(of_kind: dict[Class, Sequence[HostRow | HostFold]]) -> list[Listed]:
    return [one for members in of_kind.values() for one in members]


def answer(rows: Sequence[HostRow]) -> tuple[str, str]:
    """How all hosts are, in a sentence, and its role."""
    gpus = sum(len(row.host.session.gpus) for row in rows)
    parts = [f"{len(rows)} host{'s' * (len(rows) != 1)}, {gpus} GPU{'s' * (gpus != 1)}"]
    counted = {kind: [row for row in rows if row.kind is kind] for kind in Class}
    loads = [row.load for row in counted[Class.BUSY] if row.load is not None]
    for number, words in (
        (len(counted[Class.LOST]), "not seen"),
        (len(counted[Class.TROUBLE]), "in trouble"),
        (len(counted[Class.ODD]), "uneven"),
        (len(counted[Class.BUSY]), f"busy ({_range(loads)})" if loads else "busy"),
        (len(counted[Class.IDLE]), "idle"),
        (len(counted[Class.WITHOUT_GPU]), "without a GPU"),
    ):
        if number:
            parts.append(f"{number} {words}")
    worst = min((row.kind for row in rows), default=Class.BUSY)
    role = "hot" if worst <= Class.TROUBLE else "warn" if worst is Class.ODD else "value"
    return f"{parts[0]}: {', '.join(parts[1:])}", role


def short_hosts(hosts: Hosts, width: int, height: int, interval_s: float) -> list[Row]:
    """All hosts in a few rows: the answer, then those that stand out."""
    now_ns = time.time_ns()
    rows = host_rows(hosts, now_ns, interval_s)
    text, role = answer(rows)
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


def line_width(gpus: int) -> int:
    """The cells that the line of a host with so many GPUs takes."""
    return NAME_WIDTH + GPU_WIDTH * gpus + len(_FIGURES)


def head_row(gpus: int, width: int) -> Row:
    """The titles above the lines."""
    cells = "".join(f"{index:>{GPU_WIDTH}}" for index in range(gpus))
    return ((fit(f" {'host':<{NAME_WIDTH - 1}}{cells}{_FIGURES}", width), "head"),)


def host_line(row: HostRow, gpus: int, width: int, interval_s: float) -> Row:
    """A host in `width`: its name and a cell for each of its GPUs, their memory and power, its CPU,
    and what is wrong, before which the figures give way.
    """
    host, session = row.host, row.host.session
    role = "dim" if row.kind is Class.LOST else "hot" if row.kind is Class.TROUBLE else "text"
    name: Span = (fit(f" {host.name}", NAME_WIDTH), role)
    if row.kind is Class.LOST:
        return clip((name, (f" ✗ {row.problem}", "hot" if host.link.reason else "dim")), width)
    if row.kind is Class.WITHOUT_GPU:
        return clip((name, (f" {row.problem}", "dim")), width)
    shown = list(session.gpus.values())
    # Bounded: 64 hosts of any number of GPUs are drawn at each tick.
    cells = [_cell(gpu, session.now_ns, interval_s) for gpu in shown[:gpus]]
    cells.append((" " * (GPU_WIDTH * (gpus - len(cells))), "text"))
    used, total, power = _sums(host)
    worst = max((memory_role(gpu.sample) for gpu in shown), key=_ROLES.index, default="dim")
    figures: Row = (
        (f"{percent(100 * used / total) if total else MISSING:>8}", worst),
        (f"{watts(power):>8}", "text"),
        (f"{percent(session.host.cpu_percent if session.host else None):>6}", "dim"),
    )
    if not row.problem:
        return clip((name, *cells, *figures), width)
    problem: Span = (f"  ! {row.problem}", "hot" if row.kind is Class.TROUBLE else "warn")
    left = width - NAME_WIDTH - GPU_WIDTH * gpus - len(_FIGURES)
    return clip((name, *cells, *(figures if left >= _PROBLEM_WIDTH else ()), problem), width)


_ROLES = ("dim", "value", "warn", "hot")


def _cell(gpu: Gpu, now_ns: int, interval_s: float) -> Span:
    load = busy(gpu.sample)
    if load is None:
        return (f"{'n/a':>{GPU_WIDTH}}", "dim")
    block = _BLOCKS[min(7, int(load / 100 * 8))]
    role = "hot" if gpu_problem(gpu, now_ns, interval_s) else "utilization"
    return (f"{block}{min(100, round(load)):>3}".rjust(GPU_WIDTH), role)


def _sums(host: Host) -> tuple[int, int, float]:
    """Memory in use and in all, and power, of its GPUs."""
    samples = [gpu.sample for gpu in host.session.gpus.values() if gpu.sample is not None]
    return (
        sum(sample.memory_used_bytes or 0 for sample in samples),
        sum(sample.memory_total_bytes or 0 for sample in samples),
        sum(sample.power_watts or 0.0 for sample in samples),
    )


def _range(loads: Sequence[float]) -> str:
    if not loads:
        return MISSING
    least, most = percent(min(loads)), percent(max(loads))
    return least if least == most else f"{least} to {most}"
