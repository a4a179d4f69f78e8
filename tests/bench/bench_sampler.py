"""What a tick costs: CPU and time, for fake devices and for the real ones.

    python tests/bench/bench_sampler.py          1 and 8 fake devices
    python tests/bench/bench_sampler.py --real   this machine's GPUs, and each call's time

Fake devices answer at once, so theirs is the cost of Python and ctypes alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FAKE = ROOT / "tests" / "collect" / "fake_nvml.c"
TICKS = 40

CALLS = (
    "utilization_percent",
    "memory",
    "power_watts",
    "power_limit_watts",
    "temperature_celsius",
    "temperature_margin_celsius",
    "instant_power_and_memory_temperature",
    "fan_percent",
    "performance_state",
    "sm_clock_mhz",
    "video_clock_mhz",
    "encoder_percent",
    "decoder_percent",
    "clock_event_bits",
    "processes",
    "process_use",
    "energy_joules",
    "throttle_seconds",
    "bar1_used_bytes",
    "compute_mode",
    "persistence_mode",
    "ecc_enabled",
    "ecc_corrected",
    "ecc_uncorrected_lifetime",
    "remapped_rows",
    "retired_pages",
    "page_retirement_pending",
    "pcie_link_generation",
    "pcie_link_width",
    "pcie_replays",
    "nvlink_count",
    "nvlink_link_bytes_per_s",
    "nvlink_active_count",
    "nvlink_bytes",
)
"""Methods of the library that take a device."""

sys.path[:0] = [str(ROOT), str(FAKE.parent)]

from gputui.collect.machine_reader import MachineReader  # noqa: E402
from gputui.collect.nvml import DriverError, Handle  # noqa: E402
from gputui.collect.nvml.bindings import DriverLibrary  # noqa: E402
from gputui.collect.nvml.reading import METRICS, Xids  # noqa: E402


def measure(interval_s: float = 0.12) -> None:
    """Ticks of this machine, as the sampler makes them; with and without processes."""
    begun = time.perf_counter()
    machine = MachineReader(None, (), interval_s)
    opened = time.perf_counter() - begun
    costs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(TICKS):
        time.sleep(interval_s)
        cpu, wall = time.process_time(), time.perf_counter()
        events = machine.tick()
        spent = (time.process_time() - cpu, time.perf_counter() - wall)
        listed = any(getattr(event, "processes", None) is not None for event in events)
        costs[listed].append(spent)
    count = len(machine.header.gpus)
    machine.close()
    print(f"{count} devices, opened in {opened * 1e3:.0f} ms")
    for listed, name in ((False, "without processes"), (True, "with processes")):
        told = costs[listed]
        if told:
            cpu_ms = [cpu * 1e3 for cpu, _ in told]
            wall_ms = [wall * 1e3 for _, wall in told]
            print(
                f"  a tick {name}: {statistics.median(cpu_ms):.2f} ms of CPU "
                f"(most {max(cpu_ms):.2f}), {statistics.median(wall_ms):.2f} ms of time "
                f"(most {max(wall_ms):.2f}), {len(told)} ticks"
            )


def calls() -> None:
    """The time of each call on the first GPU, the median and the most of 20."""
    library = DriverLibrary()
    handle = library.handle(0)
    xids = Xids(library, handle)
    asked = [(name, lambda name=name: getattr(library, name)(handle)) for name in CALLS]
    for name, call in [*asked, ("next_xid", xids.poll), *counters(library, handle)]:
        times, answer = [], ""
        for _ in range(20):
            begun = time.perf_counter()
            try:
                answer = str(call())
            except DriverError as error:
                answer = error.reason
            times.append((time.perf_counter() - begun) * 1e6)
        print(f"  {name:38} {statistics.median(times):8.0f} {max(times):8.0f} µs  {answer[:60]}")


def counters(library: DriverLibrary, handle: Handle) -> list[tuple[str, Callable[[], object]]]:
    """GPM's two calls, where there is GPM: a sample, and the figures between two."""
    if not library.gpm_supported(handle):
        return []
    older, newer = library.gpm_allocate(), library.gpm_allocate()
    library.gpm_sample(handle, older, None)
    time.sleep(0.12)
    library.gpm_sample(handle, newer, None)
    every = library.gpm_request([metric for metric, _ in METRICS.values()])
    few = library.gpm_request((2, 5, 10))
    return [
        ("gpm_metrics, all that are read", lambda: library.gpm_metrics(every, older, newer)),
        ("gpm_metrics, three of them", lambda: library.gpm_metrics(few, older, newer)),
        ("gpm_sample", lambda: library.gpm_sample(handle, newer, None)),
    ]


def fake(count: int) -> None:
    """`measure` in a child that loads the fake library with so many devices."""
    from fake_machine import FakeMachine

    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("the fake driver library needs a C compiler (cc)")
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "libnvidia-ml.so.1")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", output, str(FAKE)], check=True)
        machine = FakeMachine(Path(folder) / "state", count)
        for gpu in machine.gpus:
            gpu["nvmlDeviceGetComputeRunningProcesses_v3"] = f"{os.getpid()} 1000"
        machine.write()
        environment = os.environ | {"LD_LIBRARY_PATH": folder, "FAKE_NVML": str(machine.path)}
        subprocess.run([sys.executable, __file__, "--measure"], env=environment, check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            fake(1)
            fake(8)
        case ["--real"]:
            measure()
            calls()
        case ["--measure"]:
            measure()
        case _:
            sys.exit(__doc__)
