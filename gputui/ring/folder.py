"""The rings of a run: finding new ones in its folder, and keeping all of them from overflowing.

For `attribute.reader`, which reads each of them with `ring.reader`.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from gputui.ring.reader import RingError, RingReader, ring_library

# --- The folder of a run, in which its processes create their rings.

RINGS_MAX = 4096
"""Rings opened per folder: each is a process that loaded CUDA or NVTX."""

_REFUSED_NAME = re.compile(r"[0-9]{1,10}-([0-9]{1,4})\.refused")
_RING_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,20}\.ring")


class RingFolder:
    """The folder in which the processes of one run create their rings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused: set[str] = set()
        self._lost = False
        self.refusals: Counter[int] = Counter()
        """Processes that could not make a ring, by the error's number (see errno)."""

        self.seen_ns = 0
        """When `discover` last saw the folder change, 0 before its first call."""

    def _changed_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def discover(self) -> tuple[list[RingReader], list[str]]:
        """Rings that appeared since the last call, and a line for each that cannot be read.

        Opening a ring unlinks it: its memory lives as long as the process and the reader, and no
        longer, however either of them ends.
        """
        readers: list[RingReader] = []
        problems: list[str] = []
        self.seen_ns = self._changed_ns()
        try:
            names = sorted(os.listdir(self.path))
        except OSError as error:
            if self._lost:
                return [], []
            self._lost = True
            return [], [f"{self.path}: {error.strerror}: processes that start now are not captured"]
        for name in names[:RINGS_MAX]:
            path = self.path / name
            if refusal := _REFUSED_NAME.fullmatch(name):
                self._count_refusal(path, int(refusal[1]))
            if name in self._refused or not _RING_NAME.fullmatch(name):
                continue
            try:
                readers.append(RingReader(path))
            except RingError as error:
                self._refused.add(name)
                problems.append(str(error))
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError:  # the program revoked our permission: the ring goes with the folder
                self._refused.add(name)
        return readers, problems

    def _count_refusal(self, path: Path, error: int) -> None:
        if path.name not in self._refused:
            self.refusals[error] += 1
        try:
            path.unlink()
        except OSError:
            self._refused.add(path.name)


# --- Keeping the rings of a run from overflowing.

HELD_BYTES_MAX = 512 << 20
"""The most to hold of unprocessed records: some 40 million ends of ranges."""

_PART_OF_MEMORY = 8
"""At most this fraction of the machine's memory, if that is less."""


class RingWatch:
    """A thread that empties filling rings into memory for their readers.

    `on_change` is called in that thread, at its start and whenever something was added to or
    removed from `folder`: a new ring fills until it is noticed.

    Raises RingError without a capture library.
    """

    def __init__(self, folder: RingFolder, on_change: Callable[[], None]) -> None:
        self._library = ring_library()
        self._folder = folder
        self._on_change = on_change
        self._handle = self._library.gputui_watch_open(os.fsencode(folder.path), held_bytes_max())
        if not self._handle:
            raise MemoryError
        self._thread = threading.Thread(target=self._run, name="ring watch", daemon=True)

    def start(self) -> None:
        """Start the thread; call it only once."""
        self._thread.start()

    def add(self, ring: RingReader) -> None:
        """Keep this ring from overflowing, too, until `remove`."""
        self._library.gputui_watch_add(self._handle, ring.handle)

    def remove(self, ring: RingReader) -> None:
        """Stop watching `ring`, which may then be closed."""
        self._library.gputui_watch_remove(self._handle, ring.handle)

    def stop(self) -> None:
        self._library.gputui_watch_stop(self._handle)
        self._thread.join()
        self._library.gputui_watch_close(self._handle)

    def _run(self) -> None:
        self._on_change()
        while self._library.gputui_watch_run(self._handle, self._folder.seen_ns):
            self._on_change()


def held_bytes_max() -> int:
    """What all rings together may hold on this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(HELD_BYTES_MAX, memory // _PART_OF_MEMORY)
