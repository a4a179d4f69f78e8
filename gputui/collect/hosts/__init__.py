"""Other hosts: gputui there writes its events to a pipe, and this end folds them.

Here, what both ends use: the child that leads to another host, what the far end is asked for, the
lines it begins with, how both are read with a time limit, and why a link failed. This end is in
`link` and `fleet`, the other in `far_end`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import IO, Any, BinaryIO, ClassVar, NamedTuple, TypeVar

import msgspec

from gputui.base import VERSION, WRONG_USAGE, GputuiError
from gputui.base.decoding import json_decoder
from gputui.base.sanitize import clean_output, sanitize
from gputui.model.events import JOURNAL_SCHEMA

# --- Which host, and the command that gives a pipe to it.

SSH_OPTIONS = (
    "-T", "-a", "-x",
    "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=3",
    "-oClearAllForwardings=yes",
)  # fmt: skip
"""No terminal, nothing forwarded to a host that may be anybody's, and a dead link known in 15 s."""

_LONGEST_NAME = 60


class TargetError(GputuiError):
    """What was typed names no host. One line."""

    exit_status = WRONG_USAGE


class HostTarget(msgspec.Struct, frozen=True):
    """A host. `prefix` is the command whose pipe leads there; `ssh` what ssh is asked to connect
    to, "" where it is not ssh. `control` is the socket of a connection that is open already.
    """

    name: str
    prefix: tuple[str, ...] = ()
    ssh: str = ""
    control: str = ""
    by_smi: bool = False
    """Whether its nvidia-smi is read, where there is no gputui."""
    there: tuple[str, ...] = ()
    """How gputui is called there, where that differs from the other hosts."""

    @property
    def address(self) -> str:
        """The host's name without a user, as other hosts may know it."""
        return (self.ssh or self.name).rpartition("@")[2]

    _NO_QUESTIONS: ClassVar = ("-oBatchMode=yes",)

    def argv(self, words: Sequence[str]) -> list[str]:
        """The local command that runs `words` there."""
        if not self.ssh:
            return [*self.prefix, *words]
        through = ("-oControlMaster=no", f"-oControlPath={self.control}") if self.control else ()
        return [
            *("ssh", *SSH_OPTIONS, *self._NO_QUESTIONS, *through, "--", self.ssh),
            # Whatever the login shell is; and one that waits, so that it reports a signal.
            f"exec sh -c {shlex.quote(f'{_command(words)}; exit $?')}",
        ]


def _command(words: Sequence[str]) -> str:
    """`words` for a shell, in which only the first may begin in the home folder."""
    first, *rest = words
    home = first.startswith("~/")
    quoted = f"~/{shlex.quote(first[2:])}" if home else shlex.quote(first)
    return " ".join([quoted, *map(shlex.quote, rest)])


def ssh_target(typed: str) -> HostTarget:
    """USER@BOX, or any name that ssh knows. Raises TargetError."""
    if not typed or typed.startswith("-") or not typed.isprintable() or " " in typed:
        raise TargetError(f"--host {sanitize(typed, 60)!r}: give USER@BOX, or a name ssh knows")
    return HostTarget(sanitize(typed, _LONGEST_NAME), ssh=typed)


def command_target(typed: str) -> HostTarget:
    """A command that gives a pipe, named by its last word. Raises TargetError."""
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise TargetError(f"--via {sanitize(typed, 60)!r}: {str(error).lower()}") from None
    if not words:
        raise TargetError("--via: give a command, as in 'kubectl exec -i POD --'")
    name = next((word for word in reversed(words) if word != "--"), words[0])
    return HostTarget(sanitize(name, _LONGEST_NAME), prefix=tuple(words))


def distinct(targets: Iterable[HostTarget]) -> list[HostTarget]:
    """The targets, each with a name of its own."""
    by_name: dict[str, HostTarget] = {}
    for target in targets:
        name, number = target.name, 1
        while name in by_name:
            number += 1
            name = f"{target.name} ({number})"
        by_name[name] = msgspec.structs.replace(target, name=name)
    return list(by_name.values())


