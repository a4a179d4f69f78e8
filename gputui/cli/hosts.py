"""Several hosts: the links from what was typed, on a plain terminal until they are up."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gputui.base.errors import GputuiError
from gputui.base.standard_streams import say
from gputui.cli.values import UsageError

if TYPE_CHECKING:
    from gputui.collect.hosts.fleet import Fleet
    from gputui.collect.hosts.masters import Masters
    from gputui.collect.hosts.target import Target
    from gputui.tui import Source


class NoHostError(GputuiError):
    """No host can be reached; why was printed. One line."""


_CONNECTING_S = 30.0
_READING_S = 10.0


def asked_for(options: argparse.Namespace) -> bool:
    """Whether other hosts are to be watched."""
    return bool(options.host or options.via)


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[Fleet]:
    """The links to the hosts that `options` name, closed at the end.

    Raises UsageError and TargetError. Why a host cannot be reached is printed.
    """
    from gputui.collect.hosts.far_end import has_zstandard
    from gputui.collect.hosts.fleet import Fleet
    from gputui.collect.hosts.link import FarOptions
    from gputui.collect.hosts.masters import Masters

    targets = _targets(options)
    there = _there(options)
    only = tuple(options.only) if options.only else None
    fleet = Fleet(targets, FarOptions(there, options.interval, only, has_zstandard()))
    masters = Masters()
    try:
        fleet.connect(_CONNECTING_S)
        _answer_ssh(fleet, masters)
        for name, link in fleet.links.items():
            if link.failure is not None:
                say(f"{name}: {link.failure.line}")
        yield fleet
    finally:
        fleet.close()
        masters.close()


def screen(options: argparse.Namespace) -> int:
    """Show all hosts; the exit status. Raises NoHostError if not one can be reached."""
    from gputui.cli.screen import need_terminal, run_screen

    need_terminal(options)
    with connected(options) as fleet:
        if all(link.failure for link in fleet.links.values()):
            raise NoHostError("no host can be read")

        def connect(notify: Callable[[], None]) -> Source:
            fleet.on_news(notify)
            return fleet

        several = len(fleet.links) > 1
        return run_screen(connect, options, shows_run=False, shows_hosts=several)


def print_once(options: argparse.Namespace) -> int:
    """Print one reading of every host; status 1 if one of them could not be read."""
    from gputui.cli.once import hosts_text
    from gputui.state.hosts import Hosts

    with connected(options) as fleet:
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
