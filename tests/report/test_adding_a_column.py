"""A column is added in two files: the recipe of docs, carried out on a copy of the package."""

from __future__ import annotations

from pathlib import Path

from tests.package_copies_for_tests import change, check_copy, copy_package

_FIELD = """    queue_ns: int = 0
    \"\"\"From the return of its launches to its start, all of them.\"\"\"

"""
_ROWS = """def kernel_rows(session, run, ranges=None, names="full"):
    from dataclasses import replace

    queues: dict[str, int] = {}
    for launched in run.launches.values():
        if launched.queue is not None:
            name = kernel_name(session, launched.kernel, names)
            queues[name] = queues.get(name, 0) + launched.queue.total
    rows = kernel_rows_without_queues(session, run, ranges, names)
    return [replace(row, queue_ns=queues.get(row.name, 0)) for row in rows]


def kernel_rows_without_queues("""
_COLUMN = """def _kernel_sums(style):
    from msgspec.structs import replace

    column = time("Queued", "queue_ns", lambda row: row.queue_ns, "Behind other work", kind=int,
                  in_table=False)
    spec = _kernel_sums_without_queues(style)
    return replace(spec, columns=(*spec.columns, column))


def _kernel_sums_without_queues("""
_CHANGED = (
    ("report/statistics.py", "    @property\n    def short_name(self)", _FIELD, ""),
    ("report/statistics.py", "def kernel_rows(", _ROWS, "def kernel_rows("),
    ("report/tables/nsys.py", "def _kernel_sums(", _COLUMN, "def _kernel_sums("),
)
"""File, a text that stands in it once, what is written there, what of the text that replaces.
None is a line that another column changes."""

_CHECK = """
import gputui
from tests.reference import tables_page
from gputui.model.events import *
from gputui.report.tables import table
from gputui.state import Session
from tests.events_for_tests import times

assert gputui.__file__.startswith(FOLDER), gputui.__file__
events = [RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5)]
events.append(KernelDefined(time_ns=1, kernel=1, name="gemm", mangled="gemm"))
for rank in (0, 1):
    process = rank + 1
    events.append(ProcessAttached(
        time_ns=0, run=1, process=process, pid=5 + rank, parent_pid=1, command="p",
        cuda_status="tracing", rank=rank,
    ))
    time = times(10 * process)
    events.append(CaptureDelta(
        time_ns=2, process=process,
        kernels=(KernelDelta(process=process, range=0, kernel=1, device=rank, time=time),),
        launches=(LaunchDelta(
            process=process, thread=1, device=rank, name="cudaLaunchKernel", kernel=1, total=time,
            call=time, queue=times(100 * process), kernel_time=time,
        ),),
    ))
session = Session.from_events(events)
[row] = table(session, session.run, "cuda_gpu_kern_sum").records()
assert row["queue_ns"] == 300, row
# Each rank has its own, of a table of the run that kernels are not in.
rows = table(session, session.run, "cuda_gpu_kern_sum:rank").records()
assert [(row["rank"], row["queue_ns"]) for row in rows] == [(0, 100), (1, 200)], rows
assert "Queued" not in [c.title for _, c in table(session, session.run, "cuda_gpu_kern_sum").headed]
assert "`queue_ns`" in tables_page()
"""


def test_a_column_is_its_field_its_rows_and_its_declaration(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    change(package, _CHANGED)
    assert len({name for name, *_ in _CHANGED}) == 2
    check_copy(tmp_path, _CHECK)