# The child that leads to another host: its output with a time limit, its errors kept short.

# How often a reader that waits looks whether it should end.
_CHECK_S = 1.0

_ENDING_S = 2.0

# Banners come first and the reason last, so the beginning and the end are kept.
_ERROR_BYTES = 4096

# What a pipe that is ready takes without waiting (PIPE_BUF).
_SENT_BYTES = 4096


class SilentError(GputuiError):
    """Nothing came for as long as is allowed."""


class Pipe(io.RawIOBase):
    """A child's standard output as a stream. Its errors' beginning and end are kept.

    Reading raises SilentError if nothing comes for `patience_s`; closing ends the child, which is
    this machine's half of the link: the other half ends with its standard input.
    """

    def __init__(self, argv: Sequence[str], patience_s: float) -> None:
        """Raises OSError if the command cannot be started."""
        # In a session of its own it has no terminal to ask on, and gets no Ctrl-C.
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            super().close()  # there is nothing else to close: Python does when this is dropped
            raise
        streams = self._child.stdin, self._child.stdout, self._child.stderr
        self._in, self._out, self._err = (stream for stream in streams if stream is not None)
        self._errors = b""
        self._errors_are_open = True
        self._is_ending = False
        self.patience_s = patience_s
        self.is_at_end = False
        """Whether the other end has closed it."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        heard_s = time.monotonic()
        while not self._is_ending:
            streams = [self._out, self._err] if self._errors_are_open else [self._out]
            ready = _ready(streams, _CHECK_S)
            if self._err.fileno() in ready:
                self._keep_errors()
            if self._out.fileno() in ready:
                data = os.read(self._out.fileno(), len(buffer))
                buffer[: len(data)] = data
                self.is_at_end = not data
                return len(data)
            if time.monotonic() - heard_s > self.patience_s:
                raise SilentError
        return 0

    def ask(self, line: bytes) -> None:
        """Write a line to the other end; one that takes none is as good as gone."""
        with contextlib.suppress(OSError, ValueError):
            # Never waits: a full pipe loses the question.
            if _ready([self._in], 0.0, select.POLLOUT):
                os.write(self._in.fileno(), line)

    def send(self, data: bytes) -> None:
        """Writes all of the bytes. Raises SilentError, and OSError if the other end is closed."""
        while data:
            if not _ready([self._in], self.patience_s, select.POLLOUT):
                raise SilentError
            data = data[os.write(self._in.fileno(), data[:_SENT_BYTES]) :]

    def end(self) -> None:
        """Ends reading, and lets the other end know. May be called from any thread."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self._in.close()

    def status(self) -> tuple[int | None, bytes]:
        """The child's exit status, None if it had to be ended, and what it printed on standard
        error.
        """
        self.end()
        status: int | None = None
        try:
            status = self._child.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGTERM)
            try:
                self._child.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._child.wait()
        while self._errors_are_open and _ready([self._err], 0.0):
            self._keep_errors()
        return status, self._errors

    def close(self) -> None:
        if not self.closed:
            self.status()
            for stream in (self._out, self._err):
                stream.close()
            self._errors_are_open = False  # whoever else has them open, as a jump's ssh may
        super().close()

    def _keep_errors(self) -> None:
        data = os.read(self._err.fileno(), 4096)
        self._errors_are_open = bool(data)
        kept = self._errors + data
        if len(kept) > 2 * _ERROR_BYTES:
            kept = kept[:_ERROR_BYTES] + kept[-_ERROR_BYTES:]
        self._errors = kept

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The group: ssh may have started a ProxyCommand.
            os.killpg(self._child.pid, number)


def _ready(streams: Sequence[IO[bytes]], seconds: float, what: int = select.POLLIN) -> set[int]:
    poll = select.poll()
    for stream in streams:
        poll.register(stream.fileno(), what)
    return {number for number, _ in poll.poll(seconds * 1000)}


