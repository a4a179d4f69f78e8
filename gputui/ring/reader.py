"""Reading the rings of a run: the library that does it, the records of a process, the strings among
them, and the folder in which new rings appear.

For `attribute.reader` and the tests of the capture library. A thread keeps rings from overflowing
while nobody reads them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gputui.base import GputuiError
from gputui.base.sanitize import sanitize
from gputui.inject.build import RING
from gputui.inject.environment import library_path, missing_library_reason
from gputui.inject.target import LAYOUT_VERSION
from gputui.ring import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    STRING_BYTES_MAX,
    STRING_BYTES_PER_SLOT,
    CudaState,
    RecordKind,
)

# --- The functions of the monitor's own C library.

_POINTER, _UINT64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int

FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "gputui_guard": (None, [_POINTER, _UINT64]),
    "gputui_unguard": (None, [_POINTER]),
    "gputui_ring_open": (_POINTER, [_POINTER, _UINT64, _UINT64]),
    "gputui_ring_read": (_UINT64, [_POINTER, _POINTER, _UINT64, _INT]),
    "gputui_ring_waiting": (_UINT64, [_POINTER]),
    "gputui_ring_hold": (_UINT64, [_POINTER, _UINT64]),
    "gputui_ring_close": (None, [_POINTER]),
    "gputui_watch_open": (_POINTER, [ctypes.c_char_p, _UINT64]),
    "gputui_watch_add": (None, [_POINTER, _POINTER]),
    "gputui_watch_remove": (None, [_POINTER, _POINTER]),
    "gputui_watch_run": (_INT, [_POINTER, ctypes.c_int64]),
    "gputui_watch_stop": (None, [_POINTER]),
    "gputui_watch_close": (None, [_POINTER]),
}


class RingError(GputuiError):
    """A ring cannot be read by this version or on this machine; the message is one line for
    people.
    """


@functools.cache
def ring_library() -> ctypes.CDLL:
    """The library, loaded. Raises RingError if there is none. Its functions run without the GIL."""
    if library_path() is None:
        raise RingError(missing_library_reason())
    library = ctypes.CDLL(str(RING.path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


# --- Reading a ring: what the capture library writes in one process, as NumPy records.

Records = npt.NDArray[np.void]
"""A one-dimensional array of `layout.SLOT`, one row a slot."""

SLOTS_MAX = 1 << 26
"""Largest ring accepted (4 GiB): more than the library ever creates."""

MOST_FORKS = 1 << 32
"""More forks than any process makes: a bound for a corrupted header."""


class RingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a process in its ring's header.

    `start_ns` is when capture began (CLOCK_REALTIME). `cuda_text` is `cuda_state` in words, as in
    `ProcessAttached.cuda_status`. `cupti_version` is CUPTI's own number.
    `launch_blocking` means that CUDA_LAUNCH_BLOCKING was set. `unseen_forks` counts
    processes forked from it whose ranges are not captured; `annotated` means that the start-up hook
    put ranges around its torch operations.
    """

    pid: int
    parent_pid: int
    rank: int | None
    local_rank: int | None
    command: str
    start_ns: int
    cuda_state: CudaState
    cuda_text: str
    cupti_version: int | None
    visible_devices: str | None = None
    launch_blocking: bool = False
    unseen_forks: int = 0
    annotated: bool = False


class RingHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a ring: totals since the process began.

    `written` counts slots (a string takes several), `dropped` records that found the ring full,
    `cupti_dropped` activity that CUPTI itself lost, `callback_ns` time spent in the library, and
    `heartbeat_ns` the moment of the last flush (None if CUDA is not traced). `traced_ns` and
    `paused_ns` are how long kernels were traced, and how long they were not at the user's request.
    """

    written: int = 0
    dropped: int = 0
    cupti_dropped: int = 0
    callback_ns: int = 0
    traced_ns: int = 0
    paused_ns: int = 0
    heartbeat_ns: int | None = None

    def since(self, before: RingHealth) -> RingHealth:
        """What was added to each total, never less than 0: a process may write anything."""
        return RingHealth(
            written=max(0, self.written - before.written),
            dropped=max(0, self.dropped - before.dropped),
            cupti_dropped=max(0, self.cupti_dropped - before.cupti_dropped),
            callback_ns=max(0, self.callback_ns - before.callback_ns),
            traced_ns=max(0, self.traced_ns - before.traced_ns),
            paused_ns=max(0, self.paused_ns - before.paused_ns),
            heartbeat_ns=self.heartbeat_ns,
        )


NO_RING = RingHealth()


class RingReader:
    """One process's ring, opened for reading; it may have no other reader.

    Opening raises RingError if the file is missing, truncated, of another version or not a ring.
    Nothing the process writes afterwards leads outside the mapping; if it truncates the file, the
    rest reads as zeros, and the process counts as gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ring_library()
        self._map = _map_file(path)
        self._header: Any = np.frombuffer(self._map, HEADER, 1)
        self._address = self._header.ctypes.data
        # Before the first read: the process may truncate the file at any moment.
        self._library.gputui_guard(self._address, len(self._map))
        try:
            copied = self._header.copy()[0]
            capacity = _checked_capacity(path, copied, len(self._map))
        except RingError:
            self._unmap()
            raise
        self.handle = self._library.gputui_ring_open(self._address, capacity, int(copied["tail"]))
        """The library's handle of the ring, until `close`."""
        if not self.handle:
            raise MemoryError
        self._annotated = False

    def read(self, max_records: int, process_gone: bool = False) -> Records:
        """The next published records, in order, at most `max_records`; maybe none.

        With `process_gone`, for a process known to be dead, also skips slots that it reserved and
        never filled. Needs `StringDefinitions.split` afterwards.
        """
        records = np.empty(min(max_records, self.waiting), SLOT)
        count = self._library.gputui_ring_read(
            self.handle, records.ctypes.data, len(records), process_gone
        )
        return records[:count]

    @property
    def waiting(self) -> int:
        """How many records wait to be read, if the process's counters are right."""
        return int(self._library.gputui_ring_waiting(self.handle))

    def hold(self, max_bytes: int) -> int:
        """Move the published records from the ring to memory, for `read`; returns how many. All
        rings of this process together hold at most `max_bytes`.
        """
        return int(self._library.gputui_ring_hold(self.handle, max_bytes))

    @property
    def facts(self) -> RingFacts:
        """Read anew each time: CUDA's state changes when the process initialises CUDA."""
        header = self._header[0]
        try:
            state = CudaState(int(header["cuda_state"]))
        except ValueError:
            state = CudaState.FAILED
        visible = bytes(header["visible_devices"])
        return RingFacts(
            pid=int(header["pid"]),
            parent_pid=int(header["parent_pid"]),
            rank=_present(int(header["rank"])),
            local_rank=_present(int(header["local_rank"])),
            command=_text(header["command"]),
            start_ns=int(header["start_ns"]),
            cuda_state=state,
            cuda_text=_text(header["cuda_text"]),
            cupti_version=int(header["cupti_version"]) or None,
            visible_devices=_text(visible[1:]) if visible[:1] == b"=" else None,
            launch_blocking=bool(header["launch_blocking"]),
            unseen_forks=min(int(header["unseen_forks"]), MOST_FORKS),
            annotated=self._is_annotated(int(header["pid"])),
        )

    def _is_annotated(self, pid: int) -> bool:
        self._annotated = self._annotated or (self.path.parent / "annotated" / str(pid)).exists()
        return self._annotated

    def health(self) -> RingHealth:
        header = self._header[0]
        return RingHealth(
            written=int(header["head"]),
            dropped=int(header["dropped"]),
            cupti_dropped=int(header["cupti_dropped"]),
            callback_ns=int(header["callback_ns"]),
            traced_ns=int(header["traced_ns"]),
            paused_ns=int(header["paused_ns"]),
            heartbeat_ns=int(header["heartbeat_ns"]) or None,
        )

    def wish(self, period_ns: int, step_name: int) -> None:
        """Say how often a window of tracing may be opened in the process, and the number of the
        string by which it knows a step: 0 if it is not known.
        """
        self._header["step_name"][0] = step_name
        self._header["period_ns"][0] = period_ns

    @property
    def exited(self) -> bool:
        """The process ended properly: the ring holds all there will be."""
        return bool(self._header["exited"][0])

    def thread_name(self, thread: int) -> str | None:
        """The operating system's name of a thread of the process; None if unknown: the thread is
        gone, or the process is in another pid namespace.
        """
        name = self._of_thread(thread, "comm")
        return None if name is None else name.rstrip(b"\n").decode("utf-8", "replace")

    def thread_priority(self, thread: int) -> int | None:
        """The scheduler's priority of a thread, 20 where nobody changed it; None if unknown."""
        stat = self._of_thread(thread, "stat")
        # The 18th field (proc(5)); the second is a name, which may have blanks and brackets.
        fields = (stat or b"").rpartition(b")")[2].split()
        return int(fields[15]) if len(fields) > 15 else None

    def _of_thread(self, thread: int, file: str) -> bytes | None:
        """A file that the system has of a thread of the process."""
        if self.gone or int(self._header["pid_namespace"][0]) not in {0, _own_pid_namespace()}:
            return None
        try:
            return Path(f"/proc/{int(self._header['pid'][0])}/task/{thread}/{file}").read_bytes()
        except OSError:
            return None

    @property
    def gone(self) -> bool:
        """The process is dead (or a zombie, or its pid was reused).

        In another pid namespace (a container) only a proper end is noticed.
        """
        if int(self._header["pid_namespace"][0]) not in {0, _own_pid_namespace()}:
            return self.exited
        pid, ticks = int(self._header["pid"][0]), int(self._header["start_ticks"][0])
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            # A pid may be used again: the moment it started, in clock ticks, distinguishes it.
            return fields[0] in {b"Z", b"X"} or int(fields[19]) != ticks
        except (OSError, IndexError, ValueError):
            return True

    def close(self) -> None:
        """Unmap the ring and drop what is held. Nothing may be called afterwards, and no watch may
        still use it.
        """
        self._library.gputui_ring_close(self.handle)
        self._unmap()

    def _unmap(self) -> None:
        self._header = None
        self._library.gputui_unguard(self._address)
        self._map.close()


