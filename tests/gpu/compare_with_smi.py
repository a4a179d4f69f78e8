"""gputui's figures beside nvidia-smi's at the same moment, idle and under load.

    python tests/gpu/compare_with_smi.py

Needs a GPU, nvidia-smi and, for the load, torch. Figures that move are means: of gputui's
readings and of nvidia-smi's over the same seconds. `dmon --gpm-metrics` rounds to whole percent
and whole MiB/s.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from gputui.collect.machine_reader import MachineReader  # noqa: E402
from gputui.model.events import GpuSample, GpuStatus, MachineSample  # noqa: E402

SECONDS = 6
MIB = 1024**2

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(256 << 20, device="cuda", dtype=torch.float32)
c = torch.empty_like(b)
host = torch.empty(64 << 20, dtype=torch.float32, pin_memory=True)
end, ready = time.time() + 60, False
while time.time() < end:
    for _ in range(20):
        a @ a
    for _ in range(20):
        c.copy_(b)
    host.copy_(b[: host.numel()])
    torch.cuda.synchronize()
    if not ready:
        ready = True
        print("ready", flush=True)
"""

QUERIES: tuple[tuple[str, str, float], ...] = (
    ("utilization_percent", "utilization.gpu", 1),
    ("memory_used_bytes", "memory.used", MIB),
    ("memory_reserved_bytes", "memory.reserved", MIB),
    ("memory_total_bytes", "memory.total", MIB),
    ("power_watts", "power.draw", 1),
    ("power_instant_watts", "power.draw.instant", 1),
    ("power_limit_watts", "enforced.power.limit", 1),
    ("temperature_celsius", "temperature.gpu", 1),
    ("temperature_margin_celsius", "temperature.gpu.tlimit", 1),
    ("memory_temperature_celsius", "temperature.memory", 1),
    ("fan_percent", "fan.speed", 1),
    ("sm_clock_mhz", "clocks.sm", 1),
    ("memory_clock_mhz", "clocks.mem", 1),
    ("video_clock_mhz", "clocks.video", 1),
    ("encoder_percent", "utilization.encoder", 1),
    ("decoder_percent", "utilization.decoder", 1),
    ("pcie_link_generation", "pcie.link.gen.current", 1),
    ("pcie_link_width", "pcie.link.width.current", 1),
    ("ecc_corrected", "ecc.errors.corrected.volatile.total", 1),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total", 1),
    ("remapped_rows_corrected", "remapped_rows.correctable", 1),
    ("remapped_rows_uncorrected", "remapped_rows.uncorrectable", 1),
    ("throttle_seconds:power cap", "clocks_event_reasons_counters.sw_power_cap", 1e-6),
    ("throttle_seconds:sync boost", "clocks_event_reasons_counters.sync_boost", 1e-6),
    (
        "throttle_seconds:thermal slowdown (software)",
        "clocks_event_reasons_counters.sw_thermal_slowdown",
        1e-6,
    ),
)
"""Our field, nvidia-smi's, factor from its unit to ours."""

GPM: tuple[tuple[str, int, float], ...] = (
    ("sm_active_percent", 2, 1),
    ("sm_occupancy_percent", 3, 1),
    ("integer_active_percent", 4, 1),
    ("tensor_active_percent", 5, 1),
    ("memory_bandwidth_percent", 10, 1),
    ("fp64_active_percent", 11, 1),
    ("fp32_active_percent", 12, 1),
    ("fp16_active_percent", 13, 1),
    ("pcie_tx_bytes_per_s", 20, MIB),
    ("pcie_rx_bytes_per_s", 21, MIB),
    ("nvlink_rx_bytes_per_s", 60, MIB),
    ("nvlink_tx_bytes_per_s", 61, MIB),
)

Figures = dict[str, float | None]


