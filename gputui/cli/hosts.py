"""Several hosts: the links from what was typed, on a plain terminal until they are up."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.errors import GputuiError
from gputui.base.standard_streams import say
from gputui.cli.declaration import Command
from gputui.cli.options import MAIN
from gputui.cli.output_name import plain
from gputui.cli.values import UsageError

if TYPE_CHECKING:
    from gputui.collect.hosts.far_options import FarRun
    from gputui.collect.hosts.fleet import Fleet
    from gputui.collect.hosts.link import HostLink
    from gputui.collect.hosts.masters import Masters
    from gputui.collect.hosts.target import Target
    from gputui.tui import Source


class NoHostError(GputuiError):
    """No host can be reached; why was printed. One line."""


_OF_HERE = (
    "host", "via", "there", "theme", "no_color", "ascii", "readonly", "config", "notify", "record",
    "output",
)  # fmt: skip
"""Options that a run there is not started with."""

_CONNECTING_S = 30.0
_READING_S = 10.0


def asked_for(options: argparse.Namespace) -> bool:
    """Whether other hosts are to be watched."""
    return bool(options.host or options.via)


def are_several(options: argparse.Namespace) -> bool:
    """Whether more than one host is named."""
    return len(options.host) + len(options.via) > 1


@contextmanager
def connected(
    options: argparse.Namespace, run: FarRun | None = None, *, needs_one: bool = True
) -> Iterator[Fleet]:
    """The links to the hosts that `options` name, closed at the end.

    Raises UsageError and TargetError, and NoHostError where it `needs_one` and none can be
    reached. Why a host cannot be reached is printed.
    """
    if run is not None and not run.is_of_all and are_several(options):
        raise UsageError("a process or a recording is on one host: give one --host or --via")
    if options.readonly and run is not None and not run.recording:
        raise UsageError(f"{options.set_by['readonly']} starts nothing, on other hosts neither")
    from gputui.collect.hosts.far_end import has_zstandard
    from gputui.collect.hosts.far_options import FarOptions
    from gputui.collect.hosts.fleet import Fleet
    from gputui.collect.hosts.masters import Masters

    targets = _targets(options)
    there = _there(options)
    only = tuple(options.only) if options.only else None
    fleet = Fleet(targets, FarOptions(there, options.interval, only, has_zstandard(), run))
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
    options: argparse.Namespace, words: Sequence[str], command: Sequence[str] | None
) -> FarRun | None:
    """What to run there, or to follow, as `words` and `command` were typed; None for nothing."""
    from gputui.collect.hosts.far_options import FarRun
    from gputui.collect.hosts.far_run import RECORDING

    if options.replay:
        return FarRun(recording=options.replay)
    if not command and not options.workload:
        return None
    what = ["--", *command] if command else []
    typed = ["--record", "-o", RECORDING, *words_there(MAIN, words), *what]
    run = begun_now(Path(command[0]).name if command else options.workload, typed)
    from msgspec.structs import replace

    return replace(run, is_of_all=True)


def begun_now(name: str, words: Sequence[str]) -> FarRun:
    """A run that is begun once, however often the link is cut."""
    import secrets

    from gputui.collect.hosts.far_options import FarRun

    run_id = f"{int(time.time())}-{secrets.token_hex(4)}"
    return FarRun(run_id, re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] or "run", tuple(words))


def words_there(command: Command, words: Sequence[str]) -> list[str]:
    """The words that hold there: without those about the hosts, and the screen here."""
    flags = {flag: option for option in command.options for flag in option.flags}
    found: list[str] = []
    left: Iterator[str] = iter(words)
    for word in left:
        option = flags.get(word.partition("=")[0])
        if option is None or option.name not in _OF_HERE:
            found.append(word)
        elif option.metavar and "=" not in word:
            next(left, None)
    return found


def screen(options: argparse.Namespace, run: FarRun | None) -> int:
    """Show all hosts, or the one that runs something; the exit status, that of the run if there is
    one. Raises UsageError, and NoHostError if not one can be reached.
    """
    from gputui.cli.screen import need_terminal, run_screen

    need_terminal(options)
    if run is not None and are_several(options):
        return _screen_of_job(options, run)
    with connected(options, run) as fleet:

        def connect(notify: Callable[[], None]) -> Source:
            fleet.on_news(notify)
            return fleet

        several = len(fleet.links) > 1
        shows_run = run is not None
        status = run_screen(connect, options, shows_run=shows_run, shows_hosts=several)
        links = list(fleet.links.values())
    return status or (0 if run is None else status_of(links))


def _screen_of_job(options: argparse.Namespace, run: FarRun) -> int:
    """A run on each of several hosts, whose recordings are copied here and shown as one job."""
    from threading import Thread

    from gputui.cli.record_hosts import Recorder
    from gputui.cli.screen import run_screen
    from gputui.playback.player import Playback
    from gputui.store.journal import default_path, make_folder

    folder = default_path(run.name, time.time()).with_suffix("")
    make_folder(folder)
    with connected(options, run) as fleet:
        recorder = Recorder(options, fleet, lambda host: folder / f"{plain(host)}.gputui")
        recorder.take()  # each that is up has begun
        copying = Thread(target=recorder.run, name="copies", daemon=True)
        copying.start()

        def connect(notify: Callable[[], None]) -> Source:
            return Playback.open(str(folder), notify, follow=True)

        status = run_screen(connect, options, shows_run=True)
        recorder.end()
        copying.join()
        links = list(fleet.links.values())
    recorder.finish(shows_run=False)
    say(f"see it again: gputui --replay {shlex.quote(str(folder))}")
    return status or status_of(links)


def status_of(links: Sequence[HostLink]) -> int:
    """The exit status of a run, of several the first that failed; each that goes on is named."""
    from gputui.cli.record import exit_status

    found = []
    for link in links:
        if link.run_ended is None or link.run_started is None:
            where = shlex.join(["--host", link.target.ssh] if link.target.ssh else
                               ["--via", shlex.join(link.target.prefix)])  # fmt: skip
            say(f"it goes on there: gputui {where} --replay {shlex.quote(link.recording)}")
        else:
            found.append(exit_status(link.run_started.kind, link.run_ended))
    return next(filter(None, found), 0)


def print_once(options: argparse.Namespace) -> int:
    """Print one reading of every host; status 1 if one of them could not be read."""
    from gputui.cli.once import hosts_text
    from gputui.state.hosts import Hosts

    with connected(options, needs_one=False) as fleet:
        fleet.wait_for_samples(_READING_S)
        hosts = Hosts(fleet.names)
        hosts.apply(fleet.take())
    sys.stdout.write(hosts_text(hosts, as_json=options.json))
    sys.stdout.flush()
    return 0 if all(host.session.samples for host in hosts.values()) else 1


def _targets(options: argparse.Namespace) -> list[Target]:
    from gputui.collect.hosts.target import command_target, distinct, ssh_target

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
    from gputui.collect.hosts.ship import FOLDER, ShipError, ship

    sent, answer = [], ""
    for link in lacking:
        assert link.failure is not None
        if answer != "a":
            say(f"{link.target.name}: {link.failure.line}")
            answer = _asked(f"Send gputui there, to {FOLDER}? [y]es, [n]o, to [a]ll: ")
        if answer in ("y", "a"):
            try:
                sent.append(ship(link.target))
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
    from gputui.collect.hosts.failures import Kind

    return link.failure is not None and link.failure.kind is Kind.NO_PYTHON


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
