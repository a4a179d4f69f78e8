"""The process that gputui attaches to: whether it may, and the word by which it is woken again.

For `attach`, which puts the capture library into it, and for runs that attach. Nothing here needs
ptrace, and the checks touch nothing of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import pwd
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputui.base import GputuiError
from gputui.base.sanitize import sanitize
from gputui.inject.build import CAPTURE, INJECTOR, LIBRARIES
from gputui.inject.environment import LOADERS, holder_of

# The word of a process that carries the capture library asleep: how it is woken and put to sleep.
#
# `src/word.h` mirrors the layout and says what the word is and why. Nothing here needs ptrace.

WORD_NAME = "gputui-word"
# "GUPWORD1": a file of that name need not be a word.
WORD_MAGIC = 0x475550574F524431
WORD_VERSION = 2
WORD_BYTES = 4096
LAYOUT_VERSION = 2
"""The version of the ring's layout (src/layout.h, gputui.ring). A library of another gputui might
write a ring in its own way. The number is here because this package cannot import gputui.ring; a
test compares it with the C."""

PYTHON_NONE, PYTHON_WAITS, PYTHON_HOOKED, PYTHON_FAILED = range(4)
_WORD_LINK = f"/memfd:{WORD_NAME}"
# linux/futex.h. The library sleeps on the word without waking for anything else.
_FUTEX_WAKE = 1
# glibc has no wrapper for futex(2), and syscall numbers are the architecture's.
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_POLL_S = 0.002


class WordError(GputuiError):
    """A process cannot be woken; the message is one line for people."""


class WordPage(ctypes.Structure):
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
        ("seccomp_filters", ctypes.c_uint32),
        ("kernels", ctypes.c_uint32),
        ("modules", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("folder", ctypes.c_char * 512),
        ("sampling", ctypes.c_char * 512),
    )


class Word:
    """One process's word, held by this monitor until `close`."""

    def __init__(self, fd: int) -> None:
        """Takes over `fd`. Raises WordError."""
        self._fd = fd
        try:
            self._map = mmap.mmap(fd, WORD_BYTES)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise WordError(f"its word cannot be mapped: {error}") from None
        self._page: Any = WordPage.from_buffer(self._map)

    @property
    def page(self) -> WordPage:
        """What the process says. Not to be kept."""
        page: WordPage = self._page
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
            # Odd wakes, even puts to sleep: counted up, a change there and back cannot be missed.
            page.wanted = (page.wanted + 1) & 0xFFFF_FFFF
        _wake_futex(ctypes.addressof(page) + WordPage.wanted.offset)
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
        if status.st_size != WORD_BYTES:
            os.close(fd)
            continue
        # What is written there is believed by the process: nothing is, into another user's file.
        if status.st_uid != os.geteuid():
            os.close(fd)
            raise WordError("it belongs to another user")
        word = Word(fd)
        if word.page.magic == WORD_MAGIC and word.page.pid == _own_pid(pid):
            if (word.page.version, word.page.layout_version) == (WORD_VERSION, LAYOUT_VERSION):
                return word
            word.close()
            raise WordError("it carries another version of gputui: restart it")
        word.close()  # its parent's, which it has since the fork
    return None


def _word_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}").startswith(_WORD_LINK):
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


# Whether gputui may attach to a process: a check that fails is one line that says what would
# help.
#
# Only looks; nothing of the process is touched.

_TOOLS = (
    ("Nsight Systems (nsys)", ("libToolsInjection", "nsight-systems", "nsight_systems")),
    ("Nsight Compute (ncu)", ("nsight-compute", "nsight_compute", "libInterceptorInjection")),
)

# What the word (`seccomp_filters` in src/process.inc.c) holds of filters that nobody counts.
_UNCOUNTED = 0xFFFF_FFFF
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "snmalloc", "hoard")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
# linux/capability.h.
_CAP_SYS_PTRACE = 19
_ELF_HEAD = struct.Struct("<4sBB10xHH")


class AttachError(GputuiError):
    """gputui does not attach to the process; one line says why, and what would help."""