# The lines that a far end begins with. What stands before them is a shell's noise.
#
# The near end makes up a token and passes it in the command, so that no noise can look like such
# a line. After the first of a gputui comes a journal, which is the only protocol there is.

# Login scripts may print a message of the day before the first line; none is as long as this.
MOST_NOISE_BYTES = 64 << 10

_BEGINS = b"gputui "

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True):
    """What the far end is, and which schema of the journal it writes."""

    schema: int
    version: str
    recording: str = ""
    """The file there whose bytes follow; "" for readings of now."""
    error: str = ""
    """Why no readings or bytes follow this line; "" where they do."""


def hello_line(token: str, recording: str = "", error: str = "") -> bytes:
    """The line of this gputui."""
    hello = Hello(JOURNAL_SCHEMA, VERSION, recording, error)
    return _BEGINS + token.encode() + b" " + msgspec.json.encode(hello) + b"\n"


def read_line(stream: BinaryIO, token: str, kind: type[T], patience_s: float) -> T | None:
    """The next such line, after noise; None if there is none before the end, or only noise.

    A shell's unfinished prompt may stand before it. Raises SilentError after `patience_s`.
    """
    deadline_s = time.monotonic() + patience_s
    left = MOST_NOISE_BYTES
    while left > 0:
        line = stream.readline(left)
        _, marker, document = line.partition(_BEGINS + token.encode() + b" ")
        if marker:
            try:
                return json_decoder(kind).decode(document)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return None
        if time.monotonic() > deadline_s:
            raise SilentError
        left -= len(line)
        if not line:
            return None
    return None


# What a far end is asked for: readings of its machine, or a run to begin or to follow there.

HELLO_S = 20.0
"""The longest time from starting the command to the far end's first line: Python on a cold network
disk is slow."""

SILENCE_S = 20.0
"""Longer than the time is not asked for: a link without any answer is dead."""


STARTER = "gputui-far.py"
"""The file in the archive that starts it: its folder is then the first that is searched."""

RECORDING = "{recording}"
"""Stands for the file's name in the words for gputui there."""

NODE = "{node}"
"""Stands for the number of a host among several."""


class FarRun(msgspec.Struct, frozen=True):
    """A run to begin there, or with `recording` the file of one that was begun."""

    run_id: str = ""
    name: str = ""
    words: tuple[str, ...] = ()
    recording: str = ""
    is_of_all: bool = False
    """Whether it may be begun, or followed, on each of several hosts."""
    pids: tuple[int, ...] = ()
    """The process to attach to on each host: the last of its words."""

    def on(self, place: int, head: str, hosts: int) -> FarRun:
        """Host `place` of several: `{node}` in its words is that number, `{nodes}` how many there
        are, `{head}` the first's name. Each has a number of its own: they may share their disk."""
        run = self
        if self.pids:
            run = msgspec.structs.replace(run, words=(*run.words, str(self.pids[place])))
        if hosts == 1:
            return run
        values = {NODE: str(place), "{nodes}": str(hosts), "{head}": head}
        return msgspec.structs.replace(
            run,
            run_id=f"{run.run_id}{place}" if run.run_id else "",
            words=tuple(_filled(word, values) for word in run.words),
            recording=run.recording.replace(NODE, str(place)),
        )


def begun_now(name: str, words: Sequence[str]) -> FarRun:
    """A run that is begun once, however often the link is cut."""
    run_id = f"{int(time.time())}-{secrets.token_hex(4)}"
    return FarRun(run_id, re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] or "run", tuple(words))


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


