"""What a Python program says that it does: calls that copy, wait or free by line, and its garbage
collections."""

from __future__ import annotations

from dataclasses import dataclass

from gputui.report.explain.lines import CalledLine, called_lines, printed_line
from gputui.report.schema import TableSpec, count, if_any, size, text, time
from gputui.state import Run

# Calls that copy, wait for a GPU or give its memory back.


class _Every:
    """Stands for all calls."""

    def __contains__(self, _call: object) -> bool:
        return True


def call_rows(run: Run) -> list[CalledLine]:
    """Every line and call, those for most bytes first."""
    return called_lines(run, _Every())


CALLS: TableSpec[CalledLine] = TableSpec(
    key="calls_by_line",
    title="Calls that copy or wait",
    meaning="Calls of Python that copy, wait for a GPU or free its memory, by the line that makes "
    "them. Python 3.12 on, and torch 2.9 on where it is used.",
    columns=(
        count("Calls", "calls", lambda row: row.calls, "How many"),
        size("Bytes", "tensor_bytes", lambda row: row.tensor_bytes,
             "Of the tensors that they were called for"),
        text("Call", "call", lambda row: row.call, "A tensor's method, or a function"),
        text("Tensor", "tensor", lambda row: row.shape or None,
             "Shape, type and place of a late one", kind=str | None, seen=if_any, priority=1),
        text("Line", "line", lambda row: row.where, "File, line and function", flexible=True),
    ),
    rows=lambda _session, run: call_rows(run),
    order=3,
)  # fmt: skip


# Garbage collections.


@dataclass(frozen=True, slots=True)
class GarbageRow:
    """Collections of one generation that began at one line, empty where it is not known."""

    generation: int
    line: str
    collections: int
    total_ns: int
    longest_ns: int
    objects: int


def garbage_rows(run: Run) -> list[GarbageRow]:
    """Of each process, generation and line, those that took most first."""
    rows = []
    for row in run.garbage_collections.values():
        line = run.lines.get((row.process, row.line))
        where = printed_line(line.path, line.number, line.function) if line is not None else ""
        rows.append(
            GarbageRow(
                row.generation, where, row.collections, row.total_ns, row.longest_ns, row.objects
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.generation, row.line))


GARBAGE: TableSpec[GarbageRow] = TableSpec(
    key="garbage_collections",
    title="Garbage collections",
    meaning="Garbage that Python collected since the program launched something.",
    columns=(
        time("Total", "total_ns", lambda row: row.total_ns, "Time in them"),
        count("Collections", "collections", lambda row: row.collections, "How many"),
        count("Generation", "generation", lambda row: row.generation,
              "0: the youngest objects; 2: all of them"),
        time("Longest", "longest_ns", lambda row: row.longest_ns, "The longest one"),
        count("Objects", "objects", lambda row: row.objects, "That were freed"),
        text("Line", "line", lambda row: row.line or None, "Where they began, where that is known",
             kind=str | None, seen=if_any, flexible=True),
    ),
    rows=lambda _session, run: garbage_rows(run),
    order=4,
)  # fmt: skip

TABLES = (CALLS, GARBAGE)
