"""The state that views read, and how events of the machine change it. What captured programs and
runs change is in `fold`, which imports this module and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from gputui.model.events import (
    About,
    Alert,
    AnyEvent,
    ClockCompared,
    ClockRead,
    Event,
    GpuEnergy,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostSample,
    HostUnavailable,
    KernelDefined,
    LauncherSample,
    LaunchShape,
    MachineSample,
    ProcessSample,
    ServerSample,
)
from gputui.model.metrics import metrics_of
from gputui.model.units import duration
from gputui.state.history import HISTORY_SAMPLES, Samples
from gputui.state.readings import (
    MOST_SERVERS,
    THROTTLED,
    AlertSpan,
    Gpu,
    Readings,
    Server,
    add_growth,
)
from gputui.state.run import Run


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
    """How many samples of each GPU are kept for charts; older ones are kept as averages."""
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
    """Readings of the machine while there was no run; a run has readings of its own."""
    alerts: list[AlertSpan] = []
    """The alerts that were raised, the oldest first."""
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
    """False leaves out everything that only tables and medians need, for readers that want only the
    figures of each moment: adding it up takes half of the time of an OpenMetrics export."""
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
        """The readings to which samples of the machine are added now: those of the active run, if
        there is one."""
        run = self.active_run
        return self.readings if run is None else run.readings

    @property
    def started_ns(self) -> int:
        """When the session began: the time of the header or, in a recording without one, of the
        first sample."""
        return self.header.time_ns if self.header else self.readings.first_ns

    @property
    def now_ns(self) -> int:
        """The reference for ages: the latest moment or, once the clock was set back, the newest
        sample's, so that nothing looks old until the latest is reached again.
        """
        return self.sampled_ns if self.sampled_ns < self.latest_sample_ns else self.time_ns

    @classmethod
    def from_events(cls, events: Iterable[AnyEvent]) -> Session:
        """A session of which these events are all."""
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
"""How a link is. `lost`: it was up, or will be tried again. `failed`: trying again would change
nothing. `ended`: the run that was followed is over, and all of it was read."""


class ClockOffset(NamedTuple):
    """The difference of a host's clock to this one's, by the quickest of some round trips."""

    offset_ns: int
    error_ns: int
    """Half of the round trip's time: the true offset lies within this of `offset_ns`."""

    @property
    def text(self) -> str:
        """ "+26 µs ± 60 µs"."""
        sign = "\N{MINUS SIGN}" if self.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(self.offset_ns))} ± {duration(self.error_ns)}"


class Link(NamedTuple):
    """The link to one host, as this end sees it."""

    state: State = "connecting"
    reason: str = ""
    """One line that says why the link is lost or has failed or, while it is up, what is missing."""
    since_ns: int = 0
    """Since when the link has been in this state, by this end's clock."""
    clock: ClockOffset | None = None


LEAST_SAMPLES = 300
"""How many samples of each GPU are kept at least, however many hosts there are: five minutes at one
a second."""


class HostNews(NamedTuple):
    """News from one host: the state of its link, or events. `begins_anew` means that the events
    belong to another recording than before, with numbers of its own."""

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


# --- How events of the machine change the session: readings of GPUs, host and servers, alerts,
# clocks.
#
# What captured programs and runs change is in `fold`.

# Counters that should stand still.
_TROUBLES = tuple((f, metric) for f, metric in metrics_of(GpuStatus).items() if metric.trouble)

_ENERGY = "energy_joules"


@folds(Header)
def header(session: Session, event: Header) -> None:
    """Keeps the machine's facts. What is already known of a GPU stays."""
    session.header = event
    for facts in event.gpus:
        gpu = session.gpus.get(facts.index)
        if gpu is None:
            session.gpus[facts.index] = Gpu(
                facts, samples=Samples.empty(GpuSample, session.most_samples)
            )
        else:
            gpu.facts = facts


@folds(ClockCompared)
def clock_compared(session: Session, event: ClockCompared) -> None:
    """Keep the newest comparison of each host's clock."""
    own = session.header.host.hostname if session.header is not None else ""
    session.clocks[event.host or own] = event


@folds(MachineSample)
def sample(session: Session, event: MachineSample) -> None:
    """One tick: the newest values, the histories, and the readings of the current period."""
    session.samples += 1
    session.sampled_ns = event.time_ns
    session.latest_sample_ns = max(session.latest_sample_ns, event.time_ns)
    session.host_samples.add(event.time_ns, event.host)
    session.own_cpu_percent = event.own_cpu_percent
    session.recorded_bytes = event.recorded_bytes
    session.traced_bytes = event.traced_bytes
    if event.processes is not None:
        session.processes = event.processes
        session.launchers = event.launchers
    if (active := session.active_run) is not None:
        # A program that prints nothing is running all the same.
        active.updated_ns = max(active.updated_ns, event.time_ns)
        active.clock_set_ns += abs(event.clock_set_ns or 0)
    readings = session.current_readings
    readings.count_sample(event.time_ns)
    readings.read_host(event.host, event.time_ns)
    for process in event.processes or ():
        readings.occupied(process, event.time_ns)
    if active is not None and event.processes:
        own = {process.attached.pid for process in active.processes.values()}
        readings.share(event.processes, own)
    has_left = active is not None and active.has_left_gpus
    for figures in event.gpus:
        gpu = session.gpus.get(figures.index)
        if gpu is None:
            session.unknown_references += 1
            continue
        of_run = replace(figures, memory_used_bytes=None) if has_left else figures
        _read(readings, of_run, gpu.sample, event.time_ns)
        if "device" not in gpu.unavailable:
            gpu.sample_ns = event.time_ns
        gpu.samples.add(event.time_ns, figures)


