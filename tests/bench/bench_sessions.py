"""What opening, exporting, seeking and storing sessions costs.

    python -m tests.bench.bench_sessions [hours|seek|jumps|traces|all]

A one-hour session (1 s, 8 GPUs, 40 phases, 200 kernels) is opened and exported; a day of 8 GPUs is
sought in; a trace of 5 million records is exported for Perfetto and in nsys's schema. Everything is
made here, in a temporary folder.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from gputui.attribute.distributions import distributions
from gputui.attribute.operation_sums import FEW_VALUES
from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    Distribution,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    LaunchDelta,
    MachineSample,
    RangeDelta,
    RunProgress,
)
from gputui.playback.index import SNAPSHOTS, Index
from gputui.playback.player import Playback
from gputui.render import formats
from gputui.state import Session
from gputui.store import trace_path
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from gputui.store.trace import TRACE, TraceKind, TraceWriter
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started

GPUS = 8
PHASES = 40
KERNELS = 200
TRACE_RECORDS = 5_000_000


def machine(second: int, dice: random.Random) -> MachineSample:
    """One tick of 8 busy GPUs with readings as a driver gives them."""
    return MachineSample(
        time_ns=at(second),
        host=HostSample(
            cpu_percent=round(dice.uniform(5, 30), 1), memory_used_bytes=64 << 30, load_1m=3.2
        ),
        own_cpu_percent=0.4,
        gpus=tuple(
            GpuSample(
                index=index,
                utilization_percent=dice.choice((97, 98, 99, 100)),
                memory_used_bytes=(70 << 30) + dice.randrange(8) * (2 << 20),
                memory_total_bytes=141 << 30,
                memory_bandwidth_percent=round(dice.uniform(40, 60), 2),
                sm_active_percent=round(dice.uniform(80, 95), 2),
                sm_occupancy_percent=round(dice.uniform(20, 30), 2),
                tensor_active_percent=round(dice.uniform(30, 40), 2),
                power_watts=round(dice.uniform(550, 650), 1),
                power_limit_watts=700.0,
                temperature_celsius=dice.randrange(55, 62),
                sm_clock_mhz=1980,
                memory_clock_mhz=3201,
                throttle_reasons=(),
            )
            for index in range(GPUS)
        ),
    )


def capture(second: int, values: np.random.Generator) -> CaptureDelta:
    """One tick of a process: every phase and every kernel, 30 times each.

    GPU times come in steps of 32 ns, and a kernel's vary by some 1 %, as on an H200.
    """

    def some(count: int, spread: float = 0.05, step: int = 1) -> Distribution:
        times = values.normal(20_000, 20_000 * spread, count).astype(np.int64)
        return distributions(np.zeros(count, np.int64), times // step * step)[1][0]

    return CaptureDelta(
        time_ns=at(second),
        process=1,
        ranges=tuple(
            RangeDelta(range=1 + i, cpu=some(30), gpu_busy_ns=10**6, gpu_total_ns=10**6,
                       projected=some(30, 0.02, 32)) for i in range(PHASES)
        ),
        kernels=tuple(
            KernelDelta(
                process=1, range=1 + i % PHASES, kernel=1 + i, device=0, time=some(30, 0.01, 32)
            )
            for i in range(KERNELS)
        ),
        api=(ApiDelta(process=1, range=1, name="cudaLaunchKernel", time=some(200)),),
        devices=(DeviceDelta(process=1, device=0, busy_ns=9 * 10**8, operations=6000,
                             first_start_ns=at(second - 1), last_end_ns=at(second)),),
        records=20_000,
    )  # fmt: skip


def launches(values: np.random.Generator) -> tuple[LaunchDelta, ...]:
    """What is told of launches every ten seconds: 300 of each kernel."""

    def some(spread: float, step: int = 1) -> Distribution:
        times = values.normal(20_000, 20_000 * spread, 300).astype(np.int64)
        return distributions(np.zeros(300, np.int64), times // step * step, FEW_VALUES)[1][0]

    return tuple(
        LaunchDelta(
            process=1, thread=101, device=0, name="cudaLaunchKernel", kernel=1 + i,
            total=some(0.05), call=some(0.05), queue=some(0.05), kernel_time=some(0.01, 32),
        )
        for i in range(KERNELS)
    )  # fmt: skip


def hours(seconds: int, with_capture: bool) -> Iterator[list[AnyEvent]]:
    """Ticks of a session of this length."""
    dice, values = random.Random(1), np.random.default_rng(1)
    yield [
        header(*(gpu(index) for index in range(GPUS))), run_started(step_range=None), attached(),
        *(defined(1 + i, f"phase {i}", parent=0 if i < 8 else 1 + i % 8) for i in range(PHASES)),
        *(KernelDefined(time_ns=at(1), kernel=1 + i, name=f"void kernel<{i}>(float*)",
                        mangled=f"_Z6kernelILi{i}EEvPf") for i in range(KERNELS)),
    ]  # fmt: skip
    # A tick of capture is made once in a while only: making it costs more than what is measured.
    made = [capture(3, values) for _ in range(20)] if with_capture else []
    launched = launches(values)
    for second in range(3, seconds):
        tick: list[AnyEvent] = [machine(second, dice)]
        if second % 600 == 0:
            tick.append(RunProgress(time_ns=at(second), run=1, stage=f"epoch {second}", done=1))
        if made:
            delta = msgspec.structs.replace(made[second % len(made)], time_ns=at(second))
            if second % 10 == 0:
                delta = msgspec.structs.replace(delta, launches=launched)
            tick.append(delta)
        yield tick
    yield [run_ended()]


def write(path: Path, seconds: int, with_capture: bool) -> None:
    writer = JournalWriter(path)
    for tick in hours(seconds, with_capture):
        writer.write(tick)
    writer.close()


def timed(what: str, action: Callable[[], object]) -> object:
    began = time.perf_counter()
    result = action()
    print(f"{what}: {time.perf_counter() - began:.2f} s")
    return result


def opened(path: Path) -> Session:
    return Session.from_events(JournalReader.open(path, summed=True))


def bench_hours(folder: Path) -> None:
    for suffix in (".gputui", ".gputui.gz", ".gputui.zst"):
        path = folder / f"machine{suffix}"
        write(path, 3600, with_capture=False)
        print(f"an hour of {GPUS} GPUs, {suffix}: {path.stat().st_size / 1e6:.2f} MB")
    path = folder / "hour.gputui"
    write(path, 3600, with_capture=True)
    print(f"an hour with {PHASES} phases and {KERNELS} kernels a tick: "
          f"{path.stat().st_size / 1e6:.0f} MB")  # fmt: skip
    session = timed("open it", lambda: opened(path))
    assert isinstance(session, Session)
    run = session.run
    assert run is not None
    timed("export it to csv", lambda: formats.summary(session, run, "csv"))
    timed("export it to json", lambda: formats.summary(session, run, "json"))
    began = time.process_time()
    formats.export(formats.ExportSource(str(path)), "openmetrics", folder / "hour.om")
    print(f"export it to openmetrics: {time.process_time() - began:.2f} s of processor")
    timed("open the hour of machine samples", lambda: opened(folder / "machine.gputui"))


def bench_seek(folder: Path) -> None:
    for with_capture, seconds in ((False, 86_400), (True, 3600)):
        path = folder / f"seek-{with_capture}.gputui"
        write(path, seconds, with_capture)
        with closing(Index(JournalReader.open(path))) as index:
            timed(f"index {seconds} s (capture: {with_capture})", index.build)
            dice = random.Random(2)
            took = []
            for _ in range(60):
                number = index.line_index.number_at(at(dice.randrange(3, seconds)))
                began = time.perf_counter()
                index.state(number)
                took.append(1000 * (time.perf_counter() - began))
            took.sort()
        print(f"  seek: median {took[30]:.0f} ms, 95 % {took[57]:.0f} ms, worst {took[-1]:.0f} ms "
              f"({SNAPSHOTS} states at most)")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  memory at most {peak:.0f} MB")


def bench_jumps(folder: Path) -> None:
    """As a person has it: from opening a file to the first jump's state, and to later ones."""
    for name, seconds, with_capture in (("day", 86_400, False), ("hour", 3600, True)):
        for suffix in (".gputui", ".gputui.gz", ".gputui.zst"):
            path = folder / f"{name}{suffix}"
            write(path, seconds, with_capture)
            words = [sys.executable, "-m", "tests.bench.bench_sessions", "jump", str(path)]
            subprocess.run([*words, str(seconds)], check=True)
            path.unlink()


