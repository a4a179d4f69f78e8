"""How a child process loads the capture library: its environment and a private folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.base.sanitize import sanitize
from gputui.cures import VARIABLE
from gputui.inject import Annotate, CaptureRange, GraphTrace, TraceSampling
from gputui.inject.build import CALLS, CAPTURE, HOOK, LIBRARIES

SHARED_MEMORY = Path("/dev/shm")
FOLDER_PREFIX = "gputui-"
LOCK_NAME = ".gputui-lock"
# Of the names that tempfile gives.
_RANDOM_LETTERS = 8

ROOM_BYTES = 128 << 20
"""Shared memory must have this much free to be chosen: a few processes' rings of 16 MiB."""

_CUDA = "CUDA_INJECTION64_PATH"
_NVTX = "NVTX_INJECTION64_PATH"
LOADERS = (_NVTX, _CUDA)
"""The variables by which NVTX and the CUDA driver load a tool into a program."""

_KNOWN_TOOLS = (
    ("Nsight Compute (ncu)", ("nsight-compute", "nsight_compute")),
    ("Nsight Systems (nsys)", ("nsight-systems", "nsight_systems", "libtoolsinjection")),
    ("CUPTI", ("libcupti",)),
)
# Preloaded libraries up to this size are inspected.
_PRELOADED_BYTES = 64 << 20

# Commands that set the two variables for their own child.
_PROFILERS = {
    "nsys": "Nsight Systems (nsys)",
    "ncu": "Nsight Compute (ncu)",
    "nv-nsight-cu-cli": "Nsight Compute (ncu)",
}


def library_path() -> Path | None:
    """The library for traced processes; None if it or the monitor's is not built, or built from
    other sources.
    """
    return CAPTURE.path if all(library.is_current() for library in LIBRARIES) else None


def missing_library_reason() -> str:
    """One line for people: why `library_path` gives None and how to fix it."""
    if not sys.platform.startswith("linux"):
        return f"the capture library needs Linux, this is {sys.platform}"
    mend = f"{sys.executable} -m gputui.inject.build"
    if all(library.path.is_file() for library in LIBRARIES):
        return f"the capture library is from another version of gputui: run {mend}"
    # A library of other sources is known by its mark: after an update it wrote what the new reader
    # did not know, and the run ended with no process seen.
    return f"the capture library is not built: install gcc or clang and run {mend}"


class InTheWay(NamedTuple):
    """What is missing of phases and kernels, and why; and what may be: a tool that may be in the
    way, which nobody can ask before there are kernels or none. None where nothing is."""

    certain: str | None = None
    feared: str | None = None


