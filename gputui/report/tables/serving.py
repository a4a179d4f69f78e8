"""What serving engines say of themselves, their latencies, and the stages of their steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gputui.model import units
from gputui.model.leaves import LEAVES
from gputui.report.explain.serving import StageTime, stages_of
from gputui.report.schema import Column, TableSpec, count, if_any, number, percent, text, time
from gputui.report.tables.energy import energy_joules
from gputui.state import Run, Session
from gputui.state.readings import Bucket, Latency, Server


class _ServerRow(NamedTuple):
    server: Server
    joules: float | None
    gpus: int
    """That a program used, 0 where several servers may share them."""

    def mean(self, gauge: str) -> float | None:
        """The mean of a gauge, weighted by time."""
        values = self.server.gauges.get(gauge)
        return None if values is None else values.mean

    def most(self, gauge: str) -> float | None:
        """The largest reading of a gauge."""
        values = self.server.gauges.get(gauge)
        return None if values is None else values.maximum

    @property
    def token_joules(self) -> float | None:
        """Of all GPUs that were read, for each token written; None of several servers."""
        tokens = self.server.sums.get("output_tokens")
        return self.joules / tokens if self.joules is not None and tokens else None

    @property
    def token_gpu_seconds(self) -> float | None:
        """Time of all GPUs for each token written; None of several servers."""
        tokens = self.server.sums.get("output_tokens")
        return self.gpus * self.server.seconds / tokens if self.gpus and tokens else None


def _servers(session: Session, run: Run | None) -> list[_ServerRow]:
    servers = [*session.servers.values()]
    if len(servers) != 1:
        return [_ServerRow(server, None, 0) for server in servers]
    gpus = len(run.devices if run is not None else session.gpus)
    return [_ServerRow(server, _joules(session, server), gpus) for server in servers]


def _joules(session: Session, server: Server) -> float | None:
    """What all GPUs spent from its first reading to its newest."""
    newest = server.newest
    if newest is None or not server.seconds:
        return None
    span = newest.time_ns - round(1e9 * server.seconds), newest.time_ns
    run = session.run
    readings = session.readings if run is None else run.readings
    energies = [energy_joules(readings, gpu, span) for gpu in readings.gpus]
    joules = [energy[0] for energy in energies if energy is not None]
    return sum(joules) if joules and len(joules) == len(energies) else None


def _rate(value: float | None) -> str:
    return units.quantity(value, "/s")


def _plain(value: float | None) -> str:
    return units.MISSING if value is None else f"{value:.1f}"


def _no_server(_run: object, rows: Sequence[object]) -> str:
    return "" if rows else "no serving engine's metrics were read (--metrics)"


SERVERS: TableSpec[_ServerRow] = TableSpec(
    key="servers",
    title="Serving Engines",
    meaning="What engines say of themselves: requests, KV cache and tokens, since gputui reads.",
    columns=(
        text("Engine", "engine", lambda row: row.server.engine, "By the names of its metrics"),
        text("Model", "model", lambda row: row.server.model, "As it calls it", kind=str | None,
             priority=5, seen=if_any),
        text("Address", "url", lambda row: row.server.url, "Its page of metrics", priority=4),
        number("PID", "pid", lambda row: row.server.pid, "The process that listens there",
               kind=int | None, priority=5, seen=if_any),
        Column("Running", _plain, "running_mean", lambda row: row.mean("requests_running"), "",
               "Requests computed at once, mean over the time", float | None),
        Column("Waiting", _plain, "waiting_mean", lambda row: row.mean("requests_waiting"), "",
               "Requests in the queue, mean over the time", float | None),
        Column("Most Waiting", units.quantity, "waiting_peak",
               lambda row: row.most("requests_waiting"), "", "The longest queue that was read",
               float | None, priority=2),
        percent("KV Cache", "kv_cache_mean_percent", lambda row: row.mean("kv_cache_percent"),
                "In use, mean over the time", kind=float | None),
        percent("KV Peak", "kv_cache_peak_percent", lambda row: row.most("kv_cache_percent"),
                "The most that was read", kind=float | None, priority=2),
        count("Preempted", "preemptions", lambda row: row.server.sums.get("preemptions"),
              "Times that a request was put back", kind=int | None),
        percent("Prefix Hits", "prefix_hit_percent", lambda row: row.server.prefix_hit_percent,
                "Of what was looked for in the prefix cache", kind=float | None, priority=3),
        count("Completed", "requests_completed",
              lambda row: row.server.sums.get("requests_completed"), "Requests", kind=int | None),
        Column("Tokens Out", _rate, "output_tokens_per_s",
               lambda row: row.server.rate("output_tokens"), "tokens/s", "Written", float | None),
        Column("Tokens In", _rate, "input_tokens_per_s",
               lambda row: row.server.rate("input_tokens"), "tokens/s", "Of prompts",
               float | None, priority=1),
        Column("A Token", units.joules, "token_joules", lambda row: row.token_joules, "J",
               "The energy of all GPUs over the tokens written, idle time included",
               float | None, priority=1, seen=if_any),
        Column("Energy of a Million", units.cost_text, "million_tokens_energy_cost",
               lambda row: None if row.token_joules is None
               else units.cost(1e6 * row.token_joules), "",
               "What the energy of a million tokens costs, at the price of `energy_price`",
               float | None, seen=if_any),
        Column("GPUs for a Million", units.gpu_cost_text, "million_tokens_gpu_cost",
               lambda row: None if row.token_gpu_seconds is None
               else units.gpu_cost(1e6 * row.token_gpu_seconds), "",
               "What the GPUs' hours for a million tokens cost, at the price of `gpu_price`",
               float | None, seen=if_any),
    ),
    rows=_servers,
    order=42,
    in_summary=True,
    note=_no_server,
)  # fmt: skip


class LatencyRow(NamedTuple):
    """One latency of one engine."""

    server: Server
    name: str
    latency: Latency


_NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "end to end",
    "queue": "queue",
}


def latencies(session: Session, _run: object) -> list[LatencyRow]:
    """Those that were observed, engine after engine."""
    return [
        LatencyRow(server, name, latency)
        for server in session.servers.values()
        for name, latency in server.known_latencies()
    ]


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None or math.isinf(seconds) else round(1e9 * seconds)


def _bucket_text(bucket: Bucket | None) -> str:
    if bucket is None:
        return units.MISSING
    low, high = _ns(bucket.low_s), _ns(bucket.high_s)
    if high is None:
        return f"over {units.duration(low)}"
    return f"{units.duration(low)} to {units.duration(high)}" if low else (
        f"up to {units.duration(high)}"
    )  # fmt: skip


def _quantile(percents: int, priority: int) -> Column[LatencyRow]:
    def bucket(row: LatencyRow) -> Bucket | None:
        return row.latency.quantile(percents / 100)

    def document(row: LatencyRow) -> list[int | None] | None:
        held = bucket(row)
        return None if held is None else [_ns(held.low_s), _ns(held.high_s)]

    return Column(
        f"p{percents}",
        key=f"p{percents}_ns",
        value=lambda row: _bucket_text(bucket(row)),
        document=document,
        kind=list[int | None] | None,
        meaning=(
            f"The bucket of the histogram that holds the {percents}th percentile: above its first "
            "bound, up to its second"
        ),
        priority=priority,
        right=True,
    )


LATENCIES: TableSpec[LatencyRow] = TableSpec(
    key="server_latencies",
    title="Latencies of Serving Engines",
    meaning="What requests waited for, by the engines' histograms, since gputui reads them.",
    columns=(
        text("Engine", "engine", lambda row: row.server.engine, "By the names of its metrics",
             priority=3),
        text("Address", "url", lambda row: row.server.url, "Its page of metrics", priority=4),
        text("Latency", "latency", lambda row: _NAMES[row.name],
             "TTFT: to the first token; TPOT: each further one, a request; ITL: between two "
             "tokens; end to end; and in the queue"),
        count("Count", "count", lambda row: row.latency.count, "Observations"),
        time("Mean", "mean_ns", lambda row: _ns(row.latency.mean_s),
             "Their sum over their number: exact", kind=int | None),
        _quantile(50, 1),
        _quantile(95, 2),
        _quantile(99, 0),
    ),
    rows=latencies,
    order=43,
    in_summary=True,
    note=_no_server,
)  # fmt: skip


def server_line(server: Server) -> str:
    """Who waited, how long, and for what was read, or why nothing was."""
    name = server.engine or server.url
    if not server.readings:
        return f"{name}: {server.reason}"
    gauges = [
        f"{mean.mean:.1f} {state}"
        for state in ("running", "waiting")
        if (mean := server.gauges.get(f"requests_{state}")) is not None and mean.mean is not None
    ]
    means = [
        f"{_NAMES[key]} {units.duration(_ns(latency.mean_s))}"
        for key, latency in server.known_latencies()
        if key in ("ttft", "tpot", "itl")
    ]
    rates = [
        f"{units.quantity(rate, 'tokens/s')} {way}"
        for way in ("in", "out")
        if (rate := server.rate(f"{way}put_tokens")) is not None
    ]
    groups = (", ".join(group) for group in (gauges, means, rates))
    return f"{name}, means: {'; '.join(filter(None, groups))}"


def _stages(_session: Session, run: Run) -> list[StageTime]:
    return stages_of(run)


def _no_stages(_run: Run, rows: Sequence[StageTime]) -> str:
    return "" if rows else "the program has no ranges that name the stages of an engine"


STAGES: TableSpec[StageTime] = TableSpec(
    key="stages",
    title="Stages of the Engine",
    meaning="Prefill, decode, both at once, and the host's work for them, each with its own time.",
    columns=(
        text("Stage", "stage", lambda row: row.stage or "in none",
             "By the names of the engine's ranges: see serving.md"),
        text("Engine", "engine", lambda row: next((name for name, _ in
             row.engines.most_common(1)), None), "Whose names they are", kind=str | None,
             priority=4, seen=if_any),
        count("Steps", "steps", lambda row: row.steps, "Ranges of it that have ended"),
        Column("Requests", _plain, "requests_mean",
               lambda row: row.requests / row.with_requests if row.with_requests else None, "",
               "In a step, mean, by the numbers in the names", float | None, seen=if_any),
        Column("Tokens", _plain, "tokens_mean",
               lambda row: row.tokens / row.with_tokens if row.with_tokens else None, "",
               "In a step, mean, by the same numbers", float | None, seen=if_any),
        time("A Step", "step_mean_ns", lambda row: row.mean_ns and round(row.mean_ns),
             "Mean on the host, without the stages inside", kind=int | None),
        time("Longest", "step_max_ns", lambda row: row.longest_ns or None, "The longest one",
             kind=int | None, priority=2),
        time("Host", "host_ns", lambda row: row.host_ns, "In all of them", priority=3),
        time("GPU Wall", "wall_ns", lambda row: row.wall_ns, "Time of the GPUs, busy and idle"),
        percent("Idle", "idle_percent", lambda row: 100 * row.idle_share if row.wall_ns else None,
                "Of this", kind=float | None),
        text("Verdict", "verdict", lambda row: row.verdict,
             "From 30 % idle on what it idles for, else healthy", kind=str | None),
        Column("Leaves", key="leaves_ns", document=lambda row: {
            LEAVES[leaf].key: ns for leaf, ns in row.leaves.items()},
            value=lambda row: len(row.leaves), meaning="GPU wall time by leaf",
            kind=dict[str, int], in_table=False, unit="ns"),
    ),
    rows=_stages,
    order=44,
    in_summary=True,
    document="stages",
    note=_no_stages,
)  # fmt: skip

TABLES = (SERVERS, LATENCIES, STAGES)
MACHINE_TABLES = (SERVERS, LATENCIES)