def _read(readings: Readings, figures: GpuSample, before: GpuSample | None, time_ns: int) -> None:
    index = figures.index
    readings.read(figures, time_ns)
    reasons_before = (before.throttle_reasons if before else None) or ()
    for reason in figures.throttle_reasons or ():
        key = index, reason
        readings.throttle_samples[key] = readings.throttle_samples.get(key, 0) + 1
        if reason not in reasons_before:
            readings.suffered(index, f"{THROTTLED}{reason}", time_ns)


@folds(GpuStatus)
def gpu_status(session: Session, gpu: Gpu, event: GpuStatus) -> None:
    """What is read seldom of one GPU."""
    readings = session.current_readings
    if event.energy_joules is not None:
        _count_energy(session, event.gpu, event.time_ns, event.energy_joules)
    for reason, seconds in (event.throttle_seconds or {}).items():
        add_growth(readings.throttle_seconds, (event.gpu, reason), seconds, event.time_ns)
    for field, metric in _TROUBLES:
        now, before = getattr(event, field), getattr(gpu.status, field, None)
        if now is not None and before is not None and now > before:
            what = metric.trouble
            if field == "xid_count" and event.last_xid is not None:
                what = f"{what} {event.last_xid}"
            readings.suffered(event.gpu, what, event.time_ns, now - before)
    gpu.status = event


@folds(GpuEnergy)
def gpu_energy(session: Session, _: Gpu, event: GpuEnergy) -> None:
    """The energy counter of one GPU."""
    _count_energy(session, event.gpu, event.time_ns, event.joules)


def _count_energy(session: Session, gpu: int, time_ns: int, joules: float) -> None:
    """Add a reading where it belongs, and to a run that it is the first one after: what the GPU
    took until the run's end lies between the last reading before that and this one.
    """
    run = session.run
    if run is not None and run.ended is not None:
        of_run = run.readings.counter(gpu, _ENERGY)
        if of_run is not None and of_run.newest_ns < run.ended_ns:
            of_run.add_total(time_ns, joules)
    readings = session.current_readings
    # The last reading before the run is as near to its start as the first one in it.
    if (before := session.gpus[gpu].energy) and readings.counter(gpu, _ENERGY) is None:
        readings.count(gpu, _ENERGY, *before)
    readings.count(gpu, _ENERGY, time_ns, joules)
    session.gpus[gpu].energy = time_ns, joules


@folds(GpuUnavailable)
def gpu_unavailable(session: Session, gpu: Gpu, event: GpuUnavailable) -> None:
    """Why figures of one GPU are missing."""
    lost = event.reasons.get("device")
    if lost is not None and "device" not in gpu.unavailable:
        session.current_readings.suffered(event.gpu, f"not readable: {lost}", event.time_ns)
    gpu.unavailable = dict(event.reasons)


@folds(HostUnavailable)
def host_unavailable(session: Session, event: HostUnavailable) -> None:
    """Why figures of the host are missing."""
    session.host_unavailable = dict(event.reasons)


MAX_ALERTS = 1000
"""How many alerts are kept, the newest; earlier ones go."""


@folds(Alert)
def alert(session: Session, event: Alert) -> None:
    """An alert begins or is over. What a file of a rotated recording repeats is known."""
    lasting = next(
        (
            span
            for span in reversed(session.alerts)
            if span.lasts
            and (span.raised.condition, span.raised.subject) == (event.condition, event.subject)
        ),
        None,
    )
    if lasting is None and event.raised:
        session.alerts.append(AlertSpan(event, event.since_ns, event.worst))
        del session.alerts[:-MAX_ALERTS]
    elif lasting is not None and not event.raised:
        lasting.until_ns = max(event.since_ns, lasting.since_ns)
        lasting.worst = event.worst


def lasting_alerts(session: Session) -> list[AlertSpan]:
    """The alerts that are not over, the oldest first."""
    return [span for span in session.alerts if span.lasts]


@folds(ServerSample)
def server_sample(session: Session, event: ServerSample) -> None:
    """A reading of a serving engine's metrics, or why there is none."""
    server = session.servers.get(event.url)
    if server is None:
        if len(session.servers) >= MOST_SERVERS:
            session.unknown_references += 1
            return
        server = session.servers[event.url] = Server(
            event.url, samples=Samples.empty(ServerSample, session.most_samples)
        )
    server.add(event)


@folds(ClockRead)
def clock_read(_session: Session, _event: ClockRead) -> None:
    """Nothing: it is about the link to this host, not about the host."""
