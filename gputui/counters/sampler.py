"""The process that samples one GPU: who may use the counters, where it finds CUPTI, its start, its
messages, its end.

It is `gputui_counters`, a program of its own in C. What it sends is checked as foreign data is:
CUPTI runs in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gputui.base.sanitize import sanitize
from gputui.counters.separation import CounterSamples, Floats
from gputui.inject.build import COUNTERS
from gputui.inject.environment import cupti_of_this_python

INTERVAL_NS = 200_000
"""How long a sample is: two or three layers of a decode, whose kernels cannot be separated where
each sample holds many layers (at 1 ms their bytes were 10 to 45 % off, at 200 µs 1 to 3; H200)."""

END_S = 3.0
"""It switches the counters off when it is asked to end; longer than that takes, it is killed."""

_HEAD = struct.Struct("=II")
_READY, _SAMPLES, _REFUSED, _LOST = 1, 2, 3, 4
# No message is longer: 16,384 samples of 16 columns take 2 MiB.
_MOST_BYTES = 8 << 20

# 40 bursts; the first ten follow each other within a second. The most that Linux lets users have.
_PIPE_BYTES = 1 << 20

_MOST_COUNTERS = 64
# The sampler is no program to be looked at.
_LOADING = {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD", "LD_AUDIT"}
_LIBRARY = "libcupti.so.13"
_TOOLKITS = ("/usr/local/cuda", "/usr/local/cuda-13")
_PORTION = 1 << 18

CLOSED = (
    "this machine keeps the GPU's counters for administrators (RmProfilingAdminOnly is 1); gputui "
    "doctor says what opens them"
)
BUSY = "another tool holds this GPU's counters (ncu, nsys, DCGM's profiling or another gputui)"
"""The reason shown to people; GPM's figures of the whole GPU go on either way."""

_HOLDERS = {"nv-hostengine": "DCGM", "dcgm-exporter": "DCGM", "ncu": "ncu", "nsys": "nsys",
            "gputui_counters": "a gputui"}  # fmt: skip


def counter_holders(own: int | None = None, processes: Path = Path("/proc")) -> list[str]:
    """Programs of this machine that may hold a GPU's counters, as "DCGM (nv-hostengine, PID 812)",
    by their names; `own` is not one. Never raises."""
    holders = []
    with contextlib.suppress(OSError):
        for folder in sorted(processes.iterdir(), key=lambda path: (len(path.name), path.name)):
            if not folder.name.isdecimal() or folder.name == str(own):
                continue
            with contextlib.suppress(OSError):
                name = (folder / "comm").read_text("utf-8", "replace").strip()
                if name in _HOLDERS:
                    holders.append(f"{_HOLDERS[name]} ({name}, PID {folder.name})")
    return holders[:4]


class SamplerFacts(NamedTuple):
    """What a sampler says once it samples: the GPU's UUID as NVML has it, its chip, CUPTI's version
    as a number, how long a sample is meant to be, and its counters' names in order."""

    uuid: str
    chip: str
    cupti_version: int
    interval_ns: int
    counters: tuple[str, ...]


def _environment(gpu: str) -> dict[str, str]:
    """gputui's own without what has libraries loaded into programs that use CUDA: nothing of theirs
    is to run beside CUPTI there."""
    own = {name: value for name, value in os.environ.items() if name not in _LOADING}
    return own | {"CUDA_VISIBLE_DEVICES": gpu}


def cupti_places(pids: Sequence[int] = ()) -> list[str]:
    """Where a libcupti may be: GPUTUI_CUPTI_PATH, else the likeliest first: beside this Python,
    what the processes `pids` have loaded, the CUDA toolkit, the loader's own folders."""
    if said := os.environ.get("GPUTUI_CUPTI_PATH"):
        return [f"{said}/{_LIBRARY}" if os.path.isdir(said) else said]
    places = [str(path)] if (path := cupti_of_this_python()) is not None else []
    for pid in pids:
        places += _loaded_by(pid)
    for toolkit in _TOOLKITS:
        for folder in ("extras/CUPTI/lib64", "lib64"):
            place = Path(toolkit, folder, _LIBRARY)
            places += [str(place)] if place.exists() else []
    return list(dict.fromkeys([*places, _LIBRARY]))


def _loaded_by(pid: int) -> Iterator[str]:
    """Of a program of this user only: what another's has loaded would run with this one's rights,
    such as root's."""
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps")
        if maps.stat().st_uid != os.geteuid():
            return
        for line in maps.read_text("utf-8", "replace").splitlines():
            path = line.partition("/")
            if "/libcupti.so" in line and not line.endswith("(deleted)"):
                yield "/" + path[2]


