"""One run of a workload: its device, its values, until when it goes on, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import nvtx

from .declaration import FigureValue, Outcome, Row, Value, Workload
from .parameters import STEP_MS
from .place import Place
from .report import Report
from .rows import Rows
from .stopping import StopRequest
from .timing import Times, measure, measure_in_graph, repeat

STEP = nvtx.annotate("step")
GRAPH = nvtx.annotate("graph")

_Item = TypeVar("_Item")


class Runner(StopRequest):
    """What the `run` of a workload begins and ends with; in `with Runner(...) as run:` it stops on
    request: at once until the first measurement begins, `begin` or the first row's end, whichever
    comes first.

    Raises CannotRun if the device is not available, and what the workload's forecast refuses.
    """

    def __init__(self, workload: Workload, given: Mapping[str, Value], report: Report) -> None:
        super().__init__(is_late=True)
        self.workload = workload
        self._steps, self._steps_ms = 0, 0.0
        self.place = Place.find(given)
        self.values = self.place.fill(workload, given)
        self.report = report
        forecast = workload.forecaster()
        if forecast is None:
            return
        needed = forecast(self.values, None)
        if needed.made_of and needed.memory_bytes is not None:
            self.place.refuse_unless_fits(needed.memory_bytes, needed.made_of, needed.advice)

    def __getitem__(self, name: str) -> int:
        """The value of a whole number."""
        return int(self.values[name])

    @property
    def is_stopped(self) -> bool:
        """Whether a signal asked for the end."""
        return self.signal is not None

    def until_stopped(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items, until a signal asks for the end."""
        for item in items:
            if self.is_stopped:
                return
            yield item
            self.begin()

    def rows(self, total: int) -> Rows:
        """A table of so many rows, to be measured one after the other."""
        return Rows(total, self.place.device, self.report)

    def timed(
        self, once: Callable[[], object], passes: str = "passes", *, in_graph: bool = False
    ) -> Times:
        """Passes of `once`, each in a range `step`, as many as the parameter `passes` says, after
        those of `warmup` where there is such a parameter. With `in_graph`, short passes are timed
        once more inside a CUDA graph, in a range `graph`.
        """

        def step() -> None:
            with STEP:
                once()

        if "warmup" in self.values:
            repeat(once, self["warmup"], self.place.device)
        self.begin()
        times = measure(step, self.place.device, self[passes], lambda: self.is_stopped)
        self.count_steps(times.passes, times.wall_ms)
        return self.in_graph(once, times) if in_graph else times

    def in_graph(self, once: Callable[[], object], times: Times) -> Times:
        """The times of `once` with those inside a CUDA graph, where a pass is short."""
        if times.gpu_ms is None or not times.is_hosts:
            return times
        with GRAPH:
            graph_ms = measure_in_graph(once, self.place.device, times.gpu_ms)
        return replace(times, graph_ms=graph_ms)

    def count_steps(self, count: int, mean_ms: float) -> None:
        """Add `count` measured steps of `mean_ms` each to the workload's own step time."""
        self._steps += count
        self._steps_ms += count * mean_ms

    @property
    def step_ms(self) -> float | None:
        """Mean wall time of all measured steps, those of every row; None before the first."""
        return self._steps_ms / self._steps if self._steps else None

    def outcome(
        self,
        results: Mapping[str, FigureValue],
        tables: Mapping[str, Sequence[Row]],
        why: str = "",
        reasons: Mapping[str, str] | None = None,
    ) -> Outcome:
        """The outcome, with the device's name. A result that is None is unavailable for its reason
        in `reasons`, or else for `why`.
        """
        declares_step = any(figure.name == STEP_MS.name for figure in self.workload.results)
        step_ms: dict[str, FigureValue] = {STEP_MS.name: self.step_ms} if declares_step else {}
        measured = {"device_name": self.place.name, **step_ms, **results}
        missing = [name for name, value in measured.items() if value is None]
        return Outcome(
            parameters=self.values,
            results=measured,
            unavailable={name: (reasons or {}).get(name, why) for name in missing},
            tables=tables,
            stopped_by=self.signal,
        )
