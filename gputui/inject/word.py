"""The word of a process that carries the capture library asleep: how it is woken and put to sleep.

`src/word.h` mirrors the layout and says what the word is and why. Nothing here needs ptrace.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputui.base.errors import GputuiError

NAME = "gputui-word"
MAGIC = 0x475550574F524431
VERSION = 1
BYTES = 4096
LAYOUT_VERSION = 2
"""Of the ring (src/layout.h, gputui.ring.layout), which a library of another gputui might write in
its own way. Here because this package cannot import gputui.ring; a test compares it with the C."""

PYTHON_NONE, PYTHON_WAITS, PYTHON_HOOKED, PYTHON_FAILED = range(4)

_LINK = f"/memfd:{NAME}"
_FUTEX_WAKE = 1
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_POLL_S = 0.002


class WordError(GputuiError):
    """A process cannot be woken; the message is one line for people."""


class Layout(ctypes.Structure):
    """The page that both sides share. `wanted` is odd while the process should be awake, `reached`
    the last `wanted` it has followed.
    """

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("layout_version", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("wake_error", ctypes.c_uint32),
        ("start_ticks", ctypes.c_uint64),
        ("wanted", ctypes.c_uint32),
        ("reached", ctypes.c_uint32),
        ("python", ctypes.c_uint32),
        ("nvtx_found", ctypes.c_uint32),
        ("nvtx_held", ctypes.c_uint32),
        ("woken_ms", ctypes.c_uint32),
        ("came_late", ctypes.c_uint32),
        ("cupti_stays", ctypes.c_uint32),
        ("kernels", ctypes.c_uint32),
        ("modules", ctypes.c_uint32),
        ("folder", ctypes.c_char * 512),
        ("sampling", ctypes.c_char * 512),
    )


class Word:
    """One process's word, held by this monitor until `close`."""

    def __init__(self, fd: int) -> None:
        """Takes over `fd`. Raises WordError."""
        self._fd = fd
        try:
            self._map = mmap.mmap(fd, BYTES)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise WordError(f"its word cannot be mapped: {error}") from None
        self._page: Any = Layout.from_buffer(self._map)

    @property
    def page(self) -> Layout:
        """What the process says. Not to be kept."""
        page: Layout = self._page
        return page

    @property
    def is_awake(self) -> bool:
        """Whether the process was woken, and has not fallen asleep by itself."""
        return bool(self._page.wanted & 1)

    def hold(self) -> None:
        """Keep other monitors away until `close`. Raises WordError if one has it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WordError("another gputui looks at it") from None

    def wake(
        self, folder: Path, *, kernels: bool, modules: bool, sampling: str, timeout_s: float
    ) -> None:
        """Have the process make its ring in `folder`. Raises WordError: it is asleep then, or will
        be once it finds the word.
        """
        page = self._page
        page.folder, page.sampling = os.fsencode(folder), sampling.encode()
        page.kernels, page.modules = int(kernels), int(modules)
        page.wake_error = 0
        if not self._want(awake=True, timeout_s=timeout_s):
            self._want(awake=False, timeout_s=0)
            raise WordError(f"it did not answer in {timeout_s:g} s: is it stopped?")
        if page.wake_error:
            self._want(awake=False, timeout_s=timeout_s)
            raise WordError(f"it could not make its ring: {os.strerror(page.wake_error).lower()}")

    def sleep(self, timeout_s: float) -> bool:
        """Put the process to sleep; whether it was in that time. Without it, it will be."""
        return self._want(awake=False, timeout_s=timeout_s)

    def _want(self, *, awake: bool, timeout_s: float) -> bool:
        page = self._page
        if bool(page.wanted & 1) != awake:
            page.wanted = (page.wanted + 1) & 0xFFFF_FFFF
        _wake_futex(ctypes.addressof(page) + Layout.wanted.offset)
        end = time.monotonic() + timeout_s
        while page.reached != page.wanted:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        """Let go of the word."""
        self._page = None
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)


def open_word(pid: int) -> Word | None:
    """The word of process `pid` of this user; None if it carries no library that sleeps.

    Raises WordError if it belongs to another user or another version of gputui, and
    PermissionError if the system does not show the process.
    """
    for path in _word_files(pid):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        status = os.fstat(fd)
        if status.st_size != BYTES:
            os.close(fd)
            continue
        if status.st_uid != os.geteuid():
            os.close(fd)
            raise WordError("it belongs to another user")
        word = Word(fd)
        if word.page.magic == MAGIC and word.page.pid == _own_pid(pid):
            if (word.page.version, word.page.layout_version) == (VERSION, LAYOUT_VERSION):
                return word
            word.close()
            raise WordError("it carries another version of gputui: restart it")
        word.close()  # its parent's, which it has since the fork
    return None


def _word_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}").startswith(_LINK):
                yield f"{folder}/{name}"


def _own_pid(pid: int) -> int:
    """As the process itself sees it: another number in a container."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def _wake_futex(address: int) -> None:
    number = _SYS_FUTEX.get(platform.machine())
    if number is not None:
        libc = ctypes.CDLL(None)
        libc.syscall(
            ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(1), None, None, ctypes.c_int(0),
        )  # fmt: skip
