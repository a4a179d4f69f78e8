"""Several hosts: the links from what was typed, on a plain terminal until they are up; then the
screen, or a recording of each."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base import GputuiError
from gputui.base.standard_streams import say
from gputui.cli.declaration import Command, UsageError
from gputui.cli.live import expanded_name, limits_of, need_terminal, plain_part, run_screen
from gputui.cli.options import MAIN, command
from gputui.cli.record import UnattendedRecorder, Wake, print_answer
from gputui.model.events import Alert, AnyEvent, ClockCompared, Header
from gputui.playback.player import Playback
from gputui.state.session import ClockOffset, HostNews, Link
from gputui.store import default_path, make_folder
from gputui.store.journal.writer import JournalWriter

if TYPE_CHECKING:
    from gputui.collect.hosts import FarRun, HostTarget
    from gputui.collect.hosts.fleet import Fleet, Masters
    from gputui.collect.hosts.link import HostLink
    from gputui.tui.source import Source


class NoHostError(GputuiError):
    """No host can be reached; why was printed. One line."""


# Options that a run there is not started with.
_OF_HERE = (
    "host", "via", "there", "theme", "no_color", "ascii", "readonly", "config", "notify", "record",
    "output",
)  # fmt: skip

# Longer than ssh's own limit for a connection (ConnectTimeout=10), for hosts behind others.
_CONNECTING_S = 30.0
# Longer than a first reading takes where the driver has to be loaded for it.
_READING_S = 10.0


def are_several(options: argparse.Namespace) -> bool:
    """Whether more than one host is named."""
    return len(options.host) + len(options.via) > 1


@contextmanager
def connected(
    options: argparse.Namespace,
    run: FarRun | None = None,
    *,
    needs_one: bool = True,
    attach_words: Sequence[str] = (),
) -> Iterator[Fleet]:
    """The links to the hosts that `options` name, closed at the end.

    Raises UsageError and TargetError, and NoHostError where it `needs_one` and none can be
    reached. Why a host cannot be reached is printed.
    """
    if run is not None and not run.is_of_all and are_several(options):
        raise UsageError(
            f"--replay {run.recording}: a file is on one host; those of a run on several have "
            "{node} in their name, as it was printed when you left"
        )
    if options.readonly and run is not None and not run.recording:
        raise UsageError(f"{options.set_by['readonly']} starts nothing, on other hosts neither")
    from gputui.collect.hosts import FarOptions
    from gputui.collect.hosts.far_end import has_zstandard
    from gputui.collect.hosts.fleet import Fleet, Masters

    targets = targets_of(options)
    there = _there(options)
    only = tuple(options.only) if options.only else None
    far = FarOptions(there, options.interval, only, has_zstandard(), run)
    fleet = Fleet(targets, far, attach_words)
    if options.alert and run is None:  # a run's recorder there watches by itself
        from gputui.report.alerts import Alerts

        fleet.watch(lambda: Alerts(options.alert).see)
    masters = Masters()
    try:
        fleet.connect(_CONNECTING_S)
        _answer_ssh(fleet, masters)
        _send(fleet)
        _read_smi(fleet, run)
        for name, link in fleet.links.items():
            if link.failure is not None and not link.is_over:
                say(f"{name}: {link.failure.line}")
        if needs_one and all(link.failure and not link.is_over for link in fleet.links.values()):
            raise NoHostError("no host can be read")
        yield fleet
    finally:
        fleet.close()
        masters.close()


def far_run(
    options: argparse.Namespace, words: Sequence[str], program: Sequence[str] | None
) -> FarRun | None:
    """What to run there, or to follow, as `words` and `program` were typed; None for nothing."""
    from gputui.collect.hosts import NODE, RECORDING, FarRun, begun_now

    if options.replay:
        return FarRun(recording=options.replay, is_of_all=NODE in options.replay)
    if not program and not options.workload:
        return None
    what = ["--", *program] if program else []
    typed = ["--record", "-o", RECORDING, *words_there(MAIN, words), *what]
    run = begun_now(Path(program[0]).name if program else options.workload, typed)
    from msgspec.structs import replace

    return replace(run, is_of_all=True)


def words_there(
    typed: Command,
    words: Sequence[str],
    there: Command | None = None,
    *,
    leave_out: Collection[str] = (),
) -> list[str]:
    """The words typed for one command that hold for it, or for `there`, on another host: without
    those about the hosts, and the screen here. Of words that are no options some are left out.
    """
    flags = {flag: option for option in typed.options for flag in option.flags}
    allowed = {option.name for option in (there or typed).options} - {*_OF_HERE}
    kept: list[str] = []
    left: Iterator[str] = iter(words)
    for word in left:
        option = flags.get(word.partition("=")[0])
        value = [next(left, "")] if option and option.metavar and "=" not in word else []
        if (option is None and word not in leave_out) or (option and option.name in allowed):
            kept += [word, *value]
    return kept


def status_of(links: Sequence[HostLink], options: argparse.Namespace) -> int:
    """The exit status of what was followed, of several the first that failed. The way back to what
    goes on is printed.
    """
    from gputui.cli.record import exit_status
    from gputui.collect.hosts import NODE

    ended = [(link.run_started, link.run_ended) for link in links]
    going = [link for link in links if link.run_goes_on]
    names = [link.named for link in links]
    place = links.index(going[0]) if going else 0
    of_all = names[place].removesuffix(f"{place}.gputui") + f"{NODE}.gputui" if names else ""
    if len(going) > 1 and names == [
        of_all.replace(NODE, str(number)) for number in range(len(names))
    ]:
        say(f"it continues on {len(going)} hosts: {_way_to(links, of_all, options)}")
    else:
        for link in going:
            say(f"it continues on {link.target.name}: {_way_to([link], link.named, options)}")
    if any(link.failure and not link.recording for link in links):
        return 1  # it did not begin
    statuses = [
        (1 if end.exit_code is end.signal is None else exit_status(start.kind, end))
        if start and end
        else 0
        for start, end in ended
    ]
    for link, status in zip(links, statuses, strict=True):
        if status and len(links) > 1 and link.run_ended and link.run_ended.reason:
            say(f"{link.target.name}: {link.run_ended.reason}")
    return next(filter(None, statuses), 0)


def _way_to(links: Sequence[HostLink], name: str, options: argparse.Namespace) -> str:
    """The command that follows a recording there."""
    there = ["--there", options.there] if "--there" in options.set_by.get("there", "") else []
    where = [
        word
        for target in (link.target for link in links)
        for word in (("--host", target.ssh) if target.ssh else ("--via", shlex.join(target.prefix)))
    ]
    return shlex.join(["gputui", *where, *there, "--replay", name])


def print_once(options: argparse.Namespace) -> int:
    """Print one reading of every host; status 1 if one of them could not be read."""
    from gputui.cli.once import hosts_text
    from gputui.state.session import Hosts

    with connected(options, needs_one=False) as fleet:
        fleet.wait_for_samples(_READING_S)
        hosts = Hosts(fleet.names)
        hosts.apply(fleet.drain())
    sys.stdout.write(hosts_text(hosts, as_json=options.json))
    sys.stdout.flush()
    return 0 if all(host.session.samples for host in hosts.values()) else 1


def targets_of(options: argparse.Namespace) -> list[HostTarget]:
    """The hosts, in order, each with a name of its own. Raises TargetError."""
    from gputui.collect.hosts import command_target, distinct, ssh_target

    return distinct([*map(ssh_target, options.host), *map(command_target, options.via)])


def _there(options: argparse.Namespace) -> tuple[str, ...]:
    try:
        words = shlex.split(options.there)
    except ValueError as error:
        raise UsageError(f"--there {options.there}: {str(error).lower()}") from None
    if not words:
        raise UsageError("--there: give the command that starts gputui there")
    return tuple(words)


def _send(fleet: Fleet) -> None:
    """Where there is no gputui, offer to send it, one host after another."""
    lacking = [link for link in fleet.links.values() if _lacks(link) and not _is_pythonless(link)]
    if not lacking or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    from gputui.collect.hosts.fleet import FOLDER, ShipError, ship_gputui

    sent, answer = [], ""
    for link in lacking:
        assert link.failure is not None
        if answer != "a":
            say(f"{link.target.name}: {link.failure.line}")
            answer = _asked(f"Send gputui there, to {FOLDER}? [y]es, [n]o, to [a]ll: ")
        if answer in ("y", "a"):
            say(f"{link.target.name}: sending gputui")
            try:
                sent.append(ship_gputui(link.target))
            except ShipError as error:
                say(f"{link.target.name}: not sent: {error}")
    fleet.reconnect(sent, _CONNECTING_S)


def _asked(question: str) -> str:
    """The first letter of the answer; none at the end of input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower()[:1]


