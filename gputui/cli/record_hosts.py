"""`--record` of other hosts: each into a file here, without a screen."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.notification import notify
from gputui.base.standard_streams import columns, say
from gputui.base.wake import Wake
from gputui.cli.hosts import are_several, connected, status_of, targets_of
from gputui.cli.live import limits_of
from gputui.cli.output_name import expanded
from gputui.cli.values import UsageError
from gputui.model import units
from gputui.model.events import Alert, AnyEvent, ClockCompared, Header
from gputui.model.link import ClockOffset, Link
from gputui.state.hosts import HostNews
from gputui.store.journal import JournalWriter, default_path, make_folder

if TYPE_CHECKING:
    from gputui.collect.hosts.far_options import FarRun
    from gputui.collect.hosts.fleet import Fleet

_COMPARED_NS = 60 * 10**9
"""Between two comparisons of clocks, unless one is twice as exact."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def record(options: argparse.Namespace, run: FarRun | None) -> int:
    """Record until the run there is over, the duration or the user ends it; the exit status, that
    of the run if there is one. A run that is left goes on there.

    Raises UsageError, JournalError, and NoHostError if not one can be reached.
    """
    several = are_several(options)
    if options.output == "-" or (options.output and several and "{host}" not in options.output):
        raise UsageError(f"-o {options.output}: give each host a file, as in -o '{{host}}.gputui'")
    # A run that is begun there has its own deadline.
    duration_s = None if run is not None and run.words else options.duration
    with (
        files(options, lambda host: _path(options, host, run)) as copies,
        connected(options, run) as fleet,
    ):
        recorder = Recorder(options, fleet, copies)
        recorder.until_signal(duration_s)
        links = list(fleet.links.values())
    ok = recorder.finish(shows_run=run is not None and not several)
    if run is not None and several and recorder.folder is not None:
        say(f"as one job: gputui --replay {shlex.quote(str(recorder.folder))}")
    if run is not None:
        return status_of(links, options)
    return 0 if ok else 1


@contextmanager
def files(
    options: argparse.Namespace, path_of: Callable[[str], Path]
) -> Iterator[dict[str, JournalWriter]]:
    """A file for each host, opened before anything is begun there; one in which nothing was written
    is removed. Raises JournalError.
    """
    limits = limits_of(options)
    found: dict[str, JournalWriter] = {}
    try:
        for target in targets_of(options):
            found[target.name] = JournalWriter(path_of(target.name), limits)
        yield found
    finally:
        for file in found.values():
            file.close()
            if file.path is not None and not file.bytes_written:
                file.path.unlink(missing_ok=True)


class Recorder:
    """Writes what the hosts of a fleet read into a file each.

    Links that are lost, and alerts, are printed; beside a screen, which has the alerts itself,
    `on_link` is called instead.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        fleet: Fleet,
        copies: Mapping[str, JournalWriter],
        *,
        on_link: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._on_link = on_link
        self._wake = Wake()
        self._is_ending = False
        self._files = copies
        self._begun = set[str]()
        failures = ((name, link.failure) for name, link in fleet.links.items())
        self._lost = {name: failure.line for name, failure in failures if failure is not None}
        """Why each host is lost, as it was printed."""
        self._clocks: dict[str, ClockOffset] = {}
        self._compared_last: dict[str, ClockCompared] = {}

    @property
    def folder(self) -> Path | None:
        """The one in which all files are; None where they are in several."""
        folders = {file.path.parent for file in self._files.values() if file.path is not None}
        return folders.pop() if len(folders) == 1 else None

    def until_signal(self, duration_s: float | None) -> None:
        """Until it is over, the duration, or the user ends it."""
        previous = {number: signal.signal(number, lambda *_: self.end()) for number in _SIGNALS}
        try:
            self.run(duration_s)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def run(self, duration_s: float | None = None) -> None:
        """Until it is over, the duration, or `end` is called."""
        deadline_s = None if duration_s is None else time.monotonic() + duration_s
        self._fleet.on_news(self._wake.set)
        try:
            while not self._is_ending and not self._is_over():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self._wake.wait(left_s)
                self.take()
            self.take()
        finally:
            for file in self._files.values():
                file.close()

    def end(self) -> None:
        """Have `run` return."""
        self._is_ending = True
        self._wake.set()

    def finish(self, *, shows_run: bool) -> bool:
        """Print what was recorded; whether all of it was written."""
        for name, file in self._files.items():
            for notice in file.notices:
                say(f"{name}: {notice}")
            assert file.path is not None
            if file.failure:
                say(f"{name}: {file.failure}")
            elif name in self._begun:
                say(f"recorded {file.path} ({units.size(file.bytes_written)})")
                if shows_run:
                    _summarize(file.path)
        return not any(file.failure for file in self._files.values())

    def _is_over(self) -> bool:
        """Whether nothing more can come."""
        links = self._fleet.links.values()
        return all(link.failure is not None and not link.failure.kind.retries for link in links)

    def take(self) -> None:
        """Write what has come."""
        for news in self._fleet.take():
            if news.link is not None:
                self._see(news.host, news.link)
            self._write(news)

    def _see(self, host: str, link: Link) -> None:
        """Print that a link is lost once, however often it is tried, and that it is back."""
        if self._on_link is not None:
            self._on_link()
        elif link.state in ("lost", "failed"):
            if self._lost.get(host) != link.reason:
                say(f"{host}: {link.reason}")
            self._lost[host] = link.reason
        elif link.state == "up" and self._lost.pop(host, ""):
            say(f"{host}: the link is up")

    def _write(self, news: HostNews) -> None:
        if news.link is not None and news.link.clock is not None:
            self._clocks[news.host] = news.link.clock
        # A link that was cut begins with a header again.
        events: list[AnyEvent] = [
            event
            for event in news.events
            if not (isinstance(event, Header) and news.host in self._begun)
        ]
        if events:
            events += self._compared(news.host, events[-1].time_ns)
            self._begun.add(news.host)
            self._files[news.host].write(events)
        for event in events:
            if isinstance(event, Alert) and self._on_link is None:
                self._alert(news.host, event)

    def _compared(self, host: str, now_ns: int) -> list[ClockCompared]:
        """How far the host's clock is from this one's, where that is news."""
        clock, known = self._clocks.get(host), self._compared_last.get(host)
        if clock is None or (
            known is not None
            and now_ns - known.time_ns < _COMPARED_NS
            and 2 * clock.error_ns > known.error_ns
        ):
            return []
        found = ClockCompared(
            time_ns=now_ns,
            by=os.uname().nodename,
            offset_ns=clock.offset_ns,
            error_ns=clock.error_ns,
        )
        self._compared_last[host] = found
        return [found]

    def _alert(self, host: str, alert: Alert) -> None:
        from gputui.report.alerts import alert_text

        text = f"{host}: {alert_text(alert)}"
        say(text)
        if alert.raised:
            notify(self._options.notify, text)


def _path(options: argparse.Namespace, host: str, run: FarRun | None) -> Path:
    if options.output:
        return Path(expanded(options.output, host=host))
    path = default_path(f"{run.name}-{host}" if run and run.name else host, time.time())
    make_folder(path.parent)
    return path


def _summarize(path: Path) -> None:
    from gputui.playback.loading import load
    from gputui.render.answer import answer_text, ways_on

    recorded = load(str(path))
    text = answer_text(recorded.session, recorded.run, columns(sys.stdout), ways_on(str(path)))
    print(text, end="", flush=True)
