"""Why a link failed: one clear line, and whether trying again can help.

`ssh` exits with 255 for every failure of its own, so the reason is in what it prints; shells and
container runtimes have statuses, but no common words.
"""

from __future__ import annotations

import re
import signal
from enum import Enum
from typing import NamedTuple

from gputui.base.sanitize import clean_output
from gputui.collect.hosts.pipe import HostTarget
from gputui.model.events import JOURNAL_SCHEMA

_LONGEST = 160
# ssh(1): 255 is its own failure; any other status is the command's.
_SSH_FAILED = 255
# Shells report a command that a signal ended as 128 and its number (POSIX, "Exit Status for
# Commands").
_SIGNALLED = 128


class FailureKind(Enum):
    """What kept a host from being watched, for what to do next."""

    UNKNOWN_HOST = "unknown host"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    TIME_OUT = "time-out"
    NO_SSHD = "no sshd"
    KEY_CHANGED = "host key changed"
    KEY_UNKNOWN = "host key unknown"
    NOT_LET_IN = "not let in"
    NO_COMMAND = "no command here"
    NOT_THERE = "no gputui there"
    NO_PYTHON = "no Python there"
    WRONG_VERSION = "wrong version"
    KILLED = "killed"
    LOST = "link lost"
    NO_JOURNAL = "not a journal"
    REFUSED_THERE = "refused there"
    ENDED = "ended"
    OVER = "over"

    @property
    def retries(self) -> bool:
        """Whether the next try may go better."""
        return self in _PASSING

    @property
    def lacks_gputui(self) -> bool:
        """Whether the host is reached, but no gputui that can be understood."""
        return self in (FailureKind.NOT_THERE, FailureKind.NO_PYTHON, FailureKind.WRONG_VERSION)

    @property
    def asks(self) -> bool:
        """Whether ssh wants an answer of a person, which only a plain terminal can give."""
        return self in (FailureKind.NOT_LET_IN, FailureKind.KEY_UNKNOWN)


_PASSING = (
    *(FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.BUSY, FailureKind.TIME_OUT),
    *(FailureKind.KILLED, FailureKind.LOST, FailureKind.ENDED),
)


class Failure(NamedTuple):
    """What went wrong, in one line without the host's name."""

    kind: FailureKind
    line: str


_OF_SSH: tuple[tuple[str, FailureKind, str], ...] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        FailureKind.KEY_CHANGED,
        "its host key has changed: if you know why, ssh-keygen -R {host} forgets the old one",
    ),
    (
        "Host key verification failed|host key is known for",
        FailureKind.KEY_UNKNOWN,
        "its host key is not known here: ssh {host} once, and compare the fingerprint",
    ),
    ("Could not resolve hostname", FailureKind.UNKNOWN_HOST, "there is no host of this name"),
    (
        "Connection refused",
        FailureKind.REFUSED,
        "the connection was refused: no sshd listens there",
    ),
    ("No route to host|Network is unreachable", FailureKind.UNREACHABLE, "there is no route to it"),
    ("timed out|Timeout, server", FailureKind.TIME_OUT, "it does not answer"),
    (
        "invalid format|could not read protocol version",
        FailureKind.NO_SSHD,
        "what listens there is no sshd: is it the port?",
    ),
    (
        "kex_exchange_identification|Exceeded MaxStartups|Connection (closed|reset) by .* port",
        FailureKind.BUSY,
        "sshd closed the connection before the handshake: too many at once (MaxStartups)?",
    ),
    (
        "Permission denied|Too many authentication failures",
        FailureKind.NOT_LET_IN,
        "not let in: no key or password fits ({last})",
    ),
)
_NO_PYTHON = (
    r"bad interpreter|env: .*python|python[\d.]*: (command )?not found"
    r"|unable to (start|execute).*python|\"python[\d.]*\": executable file not found"
)
_NOT_THERE = r"not found|No such file or directory|No module named gputui|cannot find"
_TOO_OLD = r"there is no command|unrecognized arguments|invalid choice|did you mean: gputui"


