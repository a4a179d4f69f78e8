"""Conditions as they are typed, and alerts: which conditions of `--alert` hold, and for how long.

    gpu.temperature_celsius > 85 for 30s   any GPU was over 85 °C in all readings of 30 s
    gpu0.memory_used_bytes > 70GiB         GPU 0, at once
    host.cpu_percent > 95% for 2m          a figure of the host
    idle.launch > 40% for 10s              the share of a leaf in the time between two readings

Figures are the fields that `--once --json` has, leaves those of `--fail-if`. An alert is over once
the condition has not held for as long as it had to hold. A reading that is missing changes nothing.

`--fail-if` shares the syntax of a condition; what it asks of two runs is in `compare`.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
from typing import Self

import msgspec

from gputui.base import WRONG_USAGE, GputuiError
from gputui.model import units
from gputui.model.events import (
    Alert,
    AnyEvent,
    CaptureDelta,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineSample,
    RunEnded,
)
from gputui.model.leaves import LEAF_OF_KEY, LEAVES, Leaf
from gputui.model.metrics import REASONS, SECONDS_BY_REASON, TEXT, Metric, metrics_of, spread_fields
from gputui.model.units import duration, percent, percent_range, size
from gputui.report.machine_now import (
    health,
    out_of_line,
    recent_load,
    temperature,
    throttling,
    trouble,
)
from gputui.state import Gpu
from gputui.state.session import Host, Hosts

# One condition as it is typed, for `--fail-if` and for `--alert`.

_THRESHOLD = re.compile(
    r"(?P<what>.+?)\s*(?P<operator>[<>])\s*(?P<sign>[+-]?)(?P<number>\d+(?:\.\d+)?)"
    r"\s?(?P<unit>%|[kKMGT]i?B|)(?:\s+for\s+(?P<time>\d{1,6}(?:\.\d{1,6})?)\s?(?P<scale>ms|s|m|h))?"
)
_SCALES = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
# Longer text is refused before the pattern, which backtracks, is tried on it. Chosen freely.
LONGEST = 1000

ANY_GPU = "gpu"
"""Stands for every GPU, where gpu0 is one."""


class ThresholdError(GputuiError):
    """A condition that cannot be parsed, or names something that does not exist. One line, which
    begins with where it was typed."""

    exit_status = WRONG_USAGE


class Threshold(msgspec.Struct, frozen=True):
    """A parsed condition. `relative` compares with a baseline, otherwise with a number; `for_ns` is
    how long it must hold, None where nothing was typed."""

    text: str
    where: str
    """Where the condition was typed: a flag, or a file."""
    what: str
    above: bool
    limit: float
    relative: bool
    percent: bool
    for_ns: int | None

    @classmethod
    def parse(cls, text: str, where: str = "--fail-if") -> Self:
        """The condition in `text`; raises ThresholdError where it is none."""
        match = _THRESHOLD.fullmatch(text.strip()) if len(text) <= LONGEST else None
        if match is None:
            raise ThresholdError(
                f"{where} {text[:80]!r} is not a condition; write for example "
                "'decode.gpu_busy_ns>+5%', 'tokens_per_s<-3%' or "
                "'gpu.temperature_celsius > 85 for 30s'"
            )
        unit, scale = match["unit"], match["scale"]
        factor = 1024.0 ** " KMGT".index(unit[0].upper()) if unit and unit != "%" else 1.0
        limit = float(f"{match['sign']}{match['number']}") * factor
        return cls(
            text=text.strip(),
            where=where,
            what=match["what"],
            above=match["operator"] == ">",
            limit=limit,
            relative=bool(match["sign"]),
            percent=unit == "%",
            for_ns=round(float(match["time"]) * _SCALES[scale]) if scale else None,
        )

    def meets(self, amount: float) -> bool:
        """Whether an amount is beyond the limit."""
        return amount > self.limit if self.above else amount < self.limit

    def error(self, reason: str) -> ThresholdError:
        """An error that says where the condition stands, and why it makes no sense."""
        return ThresholdError(f"{self.where} {self.text!r}: {reason}")


HOST, RUN = "host", "run"
# Not keys of leaves, but sums of all the leaves whose keys begin so.
_SUMS = ("idle", "busy")
# Known once ranks and processes can be compared, not from one reading to the next.
_AT_THE_END = (LEAVES[Leaf.RANK].key, LEAVES[Leaf.SHARED].key)

# Accounted time of which a share is taken: that of less would be of chance.
_LEAST_NS = 100_000_000

_GPU = re.compile(rf"{ANY_GPU}(0|[1-9]\d{{0,8}})\.(\w+)", re.ASCII)


@cache
def _figures(*kinds: type[msgspec.Struct]) -> dict[str, Metric]:
    """The fields that are one number."""
    without = (TEXT, REASONS, SECONDS_BY_REASON)
    return {
        field: metric for field, metric in metrics_of(*kinds).items() if metric.unit not in without
    }


def names() -> list[str]:
    """Everything that an alert can be about, GPUs as `gpu`."""
    return [
        *(f"{ANY_GPU}.{field}" for field in _figures(GpuSample, GpuStatus)),
        *(f"{HOST}.{field}" for field in _figures(HostSample)),
        *_SUMS,
        *(key for key in LEAF_OF_KEY if key not in _AT_THE_END),
    ]


def needs_readings(condition: Threshold) -> bool:
    """Whether a recording's readings decide, one by one: how long something held, or a figure of
    which no mean is kept."""
    holder, _, field = condition.what.rpartition(".")
    is_figure = holder in (HOST, ANY_GPU) or _GPU.fullmatch(condition.what)
    means = (*spread_fields(GpuSample), *spread_fields(HostSample))
    figures = _figures(GpuSample, GpuStatus, HostSample)
    return condition.for_ns is not None or bool(is_figure and field in figures.keys() - means)


class AlertCondition(Threshold, frozen=True):
    """A condition that holds, or does not, reading by reading."""

    @property
    def gpu(self) -> int | None:
        """The one GPU that the condition is about; None for any GPU, and for figures that are of no
        GPU."""
        match = _GPU.fullmatch(self.what)
        return int(match[1]) if match else None


def parse(text: str, where: str) -> AlertCondition:
    """The condition of an alert. Raises ThresholdError, which begins with `where`."""
    condition = AlertCondition.parse(text, where)
    if condition.relative:
        raise condition.error("a change needs two runs; leave out the sign")
    if condition.what in _AT_THE_END:
        raise condition.error("this is known only at the end of a run: use summary --fail-if")
    figures = names()
    one_gpu = _GPU.fullmatch(condition.what)
    general = f"{ANY_GPU}.{one_gpu[2]}" if one_gpu else condition.what
    if general not in figures:
        near = difflib.get_close_matches(general, figures, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "gputui --once --json has the names"
        raise condition.error(f"there is no figure and no cause {condition.what!r}; {hint}")
    figure = general.rpartition(".")[2]
    if (
        condition.percent
        and general.startswith((ANY_GPU, HOST))
        and not figure.endswith("_percent")
    ):
        raise condition.error(f"{figure} is not a percentage")
    return condition


class _Watched:
    """One condition on one subject."""

    def __init__(self, condition: AlertCondition, subject: str, what: str, gpu: int | None) -> None:
        self._condition, self._subject, self._what, self._gpu = condition, subject, what, gpu
        self._raised = False
        self._turned_ns: int | None = None
        """The time of the first of the newest readings that contradict the present state."""
        self._worst = self._value = 0.0

    def read(self, value: float, time_ns: int) -> Alert | None:
        """The change that a reading makes."""
        meets = self._condition.meets(value)
        self._value = value
        if meets == self._raised:
            self._turned_ns = None
            self._worsen(value)
            return None
        if self._turned_ns is None or time_ns < self._turned_ns:
            self._turned_ns = time_ns
            self._worst = value if meets else self._worst
        if meets:
            self._worsen(value)
        if time_ns - self._turned_ns < (self._condition.for_ns or 0):
            return None
        return self._turn(self._turned_ns, time_ns)

    def end(self, time_ns: int) -> Alert | None:
        """There are no more readings: an alert is over."""
        if self._raised:
            return self._turn(time_ns, time_ns)
        self._turned_ns = None
        return None

    def _worsen(self, value: float) -> None:
        self._worst = (max if self._condition.above else min)(self._worst, value)

    def _turn(self, since_ns: int, time_ns: int) -> Alert:
        self._raised, self._turned_ns = not self._raised, None
        return Alert(
            time_ns=time_ns,
            condition=self._condition.text,
            subject=self._subject,
            what=self._what,
            gpu=self._gpu,
            raised=self._raised,
            since_ns=since_ns,
            value=self._value,
            worst=self._worst,
        )


class Alerts:
    """The conditions of a session. Belongs to whoever calls `see`, one thread at a time."""

    def __init__(self, conditions: Sequence[AlertCondition]) -> None:
        self._conditions = conditions
        self._watched: dict[tuple[int, str], _Watched] = {}
        self._leaves_ns: dict[int, int] = defaultdict(int)

    def see(self, events: Sequence[AnyEvent]) -> list[Alert]:
        """The alerts that `events` raise and end, in their order."""
        return [alert for event in events for alert in self._see(event)]

    def _see(self, event: AnyEvent) -> Iterator[Alert]:
        match event:
            case CaptureDelta():
                for time in event.leaf_times:
                    self._leaves_ns[time.leaf] += time.ns
            case MachineSample():
                for gpu in event.gpus:
                    yield from self._read_gpu(gpu, gpu.index, event.time_ns)
                yield from self._read(HOST, HOST, event.host, None, event.time_ns)
                yield from self._read_leaves(event.time_ns)
            case GpuStatus():
                yield from self._read_gpu(event, event.gpu, event.time_ns)
            case RunEnded():
                yield from self._read_leaves(event.time_ns)
                of_run = [
                    watched for (_, subject), watched in self._watched.items() if subject == RUN
                ]
                yield from filter(None, [watched.end(event.time_ns) for watched in of_run])

    def _read_gpu(self, part: GpuSample | GpuStatus, index: int, time_ns: int) -> Iterator[Alert]:
        for prefix in (ANY_GPU, f"{ANY_GPU}{index}"):
            yield from self._read(prefix, f"{ANY_GPU}{index}", part, index, time_ns)

    def _read(
        self, prefix: str, subject: str, part: msgspec.Struct, gpu: int | None, time_ns: int
    ) -> Iterator[Alert]:
        for number, condition in enumerate(self._conditions):
            holder, _, field = condition.what.rpartition(".")
            if holder == prefix:
                value = getattr(part, field, None)
                yield from self._judge(number, subject, field, gpu, value, time_ns)

    def _read_leaves(self, time_ns: int) -> Iterator[Alert]:
        whole = sum(self._leaves_ns.values())
        if whole < _LEAST_NS:
            return
        for number, condition in enumerate(self._conditions):
            if condition.what.startswith((f"{ANY_GPU}.", f"{HOST}.")):
                continue
            ns = sum(ns for leaf, ns in self._leaves_ns.items() if _is_in(leaf, condition.what))
            share = 100.0 * ns / whole
            yield from self._judge(number, RUN, condition.what, None, share, time_ns)
        self._leaves_ns.clear()

    def _judge(
        self,
        number: int,
        subject: str,
        what: str,
        gpu: int | None,
        value: float | None,
        time_ns: int,
    ) -> Iterator[Alert]:
        if value is None:
            return
        watched = self._watched.get((number, subject))
        if watched is None:
            watched = _Watched(self._conditions[number], subject, what, gpu)
            self._watched[number, subject] = watched
        if (alert := watched.read(float(value), time_ns)) is not None:
            yield alert


def _is_in(leaf: int, name: str) -> bool:
    try:
        key = LEAVES[Leaf(leaf)].key
    except ValueError:  # of a later version
        return False
    return key == name or (name in _SUMS and key.startswith(f"{name}."))


def amount_text(what: str, value: float) -> str:
    """A value of a figure or a leaf's share, in words."""
    metric = _figures(GpuSample, GpuStatus, HostSample).get(what)
    if metric is None:
        return units.percent(value)
    return metric.unit.mean(int(value) if value.is_integer() else value)


