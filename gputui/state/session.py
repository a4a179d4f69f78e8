"""The state that views read. What folds which event into it is in `fold`, which imports this module
and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from gputui.model.events import (
    About,
    AnyEvent,
    ClockCompared,
    Event,
    Header,
    HostSample,
    KernelDefined,
    LauncherSample,
    LaunchShape,
    ProcessSample,
)
from gputui.model.units import duration
from gputui.state.history import HISTORY_SAMPLES, Samples
from gputui.state.readings import AlertSpan, Gpu, Readings
from gputui.state.run import Run
from gputui.state.serving import Server


class Session(msgspec.Struct, eq=False):
    """The state that views read. Events about an unknown run or range are counted in
    `unknown_references` and otherwise ignored: a truncated or hostile file cannot break the fold.

    It is data that can be encoded (gputui.playback.index): nothing in it is referred to twice.
    """

    header: Header | None = None
    time_ns: int = 0
    """The latest moment of any event."""
    sampled_ns: int = 0
    """When the newest sample was taken, by the clock as it was then."""
    latest_sample_ns: int = 0
    most_samples: int = HISTORY_SAMPLES
    """Kept of each GPU for charts; of what is older there are averages."""
    gpus: dict[int, Gpu] = {}
    host_samples: Samples[HostSample] = msgspec.field(
        default_factory=lambda: Samples.empty(HostSample)
    )
    host_unavailable: dict[str, str] = {}
    processes: tuple[ProcessSample, ...] = ()
    launchers: tuple[LauncherSample, ...] = ()
    own_cpu_percent: float | None = None
    recorded_bytes: int | None = None
    traced_bytes: int | None = None
    runs: dict[int, Run] = {}
    readings: Readings = msgspec.field(default_factory=Readings)
    """Of the machine while there was no run; a run has its own."""
    alerts: list[AlertSpan] = []
    """Those that were raised, the oldest first."""
    kernel_names: dict[int, KernelDefined] = {}
    other_kernels: int | None = None
    """The number that kernels over the limit of names share."""
    launch_shapes: dict[int, LaunchShape] = {}
    servers: dict[str, Server] = {}
    """Serving engines by the address of their page of metrics."""
    clocks: dict[str, ClockCompared] = {}
    """The newest comparison of each host's clock, where the recording was copied from there."""
    samples: int = 0
    unknown_references: int = 0
    keeps_tables: bool = True
    """False leaves out what only tables and medians are made of, for whoever reads just the figures
    of each moment: adding those up takes half of the time of an OpenMetrics export."""
    # Indexes used by the folds.
    run_numbers: dict[int, int] = {}
    """The run of each process."""
    known_ranges: set[int] = set()
    gpus_of_numbers: dict[tuple[str, int], int] = {}

    @property
    def host(self) -> HostSample | None:
        """The newest sample of the host."""
        return self.host_samples.newest

    @property
    def run(self) -> Run | None:
        """The newest run, None before the first."""
        return next(reversed(self.runs.values()), None)

    @property
    def active_run(self) -> Run | None:
        """The newest run while it goes on."""
        run = self.run
        return run if run is not None and run.is_active else None

    @property
    def current_readings(self) -> Readings:
        """Where readings of the machine belong now."""
        run = self.active_run
        return self.readings if run is None else run.readings

    @property
    def started_ns(self) -> int:
        """When it began: the header's moment, of a recording without one its first sample's."""
        return self.header.time_ns if self.header else self.readings.first_ns

    @property
    def now_ns(self) -> int:
        """The reference for ages: the latest moment or, once the clock was set back, the newest
        sample's, so that nothing looks old until the latest is reached again.
        """
        return self.sampled_ns if self.sampled_ns < self.latest_sample_ns else self.time_ns

    @classmethod
    def from_events(cls, events: Iterable[AnyEvent]) -> Session:
        """What these events come to."""
        session = cls()
        session.apply(events)
        return session

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Fold `events` into the session, in the order given."""
        for event in events:
            self.time_ns = max(self.time_ns, event.time_ns)
            self._fold(event)

    def holder_of(self, process: int) -> Run | None:
        """The run that a traced process belongs to, None if it is unknown."""
        run = self.runs.get(self.run_numbers.get(process, 0))
        # Another run may have begun with the same number, in a recording that was tampered with.
        return run if run is not None and process in run.processes else None

    def _fold(self, event: Any) -> None:
        fold, about = _folds[type(event)], event.about
        if about is About.PROCESS:
            self._fold_into(self.holder_of(event.process), fold, event)
        elif about is About.RUN:
            self._fold_into(self.runs.get(event.run), fold, event)
        elif about is not About.GPU:
            fold(self, event)
        # What an event is about is looked up here: twenty folds each began with it.
        elif event.gpu in self.gpus:
            fold(self, self.gpus[event.gpu], event)
        else:
            self.unknown_references += 1

    def _fold_into(self, run: Run | None, fold: Callable[..., None], event: Any) -> None:
        if run is None:
            self.unknown_references += 1
        else:  # it is known to be alive then
            run.updated_ns = max(run.updated_ns, event.time_ns)
            fold(self, run, event)


_folds: dict[type[Event], Callable[..., None]] = {}

Fold = TypeVar("Fold", bound=Callable[..., None])


def folds(*kinds: type[Event]) -> Callable[[Fold], Fold]:
    """Declare that a function folds these kinds of events into a session. It is called with
    (session, event), with (session, gpu, event) where the kind is about a GPU, and with
    (session, run, event) where it is about a run or a process.
    """

    def declare(fold: Fold) -> Fold:
        _folds.update(dict.fromkeys(kinds, fold))
        return fold

    return declare


# --- The sessions of several hosts, each with its own clock and its own numbers, and how the link
# to each of them is.

State = Literal["connecting", "up", "lost", "failed", "ended"]
"""`lost`: it was up, or will be tried again. `failed`: trying again would change nothing. `ended`:
the run that was followed is over, and all of it was read.
"""


class ClockOffset(NamedTuple):
    """That host's clock less this one's, from the quickest of some round trips."""

    offset_ns: int
    error_ns: int
    """Half of that round trip: the true offset lies within this of `offset_ns`."""

    @property
    def text(self) -> str:
        """ "+26 µs ± 60 µs"."""
        sign = "\N{MINUS SIGN}" if self.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(self.offset_ns))} ± {duration(self.error_ns)}"


class Link(NamedTuple):
    """The link to one host, as this end sees it."""

    state: State = "connecting"
    reason: str = ""
    """One line: why it is lost or has failed; while it is up, what is missing."""
    since_ns: int = 0
    """Since when it has been so, by this end's clock."""
    clock: ClockOffset | None = None


