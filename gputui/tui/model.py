"""What views read: the session shown, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gputui.model.events import About, AnyEvent, HostUnavailable, MachineSample
from gputui.state import Run, Session
from gputui.state.session import HostNews, Hosts
from gputui.store import trace_path
from gputui.tui.source import ManyHosts, Playback, Runner, Source

if TYPE_CHECKING:
    from gputui.report.explain import Analysis, Finding, Verdict
    from gputui.report.scope import RunScope

T = TypeVar("T")

WHOLE = "the whole run"

_MOST_NAMED, _NAME = 200, 60
"""Kernels, the longest, that are distinguished, in so many cells."""

_OF_OTHER_TOOLS = (".nsys-rep", ".qdrep", ".sqlite", ".json", ".json.gz", ".json.zst")
"""How files end that hold single operations themselves."""


class Tables(NamedTuple):
    """What is added up over a run, not step by step: phases, kernels, calls, copies. `of` says of
    which time, "" where that is as usual; `instead` what stands in place of the scope, and why."""

    session: Session
    run: Run
    of: str = ""
    instead: str = ""

    @property
    def span(self) -> str:
        """The same, also where it is as usual."""
        return self.of or WHOLE


@dataclass(slots=True)
class Model:
    """What views read. Only the main screen changes it."""

    session: Session
    source: Source | None = None
    readonly: bool = False
    failure: str = ""
    paused: bool = False
    caption: tuple[str, str] | None = None
    """What the demo shows now, and who leads; None outside the demo."""
    own_scale: bool = False
    """Whether charts are drawn in the scale of their data, not up to all there is."""
    visited: str = ""
    """The name of the recording opened from Sessions; "" for the live session."""
    remark: str = ""
    """Problems of the recording being played or written."""
    lost_end: bool = False
    """Whether a replay is at its end: a run that has not ended by then never will."""
    hosts: Hosts | None = None
    """The hosts being watched; None where it is this machine, or a recording."""
    host: str = ""
    """The host whose session is shown."""
    ranks: tuple[int, ...] = ()
    """Those that figures and tables are of; empty for all."""
    phase: str = ""
    """The ranges, by their name, that the tables of Kernels are of; empty for all."""
    scope: RunScope | None = None
    """What shares are of, if not of the steady steps."""
    stretch: RunScope | None = None
    """The stretch of steps that was chosen last."""
    read_stretch: Callable[[Run, RunScope], None] = lambda _run, _scope: None
    """Reads some steps again, in a thread, and gives them to `take_stretch`."""
    _read: tuple[RunScope | None, Tables | str] = (None, "")
    """The steps that were read again, or why they are not."""
    revision: int = 0
    """Changes whenever the run's data may have changed. The run's own times do not suffice: a jump
    in a recording returns to the same moment.
    """
    _made: tuple[int, dict[Hashable, Any]] = (-1, {})

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, called once for each revision: what is worked out of a run is shared
        by all who draw it, and none keeps it. `what` names it."""
        if self._made[0] != self.revision:
            self._made = self.revision, {}
        made = self._made[1]
        if what not in made:
            made[what] = make()
        result: T = made[what]
        return result

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Fold `events` in. Readings of the machine do not change an ended run."""
        events = tuple(events)
        before = self.session.run
        self.session.apply(events)
        if self.session.run is not before:  # steps are numbered anew
            self._forget_scope()
        if (self.run is not None and self.run.is_active) or not all(
            event.about is About.GPU or isinstance(event, (MachineSample, HostUnavailable))
            for event in events
        ):
            self.revision += 1

    def show(self, session: Session) -> None:
        """Continue from another state."""
        self.session = session
        self.revision += 1

    def watch(self, hosts: Hosts, host: str) -> None:
        """Show one of several hosts."""
        self.hosts = hosts
        self.show_host(host)

    def show_host(self, host: str) -> None:
        """Show another of them."""
        if self.hosts is not None:
            self.host = host
            self.show(self.hosts[host].session)

    def apply_news(self, news: Iterable[HostNews]) -> None:
        """Fold in what came from the hosts."""
        if self.hosts is None:
            return
        for one in news:
            of_shown = one.host == self.host
            self.hosts.apply([one._replace(events=()) if of_shown else one])
            if of_shown and one.begins_anew:
                self._forget_scope()
                self.show_host(self.host)
            if of_shown and one.events:
                self.apply(one.events)

    @property
    def is_opening(self) -> bool:
        """Whether nothing can be said yet: what is shown is being connected, or read."""
        source = self.source
        if isinstance(source, Playback):
            return source.is_jumping or not source.is_read
        return source is None

    @property
    def shows_only_ranks(self) -> bool:
        """Whether ranks are all there is of GPUs: no device was read."""
        run = self.run
        if run is None or self.session.gpus:
            return False
        return any(one.attached.rank is not None for one in run.processes.values())

    @property
    def is_read(self) -> bool:
        """Whether there is a reading of the machine: an imported file has none."""
        read = (gpu.sample for gpu in self.session.gpus.values())
        return self.session.host is not None or any(read)

    @property
    def is_remote(self) -> bool:
        """Whether what is shown is of another host."""
        return self.hosts is not None

    def enter(self, source: Source | None, session: Session, visited: str) -> None:
        """Show another source."""
        self.source, self.visited = source, visited
        self.hosts, self.host = None, ""
        self._forget_scope()
        self.failure, self.paused = "", False
        self.remark, self.lost_end = "", False
        self.show(session)

    def note(self, remark: str, *, lost_end: bool = False) -> bool:
        """Record a problem; whether it is new."""
        is_news = bool(remark) and remark != self.remark
        if (remark, lost_end) != (self.remark, self.lost_end):
            self.remark, self.lost_end = remark, lost_end
            self.revision += 1
        return is_news

    @property
    def run(self) -> Run | None:
        """The newest run; of ranks that were chosen, only these."""
        whole = self.session.run
        if not self.ranks or whole is None:
            return whole
        from gputui.report.scope import of_ranks

        return self.once("of ranks", lambda: of_ranks(whole, self.ranks))

    def choose_ranks(self, ranks: Iterable[int]) -> None:
        """Let figures and tables be of some ranks; of all, if none are given."""
        self._forget_scope()  # each rank numbers its own steps
        self.ranks = tuple(sorted(ranks))
        self.revision += 1

    def choose_phase(self, name: str) -> None:
        """Let kernels, calls and copies be of what the ranges of this name hold; of all, if it is
        empty."""
        self.phase = name
        self.revision += 1

    @property
    def tables_in_phase(self) -> Tables | None:
        """`tables`, of the chosen phase where the run has it: the CLI's `--phase`."""
        tables = self.tables
        if tables is None or not self.phase:
            return tables
        from gputui.report.scope import of_phase, phase_names

        if self.phase not in phase_names(tables.run):
            return tables
        within = f"inside {self.phase}"
        return tables._replace(run=of_phase(tables.run, self.phase), of=within)

    def choose_scope(self, scope: RunScope | None) -> None:
        """Let shares be of another part of the run."""
        self.scope = scope
        self.revision += 1

    def _forget_scope(self) -> None:
        self.scope = self.stretch = None
        self.ranks = ()
        self._read = None, ""

    @property
    def scoped(self) -> Run | None:
        """The newest run, cut to the scope."""
        run, scope = self.run, self.scope
        if scope is None or run is None:
            return run
        from gputui.report.scope import cut_to_scope

        return self.once("cut", lambda: cut_to_scope(run, scope))

    @property
    def tables(self) -> Tables | None:
        """The newest run's, of the scope where that is some steps and a recording holds them."""
        run, scope = self.run, self.scope
        if run is None:
            return None
        if scope is None:
            return Tables(self.session, run)
        if not scope.last:
            from gputui.report.scope import ScopeKind

            is_all = scope.part is ScopeKind.RUN
            return Tables(self.session, run, WHOLE, "" if is_all else WHOLE)
        if self._read[0] != scope:
            self._read = scope, "the scope is being read"
            self.read_stretch(run, scope)
        found = self._read[1]
        if isinstance(found, str):
            return Tables(self.session, run, WHOLE, f"{WHOLE} ({found})")
        return found

    def take_stretch(self, scope: RunScope, found: Tables | str) -> None:
        """What `read_stretch` found, or why there is nothing."""
        if self._read[0] == scope:
            self._read = scope, found
            self.revision += 1

    @property
    def found(self) -> tuple[Verdict | None, Sequence[Finding]]:
        """The newest run's conclusion and findings, of all ranks, for all who show them."""
        if (run := self.session.run) is None:
            return None, ()
        from gputui.report.explain import conclusion, findings

        analysis = self.analysis(run)
        return self.once("found", lambda: (conclusion(analysis), findings(analysis)))

    def analysis(self, run: Run, session: Session | None = None) -> Analysis:
        """What is worked out of a run, or of a part of one, as it is at this revision. `session` is
        another than the model's where some steps were read again."""
        from gputui.report.explain import Analysis

        # An analysis keeps its run alive, so that the number is of no other one.
        return self.once(id(run), lambda: Analysis(session or self.session, run))

    @property
    def kernel_names(self) -> Mapping[str, str]:
        """The kernels that took most, by their full names, in short ones that tell them apart: the
        same in all views."""
        run = self.session.run
        if run is None:
            return {}
        from gputui.model.kernel_categories import short_names
        from gputui.report.statistics import kernel_rows

        def named() -> Mapping[str, str]:
            full = [row.name for row in kernel_rows(self.session, run)[:_MOST_NAMED]]
            return dict(zip(full, short_names(full, _NAME), strict=True))

        return self.once("names", named)

    @property
    def interval_s(self) -> float:
        if isinstance(self.source, Runner | ManyHosts):
            return self.source.interval_s
        return self.session.header.interval_s if self.session.header else 1.0

    @property
    def can_start(self) -> bool:
        """Whether workloads can be started: not in a replay, not with --readonly, not elsewhere."""
        return not self.readonly and not isinstance(self.source, Playback | ManyHosts)

    @property
    def traced(self) -> Path | None:
        """The file whose single operations can be shown: a recording with a trace beside it, or a
        report of another tool. None where there is none."""
        source = self.source
        if isinstance(source, Playback):
            path = Path(source.name)
        elif isinstance(source, Runner) and source.recording.path is not None:
            path = source.recording.path
        else:
            return None
        if not path.name:
            return None
        if trace_path(path).exists():
            return path
        return path if path.name.endswith(_OF_OTHER_TOOLS) and path.is_file() else None

    @property
    def has_operations(self) -> bool:
        """Whether the timeline has anything to show: a trace, or steps that were kept."""
        run = self.run
        return self.traced is not None or (
            run is not None and bool(run.step_operations or run.step_lanes or run.steps)
        )

    @property
    def is_at_end(self) -> bool:
        """Whether a recording was played to its end, from where it can be played again."""
        source = self.source
        return isinstance(source, Playback) and source.has_ended and not self.paused