def status_of(pid: int | str) -> dict[str, str]:
    """The fields of /proc/PID/status; empty if there is no such process. `pid` may also be
    "PID/task/TID".
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def check_process(pid: int) -> None:
    """Whether it is one that may be looked at. Raises AttachError."""
    status = status_of(pid)
    if not status:
        raise AttachError(f"there is no process {pid}")
    if pid == os.getpid():
        raise AttachError(f"process {pid} is gputui itself")
    if status.get("Tgid", str(pid)) != str(pid):
        raise AttachError(f"{pid} is a thread of process {status['Tgid']}: attach to that")
    state = status.get("State", "?")[:1]
    if state == "Z" and status.get("Threads", "1") != "1":
        raise AttachError(
            f"the main thread of process {pid} has ended (pthread_exit): its other threads run on, "
            "but the system shows nothing of such a process"
        )
    if state in "ZX":
        raise AttachError(f"process {pid} has ended; its parent has not yet asked for its status")
    if state in "Tt":
        raise AttachError(f"process {pid} is stopped: continue it first (kill -CONT {pid})")
    owners = {int(word) for word in status.get("Uid", "-1").split()}
    if os.geteuid() != 0 and owners != {os.geteuid()}:
        user = _user(max(owners - {os.geteuid()}))
        raise AttachError(f"process {pid} belongs to {user}: run gputui as that user or as root")
    if os.geteuid() == 0 and owners != {0}:
        user = _user(max(owners))
        raise AttachError(f"process {pid} belongs to {user}: run gputui as that user")
    if (tracer := int(status.get("TracerPid", "0"))) != 0:
        name = sanitize(status_of(tracer).get("Name", "?"), 50)
        raise AttachError(
            f"process {pid} is traced by {name} ({tracer}), which must let it go first"
        )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def maps_of(pid: int) -> str:
    """The text of /proc/PID/maps: which files the process has mapped. Raises AttachError."""
    try:
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError as error:
        raise AttachError(hidden_reason(pid, error)) from None


def check_program(pid: int) -> None:
    """Whether the library can be handed to it. Raises AttachError."""
    if INJECTOR not in LIBRARIES:
        raise AttachError(
            f"attaching needs x86-64 or aarch64, this is {os.uname().machine}: start the program "
            'with gputui -- CMD, or in a shell after eval "$(gputui env)"'
        )
    maps = maps_of(pid)
    if not maps:
        raise AttachError(f"process {pid} is a thread of the kernel")
    if (limit := limit_of(pid, "Max file size")) is not None and limit < WORD_BYTES:
        raise AttachError(
            f"process {pid} may write no file of {WORD_BYTES} bytes (ulimit -f), which it needs "
            "for gputui to talk to it"
        )
    if not _sees_proc(pid):
        raise AttachError(
            f"process {pid} sees no /proc (a chroot without it?), through which the library is "
            "handed to it"
        )
    # A filter ended 7 of 7 programs that were attached to.
    if any(may_end_by_seccomp(pid, thread) for thread in _threads_of(pid)):
        raise AttachError(seccomp_refusal(pid))
    for name, signs in _TOOLS:
        if any(sign in maps for sign in signs):
            raise AttachError(f"{name} is in process {pid}, and CUPTI serves only one tool")
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            variable, _, value = entry.decode("utf-8", "replace").partition("=")
            if variable in LOADERS and value and Path(value).name != CAPTURE.path.name:
                raise AttachError(f"process {pid} was started for {holder_of(value)}")
    _check_image(pid, maps)


def limit_of(pid: int, name: str) -> int | None:
    """A soft limit of the process by its name in /proc/PID/limits; None if it has none."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/limits").read_text(errors="replace").splitlines():
            if line.startswith(name):
                value = line[len(name) :].split()[:1]
                return int(value[0]) if value and value[0].isdigit() else None
    return None


def _sees_proc(pid: int) -> bool:
    """Whether the process has an entry of its own in the /proc that it sees, under one of its
    numbers in the pid namespaces in which it is."""
    numbers = status_of(pid).get("NSpid", str(pid)).split()
    return any(os.path.exists(f"/proc/{pid}/root/proc/{number}/fd") for number in numbers)


def _threads_of(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def may_end_by_seccomp(pid: int, thread: int | str) -> bool:
    """Whether a seccomp filter may end the process for a system call that handing over the library
    makes in this thread (memfd_create, openat, mmap, mprotect, clone3 ...).

    What a filter allows cannot be read without CAP_SYS_ADMIN. If both are in one container, gputui
    is under the container's filter, too: the filter has let gputui start, and lets the program have
    the library. So the same number of filters as gputui has, in the same mount and pid namespaces,
    counts as the same filters. Kernels before 5.9 do not tell how many there are.
    """
    status = status_of(f"{pid}/task/{thread}")
    mode = status.get("Seccomp", "0")
    if mode == "0":
        return False
    filters = status.get("Seccomp_filters")
    own = status_of(os.getpid())
    return (
        mode != "2"
        or filters is None
        or filters != own.get("Seccomp_filters")
        or not all(_shares_namespace(pid, kind) for kind in ("mnt", "pid"))
    )


def has_more_filters(pid: int, filters: int) -> bool:
    """Whether a thread of the process is under more than this many seccomp filters. It then got one
    after its library was loaded, and that may end the process for a system call that waking makes
    (openat, ftruncate, mmap, clone3 ...).

    Strict mode counts as more than any number. So does a filter if the kernel (before 5.9) does not
    tell how many there are: the word holds the same number there, so that a program that was under
    a filter from the start is woken.
    """
    threads = [status_of(f"{pid}/task/{thread}") for thread in _threads_of(pid)]
    return any(_filters_of(status) > filters for status in threads)


def _filters_of(status: dict[str, str]) -> int:
    mode = status.get("Seccomp", "0")
    if mode == "0":
        return 0
    return int(status.get("Seccomp_filters", _UNCOUNTED)) if mode == "2" else _UNCOUNTED


def _shares_namespace(pid: int, kind: str) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}")
    except OSError:
        return False


