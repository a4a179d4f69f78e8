"""The child that leads to another host, and what its two ends say first.

What the far end is asked for, the lines it begins with, and how both are read with a time limit.

For `link` and `ship` at this end, and `far_end` at the other.
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
from typing import IO, Any, BinaryIO, ClassVar, TypeVar

import msgspec

from gputui.base import VERSION
from gputui.base.decoding import json_decoder
from gputui.base.errors import WRONG_USAGE, GputuiError
from gputui.base.sanitize import sanitize
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
        """Its name without a user's, as other hosts may know it."""
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
        """Write all of it. Raises SilentError, and OSError if the other end is closed."""
        while data:
            if not _ready([self._in], self.patience_s, select.POLLOUT):
                raise SilentError
            data = data[os.write(self._in.fileno(), data[:_SENT_BYTES]) :]

    def end(self) -> None:
        """From any thread: have reading end, and the other end know."""
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
    """Why nothing follows."""


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
            except msgspec.MsgspecError:
                return None
        if time.monotonic() > deadline_s:
            raise SilentError
        left -= len(line)
        if not line:
            return None
    return None


# What a far end is asked for: readings of its machine, or a run to begin or to follow there.

HELLO_S = 20.0
"""From starting the command to the far end's first line: Python on a cold network disk is slow."""

SILENCE_S = 20.0
"""Longer than the time is not asked for: a link without any answer is dead."""


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