def jump_about(path: Path, seconds: int) -> None:
    """In a process of its own, so that its memory and its processor time are its own."""
    changed = threading.Event()
    dice = random.Random(3)
    began = time.perf_counter()
    playback = Playback.open(str(path), changed.set)
    playback.is_paused = True
    playback.start()

    def jump(second: float) -> float:
        before = time.perf_counter()
        playback.seek(second)
        while playback.drain()[0] is None:
            changed.wait(0.01)
            changed.clear()
        return time.perf_counter() - before

    jump(0.9 * seconds)
    first = time.perf_counter() - began
    second = sorted(1000 * jump(dice.uniform(0, seconds)) for _ in range(15))
    while not playback.is_indexed:
        time.sleep(0.02)
    read = time.perf_counter() - began
    time.sleep(1)
    later = sorted(1000 * jump(dice.uniform(0, seconds)) for _ in range(61))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{path.name}: first far jump {first:.2f} s; at once 15 more: median {second[7]:.0f} ms, "
          f"worst {second[-1]:.0f} ms; indexed after {read:.1f} s; then median {later[30]:.0f} ms, "
          f"95 % {later[57]:.0f} ms, worst {later[-1]:.0f} ms; "
          f"{usage.ru_utime + usage.ru_stime:.1f} s of processor, "
          f"{usage.ru_maxrss / 1024:.0f} MB of memory", flush=True)  # fmt: skip
    playback.close()