class CounterSampler:
    """One GPU's sampler: started when made, read without waiting, closed at the end.

    `facts` is None until it samples. `failure` is one line for people once it does not, or no more.
    """

    def __init__(
        self,
        gpu: str,
        places: Sequence[str],
        interval_ns: int = INTERVAL_NS,
        in_windows: bool = False,
    ) -> None:
        """`gpu` is an entry of CUDA_VISIBLE_DEVICES; `places` where CUPTI may be. With `in_windows`
        it samples where `hurry` says that one of tracing has opened."""
        self.gpu = gpu
        self.facts: SamplerFacts | None = None
        self.failure: str | None = None
        self.lost = 0
        """Samples that were dropped, as far as the sampler knows, or could not be meant."""
        self._pending = b""
        self._process: subprocess.Popen[bytes] | None = None
        if not COUNTERS.is_current():
            self.failure = "the sampler of the GPU's counters was not built (gputui doctor)"
            return
        try:
            self._process = subprocess.Popen(
                [str(COUNTERS.path), str(interval_ns), str(int(in_windows)), *places],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(gpu),
                start_new_session=True,  # a Ctrl-C is not for it
            )
        except OSError as error:
            self.failure = f"the sampler could not be started: {(error.strerror or '').lower()}"
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with contextlib.suppress(OSError):  # without it, a reader that is busy loses samples
            fcntl.fcntl(self._process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """For `select`: it can be read when samples have come. ValueError once closed."""
        if self._process is None or self._process.stdout is None:
            raise ValueError("the sampler is closed")
        return self._process.stdout.fileno()

    def hurry(self) -> None:
        """Say that a window of tracing has opened: samples outside of windows are of no use."""
        if self._process is not None and self.facts is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGUSR2)

    def read(self) -> list[CounterSamples]:
        """What came since the last time. Amounts are as the sampler sends them: shares in percent,
        and counts. Never waits."""
        if self._process is None:
            return []
        batches: list[CounterSamples] = []
        at_end = self._read_pipe()
        try:
            for kind, body in self._messages():
                self._read_message(kind, body, batches)
        except (ValueError, KeyError):
            self._fail("the sampler sent what could not be read")
        if at_end and self._process is not None:
            self._fail(self.failure or _ending(self._process.wait()))
        if self.failure is not None:
            self.close()
        return batches

    def close(self) -> None:
        """End it, which switches the counters off; may be called more than once."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.close()

    def _read_pipe(self) -> bool:
        """Whether its end was reached."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        portions = [self._pending]
        size = len(self._pending)
        at_end = False
        while size <= _MOST_BYTES:
            try:
                portion = os.read(pipe, _PORTION)
            except BlockingIOError:
                break
            if not portion:
                at_end = True
                break
            portions.append(portion)
            size += len(portion)
        self._pending = b"".join(portions)
        return at_end

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        place = 0
        while len(self._pending) - place >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._pending, place)
            if size > _MOST_BYTES:
                raise ValueError(size)
            if len(self._pending) - place - _HEAD.size < size:
                break
            place += _HEAD.size
            yield kind, self._pending[place : place + size]
            place += size
        self._pending = self._pending[place:]

    def _read_message(self, kind: int, body: bytes, batches: list[CounterSamples]) -> None:
        if kind == _READY:
            self.facts = _facts(body)
        elif kind == _SAMPLES and self.facts is not None:
            samples, bad = _samples(body, len(self.facts.counters))
            self.lost += bad
            batches.append(samples)
        elif kind == _REFUSED:
            self.failure = refusal(body.decode("utf-8", "replace"), self.pid)
        elif kind == _LOST:
            self.lost += min(int.from_bytes(body[:8], "little"), 1 << 40)


def _facts(body: bytes) -> SamplerFacts:
    pairs = [line.partition(" ")[::2] for line in body.decode("utf-8", "replace").splitlines()]
    facts = dict(pairs)
    counters = tuple(sanitize(name, 64) for key, name in pairs if key == "counter")
    if not 0 < len(counters) <= _MOST_COUNTERS:
        raise ValueError(counters)
    digits = facts["uuid"] if set(facts.get("uuid", "")) <= set("0123456789abcdef") else ""
    groups = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]]
    return SamplerFacts(
        "GPU-" + "-".join(groups),
        sanitize(facts.get("chip", ""), 32),
        int(facts["cupti"]),
        int(facts["interval_ns"]),
        counters,
    )