class Ours:
    """Reads GPU 0 as the sampler does."""

    def __init__(self) -> None:
        self._machine = MachineReader([0], (), 1.0)
        self._status: GpuStatus | None = None
        time.sleep(0.2)

    def read(self) -> tuple[GpuSample, GpuStatus | None]:
        for event in self._machine.tick():
            if isinstance(event, GpuStatus):
                self._status = event
            elif isinstance(event, MachineSample):
                sample = event.gpus[0]
        return sample, self._status

    def close(self) -> None:
        self._machine.close()


def figure(sample: GpuSample, status: GpuStatus | None, name: str) -> float | None:
    field, _, key = name.partition(":")
    if key:
        return ((status.throttle_seconds if status else None) or {}).get(key)
    value = getattr(sample, field, None)
    return getattr(status, field, None) if value is None else value


def known_queries() -> set[str]:
    text = subprocess.run(
        ["nvidia-smi", "--help-query-gpu"], capture_output=True, text=True, check=True
    ).stdout
    return {word.strip('"') for word in text.split() if word.startswith('"')}


def ask_smi(names: list[str]) -> dict[str, float | None]:
    line = subprocess.run(
        [
            "nvidia-smi",
            "-i",
            "0",
            f"--query-gpu={','.join(names)}",
            "--format=csv,noheader,nounits",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return dict(zip(names, map(number, line.split(", ")), strict=True))


def number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    return None


@contextlib.contextmanager
def dmon(identifiers: list[int]) -> Iterator[Callable[[], list[float | None]]]:
    """`nvidia-smi dmon` over SECONDS; what is given waits for it and tells the means."""
    ids = ",".join(map(str, identifiers))
    words = ["-i", "0", "-d", "1", "-c", str(SECONDS), "--gpm-metrics", ids]
    with subprocess.Popen(
        ["nvidia-smi", "dmon", *words], stdout=subprocess.PIPE, text=True
    ) as process:

        def means() -> list[float | None]:
            text, _ = process.communicate()
            rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
            # Its first line covers no window.
            columns = zip(*(row[-len(identifiers) :] for row in rows[1:]), strict=True)
            return [mean([number(cell) for cell in column]) for column in columns]

        yield means


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def show(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def row(name: str, ours: float | None, theirs: float | None, source: str) -> None:
    both = ours is not None and theirs is not None
    difference = show(ours - theirs) if both else ("same" if ours == theirs else "-")  # type: ignore[operator]
    print(f"| {name} | {show(ours)} | {show(theirs)} | {difference} | {source} |")


def compare(title: str, names: set[str]) -> None:
    print(f"\n### {title}\n\n| figure | gputui | nvidia-smi | difference | source |")
    print("|---|--:|--:|--:|---|")
    ours = Ours()
    try:
        pairs = []
        asked = [query for _, query, _ in QUERIES if query in names]
        for _ in range(3):
            before = ours.read()
            told = ask_smi(asked)
            pairs.append((before, told, ours.read()))
        for name, query, factor in QUERIES:
            if query not in names:
                continue
            mine = mean([figure(*read, name) for one, _, two in pairs for read in (one, two)])
            raw = mean([told[query] for _, told, _ in pairs])
            row(name, mine, None if raw is None else raw * factor, query)
        with dmon([identifier for _, identifier, _ in GPM]) as means:
            readings = []
            ours.read()
            for _ in range(SECONDS - 1):
                time.sleep(1.0)
                readings.append(ours.read()[0])
            told_by_dmon = means()
        for (name, identifier, factor), theirs in zip(GPM, told_by_dmon, strict=True):
            mine = mean([getattr(reading, name) for reading in readings])
            row(name, mine, None if theirs is None else theirs * factor, f"dmon {identifier}")
        print(f"\nThrottle reasons: {readings[-1].throttle_reasons}")
    finally:
        ours.close()


def main() -> None:
    names = known_queries()
    compare("Idle", names)
    with subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True) as load:
        try:
            assert load.stdout is not None
            load.stdout.readline()
            time.sleep(3.0)
            compare("Under load", names)
        finally:
            load.kill()


if __name__ == "__main__":
    main()
