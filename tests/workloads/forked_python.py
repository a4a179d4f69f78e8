"""`python -m MODULE ...` and `python -c CODE`, forked from a process that has torch already.

Importing torch takes seconds of CPU in every child. `prepare` forks that process off pytest's when
all tests are collected: those here have imported torch, and none has used its threads yet, which
would not be there after a fork. It ends with pytest's own process.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

MESSAGE_BYTES = 2**17

_server: list[socket.socket] = []


def prepare() -> None:
    """Fork the process that forks the others; once."""
    if _server:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings():
        # Other threads of pytest's are not there after a fork, and not missed.
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            ours.close()
            _serve(theirs)
    theirs.close()
    _server.append(ours)


class ForkedPython:
    """Such a child, running; `returncode` as subprocess gives it."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._written: list[str] = []
        told, tell = os.pipe()
        request = json.dumps([list(words), dict(environment), str(folder), list(pass_fds)])
        kept = [tell, self._out.fileno(), self._err.fileno(), *pass_fds]
        socket.send_fds(_server[0], [request.encode()], kept)
        os.close(tell)
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Signal it."""
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        if self.returncode is None:
            self.returncode = int(self._told.readline())
            self._told.close()
            for file in (self._out, self._err):
                file.seek(0)
                with file:
                    self._written.append(file.read().decode())
        out, err = self._written
        return out, err


def _serve(asked: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, 16)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            asked.close()
            _look_after(*json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _look_after(
    words: list[str], environment: dict[str, str], folder: str, numbers: list[int], fds: list[int]
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    tell, out, err, *passed = fds
    child = os.fork()
    if child == 0:
        os.close(tell)
        # High numbers first: one of those that came may be where another one belongs.
        high = [os.dup2(fd, 500 + at) for at, fd in enumerate((out, err, *passed))]
        for fd, number in zip(high, (1, 2, *numbers), strict=True):
            os.dup2(fd, number)
            os.close(fd)
        _run(words, environment, folder)
    os.write(tell, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(tell, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(words: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    """As the interpreter does it, in a session of its own, with what is imported already."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    how, what, *arguments = words
    sys.argv = [what, *arguments]
    status: object = 0
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 1)
