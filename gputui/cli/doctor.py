"""What works on this machine, what does not, why, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.metadata
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gputui.attribute.reader import CaptureReader
from gputui.base.sanitize import sanitize
from gputui.cli.dispatch import print_json
from gputui.collect.catalogue import CatalogueError, load_catalogue
from gputui.collect.live import read_once
from gputui.counters.sampler import counter_holders, counter_rights
from gputui.inject.build import COUNTERS
from gputui.inject.environment import (
    capture_environment,
    create_capture_folder,
    cupti_of_this_python,
    library_path,
    missing_library_reason,
)
from gputui.model.events import SCHEMA_VERSION, RangeDefined
from gputui.model.hub import Numbering
from gputui.state import Session
from gputui.store import default_folder

_SELF_TEST = "import nvtx\nwith nvtx.annotate('gputui self-test'): pass"

Status = Literal["ok", "absent", "warning", "missing"]
"""How a check ended. `absent` is something that is not needed, and no fault."""


class Check(msgspec.Struct, frozen=True):
    """One check. `mend` is how to fix it, None if there is nothing to do."""

    name: str
    status: Status
    detail: str
    mend: str | None = None


class DoctorDocument(msgspec.Struct, frozen=True):
    """What works on this machine and what does not."""

    schema: int
    checks: list[Check]


def run_doctor(options: argparse.Namespace) -> int:
    """Print every check, as text or JSON; return the exit status, which is 0 whatever they find."""
    checks = examine()
    if options.json:
        print_json(DoctorDocument(SCHEMA_VERSION, checks))
    else:
        sys.stdout.write(text(checks))
        sys.stdout.flush()
    return 0


def examine() -> list[Check]:
    """Every check, in the order a user needs things. Takes about a second."""
    return [_cleaned(check) for look in _LOOKS for check in look()]


def _cleaned(check: Check) -> Check:
    """What the environment and other packages report, safe to print."""
    mend = check.mend and sanitize(check.mend)
    return Check(sanitize(check.name), check.status, sanitize(check.detail), mend)


def text(checks: list[Check]) -> str:
    """The checks as text: a line for each and, for those that are not ok, how to mend them."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.detail}")
        if check.mend:
            lines.append(f"{'':8} {'':{width}}  → {check.mend}")
    return "\n".join(lines) + "\n"


def _python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", "ok", f"{version} ({sys.executable})")


def _machine() -> Iterator[Check]:
    session = Session.from_events(read_once())
    header = session.header
    if header is None or header.gpu_unavailable_reason:
        reason = header.gpu_unavailable_reason if header else "the machine could not be read"
        yield Check(
            "driver",
            "missing",
            str(reason),
            "install the NVIDIA driver to see GPUs; without it host figures, workloads on the "
            "CPU and recordings work",
        )
        return
    yield Check("driver", "ok", f"{header.driver_version}, CUDA {header.cuda_driver_version}")
    yield _counters(header.driver_version)
    for index, gpu in sorted(session.gpus.items()):
        name = f"GPU {index}"
        if gpu.facts.gpm_supported:
            yield Check(name, "ok", f"{gpu.facts.name}: counters through GPM")
        else:
            reason = gpu.unavailable.get("sm_active_percent", "no GPM")
            yield Check(
                name, "warning", f"{gpu.facts.name}: no SM, tensor and DRAM counters ({reason})"
            )


def _counters(driver_version: str | None) -> Check:
    """Whether --counters can sample here, and if not, why."""
    name = "counters"
    branch = re.match(r"\d+", driver_version or "")
    rights = counter_rights(driver=int(branch[0]) if branch is not None else None)
    if not COUNTERS.is_current():
        return Check(name, "warning", "the sampler was not built", missing_library_reason())
    holders = [holder for holder in counter_holders() if holder.startswith("DCGM")]
    if rights.is_open is not False and holders:
        detail = f"{rights.detail}; {holders[0]} may hold them: one tool at a time can"
        pause = "where --counters says so, dcgmi profile --pause gives them up until --resume"
        return Check(name, "ok", f"of each kernel (--counters): {detail}", pause)
    status: Status = "warning" if rights.is_open is False else "ok"
    return Check(name, status, f"of each kernel (--counters): {rights.detail}", rights.opening)


def _library() -> Iterator[Check]:
    path = library_path()
    if path is None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        detail = f"a compiler is at {compiler}" if compiler else "no C compiler was found"
        yield Check("capture library", "missing", detail, missing_library_reason())
        return
    yield Check("capture library", "ok", str(path))
    yield self_test()


def self_test(timeout_s: float = 20.0) -> Check:
    """A child pushes one range, which must arrive. A child that takes too long is killed."""
    name = "capture self-test"
    try:
        return _captured(name, timeout_s)
    except subprocess.TimeoutExpired:
        return Check(name, "missing", f"a child that makes one NVTX range hung for {timeout_s:g} s",
                     f"if {sys.executable} -c 'import nvtx' hangs too, reinstall nvtx")  # fmt: skip
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return Check(name, "missing", f"no place for records: {error.filename}: {why}",
                     "make room in /dev/shm, or set TMPDIR")  # fmt: skip


