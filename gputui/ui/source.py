"""What the screen needs of a source. Live, replayed and remote sessions all look like this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from gputui.events import AnyEvent
    from gputui.sources.catalogue import Catalogue, Value


class Events(Protocol):
    """Where events wait until the screen takes them."""

    def take(self) -> Sequence[AnyEvent]:
        """All that came since the last call, oldest first."""
        ...


class Source(Protocol):
    """Makes events. `close` may take seconds: children are given time to end."""

    @property
    def hub(self) -> Events:
        """Where its events are."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def close(self) -> bool:
        """End; whether nothing is left behind."""
        ...


class Recording(Protocol):
    """The journal a live source writes."""

    @property
    def path(self) -> Path | None:
        """The file, None where there is none."""
        ...

    @property
    def failure(self) -> str | None:
        """Why nothing more is recorded, None while all is well."""
        ...


@runtime_checkable
class Runner(Source, Protocol):
    """A source that samples this machine and starts workloads.

    `catalogue` may block; starting and stopping return at once, events tell how it went.
    """

    interval_s: float
    recording: Recording

    def catalogue(self) -> Catalogue:
        """The workloads there are."""
        ...

    def start_workload(
        self, name: str, parameters: Mapping[str, Value], step_range: str | None = None
    ) -> None:
        """Start one."""
        ...

    def stop_run(self) -> None:
        """Ask the run to end."""
        ...


@runtime_checkable
class Playback(Source, Protocol):
    """A source that plays what was recorded: it can be halted, and run at another speed."""

    is_paused: bool
    speed: float


Connect = Callable[[Callable[[], None]], Source]
"""Makes the source, in a thread after the first frame was drawn. The source calls what it is
given, from any thread, when events wait to be taken."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about the screen. `shows_run` starts in Phases.

    With `readonly` no process is started, stopped or sent a signal.
    """

    theme: str = "gputui-dark"
    ascii: bool = False
    shows_run: bool = False
    readonly: bool = False