def _read_smi(fleet: Fleet, run: FarRun | None) -> None:
    """Where there is no gputui still, nvidia-smi shows the devices; where it does not either, the
    first reason stands.
    """
    lacking = {name: link for name, link in fleet.links.items() if _lacks(link)}
    if not lacking or run is not None:
        return
    from msgspec.structs import replace

    fleet.reconnect([replace(link.target, by_smi=True) for link in lacking.values()], _CONNECTING_S)
    for name, link in lacking.items():
        again = fleet.links[name]
        if again.failure is not None:
            again.give_up(link.failure)


def _lacks(link: HostLink) -> bool:
    return link.failure is not None and link.failure.kind.lacks_gputui


def _is_pythonless(link: HostLink) -> bool:
    from gputui.collect.hosts import FailureKind

    return link.failure is not None and link.failure.kind is FailureKind.NO_PYTHON


def _answer_ssh(fleet: Fleet, masters: Masters) -> None:
    """Where ssh has a question, have it ask here, one host after another."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    again = []
    for link in list(fleet.links.values()):
        if link.failure is not None and link.failure.kind.asks and link.target.ssh:
            say(f"{link.target.name}: ssh asks")
            through = masters.open(link.target)
            again += [through] if through is not None else []
    fleet.reconnect(again, _CONNECTING_S)


# --- Watching other hosts: on the screen, or recorded without one, each into a file here.

# Between two comparisons of clocks, unless one is twice as exact.
_COMPARED_NS = 60 * 10**9


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
        recorder = HostsRecorder(options, fleet, copies, duration_s)
        recorder.until_signal()
        links = list(fleet.links.values())
    ok = recorder.finish(shows_run=run is not None and not several)
    if run is not None and several and recorder.folder is not None:
        # The recordings of all hosts lie in one folder, which opens as one session.
        say(f"as one job: gputui --replay {shlex.quote(str(recorder.folder))}")
    if run is not None:
        return status_of(links, options)
    return 0 if ok else 1


def screen(options: argparse.Namespace, run: FarRun | None, words: Sequence[str] = ()) -> int:
    """Show all hosts, or the one that runs something; the exit status, that of the run if there is
    one. `words` were typed. Raises UsageError, and NoHostError if not one can be reached.
    """
    need_terminal(options)
    if run is not None and are_several(options):
        return screen_of_job(options, run)
    attach_words = words_there(MAIN, words, command("attach"))
    with connected(options, run, attach_words=attach_words) as fleet:

        def connect(notify: Callable[[], None]) -> Source:
            fleet.on_news(notify)
            return fleet

        several = len(fleet.links) > 1
        shows_run = run is not None
        status = run_screen(connect, options, shows_run=shows_run, shows_hosts=several)
        links = list(fleet.links.values())
    run_status = status_of(links, options)
    return status or (0 if run is None else run_status)


@contextmanager
def files(
    options: argparse.Namespace, path_of: Callable[[str], Path]
) -> Iterator[dict[str, JournalWriter]]:
    """A file for each host, opened before anything is begun there; one in which nothing was written
    is removed. Raises JournalError.
    """
    limits = limits_of(options)
    by_host: dict[str, JournalWriter] = {}
    try:
        for target in targets_of(options):
            by_host[target.name] = JournalWriter(path_of(target.name), limits)
        yield by_host
    finally:
        for file in by_host.values():
            file.close()
            if file.path is not None and not file.bytes_written:
                file.path.unlink(missing_ok=True)


class HostsRecorder(UnattendedRecorder):
    """Writes what the hosts of a fleet read into a file each.

    Links that are lost, and alerts, are printed; beside a screen, which has the alerts itself,
    `on_link` is called instead.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        fleet: Fleet,
        copies: Mapping[str, JournalWriter],
        duration_s: float | None = None,
        *,
        on_link: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(copies, Wake(), duration_s, options.notify)
        self._fleet = fleet
        self._on_link = on_link
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

    def until_signal(self) -> None:
        """Until it is over, its time is up, or the user ends it."""
        with self._hearing():
            self.run()

    def run(self) -> None:
        """Until it is over, its time is up, or `end` is called."""
        self._fleet.on_news(self._wake.set)
        self._wake.set()  # it may be over already
        try:
            self._loop()
            self._look()
        finally:
            for file in self._files.values():
                file.close()

    def begin(self) -> None:
        """Write what has come: each host that is up has begun."""
        self._look()

    def end(self) -> None:
        """Have `run` return, as a signal would; from any thread."""
        self._on_signal(signal.SIGTERM)

    def finish(self, *, shows_run: bool) -> bool:
        """Print what was recorded; whether all of it was written."""
        for name, file in self._files.items():
            self._say_notices(name)
            if not file.failure and name not in self._begun:
                continue
            if self._say_result(name) and shows_run and file.path is not None:
                _summarize(file.path)
        return not any(file.failure for file in self._files.values())

    def _is_over(self) -> bool:
        links = self._fleet.links.values()
        return all(link.failure is not None and not link.failure.kind.retries for link in links)

    def _look(self) -> None:
        for news in self._fleet.drain():
            if news.link is not None:
                self._see(news.host, news.link)
            self._write(news)

    def _see(self, host: str, link: Link) -> None:
        """Print that a link is lost once, however often it is tried, and that it is back."""
        if self._on_link is not None:
            self._on_link()
        elif link.state in ("lost", "failed"):
            # Once for a reason: a line came at every try.
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
        clock, last = self._clocks.get(host), self._compared_last.get(host)
        if clock is None or (
            last is not None
            and now_ns - last.time_ns < _COMPARED_NS
            and 2 * clock.error_ns > last.error_ns
        ):
            return []
        compared = ClockCompared(
            time_ns=now_ns,
            by=os.uname().nodename,
            offset_ns=clock.offset_ns,
            error_ns=clock.error_ns,
        )
        self._compared_last[host] = compared
        return [compared]