class FarOptions(msgspec.Struct, frozen=True):
    """How gputui is called there, and what it is asked for."""

    there: tuple[str, ...] = ("gputui",)
    interval_s: float = 1.0
    only: tuple[int, ...] | None = None
    zstandard: bool = False
    run: FarRun | None = None
    """What to follow instead of readings of now."""
    hello_s: float = HELLO_S
    silence_s: float = SILENCE_S

    def words(
        self, token: str, there: tuple[str, ...], recording: str = "", offset: int = 0
    ) -> list[str]:
        """The command there, where gputui is called `there` if that is another way; `recording` is
        the file to go on with, from byte `offset`.
        """
        how = ["--zstandard"] if self.zstandard else []
        words = [*(there or self.there), "stream", "--token", token, *how]
        if recording:
            return [*words, "--file", recording, "--offset", str(offset)]
        if self.run is not None:
            begin = ["--run-id", self.run.run_id, "--name", self.run.name]
            return [*words, *begin, "--", *self.run.words]
        only = ["--only", *map(str, self.only)] if self.only else []
        return [*words, "--interval", f"{self.interval_s:g}", *only]


# --- Why a link failed: one clear line, and whether trying again can help.
#
# `ssh` exits with 255 for every failure of its own, so the reason is in what it prints; shells and
# container runtimes have statuses, but no common words.

_LONGEST_REASON = 160
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
        # What ssh and asyncssh print of a port where no sshd listens: trying again does not help.
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


def no_command_failure(name: str) -> Failure:
    """The local command cannot be started."""
    return Failure(FailureKind.NO_COMMAND, f"there is no program {name} on this machine")


def no_hello_failure(seconds: float) -> Failure:
    """Nothing came that looks like a gputui."""
    return Failure(FailureKind.TIME_OUT, f"no answer within {seconds:g} s")


def only_noise_failure(most_bytes: int) -> Failure:
    """The far end writes, but nothing that a gputui writes."""
    return Failure(
        FailureKind.NO_JOURNAL,
        f"{most_bytes >> 10} KiB came from there, and no gputui: what is its shell printing?",
    )


def silent_failure(seconds: float) -> Failure:
    """The far end was up and no longer says anything."""
    return Failure(FailureKind.LOST, f"the link is lost: nothing came for {seconds:g} s")


def wrong_version_failure(version: str, schema: int) -> Failure:
    """The far end's journal has another schema."""
    side = "upgrade gputui here" if schema > JOURNAL_SCHEMA else "upgrade it there"
    return Failure(
        FailureKind.WRONG_VERSION,
        f"gputui {clean_output(version, 30)} there writes schema {schema}, this one reads "
        f"{JOURNAL_SCHEMA}: {side}",
    )


def refused_there_failure(why: str) -> Failure:
    """The run cannot be begun or followed."""
    return Failure(FailureKind.REFUSED_THERE, clean_output(why, 2 * _LONGEST_REASON))


def would_ask_failure(failure: Failure) -> Failure:
    """The connection that was opened on the plain terminal is gone."""
    return failure._replace(
        line="the connection is lost, and ssh would ask again: start gputui again"
    )


def over_failure(recording: str) -> Failure:
    """The run that was followed has ended and was read completely: this is no failure."""
    return Failure(
        FailureKind.OVER, f"the run is over; its recording is {clean_output(recording, 200)}"
    )


def no_figures_failure() -> Failure:
    """What nvidia-smi printed there has not the columns that were asked for."""
    return Failure(FailureKind.NO_JOURNAL, "what nvidia-smi prints there cannot be read")


def no_journal_failure(why: str) -> Failure:
    """The failure where what a host sends is no journal, or a damaged one."""
    return Failure(
        FailureKind.NO_JOURNAL,
        f"what it sends is not a recording: {clean_output(why, _LONGEST_REASON)}",
    )


def ended_failure(
    target: HostTarget, status: int | None, printed: bytes, *, was_up: bool
) -> Failure:
    """Why the command ended, by its status (None: it closed its output and stayed) and what it
    printed on standard error.
    """
    text = printed.decode(errors="replace")
    lines = [line for line in map(clean_output, text.splitlines()) if line.strip()]
    last = lines[-1][:_LONGEST_REASON] if lines else ""
    if target.ssh and status == _SSH_FAILED:
        for pattern, kind, line in _OF_SSH:
            if re.search(pattern, text) and not (was_up and kind is FailureKind.BUSY):
                # One place takes the target apart: three did, in the same words.
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
