"""The far end of a link: this machine's events as a journal on standard output, and runs that
outlive the link.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from gputui.base import GputuiError, reason
from gputui.collect.hosts import RECORDING, STARTER, hello_line
from gputui.collect.live import Sampler
from gputui.model.events import ClockRead
from gputui.model.hub import Hub
from gputui.store import default_folder, make_folder, open_regular, stamped_name
from gputui.store.journal import Compressor, compressor_for
from gputui.store.journal.writer import JournalWriter

# The far end: this machine's events as a journal on standard output.
#
# Lines on standard input ask: `t NS` for the time, which is answered in the journal; `stop` ends
# the run being followed. The end of standard input, or a near end that asks nothing any more,
# ends the program: nothing is left behind.

WATCHER_SILENCE_S = 60.0
"""A near end asks for the time every few seconds: one that did not for so long is gone."""

# Closing the journal waits for the reader where the pipe is full; nobody waits for this program.
_CLOSING_S = 4.0

# The longest question is `t` and a moment in ns; anything longer is no question.
_LINE_BYTES = 64


def serve(
    token: str, interval_s: float, only: Sequence[int] | None, *, zstandard: bool = False
) -> int:
    """Write readings of this machine until the near end is gone; the exit status."""
    os.write(1, hello_line(token))
    journal = JournalWriter(None, like=like(zstandard=zstandard))
    hub = Hub(lambda: None, journal)
    sampler = Sampler(interval_s, only)
    sampler.start(hub.emit)
    near = NearEnd(lambda event: hub.emit([event]))
    while not near.is_gone(min(1.0, interval_s)):
        hub.drain()  # written when they were emitted
        if journal.failure is not None:
            break

    def close() -> None:
        sampler.stop()
        journal.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_CLOSING_S)
    if closing.is_alive():
        os._exit(0)  # the reader has stopped reading, and nobody else waits for the rest
    return 0


def like(*, zstandard: bool) -> Path:
    """A name that compresses as the near end asked for, with what there is."""
    has_it = zstandard and has_zstandard()
    return Path("far.gputui.zst" if has_it else "far.gputui.gz")


def has_zstandard() -> bool:
    """Whether the package is there."""
    from importlib.util import find_spec

    return find_spec("zstandard") is not None


class NearEnd:
    """What the near end asks on standard input: `answer` gets the answer to the question for the
    time, `stop` is called when it wants the run ended.
    """

    def __init__(
        self, answer: Callable[[ClockRead], None], stop: Callable[[], None] = lambda: None
    ) -> None:
        self._answer = answer
        self._stop = stop
        self._heard = threading.Event()
        self._has_ended = False
        self._heard_s = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end())
        threading.Thread(target=self._listen, name="near end", daemon=True).start()

    def is_gone(self, wait_s: float) -> bool:
        """Whether nobody listens any more, after waiting so long, or until something was asked: the
        answer's delay counts as the error of a clock.
        """
        if self._heard.wait(wait_s):
            self._heard.clear()
        return self._has_ended or time.monotonic() - self._heard_s > WATCHER_SILENCE_S

    def _end(self) -> None:
        self._has_ended = True
        self._heard.set()

    def _listen(self) -> None:
        rest = b""
        while data := os.read(0, 4096):
            self._heard_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:_LINE_BYTES]
            for line in lines:
                self._do(line)
            self._heard.set()
        self._end()

    def _do(self, line: bytes) -> None:
        word, _, number = line[:_LINE_BYTES].partition(b" ")
        if word == b"t" and number.isdigit() and len(number) < 20:
            self._answer(ClockRead(time_ns=time.time_ns(), asked_ns=int(number)))
        elif line == b"stop":
            self._stop()


# A run that is recorded there and outlives the link: begun once, followed from any byte.
#
# The recorder is a `gputui --record` in a session of its own, so that no cut of the link, and no
# end of the far end, reaches it. It holds a lock, named after the recording, for as long as it
# lives: whoever follows knows from that when no byte will come any more, whichever process began
# it.

# Recordings may lie on file systems of the network, where inotify reports nothing of what other
# hosts write.
_POLL_S = 0.1

_READ_BYTES = 1 << 16

_LOCK_SUFFIX = ".lock"


class FarRunError(GputuiError):
    """The run cannot be begun or followed. One line."""


def begin(run: str, name: str, words: Sequence[str]) -> Path:
    """The recording of a run: `gputui` is started with `words` unless it was for this `run`
    already, which is the second that it began in and a random number, as in 1760000000-1a2b.

    Raises FarRunError, with what the recorder printed, if it ends without having written anything.
    """
    moment, _, number = run.partition("-")
    path = default_folder() / stamped_name(name, float(moment), f"-{number}")
    lock = _lock_of(path)
    for folder in (path.parent, lock.parent):
        make_folder(folder)
    _forget_ended()
    if path.exists():
        return path
    try:
        # Exclusively: of two links that begin the same run at once, one does.
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # it was begun just now, and then the link was cut
        while not path.exists() and is_written(path):
            time.sleep(_POLL_S)
        return path
    except OSError as error:
        raise FarRunError(f"cannot write {lock}: {reason(error)}") from None
    fcntl.flock(held, fcntl.LOCK_EX)
    argv = [sys.executable, *_program(), *(str(path) if w == RECORDING else w for w in words)]
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            # flock(2) locks the open file, which the recorder inherits: held until its last holder
            # ends.
            pass_fds=(held,),
            start_new_session=True,
        )
        os.write(held, b"%d\n" % child.pid)
        os.close(held)  # the recorder's copy holds the lock now
        while not path.exists():
            if child.poll() is not None:
                lock.unlink()
                printed.seek(0)
                raise FarRunError(_last_line(printed.read().decode(errors="replace")))
            time.sleep(_POLL_S)
    return path


def recording_at(typed: str) -> Path:
    """A file there by its path, or by its name in the folder of recordings."""
    return Path(typed).expanduser() if "/" in typed else default_folder() / typed


def follow(token: str, path: Path, offset: int, *, zstandard: bool) -> int:
    """Write the recording's lines from byte `offset` on as they come, after its first line; until
    its recorder or the near end is gone. The exit status. Raises JournalError.
    """
    file = open_regular(path)
    put = _Output(compressor_for(like(zstandard=zstandard)))
    answers: SimpleQueue[ClockRead] = SimpleQueue()
    near = NearEnd(answers.put, lambda: stop(path))
    os.write(1, hello_line(token, str(path)))
    try:
        if offset:
            put(file.readline())
            file.seek(offset)
        rest = b""
        while True:
            # Asked before reading: what was written until then is read.
            is_over = not is_written(path)
            while data := file.read(_READ_BYTES):
                rest += data
                end = rest.rfind(b"\n") + 1
                put(rest[:end])
                rest = rest[end:]
            with contextlib.suppress(Empty):
                while True:
                    put(msgspec.json.encode(answers.get_nowait()) + b"\n")
            if is_over:
                put.finish()
                return 0
            if near.is_gone(_POLL_S):
                return 0
    except BrokenPipeError:
        return 0
    finally:
        file.close()


def _program() -> list[str]:
    """How Python starts the gputui that this is: as a package, or as it was sent here."""
    return [sys.argv[0]] if Path(sys.argv[0]).name == STARTER else ["-m", "gputui"]


def is_written(path: Path) -> bool:
    """Whether its recorder lives; a recording that was begun otherwise counts as finished."""
    try:
        lock = os.open(_lock_of(path), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        _lock_of(path).unlink(missing_ok=True)
        return False
    finally:
        os.close(lock)


def stop(path: Path) -> None:
    """Ask the recorder to end its run."""
    if is_written(path):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(_lock_of(path).read_text()), signal.SIGTERM)


def _locks() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "gputui", "runs")


def _lock_of(path: Path) -> Path:
    return _locks() / (path.name + _LOCK_SUFFIX)


def _forget_ended() -> None:
    """Remove the locks of recorders that ended while nobody followed."""
    for lock in _locks().iterdir():
        is_written(Path(lock.name.removesuffix(_LOCK_SUFFIX)))


def _last_line(printed: str) -> str:
    lines = [line for line in printed.splitlines() if line.strip()]
    return lines[-1].removeprefix("gputui: ") if lines else "the recorder ended at once"


class _Output:
    """Standard output, compressed, flushed at each write."""

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor

    def __call__(self, data: bytes) -> None:
        if data:
            self._write(self._compressor.write(data))

    def finish(self) -> None:
        """Write the end of the compressed stream."""
        self._write(self._compressor.finish())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]