def condition_text(alert: Alert) -> str:
    """The condition, with the GPU it was raised on."""
    return alert.condition.replace(f"{ANY_GPU}.", f"{alert.subject}.", 1)


def alert_text(alert: Alert) -> str:
    """What happened, in a line: "ALERT gpu0.temperature_celsius > 85 for 30s: 87 °C"."""
    if alert.raised:
        return f"ALERT {condition_text(alert)}: {amount_text(alert.what, alert.value)}"
    return f"alert over: {condition_text(alert)}: {amount_text(alert.what, alert.worst)} at worst"


# How several hosts are: who is lost, who is in trouble, who does little while the others work.


HOST_IDLE = 1.0
"""Percent: hosts none of whose GPUs did more in the last readings are idle."""

_LEAST_COMPARED = 3
_MUCH = 50.0


class HostClass(IntEnum):
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
    kind: HostClass
    problem: str = ""
    load: float | None = None
    """Percent, the mean of its GPUs over the last readings."""


class HostFold(msgspec.Struct, frozen=True):
    """Hosts that are alike, as one line."""

    kind: HostClass
    rows: tuple[HostRow, ...]
    are_more: bool = False
    """Whether others of the kind stand above."""

    @property
    def text(self) -> str:
        names = ", ".join(row.host.name for row in self.rows[:8])
        names += ", …" if len(self.rows) > 8 else ""
        if self.kind is HostClass.IDLE:
            held = sum(gpu_sums(row.host)[0] for row in self.rows)
            return f"▸ {len(self.rows)} hosts idle, holding {size(held)}: {names}"
        if self.kind is HostClass.WITHOUT_GPU:
            return f"▸ {len(self.rows)} hosts without a GPU: {names}"
        loads = [row.load for row in self.rows if row.load is not None]
        more = "more " * self.are_more
        some = f"{len(self.rows)} {more}hosts {percent_range(loads)} busy"
        return f"▸ {some}, nothing throttled: {names}"


