"""Several hosts: the links from what was typed, on a plain terminal until they are up."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.base.errors import GputuiError
from gputui.base.standard_streams import say
from gputui.cli.declaration import Command, UsageError
from gputui.cli.options import MAIN

if TYPE_CHECKING:
    from gputui.collect.hosts.fleet import Fleet, Masters
    from gputui.collect.hosts.link import HostLink
    from gputui.collect.hosts.pipe import FarRun, HostTarget


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


def asked_for(options: argparse.Namespace) -> bool:
    """Whether other hosts are to be watched."""
    return bool(options.host or options.via)


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
    from gputui.collect.hosts.far_end import has_zstandard
    from gputui.collect.hosts.fleet import Fleet, Masters
    from gputui.collect.hosts.pipe import FarOptions

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
    from gputui.collect.hosts.pipe import NODE, RECORDING, FarRun, begun_now

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
    from gputui.collect.hosts.pipe import NODE

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
        hosts.apply(fleet.take())
    sys.stdout.write(hosts_text(hosts, as_json=options.json))
    sys.stdout.flush()
    return 0 if all(host.session.samples for host in hosts.values()) else 1


def targets_of(options: argparse.Namespace) -> list[HostTarget]:
    """The hosts, in order, each with a name of its own. Raises TargetError."""
    from gputui.collect.hosts.pipe import command_target, distinct, ssh_target

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
            say(f"{link.target.name}: sending gputui")
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
    from gputui.collect.hosts.failures import FailureKind

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