def _map_file(path: Path) -> mmap.mmap:
    try:
        # The folder is the program's to write in: a link there must not lead elsewhere, nor a FIFO
        # block.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RingError(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RingError(f"{path}: not a regular file")
        if status.st_size < HEADER_BYTES + SLOT_BYTES:
            raise RingError(f"{path}: {status.st_size} bytes are too few for a ring")
        if status.st_size > HEADER_BYTES + SLOTS_MAX * SLOT_BYTES:
            raise RingError(f"{path}: {status.st_size} bytes are too many for a ring")
        return mmap.mmap(fd, status.st_size)
    except (OSError, ValueError) as error:
        if isinstance(error, RingError):
            raise
        raise RingError(f"{path}: cannot be mapped: {error}") from None
    finally:
        os.close(fd)


def _checked_capacity(path: Path, header: np.void, size: int) -> int:
    if int(header["magic"]) != MAGIC:
        raise RingError(f"{path}: not a gputui ring")
    if int(header["layout_version"]) != LAYOUT_VERSION:
        raise RingError(
            f"{path}: layout {int(header['layout_version'])}, this gputui reads "
            f"{LAYOUT_VERSION}: rebuild the library with python -m gputui.inject.build"
        )
    capacity = int(header["capacity"])
    if (
        int(header["header_bytes"]) != HEADER_BYTES
        or int(header["slot_bytes"]) != SLOT_BYTES
        or capacity < 1
        # Both sides mask numbers of slots with it, so it is a power of two.
        or capacity & (capacity - 1)
        or HEADER_BYTES + capacity * SLOT_BYTES > size
    ):
        raise RingError(f"{path}: the header's sizes do not fit the file")
    return capacity


@functools.cache
def _own_pid_namespace() -> int:
    try:
        # A pid means nothing in another pid namespace: processes are the same only if both agree.
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _present(number: int) -> int | None:
    return number if number >= 0 else None


def _text(raw: bytes) -> str:
    return sanitize(bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace"))


# --- Strings defined among a ring's records.


class StringDefinitions:
    """Separates string definitions from batches of records.

    Holds back a definition that ends in the next batch. `cleaner` makes each text safe to draw and
    store.
    """

    def __init__(self, cleaner: Callable[[str, int], str] = sanitize) -> None:
        self._clean = cleaner
        self._carried: Records = np.empty(0, SLOT)

    def split(self, records: Records) -> tuple[Records, dict[int, str]]:
        """The other records, and string id → text of the definitions among them.

        Batches must come in the order in which they were read. A definition precedes the first
        record that uses its id, except while records were dropped: then it may come later.
        """
        if len(self._carried):
            records = np.concatenate((self._carried, records))
            self._carried = self._carried[:0]
        candidates = np.flatnonzero(records["kind"] == RecordKind.STRING)
        if not len(candidates):
            return records, {}
        strings: dict[int, str] = {}
        keep = np.ones(len(records), np.bool_)
        numbers = records["published"]
        position = 0
        for start in candidates.tolist():
            if start < position:  # the bytes of a string may look like anything
                continue
            length = int(records["value"][start])
            keep[start] = False
            position = start + 1
            # No string of the library's: the slot is left out, and nothing behind it.
            if length > STRING_BYTES_MAX:
                continue
            slots_left = -(-length // STRING_BYTES_PER_SLOT)
            position, whole = _end_of_string(numbers, start, slots_left)
            if not whole and position == len(records):
                self._carried = records[start:].copy()
                records, keep = records[:start], keep[:start]
                break
            keep[start:position] = False
            if whole:
                slots = records[start + 1 : position].view(np.uint8).reshape(slots_left, SLOT_BYTES)
                text = slots[:, :STRING_BYTES_PER_SLOT].tobytes()[:length]
                strings[int(records["name"][start])] = self._clean(
                    text.decode("utf-8", "replace"), STRING_BYTES_MAX
                )
        return records[keep], strings


def _end_of_string(numbers: npt.NDArray[np.uint32], start: int, count: int) -> tuple[int, bool]:
    """The row after the last slot of the string at `start`, and whether all its slots are there.

    Slots are numbered, so a string whose writer was killed half-way swallows nothing else.
    """
    end = start + 1 + count
    first = int(numbers[start])
    if end <= len(numbers) and int(numbers[end - 1]) == (first + count) & 0xFFFFFFFF:
        return end, True
    behind = numbers[start + 1 : end] - np.uint32(first)  # wraps, as the numbers do
    return start + 1 + int(np.count_nonzero(behind <= count)), False


# The rings of a run: finding new ones in its folder, and keeping all of them from overflowing.
#
# For `attribute.reader`, which reads each of them with `ring.reader`.

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

# At most this fraction of the machine's memory, if that is less.
_PART_OF_MEMORY = 8


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
