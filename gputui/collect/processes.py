"""The processes on the GPUs: what the driver and the host know of them, all that the host knows of
one, and signals to one.

psutil is imported where it is used: the first reading of the machine comes sooner without it.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gputui.base import GputuiError
from gputui.base.sanitize import launcher_words, masked_words, sanitize
from gputui.collect.nvml import GpuProcess, ProcessUse
from gputui.collect.nvml.reading import DeviceReading
from gputui.model import units
from gputui.model.events import LauncherSample, ProcessSample

if TYPE_CHECKING:
    import psutil

# Inode of the host's own pid namespace (linux/proc_ns.h, PROC_PID_INIT_INO).
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC

# Position of `starttime` after the name in /proc/PID/stat (proc_pid_stat(5), field 22).
_START_TICKS = 19

_FOREIGN = (
    "some processes are outside this container or hidden from this user; to see them, start the "
    "container with --pid=host, or run as root"
)
_DENIED = "this user may not look into some processes"
# Ancestors to follow: nothing further up launched the work.
_DEEPEST = 16
_NOT_YET = "not measured yet for some processes: it is measured every few seconds"
_NO_MEMORY = "the driver does not report it for some processes (containers, MIG)"


def in_container() -> bool:
    """Whether this process has a pid namespace of its own: the driver may use other pids."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def start_time_ns(process: psutil.Process) -> int:
    """When the process started, the same value on every call. Raises psutil.Error.

    psutil's own value moves with the clock: the kernel computes the boot time from the current
    clock, which time synchronization shifts, and the process would be taken for another one.
    """
    try:
        after_name = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2]
        started_s = int(after_name.split()[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        # psutil tells starts by the clock of now, and the kernel's boot time follows time
        # synchronization: after minutes a process could be taken for another with its pid. /proc
        # has ticks since the boot.
        if os.path.exists("/proc/self/stat"):
            import psutil

            raise psutil.NoSuchProcess(process.pid) from None
        return round(float(process.create_time()) * 1e9)
    return round((started_s + _boot_time_s()) * 1e9)


@functools.cache
def _boot_time_s() -> float:
    import psutil

    # Once: it moves when the clock is set, and with a pid the start is what identifies a process.
    return float(psutil.boot_time())


class _Process(msgspec.Struct):
    """A process seen before, and whether its CPU time has a baseline."""

    handle: psutil.Process
    user: str | None
    command: str | None
    start_time_ns: int
    parent_pid: int | None
    counted: bool = False


class ProcessTable:
    """Joins driver and host. Remembers processes between calls, so a reused pid is noticed."""

    def __init__(self, *, verify: bool | None = None) -> None:
        """`verify`: accept a pid as ours only if that process has an NVIDIA device open.

        In a container the driver may list the host's pids, which mean other processes inside.
        Default: only in a pid namespace of our own.
        """
        self._verify = in_container() if verify is None else verify
        self._known: dict[int, _Process] = {}
        self._launchers: dict[int, _Process] = {}

    @property
    def launchers(self) -> tuple[LauncherSample, ...]:
        """The ancestors of the processes found by the last update, by pid."""
        return tuple(
            LauncherSample(
                pid=pid,
                parent_pid=process.parent_pid,
                start_time_ns=process.start_time_ns,
                user=process.user,
                command=process.command,
            )
            for pid, process in sorted(self._launchers.items())
        )

    def update(
        self, readings: Iterable[tuple[int, DeviceReading]]
    ) -> tuple[tuple[ProcessSample, ...] | None, dict[str, str]]:
        """The processes of all GPUs by GPU and pid, and why values are missing.

        None if no GPU could list any. Reason keys are `processes` and `processes.FIELD`.
        """
        by_gpu = list(readings)
        reasons = _merged({gpu: reading.process_reasons for gpu, reading in by_gpu})
        listed = [
            (gpu, process, reading.process_use)
            for gpu, reading in by_gpu
            for process in sorted(reading.processes or (), key=lambda process: process.pid)
        ]
        present = {process.pid for _, process, _ in listed}
        self._known = {pid: process for pid, process in self._known.items() if pid in present}
        details = {pid: self._details(pid, reasons) for pid in sorted(present)}
        self._climb()
        if all(reading.processes is None for _, reading in by_gpu):
            return None, reasons or {"processes": "there is no GPU to ask"}
        return tuple(
            self._sample(gpu, process, uses, details[process.pid], reasons)
            for gpu, process, uses in listed
        ), reasons

    def _sample(
        self,
        gpu: int,
        process: GpuProcess,
        uses: dict[int, ProcessUse] | None,
        details: _Details,
        reasons: dict[str, str],
    ) -> ProcessSample:
        if process.memory_bytes is None:
            reasons["processes.gpu_memory_bytes"] = _NO_MEMORY
        use = None if uses is None else uses.get(process.pid)
        if uses is not None and use is None:
            reasons.setdefault("processes.sm_percent", _NOT_YET)
            reasons.setdefault("processes.memory_bandwidth_percent", _NOT_YET)
        return ProcessSample(
            pid=process.pid,
            gpu=gpu,
            user=details.user,
            command=details.command,
            gpu_memory_bytes=process.memory_bytes,
            sm_percent=None if use is None else use.sm,
            cpu_percent=details.cpu_percent,
            host_memory_bytes=details.host_memory_bytes,
            kind=process.kind,
            memory_bandwidth_percent=None if use is None else use.memory_bandwidth,
            encoder_percent=None if use is None else use.encoder,
            decoder_percent=None if use is None else use.decoder,
            start_time_ns=details.start_time_ns,
            parent_pid=details.parent_pid,
            gpu_instance_id=process.gpu_instance_id,
            compute_instance_id=process.compute_instance_id,
        )

    def _details(self, pid: int, reasons: dict[str, str]) -> _Details:
        import psutil

        process = self._known.get(pid)
        try:
            if process is not None and not process.handle.is_running():
                process = None
            if process is None:
                if self._verify and not _has_nvidia_device(pid):
                    raise psutil.NoSuchProcess(pid)
                process = self._known[pid] = _meet(pid)
            else:
                process.command = _command(process.handle)
            with process.handle.oneshot():
                cpu: float | None = float(process.handle.cpu_percent(interval=None))
                memory = int(process.handle.memory_info().rss)
        except psutil.AccessDenied:
            reasons["processes.command"] = _DENIED
            return _Details()
        except (psutil.Error, OSError):
            self._known.pop(pid, None)
            reasons["processes.command"] = _FOREIGN
            return _Details()
        # psutil's first figure of a process covers no time.
        if not process.counted:
            process.counted = True
            cpu = None
        return _Details(
            process.user, process.command, cpu, memory, process.start_time_ns, process.parent_pid
        )

    def _climb(self) -> None:
        """Find the ancestors of the known processes, up to init."""
        launchers: dict[int, _Process] = {}
        for process in self._known.values():
            child = process
            for _ in range(_DEEPEST):
                pid = child.parent_pid
                if pid is None or pid <= 1 or pid in launchers or pid in self._known:
                    break
                launcher = self._launcher(pid, child)
                if launcher is None:
                    break
                launchers[pid] = child = launcher
        self._launchers = launchers

    def _launcher(self, pid: int, child: _Process) -> _Process | None:
        import psutil

        try:
            process = self._launchers.get(pid)
            if process is None or not process.handle.is_running():
                process = _meet(pid, launcher_words)
        except (psutil.Error, OSError):
            return None
        # A parent younger than its child is another process that reuses the pid.
        return process if process.start_time_ns <= child.start_time_ns else None


_Mask = Callable[[Iterable[str]], tuple[str, ...]]


def _meet(pid: int, mask: _Mask = masked_words) -> _Process:
    import psutil

    handle = psutil.Process(pid)
    try:
        user = sanitize(str(handle.username()), 64)
    except (psutil.AccessDenied, KeyError):
        user = None
    return _Process(
        handle, user, _command(handle, mask), start_time_ns(handle), handle.ppid() or None
    )


def _command(process: psutil.Process, mask: _Mask = masked_words) -> str:
    import psutil

    try:
        command = " ".join(mask(process.cmdline())) or process.name()
    except psutil.ZombieProcess:
        command = f"{process.name()} <defunct>"  # as ps shows it: ended, and not yet reaped
    except psutil.AccessDenied:
        command = process.name()
    # A script given with -c has line ends; show it on one line.
    return sanitize(" ".join(str(command).splitlines()))


class _Details(msgspec.Struct, frozen=True):
    user: str | None = None
    command: str | None = None
    cpu_percent: float | None = None
    host_memory_bytes: int | None = None
    start_time_ns: int | None = None
    parent_pid: int | None = None


def _has_nvidia_device(pid: int, device: str = "/dev/nvidia") -> bool:
    """Whether the process has a device file of the driver open, as every CUDA process does."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(
            os.readlink(f"{folder}/{number}").startswith(device) for number in os.listdir(folder)
        )
    except OSError:
        return False


CUDA_DEVICE = "/dev/nvidia-uvm"
"""What CUDA opens in a process, and a reader of the driver's figures, as NVML, does not."""


def cuda_processes(pid: int) -> list[int]:
    """`pid` where it uses CUDA, else all below it that do, oldest first; none of those that this
    user may not look into."""
    if _has_nvidia_device(pid, CUDA_DEVICE):
        return [pid]
    import psutil

    try:
        below = psutil.Process(pid).children(recursive=True)
        return [
            each.pid
            for each in sorted(below, key=lambda each: (each.create_time(), each.pid))
            if _has_nvidia_device(each.pid, CUDA_DEVICE)
        ]
    except psutil.Error:
        return []


def _merged(by_gpu: dict[int, dict[str, str]]) -> dict[str, str]:
    """One reason per key: stated plainly if it holds for every GPU, else naming the GPUs."""
    merged: dict[str, str] = {}
    for key in sorted({key for reasons in by_gpu.values() for key in reasons}):
        groups: dict[str, list[int]] = {}
        for gpu, reasons in by_gpu.items():
            if key in reasons:
                groups.setdefault(reasons[key], []).append(gpu)
        if len(groups) == 1 and len(next(iter(groups.values()))) == len(by_gpu):
            merged[key] = next(iter(groups))
        else:
            merged[key] = "; ".join(f"{_gpus(gpus)}: {reason}" for reason, gpus in groups.items())
    return merged


def _gpus(indexes: Sequence[int]) -> str:
    return f"GPU {', '.join(str(index) for index in indexes)}"


# One process read on demand: what a table has no room for, and its environment.

T = TypeVar("T")

# Characters kept of one variable or argument: nobody reads more.
_LONGEST = 32_768


class ProcessGoneError(GputuiError):
    """The process has ended, or its pid was reused. One line for people."""


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """What the host knows about one process. What it will not reveal is None, with a reason.

    Control characters are removed. The environment is never recorded.
    """

    pid: int
    start_time_ns: int
    command: tuple[str, ...]
    user: str | None
    executable: str | None
    folder: str | None
    status: str | None
    parent_pid: int | None
    children: tuple[int, ...] | None
    threads: int | None
    open_files: int | None
    nice: int | None
    cpu_user_s: float | None
    cpu_system_s: float | None
    resident_bytes: int | None
    virtual_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    environment: dict[str, str] | None
    unavailable: dict[str, str]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and texts for people, all but the environment; of what is missing the reason."""

        def words(values: Sequence[object] | None) -> str | None:
            return None if values is None else " ".join(map(str, values)) or "none"

        def number(value: int | None) -> str | None:
            return None if value is None else str(value)

        def shown(value: float | None, show: Callable[[float], str]) -> str | None:
            return None if value is None else show(value)

        def seconds(value: float) -> str:
            return units.duration(value * 1e9)

        figures = (
            ("arguments", "command", words(self.command)),
            ("executable", "executable", self.executable),
            ("folder", "folder", self.folder),
            ("status", "status", self.status),
            ("children", "children", words(self.children)),
            ("threads", "threads", number(self.threads)),
            ("open files", "open_files", number(self.open_files)),
            ("nice", "nice", number(self.nice)),
            ("CPU time, own code", "cpu_user_s", shown(self.cpu_user_s, seconds)),
            ("CPU time, system", "cpu_user_s", shown(self.cpu_system_s, seconds)),
            ("resident memory", "resident_bytes", shown(self.resident_bytes, units.size)),
            ("virtual memory", "resident_bytes", shown(self.virtual_bytes, units.size)),
            ("read from disk", "read_bytes", shown(self.read_bytes, units.size)),
            ("written to disk", "read_bytes", shown(self.written_bytes, units.size)),
        )
        return [
            (label, text or f"{units.MISSING}: {self.unavailable.get(field, 'unknown')}")
            for label, field, text in figures
        ]


def same_process(pid: int, start_ns: int) -> psutil.Process:
    """The process with this pid and start time. Raises ProcessGoneError."""
    import psutil

    try:
        process = psutil.Process(pid)
        started_ns = start_time_ns(process)
    except (psutil.Error, ValueError, OverflowError):
        raise ProcessGoneError(f"process {pid} has ended") from None
    if started_ns != start_ns:
        raise ProcessGoneError(f"process {pid} has ended, and another has its pid now")
    return process


def process_details(pid: int, start_ns: int) -> ProcessDetails:
    """Everything about the process `pid` that started at `start_ns` (a sample's `start_time_ns`).
    Raises ProcessGoneError. Takes milliseconds: not for the screen's thread.
    """
    process = same_process(pid, start_ns)
    read = _Reader()
    times: Any = read("cpu_user_s", process.cpu_times)
    memory: Any = read("resident_bytes", process.memory_info)
    traffic: Any = read("read_bytes", process.io_counters)
    children: Any = read("children", process.children)
    environment: Any = read("environment", process.environ)
    return ProcessDetails(
        pid=pid,
        start_time_ns=start_ns,
        command=tuple(_text(word) for word in read("command", process.cmdline) or ()),
        user=read("user", lambda: _text(process.username())),
        executable=read("executable", lambda: _text(process.exe())),
        folder=read("folder", lambda: _text(process.cwd())),
        status=read("status", lambda: str(process.status())),
        parent_pid=read("parent_pid", process.ppid),
        children=None if children is None else tuple(child.pid for child in children),
        threads=read("threads", process.num_threads),
        open_files=read("open_files", lambda: int(process.num_fds())),
        nice=read("nice", lambda: int(process.nice())),
        cpu_user_s=None if times is None else times.user,
        cpu_system_s=None if times is None else times.system,
        resident_bytes=None if memory is None else memory.rss,
        virtual_bytes=None if memory is None else memory.vms,
        read_bytes=None if traffic is None else traffic.read_bytes,
        written_bytes=None if traffic is None else traffic.write_bytes,
        environment=(
            None
            if environment is None
            else {_text(name): _text(value) for name, value in sorted(environment.items())}
        ),
        unavailable=read.reasons,
    )


class _Reader:
    """Makes calls, and keeps the reason for each that is refused."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, name: str, call: Callable[[], T]) -> T | None:
        import psutil

        try:
            return call()
        except psutil.AccessDenied:
            self.reasons[name] = "this user may not read it"
        except (psutil.Error, OSError, KeyError, AttributeError) as error:
            self.reasons[name] = sanitize(f"cannot be read: {error}", 200)
        return None


def _text(value: object) -> str:
    return sanitize(str(value), _LONGEST)


# Signals to displayed processes, never to another process that has reused the pid.

SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "KILL": signal.SIGKILL}
"""The signals offered, by name."""


class SignalRefusedError(GputuiError):
    """The signal was not sent. One line for people."""


def send_signal(pid: int, start_ns: int, name: str) -> None:
    """Send a signal of `SIGNALS` to the process `pid` that started at `start_ns`.

    Raises ProcessGoneError if that process has ended, even if its pid was reused;
    SignalRefusedError for a pid that is not a single process, for init, for gputui itself, and if
    the system does not permit it. A pidfd holds the process between the check and the signal;
    without pidfds (Linux before 5.3) the check comes just before the signal.
    """
    number = SIGNALS.get(name)
    if number is None:
        raise SignalRefusedError(f"{name} is not one of {', '.join(SIGNALS)}")
    if pid <= 1:
        raise SignalRefusedError(f"no signal is sent to process {pid}")
    if pid == os.getpid():
        raise SignalRefusedError("that is gputui itself: quit it instead")
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        raise ProcessGoneError(f"process {pid} has ended") from None
    except (OSError, AttributeError):
        _send(pid, start_ns, number, None)
        return
    try:
        _send(pid, start_ns, number, held)
    finally:
        os.close(held)


def _send(pid: int, start_ns: int, number: signal.Signals, held: int | None) -> None:
    import psutil

    process = same_process(pid, start_ns)
    try:
        if held is None:
            process.send_signal(number)
        else:
            signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, psutil.NoSuchProcess):
        raise ProcessGoneError(f"process {pid} has ended") from None
    except (PermissionError, psutil.AccessDenied):
        raise SignalRefusedError(
            f"{number.name} to process {pid}: not allowed, it belongs to another user"
        ) from None