def _path(options: argparse.Namespace, host: str, run: FarRun | None) -> Path:
    if options.output:
        return Path(expanded_name(options.output, host=host))
    path = default_path(f"{run.name}-{host}" if run and run.name else host, time.time())
    make_folder(path.parent)
    return path


def _summarize(path: Path) -> None:
    from gputui.playback.opening import load

    recorded = load(str(path))
    print_answer(recorded.session, recorded.run, path, sys.stdout)


class JobOnHosts(Playback):
    """The copies as they grow, and the hosts on which the run can be ended."""

    fleet: Fleet

    def stop_run(self) -> None:
        """Ask that the run be ended on each host: where the link is lost, as soon as it is back."""
        for link in self.fleet.links.values():
            if link.run_goes_on:
                link.stop_run()

    @property
    def goes_on_at(self) -> dict[str, bool]:
        """The hosts on which it goes on, and whether the link is up."""
        links = self.fleet.links
        return {name: link.is_up for name, link in links.items() if link.run_goes_on}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Those of the copies, and why a host is out of sight."""
        links = self.fleet.links.items()
        lost = [(name, link.failure) for name, link in links if link.failure and not link.is_over]
        return (*(f"{name}: {failure.line}" for name, failure in lost), *super().remarks)

    def look_again(self) -> None:
        """A link is lost, or back."""
        self._notify()


def screen_of_job(options: argparse.Namespace, run: FarRun) -> int:
    """Copy the recordings of all hosts here, and show them as one job; the exit status."""
    typed = Path(run.recording).name
    name = run.name or re.sub(r"^\d{8}-\d{6}-|(-[0-9a-f]{8})?\{.*", "", typed)
    folder = default_path(name, time.time()).with_suffix("")
    make_folder(folder)
    try:
        return _screen_of_job(options, run, folder)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # of what nothing came


def _screen_of_job(options: argparse.Namespace, run: FarRun, folder: Path) -> int:
    with (
        files(options, lambda host: folder / f"{plain_part(host)}.gputui") as copies,
        connected(options, run) as fleet,
    ):
        shown: list[JobOnHosts] = []

        def on_link() -> None:
            for job in shown:
                job.look_again()

        recorder = HostsRecorder(options, fleet, copies, on_link=on_link)
        recorder.begin()
        copying = threading.Thread(target=recorder.run, name="copies", daemon=True)
        copying.start()

        def connect(notify: Callable[[], None]) -> Source:
            job = JobOnHosts.open(str(folder), notify, follow=True)
            job.fleet = fleet
            shown.append(job)
            return job

        status = run_screen(connect, options, shows_run=True)
        recorder.end()
        copying.join()
        links = list(fleet.links.values())
    recorder.finish(shows_run=False)
    say(f"see it again: gputui --replay {shlex.quote(str(folder))}")
    run_status = status_of(links, options)
    return status or run_status
