"""Kernels, CUDA calls and copies of each rank: the tables of nsys add ranks up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from gputui.report.explain.rank_waits import rank_of
from gputui.report.schema import RANK, Column, TableSpec
from gputui.report.statistics import (
    TableRow,
    api_rows,
    kernel_rows,
    medians_note,
    memory_time_rows,
    statistics_columns,
)
from gputui.report.tables.nsys import API, KERNELS, MEMORY_TIME, by_rank
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class RankRow(TableRow):
    """What one rank has of a name; percent is of the rank's own total."""

    rank: int


ALIKE = 1.05
"""Ranks whose times are less than this many times one another have the same of it."""

Key = TypeVar("Key")
Sums = TypeVar("Sums")


def _rows(session: Session, run: Run, field: str,
          rows_of: Callable[[Session, Run], list[TableRow]]) -> list[RankRow]:  # fmt: skip
    """Those of each name together, the longest over all ranks first."""
    found = [
        RankRow(row.name, row.label, row.times, row.percent, rank)
        for rank, own in sorted(_of_ranks(run, getattr(run, field)).items())
        for row in rows_of(session, replace(run, **{field: own}))
    ]
    whole: dict[str, int] = defaultdict(int)
    for row in found:
        whole[row.name] += row.total
    return sorted(found, key=lambda row: (-whole[row.name], row.name, row.rank))


def of_names(rows: Iterable[RankRow]) -> dict[str, list[RankRow]]:
    """By name, the rank with most time first; nothing where there is only one rank."""
    found: dict[str, list[RankRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row.total, row.rank)):
        found[row.name].append(row)
    ranks = {row.rank for own in found.values() for row in own}
    return dict(found) if len(ranks) > 1 else {}


def most(rows: Sequence[RankRow]) -> str:
    """The rank with most time, and how many times that of the one with least; of what only one
    rank has, that rank; empty for what no rank has."""
    if not rows:
        return ""
    first, last = rows[0], rows[-1]
    if first is last or not last.total:
        return f"rank {first.rank}"
    times = first.total / last.total
    return f"rank {first.rank} {times:.2f}×" if times >= ALIKE else "alike"


def _of_ranks(run: Run, sums: Mapping[Key, Sums]) -> dict[int, dict[Key, Sums]]:
    found: dict[int, dict[Key, Sums]] = defaultdict(dict)
    process_of = attrgetter("process")
    for key, one in sums.items():
        rank = rank_of(run, process_of(key))
        if rank is not None:
            found[rank][key] = one
    return found


def _spec(whole: TableSpec[TableRow], field: str, counted: str,
          rows_of: Callable[[Session, Run], list[TableRow]]) -> TableSpec[RankRow]:  # fmt: skip
    names: tuple[Column[Any], ...] = whole.columns[len(statistics_columns(counted)) :]
    return TableSpec(
        key=by_rank(whole.key),
        title=f"{whole.title} by Rank",
        meaning=f"{whole.meaning.removesuffix('.')} and rank; shares are of the rank's own total.",
        columns=(RANK, *statistics_columns(counted), *names),
        rows=lambda session, run: _rows(session, run, field, rows_of),
        order=whole.order + 3,
        note=lambda _run, rows: medians_note(row.exact for row in rows),
        is_traced=True,
    )


TABLES = (
    _spec(KERNELS, "kernels", "Instances", kernel_rows),
    _spec(API, "api", "Num Calls", lambda _session, run: api_rows(run)),
    _spec(MEMORY_TIME, "memory_operations", "Count", lambda _session, run: memory_time_rows(run)),
)