def no_command(name: str) -> Failure:
    """The local command cannot be started."""
    return Failure(FailureKind.NO_COMMAND, f"there is no program {name} on this machine")


def no_hello(seconds: float) -> Failure:
    """Nothing came that looks like a gputui."""
    return Failure(FailureKind.TIME_OUT, f"no answer within {seconds:g} s")


def only_noise(most_bytes: int) -> Failure:
    """It writes, but nothing that looks like a gputui."""
    return Failure(
        FailureKind.NO_JOURNAL,
        f"{most_bytes >> 10} KiB came from there, and no gputui: what is its shell printing?",
    )


def silent(seconds: float) -> Failure:
    """It was up, and says nothing any more."""
    return Failure(FailureKind.LOST, f"the link is lost: nothing came for {seconds:g} s")


def wrong_version(version: str, schema: int) -> Failure:
    """Its journal is in another schema."""
    side = "upgrade gputui here" if schema > JOURNAL_SCHEMA else "upgrade it there"
    return Failure(
        FailureKind.WRONG_VERSION,
        f"gputui {clean_output(version, 30)} there writes schema {schema}, this one reads "
        f"{JOURNAL_SCHEMA}: {side}",
    )


def refused_there(why: str) -> Failure:
    """The run cannot be begun or followed."""
    return Failure(FailureKind.REFUSED_THERE, clean_output(why, 2 * _LONGEST))


def would_ask(failure: Failure) -> Failure:
    """The connection that was opened on the plain terminal is gone."""
    return failure._replace(
        line="the connection is lost, and ssh would ask again: start gputui again"
    )


def over(recording: str) -> Failure:
    """The run that was followed has ended, and all of it was read: no failure at all."""
    return Failure(
        FailureKind.OVER, f"the run is over; its recording is {clean_output(recording, 200)}"
    )


def no_figures() -> Failure:
    """What nvidia-smi printed there has not the columns that were asked for."""
    return Failure(FailureKind.NO_JOURNAL, "what nvidia-smi prints there cannot be read")


def no_journal(why: str) -> Failure:
    """The failure where what a host sends is no journal, or a damaged one."""
    return Failure(
        FailureKind.NO_JOURNAL, f"what it sends is not a recording: {clean_output(why, _LONGEST)}"
    )


def ended(target: HostTarget, status: int | None, printed: bytes, *, was_up: bool) -> Failure:
    """Why the command ended, by its status (None: it closed its output and stayed) and what it
    printed on standard error.
    """
    text = printed.decode(errors="replace")
    lines = [line for line in map(clean_output, text.splitlines()) if line.strip()]
    last = lines[-1][:_LONGEST] if lines else ""
    if target.ssh and status == _SSH_FAILED:
        for pattern, kind, line in _OF_SSH:
            if re.search(pattern, text) and not (was_up and kind is FailureKind.BUSY):
                return Failure(kind, line.format(host=target.ssh, last=last))
        return Failure(FailureKind.LOST, "the link is lost" if was_up else f"ssh failed: {last}")
    if status is None:
        return Failure(FailureKind.LOST, "the link is lost: the command closed its output")
    number = -status if status < 0 else status - _SIGNALLED
    if 0 < number < _SIGNALLED - 1 and number in set(signal.Signals):
        return Failure(
            FailureKind.KILLED, f"gputui there was killed ({signal.Signals(number).name})"
        )
    if was_up:
        return Failure(
            FailureKind.ENDED, f"gputui there ended: {last}" if last else "gputui there ended"
        )
    if re.search(_NO_PYTHON, text):
        return Failure(FailureKind.NO_PYTHON, f"Python is missing there: {last}")
    if status in (126, 127) or re.search(_NOT_THERE, text):
        return Failure(
            FailureKind.NOT_THERE,
            f"gputui is not there: install it, or say where it is with --there"
            f" ({last or f'status {status}'})",
        )
    if re.search(_TOO_OLD, text):
        return Failure(
            FailureKind.WRONG_VERSION, "gputui there is too old for --host: upgrade it there"
        )
    return Failure(FailureKind.ENDED, f"it ended with status {status}{': ' * bool(last)}{last}")