def _captured(name: str, timeout_s: float) -> Check:
    with create_capture_folder() as folder:
        environment, in_the_way = capture_environment(folder, False, os.environ)
        if refusal := in_the_way.certain or in_the_way.feared:
            return Check(name, "warning", refusal, "unset the variable to capture here")
        started = time.monotonic()
        child = subprocess.run(
            [sys.executable, "-P", "-c", _SELF_TEST],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
        if child.returncode != 0:
            return Check(name, "missing", "the nvtx package does not work here",
                         f"{sys.executable} -m pip install nvtx")  # fmt: skip
        events = CaptureReader(folder, 1, None, Numbering()).finish(time.time_ns())
        arrived = any(isinstance(event, RangeDefined) for event in events)
        took_ms = 1e3 * (time.monotonic() - started)
    if not arrived:
        return Check(name, "missing", "a child's NVTX range did not arrive")
    return Check(name, "ok", f"a child's NVTX range arrived ({took_ms:.0f} ms)")


def _cupti() -> Iterator[Check]:
    for distribution in ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12", "nvidia-cuda-cupti-cu13"):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield Check("cupti", "ok", f"{distribution} {version}")
        library = cupti_of_this_python()
        for feature in unused_features(library) if library is not None else ():
            yield Check("cupti", "ok", f"it has {feature.name}, not used: {feature.reason}")
        return
    if os.path.isdir("/usr/local/cuda/extras/CUPTI"):
        yield Check("cupti", "ok", "in the CUDA toolkit at /usr/local/cuda")
        return
    yield Check(
        "cupti",
        "warning",
        "not found beside this Python; kernels are captured only if the traced program has its own",
        "it comes with torch's CUDA wheels and with the CUDA toolkit",
    )


# NVIDIA's own tools, how each tells its version, and what it is for.
_NSIGHT = (
    ("nvcc", "--version", r"release ([\d.]+)", "compiles .cu files, for the workload cuda; it "
     "comes with the CUDA toolkit"),
    ("nsys", "--version", r"version ([\d.]+)", "writes reports, whose export to SQLite `gputui "
     "summary` reads; it comes with the CUDA toolkit"),
    ("ncu", "--version", r"Version ([\d.]+)", "profiles one kernel by replaying it, "
     "which gputui does not; it comes with the CUDA toolkit"),
)  # fmt: skip


def _nsight() -> Iterator[Check]:
    """None of them is needed: one that is missing is no fault."""
    for name, option, pattern, purpose in _NSIGHT:
        path = shutil.which(name)
        if path is None:
            yield Check(name, "absent", f"not on the PATH: {purpose}")
            continue
        try:
            done = subprocess.run(
                [path, option], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                timeout=20, text=True, errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Check(name, "warning", f"{path} cannot be run: {error}")
            continue
        version = re.search(pattern, done.stdout)
        yield Check(name, "ok", f"{version[1] if version else 'version unknown'} ({path})")


def _workloads() -> Iterator[Check]:
    try:
        catalogue = load_catalogue()
    except CatalogueError as error:
        yield Check("workloads", "missing", str(error))
        return
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield Check(
            "workloads",
            "missing",
            "torch is not installed",
            "pip install 'gputui[workloads]'",
        )
        return
    names = ", ".join(workload.name for workload in catalogue.workloads)
    yield Check("workloads", "ok", f"{names} (torch {torch})")
    for broken in catalogue.broken:
        yield Check(f"workload {broken.name}", "warning", broken.error)


def _recordings() -> Iterator[Check]:
    folder = default_folder()
    existing = folder
    # Not Path.exists: in another user's home it raises.
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK):
        free = shutil.disk_usage(existing).free
        yield Check("recordings", "ok", f"{folder} ({free / 2**30:.1f} GiB free)")
    else:
        yield Check(
            "recordings", "warning", f"{existing} cannot be written", "set XDG_DATA_HOME or use -o"
        )


def _terminal() -> Iterator[Check]:
    encoding = sys.stdout.encoding or "unknown"
    kind = os.environ.get("TERM", "")
    if "utf" not in encoding.lower():
        yield Check("terminal", "warning", f"encoding {encoding}", "set LANG=C.UTF-8 or --ascii")
    elif kind in ("", "dumb"):
        yield Check("terminal", "warning", f"TERM={kind or 'unset'}", "set TERM to your terminal's")
    else:
        colors = os.environ.get("COLORTERM") or "256 or fewer colours"
        yield Check("terminal", "ok", f"{kind}, {colors}, {encoding}")


_LOOKS: tuple[Callable[[], Iterator[Check]], ...] = (
    _python, _machine, _library, _cupti, _nsight, _workloads, _recordings, _terminal,
)  # fmt: skip


# --- What a newer CUPTI offers that gputui does not use, and why: seen in the file, never loaded.


class Feature(NamedTuple):
    """`symbols` are the functions that it needs; `reason` is why it is left alone."""

    name: str
    symbols: tuple[str, ...]
    reason: str


FEATURES = (
    Feature(
        "several subscribers",
        ("cuptiSubscribe_v2", "cuptiActivityEnable_v2", "cuptiActivityGetNextRecord_v2"),
        # The true reason: that a subscriber can never be taken out holds for the older ones here,
        # too.
        "a program has subscribers of that kind or of the older one, never both: torch.profiler "
        "and other tools in it would get nothing",
    ),
    Feature(
        "selected fields",
        ("cuptiActivityEnable_v2", "cuptiActivityRegisterCallbacks_v2"),
        "they need a subscriber of that kind",
    ),
    Feature(
        "hardware tracing",
        ("cuptiActivityEnableHWTrace",),
        "only from Blackwell on, and it cannot be switched off once a context has it",
    ),
)


def unused_features(library: Path) -> list[Feature]:
    """The features whose functions a libcupti has; none if the library cannot be read."""
    try:
        with library.open("rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ
        ) as content:  # fmt: skip
            return [
                feature
                for feature in FEATURES
                if all(content.find(b"\0%s\0" % name.encode()) >= 0 for name in feature.symbols)
            ]
    except (OSError, ValueError):
        return []