def host_row(host: Host, now_ns: int, interval_s: float) -> HostRow:
    """How a host is, by this end's clock."""
    if not host.is_up:
        return HostRow(host, HostClass.LOST, link_text(host, now_ns))
    session = host.session
    gpus = list(session.gpus.values())
    if not gpus:
        reason = session.header.gpu_unavailable_reason if session.header else None
        return HostRow(host, HostClass.WITHOUT_GPU, f"no GPU: {reason or 'none was found'}")
    loads = [load for gpu in gpus if (load := recent_load(gpu)) is not None]
    mean = sum(loads) / len(loads) if loads else None
    problems = [
        f"GPU {gpu.facts.index} {what}"
        for gpu in gpus
        if (what := gpu_problem(gpu, session.now_ns, interval_s))
    ]
    if problems:
        return HostRow(host, HostClass.TROUBLE, "; ".join(problems), mean)
    if odd := out_of_line(gpus):
        return HostRow(host, HostClass.ODD, "; ".join(odd), mean)
    is_idle = all(load < HOST_IDLE for load in loads)
    return HostRow(host, HostClass.IDLE if is_idle else HostClass.BUSY, "", mean)


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
    loads = sorted(row.load for row in rows if row.kind <= HostClass.BUSY and row.load is not None)
    usual = loads[len(loads) // 2] if len(loads) >= _LEAST_COMPARED else 0.0
    if usual < _MUCH:
        return rows
    return [
        msgspec.structs.replace(
            row, kind=HostClass.ODD, problem=f"{percent(row.load)} busy, most {percent(usual)}"
        )
        if row.kind is HostClass.BUSY and row.load is not None and row.load < usual / 2
        else row
        for row in rows
    ]


def hosts_answer(rows: Sequence[HostRow]) -> tuple[str, str]:
    """How all hosts are, in a sentence, and its role."""
    gpus = sum(len(row.host.session.gpus) for row in rows)
    sentence = [f"{len(rows)} host{'s' * (len(rows) != 1)}, {gpus} GPU{'s' * (gpus != 1)}"]
    counted = {kind: [row for row in rows if row.kind is kind] for kind in HostClass}
    loads = [row.load for row in counted[HostClass.BUSY] if row.load is not None]
    for number, words in (
        (len(counted[HostClass.LOST]), "not seen"),
        (len(counted[HostClass.TROUBLE]), "in trouble"),
        (len(counted[HostClass.ODD]), "uneven"),
        (len(counted[HostClass.BUSY]), f"busy ({percent_range(loads)})" if loads else "busy"),
        (len(counted[HostClass.IDLE]), "idle"),
        (len(counted[HostClass.WITHOUT_GPU]), "without a GPU"),
    ):
        if number:
            sentence.append(f"{number} {words}")
    worst = min((row.kind for row in rows), default=HostClass.BUSY)
    role = "hot" if worst <= HostClass.TROUBLE else "warn" if worst is HostClass.ODD else "value"
    return f"{sentence[0]}: {', '.join(sentence[1:])}", role


def gpu_sums(host: Host) -> tuple[int, int, float]:
    """Memory in use and in all, and power, of its GPUs."""
    samples = [gpu.sample for gpu in host.session.gpus.values() if gpu.sample is not None]
    return (
        sum(sample.memory_used_bytes or 0 for sample in samples),
        sum(sample.memory_total_bytes or 0 for sample in samples),
        sum(sample.power_watts or 0.0 for sample in samples),
    )