def _samples(body: bytes, counters: int) -> tuple[CounterSamples, int]:
    """The samples, and how many are left out because they cannot be meant."""
    rows = np.frombuffer(body[8:], np.int64)
    if len(rows) % (2 + counters):
        raise ValueError(len(rows))
    table = rows.reshape(-1, 2 + counters)
    starts, ends = table[:, 0].copy(), table[:, 1].copy()
    amounts = table[:, 2:].view(np.float64).copy()
    good = (ends > starts) & (starts > 0) & (np.isfinite(amounts) & (amounts >= 0)).all(1)
    good[1:] &= starts[1:] >= ends[:-1]
    samples = CounterSamples(starts, ends, amounts).pick(good)
    return samples, int(np.count_nonzero(~good))


def refusal(text: str, own: int | None = None) -> str:
    """A sampler's reason, "word code text", as one line for people; `own` is its process."""
    word, _, rest = text.partition(" ")
    detail = sanitize(rest.partition(" ")[2], 300)
    match word:
        case "rights":
            return CLOSED
        case "busy":
            return f"{BUSY}: {', '.join(counter_holders(own)) or detail}"
        case "library":
            return f"the GPU's counters need libcupti of CUDA 13: {detail}"
        case "mig":
            return "the counters of a part of a GPU (MIG) cannot be sampled"
        case _:
            return f"the GPU's counters cannot be sampled: {detail}"


def _ending(status: int) -> str:
    if status < 0:
        return f"the sampler of the GPU's counters was ended by {_signal(-status)}"
    return f"the sampler of the GPU's counters ended with status {status}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def percents_to_amounts(samples: CounterSamples, counters: Sequence[str]) -> CounterSamples:
    """Shares as what adds up: percent × ns. Counts are that already."""
    return samples._replace(amounts=samples.amounts * _lengths_of_shares(samples, counters))


def amounts_to_percents(samples: CounterSamples, counters: Sequence[str]) -> CounterSamples:
    """Amounts in each sample as percent again: the reverse of percents_to_amounts."""
    return samples._replace(amounts=samples.amounts / _lengths_of_shares(samples, counters))


def _lengths_of_shares(samples: CounterSamples, counters: Sequence[str]) -> Floats:
    is_share = np.array([name.endswith("_percent") for name in counters])
    lengths = (samples.ends_ns - samples.starts_ns).astype(np.float64)
    factors: Floats = np.where(is_share, lengths[:, None], 1.0)
    return factors


# --- Who may use the counters. NVIDIA keeps them for administrators since driver 418.43
# (RmProfilingAdminOnly), as they show what other users' programs do:
# https://developer.nvidia.com/ERR_NVGPUCTRPERM

PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")

_SYS_ADMIN, _PERFMON = 21, 38
"""Bits of the capabilities (capabilities(7))."""

PERFMON_SINCE = 565
"""The first driver to which CAP_PERFMON is enough (NVIDIA's page above)."""

_OPENING = (
    "an administrator puts `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d and restarts the machine or reloads the driver; or run gputui with "
    "CAP_SYS_ADMIN, in a container with --cap-add=SYS_ADMIN"
)


class CounterRights(NamedTuple):
    """Whether they are open to this process (None: not known), in words, and what opens them."""

    is_open: bool | None
    detail: str
    opening: str | None = None


def counter_rights(
    parameters: Path = PARAMETERS, status: Path = STATUS, driver: int | None = None
) -> CounterRights:
    """By the driver's parameters and this process's capabilities; `driver` is the number of the
    driver's branch, as 580. Never raises."""
    restricted = _number(parameters, r"^RmProfilingAdminOnly:\s*(\d+)")
    if restricted is None:
        return CounterRights(None, f"{parameters} does not say who may use them")
    if restricted == 0:
        return CounterRights(True, "open to every user (RmProfilingAdminOnly is 0)")
    capabilities = _number(status, r"^CapEff:\s*([0-9a-fA-F]+)", 16) or 0
    only = "kept for administrators (RmProfilingAdminOnly is 1)"
    if capabilities >> _SYS_ADMIN & 1:
        return CounterRights(True, f"{only}; this process has CAP_SYS_ADMIN")
    if capabilities >> _PERFMON & 1 and (driver or 0) >= PERFMON_SINCE:
        return CounterRights(True, f"{only}; this process has CAP_PERFMON")
    return CounterRights(False, only, _OPENING)


def _number(path: Path, pattern: str, base: int = 10) -> int | None:
    try:
        with path.open("rb") as file:
            text = file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1], base) if match is not None else None