LEAST_SAMPLES = 300
"""Kept of each GPU, however many hosts there are: five minutes at one a second."""


class HostNews(NamedTuple):
    """What came from one host: how its link is, or events of it. With `begins_anew` what follows
    is of another recording, whose numbers are its own.
    """

    host: str
    link: Link | None = None
    events: tuple[AnyEvent, ...] = ()
    begins_anew: bool = False


class Host:
    """One host: its link and its session."""

    def __init__(self, name: str, most_samples: int = HISTORY_SAMPLES) -> None:
        self.name = name
        self.link = Link()
        self._most_samples = most_samples
        self.begin()

    def begin(self) -> None:
        """Start an empty session: the far end began anew."""
        self.session = Session(most_samples=self._most_samples)

    @property
    def is_up(self) -> bool:
        """Whether its figures are of now."""
        return self.link.state == "up" and self.session.header is not None


class Hosts(dict[str, Host]):
    """Every host by its name, in the order in which they were named. A GPU of several hosts is
    identified by its host's name and its index there.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # Single samples of many hosts would fill gigabytes, to be averaged in any longer chart.
        most = max(LEAST_SAMPLES, HISTORY_SAMPLES // max(1, len(names)))
        super().__init__((name, Host(name, most)) for name in names)

    def apply(self, news: Iterable[HostNews]) -> None:
        """Fold what came, in order."""
        for item in news:
            host = self[item.host]
            if item.begins_anew:
                host.begin()
            if item.link is not None:
                host.link = item.link
            host.session.apply(item.events)
