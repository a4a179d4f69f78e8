"""How large and how long one file of a recording may become."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from gputui.model.events import (
    Alert,
    AnyEvent,
    DeviceDefined,
    GpuUnavailable,
    Header,
    HostUnavailable,
    KernelDefined,
    LaunchShape,
    LineDefined,
    MarkDefined,
    ProcessAttached,
    RangeDefined,
    ResourceNamed,
    RunAskedToEnd,
    RunEnded,
    RunProgress,
    RunResult,
    RunStarted,
    ThreadNamed,
)

_encoder = msgspec.json.Encoder()


class Limits(msgspec.Struct, frozen=True):
    """When a new file begins, and how much all files may take. None is no limit.

    Before they exceed `max_bytes` together, the oldest files are removed if the recording is
    rotated; otherwise recording stops.
    """

    rotate_bytes: int | None = None
    rotate_ns: int | None = None
    max_bytes: int | None = None

    @property
    def rotates(self) -> bool:
        """Whether there can be a second file."""
        return self.rotate_bytes is not None or self.rotate_ns is not None

    @property
    def file_bytes(self) -> int | None:
        """What one file may take before the next begins. At most half of the total, so that
        something is left when the oldest goes, whatever the size or time of a file.
        """
        of_all = self.max_bytes // 2 if self.max_bytes is not None else None
        return min((size for size in (self.rotate_bytes, of_all) if size is not None), default=None)


class Preamble:
    """What a file must begin with so that it can be read without the earlier ones: the header, the
    reasons for missing readings, alerts that last, and the definitions of runs that go on.
    """

    KINDS = (
        Header, GpuUnavailable, HostUnavailable, KernelDefined, LaunchShape, RunStarted,
        RunAskedToEnd, RunProgress, RunResult, ProcessAttached, ThreadNamed, RangeDefined,
        MarkDefined, ResourceNamed, DeviceDefined, Alert,
    )  # fmt: skip
    """The events it may hold."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._latest: dict[tuple[type, Hashable], AnyEvent] = {}
        self._runs: dict[int, dict[tuple[type, Hashable], AnyEvent]] = {}
        self._run_of_process: dict[int, int] = {}
        self._kernels: list[AnyEvent] = []
        self._ended: set[int] = set()

    def see(self, events: Sequence[AnyEvent]) -> None:
        """Remember what later files need of `events`."""
        for event in events:
            match event:
                case Header():
                    self._header = event
                case GpuUnavailable():
                    self._latest[type(event), event.gpu] = event
                case HostUnavailable():
                    self._latest[type(event), -1] = event
                case Alert():
                    key = type(event), (event.condition, event.subject)
                    self._latest.pop(key, None)
                    if event.raised:
                        self._latest[key] = event
                case KernelDefined() | LaunchShape():
                    self._kernels.append(event)
                case RunStarted():
                    self._runs[event.run] = {(type(event), event.run): event}
                case RunAskedToEnd() | RunProgress() | RunResult():
                    self._of_run(event.run, event.run, event)
                case ProcessAttached():
                    self._run_of_process[event.process] = event.run
                    self._of_run(event.run, event.process, event)
                case ThreadNamed():
                    run = self._run_of_process.get(event.process, -1)
                    self._of_run(run, event.process << 32 | event.thread, event)
                case LineDefined():
                    run = self._run_of_process.get(event.process, -1)
                    self._of_run(run, (type(event), event.process, event.line), event)
                case ResourceNamed():
                    run = self._run_of_process.get(event.process, -1)
                    resource = event.process, event.kind, event.number, event.device
                    self._of_run(run, resource, event)
                case DeviceDefined():
                    run = self._run_of_process.get(event.process, -1)
                    self._of_run(run, (type(event), event.process, event.device), event)
                case RangeDefined():
                    run = self._run_of_process.get(event.process, -1)
                    self._of_run(run, event.range, event)
                case MarkDefined():
                    run = self._run_of_process.get(event.process, -1)
                    self._of_run(run, event.mark, event)
                case RunEnded():
                    self._ended.add(event.run)

    def events(self) -> list[AnyEvent]:
        """The events that the next file begins with. Runs that ended are dropped."""
        for run in self._ended:
            self._runs.pop(run, None)
        self._ended.clear()
        alive = [event for run in self._runs.values() for event in run.values()]
        header = [self._header] if self._header is not None else []
        return [*header, *self._latest.values(), *self._kernels, *alive]

    def _of_run(self, run: int, number: Hashable, event: AnyEvent) -> None:
        if run in self._runs:
            self._runs[run][type(event), number] = event


class Repeats:
    """Recognizes what a file of a rotated recording repeats from earlier ones."""

    KINDS = frozenset(kind.__struct_config__.tag for kind in Preamble.KINDS)
    """The events it needs to see; of other kinds it only needs to know that they came."""

    def __init__(self) -> None:
        self._seen = Preamble()
        self._known: set[bytes] = set()

    def begin(self) -> None:
        """Another file begins."""
        self._known = {_encoder.encode(event) for event in self._seen.events()}

    def is_one(self, event: AnyEvent) -> bool:
        """Whether this event was read before."""
        if self._known and _encoder.encode(event) in self._known:
            return True
        if not isinstance(event, Preamble.KINDS):
            self.end()
        self._seen.see((event,))
        return False

    def end(self) -> None:
        """The file's own events begin."""
        self._known = set()
