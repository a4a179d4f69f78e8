"""The public library: recordings as data frames, comparisons, and readings of this machine.

`import gputui` gives what is here. Nothing of it runs a program, and nothing writes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from gputui.base import GputuiError as Error
from gputui.render.columnar import Frames, MissingPackageError, frame, frames_package
from gputui.state import Run as State
from gputui.state import Session

if TYPE_CHECKING:
    from gputui.playback.opening import Loaded

__all__ = [
    "Comparison", "Error", "MissingPackageError", "Recording", "Run", "compare", "devices", "read",
]  # fmt: skip


# What tables come as.

Row = dict[str, Any]

Rows = tuple[Mapping[str, Any], list[Row]]
"""The type of each column, by name, and the rows."""

Frame = Any
"""A pandas.DataFrame or a polars.DataFrame."""


def framed(rows: Rows, frames: Frames | None) -> Frame:
    """`rows` as a frame of the package that was asked for. Raises MissingPackageError."""
    return frame(*rows, frames_package(frames))


# Recordings and their runs, read into data frames.


def read(path: str | os.PathLike[str], *, frames: Frames | None = None) -> Recording:
    """The recording at `path`: a .gputui file (also .gz or .zst, also one that is being written),
    an SQLite export of nsys, a Chrome trace of torch.profiler (.json or .json.gz), a folder with
    the CSV tables of `nsys stats`, or a folder of recordings: those of one job's nodes or ranks are
    one run together, of others the runs are listed by their start.

    `frames` chooses what tables come as; None takes pandas where it is installed, else polars.
    Raises Error, in one line, where nothing can be read there, and MissingPackageError where the
    package asked for is not installed.
    """
    from gputui.playback.opening import load

    if frames is not None:
        frames_package(frames)
    name = os.fspath(path)
    place = Path(name)
    # Samples are read again by this name, which need not be the one the file is shown by.
    files = [replace(load(file), name=file) for file in _in_folder(place)]
    return Recording(name, files, frames)


def _in_folder(place: Path) -> list[str]:
    """What is to be read one by one: all recordings of a folder, if they are of no one job."""
    from gputui.playback.opening import is_of_one_job
    from gputui.store.recordings import recordings_in

    if not place.is_dir() or is_of_one_job(place):
        return [str(place)]
    return [str(entry.path) for entry in recordings_in(place)] or [str(place)]


class Recording:
    """What was read. `path` is where, `remarks` what was odd about it, a line each."""

    def __init__(self, path: str, files: Sequence[Loaded], frames: Frames | None) -> None:
        self.path = path
        self.remarks = tuple(remark for file in files for remark in file.remarks)
        self._files = files
        self._frames = frames
        runs = [Run(file, state, frames) for file in files for state in file.session.runs.values()]
        self.runs: tuple[Run, ...] = tuple(sorted(runs, key=lambda run: run.started_ns))
        """The runs, the newest last; none where only the machine was recorded."""

    @property
    def samples(self) -> Frame:
        """Every reading of every GPU, as `Run.samples`, whether a run went on or not."""
        return framed(self._samples(), self._frames)

    def rows(self, name: str = "samples") -> list[Row]:
        """The same as a list of dictionaries. Raises Error for another name."""
        if name != "samples":
            raise Error(f"a recording has samples only; {name!r} belongs to a run: see runs")
        return self._samples()[1]

    def _samples(self) -> Rows:
        declared: Mapping[str, Any] = {}
        rows: list[Row] = []
        for file in self._files:
            declared, more = _samples(file.name, None)
            rows += more
        return declared, rows

    def __repr__(self) -> str:
        return f"<gputui.Recording {self.path}: {len(self.runs)} runs>"


class Run:
    """One run: a workload or a command, with everything that was recorded of it. Tables are data
    frames: the names of columns end in their units, and missing values are null."""

    def __init__(self, file: Loaded, state: State, frames: Frames | None) -> None:
        self._file = file
        self._state = state
        self._frames = frames
        self.recording = file.name
        """The file it was read from."""
        self.number: int = state.started.run
        """The run's number in its file."""
        self.name: str = state.started.name
        self.arguments: tuple[str, ...] = state.started.arguments
        self.parameters: dict[str, Any] = dict(state.parameters)
        self.metrics: dict[str, Any] = dict(state.metrics)
        """The newest value of everything that the workload reported."""
        self.started_ns: int = state.started.time_ns
        """Since the epoch."""
        self.duration_ns: int = state.duration_ns
        self.exit_code: int | None = state.ended.exit_code if state.ended else None
        ranks = {process.attached.rank for process in state.processes.values()}
        self.ranks: tuple[int, ...] = tuple(sorted(rank for rank in ranks if rank is not None))
        """The ranks of its processes, where they have any."""

    @property
    def phases(self) -> Frame:
        """The tree of NVTX ranges, parents before children, with what they cost."""
        return self._frame("phases")

    @property
    def kernels(self) -> Frame:
        """GPU time by kernel, the most first."""
        return self._frame("kernels")

    @property
    def api(self) -> Frame:
        """Time in CUDA calls by function."""
        return self._frame("api")

    @property
    def memory_operations(self) -> Frame:
        """Copies and memory sets: their times and their sizes."""
        return self._frame("memory_operations")

    @property
    def samples(self) -> Frame:
        """Every reading of every GPU while it ran, a row each, with the host's beside it."""
        return self._frame("samples")

    @property
    def steps(self) -> Frame | None:
        """What the workload reported while it ran, a row a report; None where it reported nothing:
        `unavailable` says why."""
        return None if "steps" in self.unavailable else self._frame("steps")

    @property
    def findings(self) -> Frame:
        """Causes worth a cure, with the figures it rests on and what to try."""
        return self._frame("findings")

    def table(self, name: str) -> Frame:
        """Any table by its name: see `tables`. Raises Error where there is none."""
        return framed(self._table(name), self._frames)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables."""
        from gputui.report.tables import table_names

        return tuple(table_names(self._state))

    def rows(self, name: str) -> list[Row]:
        """Any of these, and any table, as a list of dictionaries; missing is None.

        Needs neither pandas nor polars. Raises Error where there is none of that name.
        """
        return self._rows(name)[1]

    @property
    def unavailable(self) -> dict[str, str]:
        """What is missing, and why."""
        missing = dict(self._document["unavailable"])
        if not self._reports[1]:
            missing["steps"] = "the workload reported no metrics while it ran"
        return missing

    def document(self) -> Row:
        """The whole summary, as `gputui summary --format json` has it."""
        return dict(self._document)

    @cached_property
    def _document(self) -> Row:
        import msgspec

        from gputui.report.summary_document import summary_document

        document: Row = msgspec.to_builtins(summary_document(self._file.session, self._state))
        return document

    def _frame(self, name: str) -> Frame:
        return framed(self._rows(name), self._frames)

    def _rows(self, name: str) -> Rows:
        if name in _TABLES:
            return self._table(_TABLES[name])
        if name == "memory_operations":
            return _joined(
                self._table("cuda_gpu_mem_time_sum"), self._table("cuda_gpu_mem_size_sum")
            )
        if name == "samples":
            return _samples(self.recording, (self.started_ns, self.started_ns + self.duration_ns))
        if name == "steps":
            return self._reports
        if name == "findings":
            return _findings(self._document["findings"])
        return self._table(name)

    def _table(self, name: str) -> Rows:
        from gputui.render.summary import one_table

        table = one_table(self._file.session, self._state, name)
        return {column.name: column.kind for column in table.columns}, table.records()

    @cached_property
    def _reports(self) -> Rows:
        """One row a report of metrics, which the session does not keep: read again."""
        from gputui.model.events import RunMetrics
        from gputui.playback.opening import open_recording

        rows: list[Row] = []
        with closing(open_recording(self.recording, summed=True)) as recording:
            for event in recording:
                if isinstance(event, RunMetrics) and event.run == self.number:
                    rows.append({"time_ns": event.time_ns, **event.metrics})
        names = dict.fromkeys(name for row in rows for name in row)
        nothing = dict.fromkeys(names)
        return dict.fromkeys(names, object) | {"time_ns": int}, [nothing | row for row in rows]

    def __repr__(self) -> str:
        return f"<gputui.Run {self.name} #{self.number} of {self.recording}>"


# Attribute → table.
_TABLES = {"phases": "phases", "kernels": "cuda_gpu_kern_sum", "api": "cuda_api_sum"}


def _findings(findings: Sequence[Row]) -> Rows:
    import msgspec

    from gputui.report.explain.finding import FindingDocument

    fields = msgspec.structs.fields(FindingDocument)
    kinds = get_type_hints(FindingDocument)
    return {field.encode_name: kinds[field.name] for field in fields}, list(findings)


def _joined(times: Rows, sizes: Rows) -> Rows:
    """The rows, with those of the same operation added up."""
    more = {name: kind for name, kind in sizes[0].items() if name not in times[0]}
    of_sizes = {row["operation"]: row for row in sizes[1]}
    nothing: Row = {}
    rows = [
        row | {name: of_sizes.get(row["operation"], nothing).get(name) for name in more}
        for row in times[1]
    ]
    return {**times[0], **more}, rows


def _samples(name: str, span: tuple[int, int] | None) -> Rows:
    """Read again: a session keeps the newest only."""
    from gputui.playback.opening import open_recording
    from gputui.render.columnar import SAMPLE_COLUMNS, sample_rows, samples_of

    with closing(open_recording(name, summed=True)) as recording:
        return SAMPLE_COLUMNS, list(sample_rows(samples_of(recording, span, Session())))


# Runs side by side.


def compare(
    baseline: str | os.PathLike[str] | Run,
    *others: str | os.PathLike[str] | Run,
    frames: Frames | None = None,
) -> Comparison:
    """How runs differ from the first: of a path the newest run is taken, of the machine where it
    holds none. Raises Error, in one line, where one cannot be read or there is nothing to compare.
    """
    from gputui.playback.opening import load
    from gputui.report.comparable import Subject
    from gputui.report.compare import compare as compared

    if not others:
        raise Error("compare() needs two runs or more")
    subjects = []
    for run in (baseline, *others):
        if isinstance(run, Run):
            label = f"{run.recording} #{run.number}"
            subjects.append(Subject(label, run._file.session, run._state))
        else:
            loaded = load(os.fspath(run))
            subjects.append(Subject(loaded.name, loaded.session, loaded.run))
    return Comparison(compared(subjects), frames)


class Comparison:
    """Runs side by side; the first is the baseline."""

    def __init__(self, compared: Any, frames: Frames | None) -> None:
        self._compared = compared
        self._frames = frames
        self.remarks: tuple[str, ...] = tuple(compared.remarks)
        """What cannot be compared, and why."""

    @property
    def figures(self) -> Frame:
        """A row for each figure of each run after the first: its value in the baseline and there,
        the difference, and whether that is more than noise."""
        return framed((_FIGURES, self.rows()), self._frames)

    def rows(self) -> list[Row]:
        """The same as a list of dictionaries."""
        subjects = self._compared.subjects
        rows: list[Row] = []
        for item in self._compared.items:
            for figure in item.figures.values():
                for index in range(1, len(subjects)):
                    difference = figure.difference(index)
                    base, value = figure.values[0], figure.values[index]
                    cells = (
                        item.kind, item.name, item.was, figure.name, subjects[index].label,
                        base.amount if base else None, value.amount if value else None,
                        *((difference.absolute, difference.percent, difference.noise,
                           difference.beyond_noise) if difference else (None,) * 4),
                    )  # fmt: skip
                    rows.append(dict(zip(_FIGURES, cells, strict=True)))
        return rows

    def failures(self, *conditions: str) -> list[str]:
        """A line for each of the conditions, as `gputui compare --fail-if` takes them, that holds
        of a run after the first. Raises Error where one makes no sense."""
        from gputui.report.compare import Condition

        parsed = [Condition.parse(text) for text in conditions]
        return [line for condition in parsed for line in condition.tripped(self._compared)]

    def document(self) -> Row:
        """The whole comparison, as `gputui compare --format json` prints it."""
        import msgspec

        from gputui.render.comparison import comparison_document

        document: Row = msgspec.to_builtins(comparison_document(self._compared))
        return document


_FIGURES: dict[str, type] = {
    "kind": str, "name": str, "was": str, "figure": str, "run": str, "baseline": float,
    "value": float, "difference": float, "difference_percent": float, "noise": float,
    "beyond_noise": bool,
}  # fmt: skip


# Readings of this machine.


def devices(
    interval_s: float = 1.0, count: int | None = None, only: Sequence[int] | None = None
) -> Iterator[Row]:
    """Readings of this machine's GPUs as they are taken: each interval one a device, `count` times
    or for ever. Each has the names and units of `gputui --once --json`, and `time`.

    `only` are NVML indexes; None takes what CUDA_VISIBLE_DEVICES says. Raises Error where there is
    no GPU, it cannot be read any more, or the interval is impossible.
    """
    from gputui.collect.live import Sampler, emissions
    from gputui.model.events import Header, HostUnavailable, MachineSample
    from gputui.report.machine_now import machine_document

    try:
        sampler = Sampler(interval_s, only)
    except ValueError as error:
        raise Error(str(error)) from None
    session = Session()
    samples = 0
    with closing(emissions(sampler)) as emitted:
        while count is None or samples < count:
            events = next(emitted)
            session.apply(events)
            for event in events:
                if isinstance(event, Header) and event.gpu_unavailable_reason:
                    raise Error(f"no GPU: {event.gpu_unavailable_reason}")
                if isinstance(event, HostUnavailable) and "sampler" in event.reasons:
                    raise Error(event.reasons["sampler"])
            if any(isinstance(event, MachineSample) for event in events):
                samples += 1
                document = machine_document(session)
                yield from ({"time": document["time"], **gpu} for gpu in document["gpus"])
