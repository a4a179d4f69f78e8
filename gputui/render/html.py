"""A run as one page: no scripts, no external styles or images, every string escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from gputui.model import units
from gputui.model.events import GpuSample, HostSample
from gputui.model.leaves import LEAVES
from gputui.model.metrics import Metric, charted
from gputui.render.charts import IDLE, Bar, bars, line, roof
from gputui.render.facts import title_of
from gputui.render.text_tables import header, shortened
from gputui.render.timelines import timelines
from gputui.report.answer import Group
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows, share_of
from gputui.report.roofline import roofline
from gputui.report.schema import AnyTable
from gputui.state import Run, Samples, Session

BARS = 20
"""Bars per chart: the phases with the largest shares; the table below has all."""

FOLDED = 100
"""Letters of a cell that are seen before it is opened: kernels' names have thousands."""

_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1c2128;--soft:#f3f5f7;--edge:#d8dde3;
--dim:#5b6470;--line:#0b7a56;--bar:#2a72d4;--mark:#b45309}
@media(prefers-color-scheme:dark){:root{--ground:#14171b;--ink:#e4e7eb;--soft:#1d2126;
--edge:#343a42;--dim:#9aa4b0;--line:#3ecf9a;--bar:#5b9cf5;--mark:#f0a445}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:1600px;margin:0 auto;padding:1.5rem 1rem 4rem;
background:var(--ground);color:var(--ink)}
h1{font-size:1.5rem;margin:0 0 .4rem}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}
.facts{margin:0;padding:0;list-style:none;color:var(--dim);font-size:13px}
h1,.facts,.answer,.note,.bars .name{overflow-wrap:anywhere}
.note{color:var(--dim);font-size:13px;font-weight:400}p.note{margin:.2rem 0 .5rem}
.answer{margin:0;padding:.6rem 1rem;background:var(--soft);border-left:4px solid var(--mark);
border-radius:4px;display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem}
.answer dt{font-weight:600}.answer dd{margin:0;white-space:pre-wrap}
.stack{display:flex;height:1.6rem;margin:.3rem 0 .7rem;border-radius:4px;overflow:hidden}
.stack i{border-right:1px solid var(--ground);background:var(--bar)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:.8rem}
figure{margin:0;padding:.6rem .7rem .3rem;border:1px solid var(--edge);border-radius:6px}
figcaption{font-weight:600;font-size:13px}svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}.g{stroke:var(--edge)}
.p{fill:var(--mark)}.a0{fill:var(--bar)}.a1{fill:var(--line)}.a2{fill:var(--mark)}
.a3{fill:var(--dim)}.a4{fill:var(--edge)}figcaption b{display:inline-block;width:.7em;height:.7em;
margin:0 .3em 0 .6em}b.a0{background:var(--bar)}b.a1{background:var(--line)}
b.a2{background:var(--mark)}b.a3{background:var(--dim)}b.a4{background:var(--edge)}
.l{fill:none;stroke:var(--line);stroke-width:1.6;stroke-linejoin:round}
.bars{display:grid;grid-template-columns:minmax(6rem,max-content) minmax(4rem,44rem) max-content;
gap:.15rem .7rem;align-items:center;font-size:13px}
.bar i{display:block;height:.8rem;background:var(--bar);border-radius:2px;min-width:1px}
i.idle{background:repeating-linear-gradient(45deg,var(--mark) 0 4px,transparent 4px 7px)!important}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
.scroll{overflow-x:auto;border:1px solid var(--edge);border-radius:6px;max-width:max-content}
th,td{padding:.22rem .5rem;text-align:left;white-space:pre}
th{background:var(--soft);border-bottom:1px solid var(--edge)}
.n{text-align:right;font-variant-numeric:tabular-nums}tbody tr:nth-child(even) td{
background:var(--soft)}td:last-child:not(.n){white-space:pre-wrap;overflow-wrap:anywhere;
min-width:14rem}details[open] summary span{display:none}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
@page{size:landscape;margin:1cm}
@media print{body{max-width:none;padding:0}.scroll{overflow:visible;border:0}
th,td{font-size:8px;padding:.1rem .2rem}th{white-space:normal}td:last-child:not(.n){min-width:8rem}
h2{break-after:avoid}tr,figure,.answer{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(
    session: Session,
    run: Run | None,
    facts: Sequence[str],
    answered: Sequence[Group],
    tables: Sequence[AnyTable],
) -> str:
    """The page: `facts` one line each, the answer, where the time goes, charts of phases and of the
    machine, then `tables`.
    """
    title = f"gputui: {title_of(run)}"
    parts = [
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><ul class='facts'>",
        *(f"<li>{escape(fact)}</li>" for fact in facts),
        "</ul>",
        *_answer(answered),
        *(_time(run) if run else ()),
        *(_roofs(session, run) if run else ()),
        *(_phases(run) if run else ()),
        *_machine(session, run),
        *_timelines(tables),
        *map(_table, tables),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _answer(groups: Sequence[Group]) -> Iterator[str]:
    if groups:
        yield "<h2>The answer</h2><dl class='answer'>"
        for group in groups:
            for line in group:
                yield f"<dt>{escape(line.label)}</dt><dd>{escape(line.text)}</dd>"
        yield "</dl>"


def _time(run: Run) -> Iterator[str]:
    """The time tree: one bar of 100 %, then its leaves, which the table below has too."""
    tree = time_tree(run)
    if tree is None:
        return
    leaves = sorted(tree.leaves.items(), key=lambda item: (LEAVES[item[0]].is_idle, -item[1]))
    yield "<h2>Where the time goes</h2><div class='stack'>"
    for leaf, ns in leaves:
        share = 100 * tree.share(ns)
        words = escape(f"{LEAVES[leaf].label} {units.percent(share)}", quote=True)
        kind = IDLE if LEAVES[leaf].is_idle else ""
        yield f"<i{kind} style='width:{share:.3f}%' title='{words}'></i>"
    yield "</div>"
    rows: list[Bar] = []
    for state in ("busy", "idle"):
        is_idle = state == "idle"
        of = [(leaf, ns) for leaf, ns in leaves if LEAVES[leaf].is_idle == is_idle]
        rows.append(Bar(0, state, 100 * tree.share(sum(ns for _, ns in of)), is_idle))
        rows += [Bar(1, LEAVES[leaf].label, 100 * tree.share(ns), is_idle) for leaf, ns in of]
    yield bars(rows)


def _roofs(session: Session, run: Run) -> Iterator[str]:
    rows = roofline(session, run)
    charts = [roof([row for row in rows if row.gpu == gpu]) for gpu in {row.gpu: 0 for row in rows}]
    if any(charts):
        yield "<h2>How near the limits</h2><div class='charts'>"
        yield from charts
        yield "</div>"


def _machine(session: Session, run: Run | None) -> Iterator[str]:
    first = run.started.time_ns if run else session.started_ns
    last = first + run.duration_ns if run else session.readings.last_ns
    sampled: list[tuple[str, Mapping[str, Metric], Samples[GpuSample] | Samples[HostSample]]] = [
        (f"GPU {index}: {gpu.facts.name}", charted(GpuSample), gpu.samples)
        for index, gpu in sorted(session.gpus.items())
    ]
    for name, metrics, samples in (
        *sampled,
        ("The host", charted(HostSample), session.host_samples),
    ):
        charts = [
            chart
            for field, metric in metrics.items()
            if (chart := line(metric, samples.track(field).peaks(first, last), first, last, name))
        ]
        if charts:
            yield f"<h2>{escape(name)}</h2><div class='charts'>"
            yield from charts
            yield "</div>"


def _timelines(tables: Iterable[AnyTable]) -> Iterator[str]:
    charts = [chart for table in tables for chart in timelines(table)]
    if charts:
        yield "<h2>What the workload measured over time</h2><div class='charts'>"
        yield from charts
        yield "</div>"


def _phases(run: Run) -> Iterator[str]:
    known = phase_rows(run)
    rows = [row for row in known if row.share_percent]
    if not rows:
        return
    least = sorted((row.share_percent or 0.0 for row in rows), reverse=True)[:BARS][-1]
    rows = [row for row in rows if (row.share_percent or 0.0) >= least][:BARS]
    yield f"<h2>Phases by share {escape(share_of(run, known))}</h2>"
    if left := len(known) - len(rows):
        yield (
            f"<p class='note'>The {len(rows)} largest; {left} more, smaller or outside the "
            "steps, are in the table of phases.</p>"
        )
    yield bars([Bar(row.depth, row.name, row.share_percent or 0.0) for row in rows])


def _table(whole: AnyTable) -> str:
    table, left_out = shortened(whole)
    columns, _, texts = table.for_people()
    classes = [" class='n'" if column.is_right else "" for column in columns]
    heads = "".join(
        f"<th scope='col'{kind}>{escape(header(column))}</th>"
        for kind, column in zip(classes, columns, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_cell(text)}</td>" for kind, text in zip(classes, row, strict=True))
        + "</tr>"
        for row in texts
    )
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    more = f"<p class='note'>{escape(left_out)}</p>" if left_out else ""
    return (
        f"<h2>{escape(table.title)}</h2>{note}<div class='scroll' tabindex='0' role='region' "
        f"aria-label='{escape(table.title)}'><table><caption>{escape(table.title)}</caption>"
        f"<thead><tr>{heads}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _cell(text: str) -> str:
    """A text, one of kernels' and modules' names folded behind its beginning."""
    if len(text) <= FOLDED:
        return escape(text)
    start, rest = escape(text[:FOLDED]), escape(text[FOLDED:])
    return f"<details><summary>{start}<span>…</span></summary>{rest}</details>"