def seccomp_refusal(pid: int) -> str:
    """Why a process under a seccomp filter is left alone."""
    return (
        f"process {pid} runs under a seccomp filter, which may end it for a system call that "
        "loading a library makes (browsers, sandboxes, containers seen from outside): run gputui "
        'in the same container, or start the program after eval "$(gputui env)"'
    )


def _check_image(pid: int, maps: str) -> None:
    try:
        with open(f"/proc/{pid}/exe", "rb") as other, open("/proc/self/exe", "rb") as own:
            theirs, ours = (_ELF_HEAD.unpack(file.read(_ELF_HEAD.size)) for file in (other, own))
    except (OSError, struct.error) as error:
        reason = error if isinstance(error, OSError) else OSError()
        raise AttachError(hidden_reason(pid, reason)) from None
    if (theirs[1], theirs[4]) != (ours[1], ours[4]):
        raise AttachError(f"process {pid} is of another architecture than gputui")
    # glibc before 2.34 is installed as libc-2.NN.so.
    if "/libc.so.6" not in maps and "/libc-2." not in maps:
        kind = "uses musl" if "-musl" in maps else "is linked statically"
        raise AttachError(f"process {pid} {kind}: it cannot load a library of glibc's")


def hidden_reason(pid: int, error: OSError) -> str:
    """Why nothing can be read of a process."""
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return f"there is no process {pid}"
    return (
        f"process {pid} does not let others look at it (it changed its rights, or runs a file that "
        "you may not read): run gputui as root, or start it with gputui -- CMD"
    )


def ptrace_refusal(pid: int) -> str:
    """Why the system forbids it, as far as that can be known."""
    scope = 0
    with contextlib.suppress(OSError, ValueError):
        scope = int(_YAMA.read_text())
    capable = int(status_of(os.getpid()).get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1
    instead = 'or start it after eval "$(gputui env)": waking it needs no such right'
    if scope == 3:
        return f"the system lets nobody attach (kernel.yama.ptrace_scope is 3): {instead[3:]}"
    if scope and not capable:
        return (
            f"the system lets only {'parents' if scope == 1 else 'administrators'} attach "
            f"(kernel.yama.ptrace_scope is {scope}): run gputui with CAP_SYS_PTRACE (sudo), "
            f"{instead}"
        )
    return (
        f"the system does not let gputui attach to process {pid}: a container may lack "
        f"CAP_SYS_PTRACE, or the process has rights that gputui lacks; {instead}"
    )


def has_glibc_malloc(pid: int) -> bool:
    """Whether no other allocator is loaded, nor malloc defined by the program itself: where the
    locks of another lie is not known.
    """
    names = maps_of(pid).lower()
    if any(name in names for name in _ALLOCATORS):
        return False
    try:
        return not any(name == b"malloc" for name in _defined_names(Path(f"/proc/{pid}/exe")))
    except (OSError, struct.error, ValueError):
        return False


def _defined_names(path: Path) -> Iterator[bytes]:
    """The dynamic symbols that a 64-bit little-endian ELF file defines. Raises ValueError,
    struct.error and OSError.
    """
    dynamic_symbols, most = 11, 64 << 20
    with path.open("rb") as file:
        head = file.read(64)
        (sections_at,) = struct.unpack_from("<Q", head, 40)
        entry_bytes, count = struct.unpack_from("<HH", head, 58)
        if entry_bytes != 64 or count == 0:
            raise ValueError("no sections")  # nothing is known of it then
        file.seek(sections_at)
        table = file.read(entry_bytes * count)
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", table[: len(table) // 64 * 64]))
        for _, kind, _, _, offset, size, link, _, _, _ in sections:
            if kind != dynamic_symbols or size > most or link >= len(sections):
                continue
            file.seek(offset)
            symbols = file.read(size)
            file.seek(sections[link][4])
            names = file.read(min(sections[link][5], most))
            for name, _, _, section, _, _ in struct.iter_unpack(
                "<IBBHQQ", symbols[: len(symbols) // 24 * 24]
            ):
                if section:
                    yield names[name : names.find(b"\0", name)]
