"""A run that is recorded there and outlives the link: begun once, followed from any byte.

The recorder is a `gputui --record` in a session of its own, so that no cut of the link, and no end
of the far end, reaches it. It holds a lock, named after the recording, for as long as it lives:
whoever follows knows from that when no byte will come any more, whichever process began it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from gputui.base.errors import GputuiError
from gputui.collect.hosts.bundle import STARTER
from gputui.collect.hosts.far_end import NearEnd, like
from gputui.collect.hosts.far_options import RECORDING
from gputui.collect.hosts.hello import hello_line
from gputui.model.events import ClockRead
from gputui.store.errors import reason
from gputui.store.journal.compression import Compressor, compressor_for
from gputui.store.places import default_folder, make_folder, stamped
from gputui.store.regular_file import open_regular

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
    path = default_folder() / stamped(name, float(moment), f"-{number}")
    lock = _lock_of(path)
    for folder in (path.parent, lock.parent):
        make_folder(folder)
    _forget_ended()
    if path.exists():
        return path
    try:
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
        """Close the stream."""
        self._write(self._compressor.finish())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]
