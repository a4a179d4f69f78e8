"""Rows of the tables of `nsys stats`, as definitions and sums of one run's processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gputui.imports.nsys.csv_reports import Inside, Launches, Projected, Style
from gputui.model.cuda_names import api_name
from gputui.model.events import (
    NO_THREAD,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    Distribution,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    ProcessAttached,
    RangeDefined,
    RangeDelta,
    RangeKernels,
)


class _Range:
    """A range of one name, process and thread, with what the tables hold of it."""

    def __init__(self, process: int, thread: int, style: Style, name: str) -> None:
        self.process = process
        self.thread = thread
        self.style: Style = style
        domain, colon, own = name.partition(":")
        self.domain, self.name = (
            (domain, own) if colon and own else ("", name.removeprefix(":") or "(unnamed)")
        )
        self.cpu: Distribution | None = None
        self.projected: Projected | None = None


class StatsEvents:
    """What the tables hold, as one delta a process and the definitions before it.

    Few tables name processes and threads. The others are of the only process that is named; where
    there are several, or none, of one whose pid is not known (0).
    """

    def __init__(self, time_ns: int, tables: dict[str, list[Any]]) -> None:
        self._time_ns = time_ns
        self._tables = tables
        self._inside: list[Inside] = tables.get("nvtx_kern_sum", [])
        self._launches: list[Launches] = tables.get("cuda_kern_exec_sum", [])
        pids = {row.pid for row in self._inside} | {row.pid for row in self._launches}
        named = sorted(pids - {0})
        self._pids = named if len(named) == 1 else [0, *named]
        self._kernels: dict[str, int] = {}
        self._ranges: dict[tuple[int, int, Style, str], _Range] = {}
        self._numbers: dict[_Range, int] = {}
        self._find_ranges()

    def __iter__(self) -> Iterator[AnyEvent]:
        deltas = [self._sums(), *map(self._delta, range(1, len(self._pids) + 1))]
        for number, pid in enumerate(self._pids, 1):
            yield ProcessAttached(
                time_ns=self._time_ns,
                run=1,
                process=number,
                pid=pid,
                parent_pid=0,
                command="",
                cuda_status="tracing",
            )
        for number, node in enumerate(self._ranges.values(), 1):
            yield RangeDefined(
                time_ns=self._time_ns,
                range=number,
                process=node.process,
                thread=node.thread,
                parent=0,
                domain=node.domain,
                name=node.name,
                style=node.style,
            )
        for name, number in self._kernels.items():
            yield KernelDefined(time_ns=self._time_ns, kernel=number, name=name, mangled=name)
        yield from deltas

    def _process(self, pid: int) -> int:
        return self._pids.index(pid) + 1 if pid in self._pids else 1

    def _kernel(self, name: str) -> int:
        return self._kernels.setdefault(name, len(self._kernels) + 1)

    def _range(self, process: int, thread: int, style: Style, name: str) -> _Range:
        key = process, thread, style, name
        if key not in self._ranges:
            node = self._ranges[key] = _Range(*key)
            self._numbers[node] = len(self._ranges)
        return self._ranges[key]

    def _find_ranges(self) -> None:
        threads: dict[tuple[Style, str], set[tuple[int, int]]] = {}
        for row in self._inside:
            if row.name:
                place = self._process(row.pid), row.thread
                self._range(*place, row.style, row.name)
                threads.setdefault((row.style, row.name), set()).add(place)

        def of(style: Style, name: str) -> _Range:
            places = threads.get((style, name), set())
            only = next(iter(places)) if len(places) == 1 else (1, NO_THREAD)
            return self._range(*only, style, name)

        styles: tuple[tuple[str, Style], ...] = (
            ("nvtx_pushpop_sum", "PushPop"), ("nvtx_startend_sum", "StartEnd")
        )  # fmt: skip
        for report, style in styles:
            for sums in self._tables.get(report, ()):
                node = of(style, sums.name)
                node.cpu = node.cpu or sums.amounts
        for row in self._tables.get("nvtx_gpu_proj_sum", ()):
            node = of(row.style, row.name)
            node.projected = node.projected or row

    def _delta(self, process: int) -> CaptureDelta:
        inside = [row for row in self._inside if self._process(row.pid) == process]
        return CaptureDelta(
            time_ns=self._time_ns,
            process=process,
            ranges=tuple(
                self._range_delta(node) for node in self._ranges.values() if node.process == process
            ),
            # Nobody knows which ranges lie in which: a kernel stands in each around its launch.
            secondary_domain_kernels=tuple(
                KernelDelta(
                    process=process,
                    range=self._number(row) if row.name else 0,
                    kernel=self._kernel(row.kernel),
                    device=0,
                    thread=0 if row.name else row.thread,
                    time=row.time,
                    repeats=row.repeats,
                )
                for row in inside
            ),
            range_kernels=tuple(
                RangeKernels(self._number(row), self._kernel(row.kernel), row.instances)
                for row in inside
                if row.name
            ),
            launches=tuple(
                LaunchDelta(
                    process=process,
                    thread=row.thread,
                    device=row.device,
                    name=row.call,
                    kernel=self._kernel(row.kernel),
                    total=row.total,
                    call=row.calls,
                    queue=row.queue,
                    kernel_time=row.kernel_time,
                )
                for row in self._launches
                if self._process(row.pid) == process
            ),
        )

    def _sums(self) -> CaptureDelta:
        """Of the tables that name neither ranges nor threads."""
        nothing = Distribution(0, 0, 0.0, 0, 0, ())
        times, sizes = (
            {row.name: row.amounts for row in self._tables.get(f"cuda_gpu_mem_{kind}_sum", ())}
            for kind in ("time", "size")
        )
        return CaptureDelta(
            time_ns=self._time_ns,
            process=1,
            kernels=tuple(
                KernelDelta(
                    process=1, range=0, kernel=self._kernel(row.name), device=0, time=row.amounts
                )
                for row in self._tables.get("cuda_gpu_kern_sum", ())
            ),
            memory_operations=tuple(
                MemoryOperationDelta(
                    process=1,
                    range=0,
                    operation=name,
                    device=0,
                    time=times.get(name, nothing),
                    size=sizes.get(name, nothing),
                )
                for name in {**times, **sizes}
            ),
            api=tuple(
                ApiDelta(process=1, range=0, name=api_name(row.name), time=row.amounts)
                for row in self._tables.get("cuda_api_sum", ())
            ),
        )

    def _number(self, row: Inside) -> int:
        return self._numbers[self._range(self._process(row.pid), row.thread, row.style, row.name)]

    def _range_delta(self, node: _Range) -> RangeDelta:
        on_gpu = node.projected
        if on_gpu is None:
            return RangeDelta(range=self._numbers[node], cpu=node.cpu)
        return RangeDelta(
            range=self._numbers[node],
            cpu=node.cpu,
            projected=on_gpu.projected,
            projected_range_ns=on_gpu.range_ns,
            gpu_operations=on_gpu.operations,
            levels=on_gpu.levels,
            children_with_work=on_gpu.children,
        )