def capture_environment(
    folder: Path,
    kernels: bool,
    base_environment: Mapping[str, str],
    graph_trace: GraphTrace = "node",
    annotate: Annotate | None = None,
    trace_sampling: TraceSampling | CaptureRange | None = None,
    command: Sequence[str] = (),
    line_rate_hz: int = 0,
    step_marks: bool = False,
    library_calls: bool = False,
) -> tuple[dict[str, str], InTheWay]:
    """The environment for a captured child, and what stands in the way, if anything.

    `base_environment` plus what makes the driver and NVTX load the capture library in the child and
    all its descendants; rings appear in `folder`. `kernels=False` leaves CUDA alone; `annotate`
    makes Python interpreters put ranges around torch's operations; `trace_sampling` traces
    kernels part of the time, or in a part of the program; `line_rate_hz` has Python interpreters
    that import torch, JAX or another library that uses GPUs say so often a second at which line
    they are; `step_marks` makes libraries that have a loop mark the program's steps;
    `library_calls` puts ranges around calls of cuBLAS and cuDNN.

    A variable set by another tool is left alone. The second value then says what will be missing of
    phases and kernels and which tool is in the way: one that holds a variable; and which may be: a
    profiler that is `command` itself, nsys around gputui, or one that LD_PRELOAD loads.
    """
    environment = dict(base_environment)
    library = library_path()
    if library is None:
        return environment, InTheWay(missing_library_reason())
    places = {_NVTX: "phases", _CUDA: "kernels"} if kernels else {_NVTX: "phases"}
    held = {
        variable: holder_of(holder)
        for variable in places
        if (holder := base_environment.get(variable, "")) and Path(holder).name != CAPTURE.path.name
    }
    for variable in places.keys() - held.keys():
        environment[variable] = str(library)
    problems = _missing(places, held)
    feared = None
    tool = _PROFILERS.get(Path(command[0]).name) if command else None
    if tool and len(held) < len(places):
        feared = f"maybe no {' and no '.join(places.values())}: {tool} captures them itself"
    elif kernels and _CUDA not in held and any(n.startswith("NSYS_") for n in base_environment):
        feared = (
            "maybe no kernels: NSYS_ variables suggest that nsys is tracing; CUPTI serves one tool"
        )
    elif not held and (tool := _preloaded(base_environment.get("LD_PRELOAD", ""))):
        feared = f"maybe no {' and no '.join(places.values())}: LD_PRELOAD loads {tool}"
    # gputui inside gputui: the variable is the outer one's, which was asked for kernels.
    if not kernels and Path(base_environment.get(_CUDA, "")).name == CAPTURE.path.name:
        del environment[_CUDA]
    if base_environment.get("NVTX_DISABLE"):
        problems.append("no phases of the nvtx package: NVTX_DISABLE is set")
    environment["GPUTUI_CAPTURE_DIR"] = str(folder.absolute())
    environment["GPUTUI_CAPTURE_KERNELS"] = "1" if kernels else "0"
    environment["GPUTUI_GRAPH_TRACE"] = graph_trace
    if trace_sampling is not None:
        environment["GPUTUI_TRACE_SAMPLING"] = trace_sampling.encode()
    if line_rate_hz:
        environment["GPUTUI_LINES"] = str(line_rate_hz)
    if step_marks:
        environment["GPUTUI_STEP_MARKS"] = "1"
    if annotate is not None:
        environment["GPUTUI_ANNOTATE"] = annotate
    if library_calls:
        others = base_environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = ":".join(filter(None, (str(CALLS.path), others)))
    if step_marks or annotate is not None or library_calls:
        environment["GPUTUI_CAPTURE_LIBRARY"] = str(library)
    if line_rate_hz or step_marks or annotate is not None:
        paths = (str(HOOK), base_environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if (
        kernels
        and "GPUTUI_CUPTI_PATH" not in base_environment
        and (cupti := cupti_of_this_python())
    ):
        environment["GPUTUI_CUPTI_PATH"] = str(cupti)
    return environment, InTheWay("; ".join(problems) or None, feared)


def trial_environment(
    folder: Path, base_environment: Mapping[str, str], cures: Sequence[str], trial: str
) -> dict[str, str]:
    """The environment of a program on which cures are tried. Nothing of it is captured; its steps
    are timed as `trial` says (JSON, see inject/hook/trial.py), and `cures`, by their names in
    `gputui.cures`, are applied for the whole run. What the program reports of both appears in
    `folder`."""
    environment = dict(base_environment)
    for variable in LOADERS:
        if Path(environment.get(variable, "")).name == CAPTURE.path.name:
            del environment[variable]
    environment["GPUTUI_CAPTURE_DIR"] = str(folder.absolute())
    environment["GPUTUI_STEP_MARKS"] = "1"
    environment["GPUTUI_TRIAL"] = trial
    wanted = (base_environment.get(VARIABLE, ""), *cures)
    environment[VARIABLE] = ",".join(filter(None, wanted))
    paths = (str(HOOK), base_environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def _missing(places: Mapping[str, str], held: Mapping[str, str]) -> list[str]:
    """What is missing, what is left, and which tool holds it: one line per tool."""
    lines: list[str] = []
    left = [what for variable, what in places.items() if variable not in held]
    rest = f" ({left[0]} are captured)" if left and held else ""
    for tool in dict.fromkeys(held.values()):
        variables = [variable for variable, holder in held.items() if holder == tool]
        what = " and no ".join(places[variable] for variable in variables)
        verb = "is" if len(variables) == 1 else "are"
        lines.append(f"no {what}{rest}: {' and '.join(variables)} {verb} held by {tool}")
    return lines


def holder_of(path: str) -> str:
    """The tool whose library this is, for people."""
    if path == "./.":
        return "a setting that disables tools (./.)"
    return _known_tool(path) or f"another tool ({sanitize(Path(path).name, 100)})"


def _known_tool(path: str) -> str | None:
    lowered = path.lower()
    for name, signs in _KNOWN_TOOLS:
        if any(sign in lowered for sign in signs):
            return name
    return None


def _preloaded(paths: str) -> str | None:
    """The CUDA or NVTX tool among preloaded libraries: one with a known name, or that has the entry
    point or sets the variable by which tools are loaded. Most preloaded libraries are allocators.
    """
    for path in filter(None, re.split("[ :]", paths)):
        if tool := _known_tool(path):
            return tool
        with contextlib.suppress(OSError, ValueError):
            if os.path.getsize(path) <= _PRELOADED_BYTES:
                content = Path(path).read_bytes()
                # What makes a library one that CUDA or NVTX load: then a tool is named that
                # LD_PRELOAD brings along.
                if any(word in content for word in (b"InitializeInjection", b"_INJECTION64_PATH")):
                    return holder_of(path)
    return None


def cupti_of_this_python() -> Path | None:
    """A libcupti that pip installed beside gputui, for programs that load none themselves."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    # Where the wheels of CUDA 13 and of CUDA 12 have it.
    for folder in ("cu13/lib", "cuda_cupti/lib"):
        for library in sorted((packages / folder).glob("libcupti.so.1?"), reverse=True):
            return library
    return None


@contextlib.contextmanager
def create_capture_folder(
    room_bytes: int = ROOM_BYTES, place: Path | None = None
) -> Iterator[Path]:
    """A new private folder (0700), in shared memory if that has room, else in the temporary folder;
    or in `place`, which is another's shared memory.

    Removed with all its rings on leaving the `with`: processes that still write there keep their
    memory and notice nothing. First removes folders left by dead gputui processes of this user.
    Raises OSError if neither place is writable.
    """
    _remove_stale(Path(os.environ.get("TMPDIR") or "/tmp"))
    path, lock_fd = _create_in(_roots(room_bytes) if place is None else [place])
    owner_pid = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == owner_pid:  # a forked child may come through here too
            _remove(path)
        os.close(lock_fd)


def _roots(room_bytes: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        free = os.statvfs(SHARED_MEMORY)
        # No probe is written where shared memory serves: whoever was killed at the wrong moment
        # left a file.
        if free.f_bavail * free.f_frsize >= room_bytes and os.access(SHARED_MEMORY, os.W_OK):
            yield SHARED_MEMORY
    yield Path(tempfile.gettempdir())  # only where it is needed: it writes a file to try each place


def _create_in(roots: Iterable[Path]) -> tuple[Path, int]:
    """A folder in the first of `roots` that works, and the descriptor that locks it."""
    failure = OSError()
    for root in roots:
        _remove_stale(root)
        try:
            while True:
                path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=root))
                lock_fd = _lock(path)
                if lock_fd is not None:
                    return path, lock_fd
        except OSError as error:
            failure = error
    raise failure


def _lock(path: Path) -> int | None:
    """None if another gputui took the folder for that of a dead one."""
    lock_fd = -1
    try:
        lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock may have been removed and made anew between opening and locking it.
        if os.path.samestat(os.fstat(lock_fd), os.stat(path / LOCK_NAME)):
            return lock_fd
    except (FileNotFoundError, BlockingIOError):
        pass
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        _close(lock_fd)
        raise
    _close(lock_fd)
    return None


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """The lock last: whoever is killed meanwhile leaves what the next one removes."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            # The lock goes last: whoever is killed meanwhile leaves a folder that the next one
            # recognizes and removes.
            elif entry.name != LOCK_NAME:
                os.unlink(entry.path)
    shutil.rmtree(path, ignore_errors=True)


def _remove_stale(root: Path) -> None:
    """Remove our folders in `root` whose lock nobody holds.

    A folder counts as ours by its prefix, owner, mode and lock file, or if there is nothing in it
    and it has a name as we give them, which no other folder of gputui's has. One that is just being
    made is made again.
    """
    for path in _own_folders(root):
        with contextlib.suppress(OSError):
            if len(path.name) == len(FOLDER_PREFIX) + _RANDOM_LETTERS and not os.listdir(path):
                path.rmdir()
            lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(lock_fd)


def _own_folders(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(root)):
            if not entry.name.startswith(FOLDER_PREFIX):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                # What others could write to may hold anything, and is not ours to remove.
                private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
                if private and status.st_uid == os.getuid():
                    yield Path(entry.path)
