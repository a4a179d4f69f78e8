"""The screen's interface to a source: live, replayed and remote sessions all look like this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolMeta
    from pathlib import Path

    from gputui.collect.catalogue import Catalogue, Forecaster, Value
    from gputui.model.events import AnyEvent
    from gputui.playback.index import Moment
    from gputui.state import Session
    from gputui.state.session import HostNews
    from gputui.store.journal.writer import RecordingWriter
else:
    _ProtocolMeta = type(Protocol)


_known: dict[tuple[type, type], bool] = {}


class _ByClass(_ProtocolMeta):
    """What a source can do is looked up once for each class: Python 3.11 asks for every attribute
    each time, and an idle screen asks ten times a tick, a tenth of its CPU."""

    def __instancecheck__(cls, instance: object) -> bool:
        pair = cls, type(instance)
        known = _known.get(pair)
        if known is None:
            known = _known[pair] = super().__instancecheck__(instance)
        return known


class Events(Protocol):
    """Where events wait until the screen takes them."""

    def drain(self) -> Sequence[AnyEvent]:
        """All that came since the last call, oldest first."""


class Source(Protocol):
    """Emits events. `close` may take seconds: children are given time to end."""

    @property
    def hub(self) -> Events:
        """Where its events are."""

    def start(self) -> None:
        """Start emitting."""

    def close(self) -> bool:
        """Stop; whether nothing is left behind."""


@runtime_checkable
class Runner(Source, Protocol, metaclass=_ByClass):
    """A source that samples this machine and starts workloads.

    `catalogue` may block; starting and stopping return at once, and events report the outcome.
    """

    interval_s: float
    recording: RecordingWriter

    @property
    def has_run(self) -> bool:
        """Whether a run was asked for that has not ended; its start may still be unsaid."""

    def catalogue(self) -> Catalogue: ...

    def forecaster(self) -> Forecaster:
        """Says what runs would need; to be closed."""

    def start_workload(
        self, name: str, parameters: Mapping[str, Value], step_range: str | None = None
    ) -> None: ...

    def stop_run(self) -> None:
        """Ask the run to end."""


@runtime_checkable
class Attacher(Runner, Protocol, metaclass=_ByClass):
    """A source that can look inside processes that run already."""

    def attach(self, pid: int) -> None:
        """Attach to a process; an active run is ended first. Events report the outcome."""


@runtime_checkable
class Playback(Source, Protocol, metaclass=_ByClass):
    """A source that plays a recording: it can be paused, moved, and played at another speed.

    Every control returns at once; `drain` returns the result. `gputui.playback.player` says what
    each is.
    """

    is_paused: bool
    speed: float
    name: str

    @property
    def begun_ns(self) -> int: ...
    @property
    def position_s(self) -> float: ...
    @property
    def length_s(self) -> float: ...
    @property
    def is_read(self) -> bool: ...
    @property
    def share_read(self) -> float | None: ...
    @property
    def is_indexed(self) -> bool: ...
    @property
    def is_jumping(self) -> bool: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def remarks(self) -> Sequence[str]: ...
    @property
    def moments(self) -> Sequence[Moment]: ...
    def stop_reading(self) -> bool: ...
    def seek(self, seconds: float) -> None: ...
    def seek_end(self) -> None: ...
    def step(self, ticks: int = 1) -> None: ...
    def skip(self, seconds: float) -> None: ...
    def next_phase(self) -> None: ...
    def next_event(self) -> None: ...
    def drain(self) -> tuple[Session | None, Sequence[AnyEvent]]: ...


@runtime_checkable
class ManyHosts(Source, Protocol, metaclass=_ByClass):
    """A source that watches other hosts: their events come by host, and nothing is started."""

    interval_s: float

    @property
    def names(self) -> Sequence[str]:
        """The hosts, in order."""

    @property
    def waiting(self) -> int:
        """How many news there are to take."""

    def stop_run(self, host: str) -> None:
        """Ask that the run be ended that was started on a host."""

    def attach(self, host: str, pid: int, start_ns: int) -> None:
        """Attach to a process there, and show what is recorded there. Events report the outcome."""

    def drain(self) -> Sequence[HostNews]:
        """All that came since the last call, oldest first."""


@runtime_checkable
class JobElsewhere(Source, Protocol, metaclass=_ByClass):
    """A source of a run on several other hosts, which goes on without it."""

    @property
    def goes_on_at(self) -> Mapping[str, bool]:
        """The hosts on which it goes on, and whether they are reached."""

    def stop_run(self) -> None:
        """Ask that it be ended on each, where it is not reached as soon as it is."""


Connect = Callable[[Callable[[], None]], Source]
"""Makes the source, in a thread after the first frame was drawn. The source calls its argument,
from any thread, when events wait to be taken.
"""


class Options(msgspec.Struct, frozen=True):
    """The command line's options for the screen. `shows_run` starts in Overview, `shows_hosts` with
    all hosts.

    With `readonly` no process is started, stopped or sent a signal.
    """

    theme: str = "gputui-dark"
    ascii: bool = False
    reader: bool = False
    """For screen readers: no charts, drawn at keys and for news only."""
    shows_run: bool = False
    shows_hosts: bool = False
    is_demo: bool = False
    tour: bool = True
    """Whether the demo turns views until a key."""
    readonly: bool = False
    notify: str | None = None
    """How the terminal notifies of alerts."""
    folder: Path | None = None
    """Whose recordings are listed; None for where runs are recorded."""
    starts_run: bool = False
    """Whether the source begins with a run, whose start is still to come when the screen opens."""
    keep_running: bool = False
    """Whether a run goes on without the screen once the terminal is gone."""


# Times in a recording: how they are displayed, and what a person may type.


MomentKind = Literal["phase", "event"]
MOMENT_KINDS: tuple[MomentKind, ...] = ("phase", "event")
"""What a replay goes on to: changes of phase; starts, exits, alerts and trouble."""


def moment_ahead(source: Playback, kind: MomentKind) -> Moment | None:
    """The next moment of a kind after what a replay shows; None as long as none is known."""
    now_ns = source.begun_ns + int(source.position_s * 1e9)
    return next((moment for moment in source.moments if moment.time_ns > now_ns
                 and (moment.kind == "phase") == (kind == "phase")), None)  # fmt: skip
