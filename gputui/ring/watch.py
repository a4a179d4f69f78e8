"""Keeping the rings of a run from overflowing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from gputui.ring.folder import RingFolder
from gputui.ring.reader import RingReader, ring_library

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
        """Start the thread. Once."""
        self._thread.start()

    def add(self, ring: RingReader) -> None:
        """Watch `ring` too."""
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
