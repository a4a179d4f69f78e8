"""Attaching to a process that runs: handing over the library, finding its word.

Nothing is touched unless every check (target) has passed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gputui.base.sanitize import sanitize
from gputui.inject.build import CAPTURE, INJECTOR
from gputui.inject.environment import SHARED_MEMORY, library_path, missing_library_reason
from gputui.inject.target import (
    AttachError,
    Word,
    WordError,
    check_process,
    check_program,
    has_glibc_malloc,
    has_more_filters,
    hidden_reason,
    limit_of,
    maps_of,
    open_word,
    ptrace_refusal,
    seccomp_refusal,
)

INJECTION_S = 10.0
"""Longer than the injector looks for a moment."""
BEGIN_S = 10.0
"""How long the library may take to begin, once it was handed over: on a busy machine its thread
waits for its turn."""

_HANDED_OVER = "/memfd:gputui-capture"
# The library signals nobody when it has begun: its word appears among the process's files.
_POLL_S = 0.005


def attach(pid: int) -> Word:
    """The word of process `pid`, held by this gputui and asleep; the library is handed over first
    to a process that does not carry it. Takes up to some seconds. Raises AttachError.
    """
    if library_path() is None:
        raise AttachError(missing_library_reason())
    check_process(pid)
    word = _word(pid)
    if word is None:
        maps = maps_of(pid)
        # CUPTI has one subscriber a process: a second library in it would get nothing.
        if CAPTURE.path.name in maps:
            raise AttachError(f"process {pid} was started by gputui, which traces it already")
        if _HANDED_OVER in maps:
            raise AttachError(
                # A library that is there already is not loaded a second time.
                f"process {pid} carries gputui, but has closed the file by which it is woken: "
                "restart it"
            )
        check_program(pid)
        _run_injector(pid, str(CAPTURE.path))
        word = _await_word(pid)
    try:
        # A lock on the word's file, which the system frees however this gputui ends.
        word.hold()
    except WordError as error:
        word.close()
        raise AttachError(f"process {pid}: {error}") from None
    if has_more_filters(pid, word.page.seccomp_filters):
        word.close()
        raise AttachError(
            f"process {pid} has put itself under a seccomp filter since it began, which may end it "
            "for a system call that tracing makes: trace it before it does, with gputui -- CMD"
        )
    return word


def _word(pid: int) -> Word | None:
    try:
        return open_word(pid)
    except WordError as error:
        raise AttachError(f"process {pid}: {error}") from None
    except OSError as error:
        raise AttachError(hidden_reason(pid, error)) from None


def _run_injector(pid: int, what: str) -> None:
    """Lets the injector hand the library `what` to process `pid` or, as "close:N", close its file
    N. Raises AttachError with the injector's message."""
    words = [str(INJECTOR.path), str(pid), what]
    # Of glibc's it is known where its locks lie: a thread that waits in a futex can be judged then.
    if has_glibc_malloc(pid):
        words.append("futex")
    injector = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # a Ctrl-C is not for it: it finishes what it has begun
    )
    try:
        said, _ = injector.communicate(timeout=INJECTION_S)
    # Never killed: it may have changed registers that only it can put back.
    except subprocess.TimeoutExpired:
        raise AttachError(
            f"process {pid} cannot be stopped now: it is in an uninterruptible system call; the "
            "injector lets it go as soon as it can"
        ) from None
    if injector.returncode == 0:
        return
    raise AttachError(_refusal(pid, said.strip(), injector.returncode))


def _refusal(pid: int, said: str, status: int) -> str:
    if status < 0:
        return f"the injector was ended by {signal.Signals(-status).name}"
    match said:
        case "ended":
            return f"process {pid} has ended"
        case "other-libc":
            return (
                f"process {pid} has another C library than gputui, as in a container of its own: "
                "run gputui in there"
            )
        case "seccomp":
            return seccomp_refusal(pid)
        case "no-files":
            return (
                f"process {pid} has as many files open as it may (ulimit -n), so the library "
                "cannot be handed to it; nothing was changed"
            )
        case "no-moment":
            return (
                f"no thread of process {pid} came to a moment that is safe: none allocates, and "
                "none waits where it certainly holds no lock. Nothing was changed; try again, or "
                'start it after eval "$(gputui env)"'
            )
        case "ptrace":
            return ptrace_refusal(pid)
        case _:
            return f"process {pid} could not be attached to: {sanitize(said, 100) or 'no reason'}"


@contextlib.contextmanager
def shared_memory_of(pid: int) -> Iterator[Path | None]:
    """The shared memory of a process in a container of its own, as a path that outlives it; None if
    it has ours, or none that can be entered.
    """
    held: list[int] = []
    try:
        place = None
        with contextlib.suppress(OSError):
            held.append(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            for name in SHARED_MEMORY.parts[1:]:
                # A link in there would be followed out here.
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                held.append(os.open(name, flags, dir_fd=held[-1]))
            if not os.path.samestat(os.fstat(held[-1]), os.stat(SHARED_MEMORY)):
                place = Path(f"/proc/self/fd/{held[-1]}")
        yield place
    finally:
        for descriptor in held:
            os.close(descriptor)


def _await_word(pid: int) -> Word:
    end = time.monotonic() + BEGIN_S
    while time.monotonic() < end:
        word = _word(pid)
        if word is not None:
            return word
        time.sleep(_POLL_S)
    _close_handed_over(pid)
    raise AttachError(
        f"process {pid} did not load the library in {BEGIN_S:g} s: {_why_not_loaded(pid)}; the "
        "program goes on"
    )


def _close_handed_over(pid: int) -> None:
    """Have a process that could not load the library close its file."""
    if _HANDED_OVER in maps_of(pid):
        return  # it is loading it, and closes it itself
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError, AttachError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(folder / number).startswith(_HANDED_OVER):
                    _run_injector(pid, f"close:{number}")


def _why_not_loaded(pid: int) -> str:
    if limit_of(pid, "Max address space") is not None:
        return "its address space is limited (ulimit -v), and may have no room for it"
    return "its C library may be too old, or a rule of the system's forbids it"


class Detached(NamedTuple):
    """What became of a process that was to sleep."""

    was_awake: bool
    keeps_cupti: bool
    """CUPTI has traced kernels in it, and stays."""


def detach(pid: int) -> Detached:
    """Put process `pid` to sleep, whichever gputui woke it. Raises AttachError."""
    check_process(pid)
    word = _word(pid)
    if word is None:
        raise AttachError(f"process {pid} was not attached to")
    try:
        was_awake = word.is_awake
        if was_awake and not word.sleep(BEGIN_S):
            raise AttachError(f"process {pid} does not answer: it sleeps as soon as it can")
        return Detached(was_awake, bool(word.page.cupti_stays))
    finally:
        word.close()
