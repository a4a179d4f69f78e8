"""Serving: who waits at an engine, and why: its own metrics beside the stages of its steps."""

from __future__ import annotations

from functools import partial

from gputui.base.sanitize import sanitize
from gputui.model import units
from gputui.report.explain import Finding, MachineAnalysis, findings, machine_findings
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.serving import stages, unasked
from gputui.report.tables.serving import LATENCIES, STAGES, LatencyRow, latencies
from gputui.state import Session
from gputui.state.readings import Server
from gputui.tui.widgets.canvas import Row, flow, heading, wrap
from gputui.tui.widgets.chart import spark
from gputui.tui.widgets.table import declared, table_rows
from gputui.tui.widgets.view import Details, Lead, View

_CAUSES = (
    "preemptions", "kv_cache_full", "queue", "batch_limit", "long_prompts", "slow_tokenizer",
    "graph_batches",
)  # fmt: skip


_WIDE = 100
"""Columns from which advice and more figures have room."""


class ServingView(View):
    """A serving engine."""

    def rows(self, width: int, height: int) -> list[Row]:
        """Each engine's figures and what was found, latencies, and stages."""
        session, run = self.model.session, self.model.run
        analysis = Analysis(session, run) if run is not None else None
        rows: list[Row] = []
        is_over = run is not None and not run.is_active
        for server in session.servers.values():
            rows += _about(server, width, is_over=is_over)
        if not rows:
            rows += wrap(
                "No serving engine's metrics are read: gputui looks for them where the program "
                "that it runs or is attached to listens, or at --metrics URL.",
                width - 2, "dim", "  ",
            )  # fmt: skip
        if (sentence := unasked(MachineAnalysis(session))) is not None:
            rows += wrap(f"WAITS FOR WORK  {sentence}", width - 2, "dim", " ")
        for finding in self.model.once(self, partial(self._findings, analysis)):
            rows += wrap(f"{finding.word}  {finding.sentence}", width - 2, "warn", " ")
            if width >= _WIDE:
                rows += wrap(f"try {finding.advice}", width - 4, "text", "   ")
        waits: list[LatencyRow] = latencies(session, run)
        if waits:
            middle = ["p95_ns"] if width >= _WIDE else []
            columns = declared(LATENCIES, "latency", "count", "mean_ns", "p50_ns", *middle,
                               "p99_ns")  # fmt: skip
            rows += [heading("Latencies", width), *table_rows(columns, waits, width)]
        of_stages = stages(analysis) if analysis is not None else []
        if of_stages:
            figures = ["requests_mean", "tokens_mean"]
            figures = figures if any(time.with_requests for time in of_stages) else []
            longest = ["step_max_ns"] if width >= _WIDE else []
            of_gpu = ["wall_ns", "idle_percent", "verdict"]
            if not any(time.wall_ns for time in of_stages):
                of_gpu = ["host_ns"]  # a server on the CPU
            columns_of_stages = declared(
                STAGES, "stage", "steps", *figures, "step_mean_ns", *longest, *of_gpu
            )
            rows += [heading("Stages", width), *table_rows(columns_of_stages, of_stages, width)]
        for server in session.servers.values():
            if server.newest is not None and len(rows) + 1 + len(_CHARTED) <= height:
                rows += _over_time(server, width)
        return rows[:height]

    def _findings(self, analysis: Analysis | None) -> list[Finding]:
        every = (
            findings(analysis)
            if analysis is not None
            else machine_findings(MachineAnalysis(self.model.session))
        )
        return [
            finding
            for finding in every
            if finding.cause in _CAUSES or finding.cause.startswith("stage.")
        ]

    def activate(self) -> Details | Lead | None:
        return Lead("phases")


def engine_rows(session: Session, width: int) -> list[Row]:
    """Who waits at each engine, and how long since gputui reads it, a row each."""
    rows: list[Row] = []
    for server in session.servers.values():
        if server.newest is None:
            continue
        means = [
            (_SHORT[name], units.duration(round(1e9 * latency.mean_s)))
            for name, latency in server.known_latencies()
            if name in _SHORT and latency.mean_s is not None
        ]
        figures = [*_now(server)[:2], *means[:2], *_now(server)[2:]]
        spans = [((f"{name} ", "dim"), (value, "value")) for name, value in figures]
        room = width - len(server.engine) - 4
        rows.append(((f" {server.engine}  ", "label"), *next(iter(flow(spans, room, 1)), ())))
    return rows[:2]


_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}


def _now(server: Server) -> list[tuple[str, str]]:
    """What an engine last said, as names and values; nothing of what it does not tell."""
    newest = server.newest
    assert newest is not None
    figures = [
        ("running", units.quantity(newest.requests_running)),
        ("waiting", units.quantity(newest.requests_waiting)),
        ("KV cache", units.percent(newest.kv_cache_percent)),
        ("preempted", units.quantity(server.sums.get("preemptions"))),
        ("out", units.quantity(newest.output_tokens_per_s, "tok/s")),
        ("in", units.quantity(newest.input_tokens_per_s, "tok/s")),
        ("prefix hits", units.percent(server.prefix_hit_percent)),
    ]
    return [(name, value) for name, value in figures if value != units.MISSING]


def _about(server: Server, width: int, *, is_over: bool) -> list[Row]:
    """An engine's name and place, and how it stands now; that the page of a run that `is_over` is
    gone is no news."""
    where = f"{server.engine or 'engine'} at {sanitize(server.url, 200)}"
    title = f"{where}  {server.model}" if server.model else where
    rows: list[Row] = [heading(title, width)]
    if server.reason is not None and not is_over:
        rows += wrap(f"not read: {server.reason}", width - 2, "warn", " ")
    if server.newest is None:
        return rows
    spans = [((f"{name} ", "dim"), (value, "value")) for name, value in _now(server)]
    rows += flow(spans, width, 2)
    if (times := server.request_shares) is not None:
        whole_s, shares = times
        spans = [(("a request takes ", "dim"), (units.duration(round(1e9 * whole_s)), "value"))]
        spans += [
            ((f"{name} ", "dim"), (units.percent(100 * share), "value"))
            for name, share in shares.items()
        ]
        rows += flow(spans, width, 2)
    return rows


_CHARTED = (
    ("waiting", "requests_waiting", ""),
    ("running", "requests_running", ""),
    ("KV cache", "kv_cache_percent", "%"),
    ("out", "output_tokens_per_s", "tok/s"),
)


def _over_time(server: Server, width: int) -> list[Row]:
    """The newest readings, one a column."""
    newest = [sample for _, sample in server.samples.history][-max(0, width - _BESIDE) :]
    rows: list[Row] = [heading(f"The last {len(newest)} readings", width)]
    for name, field, unit in _CHARTED:
        values = [getattr(sample, field) for sample in newest]
        highest = max(filter(None, values), default=0.0)
        if not highest:
            continue
        top = 100.0 if unit == "%" else highest
        peak = units.percent(top) if unit == "%" else units.quantity(top, unit)
        rows.append(
            ((f" {name:<9}", "label"), (spark(values, top), "value"), (f" to {peak}", "dim"))
        )
    return rows


# Columns that a name and a scale take.
_BESIDE = 26