def make_trace(path: Path) -> None:
    """A recording with a trace of 5 million records: ranges, calls and kernels in turn."""
    writer = JournalWriter(path)
    for tick in hours(10, with_capture=False):
        writer.write(tick)
    writer.close()
    trace = TraceWriter(trace_path(path), 1 << 30)
    launch = trace.name("cudaLaunchKernel")
    portion = 100_000
    for first in range(0, TRACE_RECORDS, portion):
        number = np.arange(first, first + portion)
        records = np.zeros(portion, TRACE)
        turn = number % 5
        records["kind"] = np.array([TraceKind.RANGE, TraceKind.CALL, TraceKind.KERNEL,
                                    TraceKind.CALL, TraceKind.KERNEL])[turn]  # fmt: skip
        records["start"] = at(3) + number * 1000
        records["end"] = records["start"] + 800
        records["process"] = 1
        records["range"] = 1 + number % PHASES
        records["name"] = np.where(records["kind"] == TraceKind.CALL, launch, 1 + number % KERNELS)
        records["correlation"] = np.where(turn > 0, number // 5 * 2 + (turn + 1) // 2, 0)
        records["thread"] = 101
        records["stream"] = 7
        trace.append(records)
    trace.close()


def export_one(path: Path, format_name: str) -> None:
    """In a process of its own, so that its memory is its own."""
    out = path.with_name(f"out.{format_name}")
    began = time.perf_counter()
    formats.export(formats.ExportSource(str(path)), format_name, out)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{format_name} of {TRACE_RECORDS / 1e6:.0f} M records: {took:.1f} s, "
          f"{peak:.0f} MB of memory, {out.stat().st_size / 1e6:.0f} MB written")  # fmt: skip


def bench_traces(folder: Path) -> None:
    path = folder / "trace.gputui"
    make_trace(path)
    for format_name in ("chrome", "nsys"):
        words = [sys.executable, "-m", "tests.bench.bench_sessions", "export", str(path)]
        subprocess.run([*words, format_name], check=True)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["export"]:
        export_one(Path(arguments[1]), arguments[2])
        return
    if arguments[:1] == ["jump"]:
        jump_about(Path(arguments[1]), int(arguments[2]))
        return
    wanted = arguments[0] if arguments else "all"
    benches = {
        "hours": bench_hours, "seek": bench_seek, "jumps": bench_jumps, "traces": bench_traces,
    }  # fmt: skip
    for name, bench in benches.items():
        if wanted in (name, "all"):
            with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
                bench(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
