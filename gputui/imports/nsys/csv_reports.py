"""What each CSV table of `nsys stats` has in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from gputui.imports.nsys.csv_rows import Cells
from gputui.model.cuda_names import api_name
from gputui.model.events import LAUNCH_UNKNOWN, Distribution

Style = Literal["PushPop", "StartEnd"]


class Sum(NamedTuple):
    """A row of a table of names and amounts."""

    name: str
    amounts: Distribution


class Projected(NamedTuple):
    """A row of nvtx_gpu_proj_sum; the last four are sums over its instances."""

    style: Style
    name: str
    projected: Distribution
    range_ns: int
    operations: int
    levels: int
    children: int


class Inside(NamedTuple):
    """A row of nvtx_kern_sum: a kernel in a range; the name is empty outside every range."""

    style: Style
    name: str
    pid: int
    thread: int
    instances: int
    kernel: str
    time: Distribution
    repeats: int


class Launches(NamedTuple):
    """A row of cuda_kern_exec_sum."""

    pid: int
    thread: int
    device: int
    call: str
    kernel: str
    total: Distribution
    calls: Distribution
    queue: Distribution | None
    kernel_time: Distribution


_NAMES = ("Range", "Name", "Operation", "Kernel Name")
_COUNTS = ("Instances", "Num Calls", "Count")
_TOTALS = ("Total Time", "Total")


def _sum(cells: Cells) -> Sum:
    total = cells.amount(*_TOTALS)
    if total is None:
        raise ValueError
    return Sum(cells.text(*_NAMES), cells.distribution(cells.whole(*_COUNTS), total))


def _style(cells: Cells) -> Style:
    return "StartEnd" if cells.text("Style") == "StartEnd" else "PushPop"


def _projected(cells: Cells) -> Projected:
    count = cells.whole("Range Instances")
    return Projected(
        _style(cells),
        cells.text("Range"),
        cells.distribution(count, cells.amount("Total Proj Time"), "Proj "),
        round(cells.amount("Total Range Time") or 0),
        cells.whole("Total GPU Ops"),
        *(round(count * (cells.amount(name) or 0)) for name in ("Avg Range Lvl", "Avg Num Child")),
    )


def _inside(cells: Cells) -> Inside:
    kernels = cells.whole("Kern Inst")
    total, average = cells.amount("Total Time"), cells.amount("Avg")
    # A kernel inside several ranges of one name is in the sum as often, but counted once.
    times = max(kernels, round(total / average)) if total and average else kernels
    unknown = not cells.text("PID")
    return Inside(
        _style(cells),
        cells.text("NVTX Range"),
        cells.whole("PID"),
        LAUNCH_UNKNOWN if unknown else cells.whole("TID"),
        cells.whole("NVTX Inst"),
        cells.text("Kernel Name"),
        cells.distribution(times, total),
        times - kernels,
    )


def _launches(cells: Cells) -> Launches:
    count, queued = cells.whole("Count"), cells.whole("QCount")
    return Launches(
        cells.whole("PID"),
        cells.whole("TID"),
        cells.whole("DevId"),
        api_name(cells.text("API Name")),
        cells.text("Kernel Name"),
        cells.distribution(count, prefix="T"),
        cells.distribution(count, prefix="A"),
        cells.distribution(queued, prefix="Q") if queued else None,
        cells.distribution(count, prefix="K"),
    )


class Report(NamedTuple):
    needed: tuple[tuple[str, ...], ...]
    parse: Callable[[Cells], Any]


_OF_SUMS = Report((_NAMES, _COUNTS, _TOTALS), _sum)

REPORTS = {
    "nvtx_pushpop_sum": _OF_SUMS,
    "nvtx_startend_sum": _OF_SUMS,
    "cuda_gpu_kern_sum": _OF_SUMS,
    "cuda_api_sum": _OF_SUMS,
    "cuda_gpu_mem_time_sum": _OF_SUMS,
    "cuda_gpu_mem_size_sum": _OF_SUMS,
    "nvtx_gpu_proj_sum": Report(
        (("Range",), ("Style",), ("Total Proj Time",), ("Range Instances",), ("Total GPU Ops",)),
        _projected,
    ),
    "nvtx_kern_sum": Report(
        (("NVTX Range",), ("Style",), ("PID",), ("TID",), ("NVTX Inst",), ("Kern Inst",),
         ("Total Time",), ("Kernel Name",)),
        _inside,
    ),
    "cuda_kern_exec_sum": Report(
        (("PID",), ("TID",), ("DevId",), ("Count",), ("QCount",), ("TAvg",), ("AAvg",), ("KAvg",),
         ("API Name",), ("Kernel Name",)),
        _launches,
    ),
}  # fmt: skip
"""Reports that are read; those of kernels also with the suffix `_base` or `_mangled`."""
