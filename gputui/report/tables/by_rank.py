"""Kernels, CUDA calls and copies of each rank: the tables of nsys add ranks up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from gputui.model.sketch import Accumulator
from gputui.report.explain.rank_waits import ranks_of
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


class RankSum(NamedTuple):
    """What one rank has of a name."""

    rank: int
    launches: int
    total_ns: int

    @property
    def average_ns(self) -> float:
        """Of each."""
        return self.total_ns / self.launches if self.launches else 0.0


def rank_sums(run: Run, parts: Iterable[tuple[str, int, Accumulator]]) -> dict[str, list[RankSum]]:
    """By name, of names, processes and times, the rank with most time first; nothing where there
    is only one rank."""
    sums: dict[str, dict[int, list[int]]] = defaultdict(dict)
    ranks = ranks_of(run)
    for name, process, times in parts:
        if (rank := ranks.get(process)) is not None:
            own = sums[name].setdefault(rank, [0, 0])
            own[0] += times.count
            own[1] += times.total
    if len({rank for each in sums.values() for rank in each}) < 2:
        return {}
    return {
        name: sorted((RankSum(rank, *own) for rank, own in each.items()), key=_most_first)
        for name, each in sums.items()
    }


def _most_first(one: RankSum) -> tuple[int, int]:
    return -one.total_ns, one.rank


def most(rows: Sequence[RankSum]) -> str:
    """The rank with most time, and how many times that of the one with least; of what only one
    rank has, that rank; empty for what no rank has."""
    if not rows:
        return ""
    first, last = rows[0], rows[-1]
    if first is last or not last.total_ns:
        return f"rank {first.rank}"
    times = first.total_ns / last.total_ns
    return f"rank {first.rank} {times:.2f}×" if times >= ALIKE else "alike"


def _of_ranks(run: Run, sums: Mapping[Key, Sums]) -> dict[int, dict[Key, Sums]]:
    found: dict[int, dict[Key, Sums]] = defaultdict(dict)
    process_of, ranks = attrgetter("process"), ranks_of(run)
    for key, one in sums.items():
        if (rank := ranks.get(process_of(key))) is not None:
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
