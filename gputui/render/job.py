"""A job of several recordings as text, and for programs."""

from __future__ import annotations

import json
from typing import Any

from gputui.model.events import SCHEMA_VERSION
from gputui.render import formats
from gputui.report.job import Job
from gputui.report.schema import Table
from gputui.report.tables.ranks import RANKS

LISTED = 20
"""Missing ranks and recordings that are listed one by one."""


def job_text(job: Job, kind: str, width: int | None) -> str:
    """In a format that takes one table, or as a document."""
    table = Table(RANKS.key, RANKS.title, RANKS.columns, job.ranks)
    if kind == "json":
        return json.dumps(_document(job, table.records()), indent=2, allow_nan=False) + "\n"
    text = formats.one_table(table, kind, width)
    return "\n".join([*_lines(job), "", text]) if kind == "table" else text


def _lines(job: Job) -> list[str]:
    seen = len(job.present)
    of = "" if job.world_size is None else f" of {job.world_size}"
    hosts = f"{len(job.hosts)} host{'s' if len(job.hosts) != 1 else ''}"
    lines = [f"job {job.id or 'without an id'} · {hosts} · {seen}{of} ranks"]
    if job.late is not None:
        lines += ["", f"  {job.late.word}  {job.late.sentence}"]
        lines += [f"  {one}." for one in job.late.evidence]
        lines.append(f"  Try: {job.late.advice}")
    if job.missing:
        names = ", ".join(map(str, job.missing[:LISTED]))
        more = f" and {len(job.missing) - LISTED} more" if len(job.missing) > LISTED else ""
        lines += ["", f"  missing: {'rank' if len(job.missing) == 1 else 'ranks'} {names}{more}"]
    lines += [f"  left out: {name}: {why}" for name, why in job.left_out[:LISTED]]
    return lines


def _document(job: Job, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    late = job.late
    return {
        "schema": SCHEMA_VERSION,
        "job": job.id,
        "world_size": job.world_size,
        "hosts": job.hosts,
        "recordings": [part.name for part in job.parts],
        "left_out": [{"name": name, "reason": reason} for name, reason in job.left_out],
        "missing_ranks": job.missing,
        "late": None
        if late is None
        else {
            "ranks": [one.time.rank for one in late.late],
            "causes": [one.cause for one in late.late],
            "word": late.word,
            "sentence": late.sentence,
            "evidence": list(late.evidence),
            "try": late.advice,
            "share_percent": 100 * late.share,
        },
        "ranks": ranks,
    }
