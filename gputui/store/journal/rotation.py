"""How large and how long one file of a recording may become."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from gputui.model.events import (
    KINDS,
    About,
    Alert,
    AnyEvent,
    Header,
    ProcessAttached,
    RunEnded,
    RunStarted,
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
    """What a file must begin with so that it can be read without the earlier ones: the events whose
    kind is `repeated_for` something, of the session and of runs that go on.
    """

    def __init__(self) -> None:
        self._session: dict[Hashable, AnyEvent] = {}
        self._runs: dict[int, dict[Hashable, AnyEvent]] = {}
        self._run_of_process: dict[int, int] = {}
        self._ended: set[int] = set()

    def see(self, events: Sequence[AnyEvent]) -> None:
        """Remember what later files need of `events`."""
        for event in events:
            if isinstance(event, RunEnded):
                self._ended.add(event.run)
            elif event.repeated_for is not None:
                self._keep(event, event.repeated_for)

    def events(self) -> list[AnyEvent]:
        """The events that the next file begins with, the header first."""
        for run in self._ended:
            self._runs.pop(run, None)
        self._ended.clear()
        of_session = sorted(self._session.values(), key=lambda event: type(event) is not Header)
        return [*of_session, *(event for run in self._runs.values() for event in run.values())]

    def _keep(self, event: AnyEvent, fields: tuple[str, ...]) -> None:
        key = type(event), *(getattr(event, field) for field in fields)
        if isinstance(event, RunStarted):
            self._runs[event.run] = {key: event}
            return
        if isinstance(event, ProcessAttached):
            self._run_of_process[event.process] = event.run
        if event.about in (About.RUN, About.PROCESS):
            run = self._runs.get(self._run_of(event))
            if run is not None:
                run[key] = event
            return
        if isinstance(event, Alert) and not event.raised:
            self._session.pop(key, None)
        else:
            self._session[key] = event

    def _run_of(self, event: AnyEvent) -> int:
        run: int | None = getattr(event, "run", None)
        return self._run_of_process.get(getattr(event, "process", 0), -1) if run is None else run


class Repeats:
    """Recognizes what a file of a rotated recording repeats from earlier ones."""

    KINDS = frozenset(
        str(kind.__struct_config__.tag) for kind in KINDS if kind.repeated_for is not None
    )
    """The events it needs to see; of other kinds it only needs to know that they came."""

    def __init__(self) -> None:
        self._seen = Preamble()
        self._known: set[bytes] = set()

    def begin(self) -> None:
        """Note what the next file repeats at its head."""
        self._known = {_encoder.encode(event) for event in self._seen.events()}

    def is_one(self, event: AnyEvent) -> bool:
        """Whether this event was read before."""
        if self._known and _encoder.encode(event) in self._known:
            return True
        if event.repeated_for is None:
            self.end()
        self._seen.see((event,))
        return False

    def end(self) -> None:
        """The file's own events begin."""
        self._known = set()
