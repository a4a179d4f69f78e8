"""Sessions as lists of event batches, made of the real typed events, and a source that gives them.

The figures have the shape of a GPT-2-small decode on an H200; a recorded session can stand in
for any of these lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gputui.collect.catalogue import Catalogue, Forecast, Parameter, Preset, Value, Workload
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    Distribution,
    GpuFacts,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostFacts,
    HostSample,
    KernelDefined,
    KernelDelta,
    LeafTime,
    LoopDelta,
    MachineSample,
    MemoryOperationDelta,
    MigFacts,
    MigSample,
    OpenRange,
    ProcessAttached,
    ProcessSample,
    RangeDefined,
    RangeDelta,
    RunEnded,
    RunMetrics,
    RunOutput,
    RunProgress,
    RunStarted,
    Scope,
    StepSpan,
    StepTimeline,
)
from gputui.model.events.distributions import encoded_values
from gputui.model.hub import Hub
from gputui.model.leaves import Leaf
from workloads.forecasting import answer

START_NS = 1_760_000_000_000_000_000
SECOND_NS = 1_000_000_000
GIB = 1 << 30

Batch = list[AnyEvent]

KERNELS = (
    ("void nvjet_hsh_64x8_64x16_4x1_v_bz_TNT(Params)", 0.42),
    ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<x>>(int, x)", 0.2),
    (
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64>>(Flash_params)",
        0.2,
    ),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", 0.12),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(ReduceOp)", 0.06),
)
LAYER = ("norm", "qkv_proj", "attention", "out_proj", "mlp")
LAYERS = 12


def dist(count: int, mean: int) -> Distribution:
    """`count` durations around `mean`."""
    low, high = int(mean * 0.9), int(mean * 1.1)
    half = count // 2
    values = tuple(
        (value, number) for value, number in ((low, half), (high, count - half)) if number
    )
    total = sum(value * number for value, number in values)
    return Distribution(
        count=count,
        total=total,
        squares=count * (0.1 * mean) ** 2,
        minimum=values[0][0],
        maximum=values[-1][0],
        values=encoded_values(values),
    )


def header(gpus: int, *, time_ns: int = START_NS, name: str = "NVIDIA H200") -> Header:
    """The first event of a session on a machine with so many H200s."""
    return Header(
        time_ns=time_ns,
        schema=JOURNAL_SCHEMA,
        gputui_version="0.1.0",
        python_version="3.12.3",
        monotonic_ns=0,
        interval_s=1.0,
        host=HostFacts(
            hostname="gpu-box",
            system="Linux 6.8",
            cpu_model="Intel Xeon Platinum 8468",
            cpu_count=16,
            memory_total_bytes=126 * GIB,
        ),
        driver_version="580.159.04" if gpus else None,
        cuda_driver_version="13.0" if gpus else None,
        gpus=tuple(
            GpuFacts(
                index=index,
                uuid=f"GPU-0000000{index}",
                name=name,
                compute_capability="9.0",
                sm_count=132,
                memory_total_bytes=140 * GIB,
                max_sm_clock_mhz=1980,
                max_memory_clock_mhz=3201,
                peak_memory_bandwidth_bytes_per_s=4.81e12,
                power_limit_watts=700.0,
                temperature_slowdown_celsius=89.0,
                gpm_supported=True,
            )
            for index in range(gpus)
        ),
        gpu_unavailable_reason=None if gpus else "the NVIDIA driver is not loaded",
    )


def wave(tick: int, index: int, low: float, high: float) -> float:
    """A figure that moves."""
    return low + (high - low) * (0.5 + 0.5 * math.sin(tick / 7 + index)) * (
        0.8 + 0.2 * ((tick * 7919 + index * 31) % 10) / 10
    )


def machine(
    tick: int, gpus: int, *, busy: bool = True, command: str = "python -m x"
) -> MachineSample:
    """One sample of the machine."""
    top = 1.0 if busy else 0.0
    return MachineSample(
        time_ns=START_NS + tick * SECOND_NS,
        host=HostSample(
            cpu_percent=wave(tick, 3, 5, 40),
            memory_used_bytes=31 * GIB + tick * 1_000_000,
            load_1m=1.25,
        ),
        gpus=tuple(
            GpuSample(
                index=index,
                utilization_percent=round(wave(tick, index, 60, 100) * top),
                memory_used_bytes=int(wave(tick, index, 30, 60) * GIB * (0.02 + top)),
                memory_reserved_bytes=645_000_000,
                memory_total_bytes=140 * GIB,
                memory_bandwidth_percent=wave(tick, index, 20, 70) * top,
                memory_bandwidth_bytes_per_s=wave(tick, index, 20, 70) * top / 100 * 4.81e12,
                sm_active_percent=wave(tick, index, 55, 98) * top,
                sm_occupancy_percent=wave(tick, index + 2, 10, 40) * top,
                tensor_active_percent=wave(tick, index + 1, 5, 60) * top,
                power_watts=wave(tick, index, 250, 690) if busy else 76.0,
                power_limit_watts=700.0,
                temperature_celsius=45.0 + 3 * index,
                sm_clock_mhz=1980,
                memory_clock_mhz=3201,
                pcie_rx_bytes_per_s=1.2e9 * top,
                pcie_tx_bytes_per_s=3.4e8 * top,
                nvlink_rx_bytes_per_s=None,
                nvlink_tx_bytes_per_s=None,
                throttle_reasons=("power brake",) if index == 3 else (),
            )
            for index in range(gpus)
        ),
        processes=tuple(
            ProcessSample(
                pid=4000 + index,
                gpu=index,
                user="ada",
                command=command,
                gpu_memory_bytes=(40 - index) * GIB,
                sm_percent=80.0,
                cpu_percent=101.0,
                host_memory_bytes=3 * GIB,
            )
            for index in range(gpus)
        ),
        own_cpu_percent=0.8,
    )


def status(gpu: int, time_ns: int = START_NS, *, bad: bool = False) -> GpuStatus:
    """What is read seldom, of a sound card or of one in trouble."""
    return GpuStatus(
        time_ns=time_ns,
        gpu=gpu,
        energy_joules=7_200_000.0,
        throttle_seconds={"power cap": 12.5 if bad else 0.0, "board limit": 0.0},
        pcie_link_generation=5,
        pcie_link_width=16,
        pcie_replays=0,
        nvlink_active_count=18,
        compute_mode="default",
        persistence_mode=True,
        ecc_enabled=True,
        ecc_corrected=4 if bad else 0,
        ecc_uncorrected=1 if bad else 0,
        remapped_rows_corrected=0,
        remapped_rows_uncorrected=2 if bad else 0,
        row_remapping_pending=bad,
        row_remapping_failed=False,
        retired_pages=0,
        xid_count=3 if bad else 0,
        last_xid=79 if bad else None,
        last_xid_time_ns=time_ns if bad else None,
    )


def with_instances(first: Header, sample: MachineSample) -> Batch:
    """The first GPU cut in two MIG instances, one of which works."""
    instances = (
        MigFacts(index=0, uuid="MIG-a", name="3g.71gb", gpu_instance_id=1, sm_count=60),
        MigFacts(index=1, uuid="MIG-b", name="4g.71gb", gpu_instance_id=2, sm_count=64),
    )
    gpu = msgspec.structs.replace(first.gpus[0], mig_enabled=True, mig_instances=instances)
    working = (
        MigSample(
            index=0, memory_used_bytes=9 * GIB, memory_total_bytes=70 * GIB, sm_active_percent=77.0
        ),
    )
    cut = msgspec.structs.replace(sample.gpus[0], mig_instances=working)
    return [
        msgspec.structs.replace(first, gpus=(gpu, *first.gpus[1:])),
        msgspec.structs.replace(sample, gpus=(cut, *sample.gpus[1:])),
    ]


def no_nvlink(gpu: int, time_ns: int = START_NS) -> GpuUnavailable:
    """Why one GPU has no NVLink figures."""
    reason = "no NVLink on this machine"
    return GpuUnavailable(
        time_ns=time_ns,
        gpu=gpu,
        reasons={"nvlink_rx_bytes_per_s": reason, "nvlink_tx_bytes_per_s": reason},
    )


def decode_run(
    first_tick: int,
    steps: int,
    *,
    cuda: bool,
    ticks: int = 10,
    ended: bool = True,
    rename: Callable[[str], str] = lambda name: name,
) -> list[Batch]:
    """A run of `ticks` seconds that decodes `steps` tokens, one batch a tick."""
    at = START_NS + first_tick * SECOND_NS
    names = [
        "load",
        "warmup",
        "prefill",
        "decode",
        "step",
        "embedding",
        *LAYER,
        "lm_head",
        "sample",
    ]
    parents = {"step": "decode"} | dict.fromkeys(names[5:], "step")
    numbers = {name: index + 1 for index, name in enumerate(names)}
    defined: Batch = [
        RangeDefined(
            time_ns=at,
            range=numbers[name],
            process=1,
            thread=1,
            parent=numbers.get(parents.get(name, ""), 0),
            name=rename(name),
        )
        for name in names
    ]
    kernels: Batch = [
        KernelDefined(time_ns=at, kernel=index + 1, name=rename(name), mangled=f"_Z{index}")
        for index, (name, _) in enumerate(KERNELS)
    ]
    status = "tracing" if cuda else "no CUDA"
    first: Batch = [
        RunStarted(
            time_ns=at,
            run=1,
            kind="workload",
            name=rename("inference"),
            arguments=(rename("inference"), "--size", "small"),
            parameters={"size": "small", "batch": 1, "tokens": steps, "precision": "bf16"},
            pid=4000,
            step_range=rename("step"),
        ),
        ProcessAttached(
            time_ns=at,
            run=1,
            process=1,
            pid=4000,
            parent_pid=1,
            command="python",
            cuda_status=status,
        ),
        *defined,
        *(kernels if cuda else []),
        _delta(at, numbers, {"load": (1, 400_000_000), "warmup": (1, 90_000_000)}, cuda),
        _delta(at, numbers, {"prefill": (1, 14_000_000)}, cuda),
        RunOutput(time_ns=at, run=1, stream="stdout", lines=(rename("loading weights"),)),
    ]
    batches = [first]
    each = steps // ticks
    step_ns = 3_000_000
    for tick in range(ticks):
        now = at + (tick + 1) * SECOND_NS
        times = {"step": (each, step_ns), "embedding": (each, 60_000), "lm_head": (each, 200_000)}
        times |= dict.fromkeys(LAYER, (each * LAYERS, 40000)) | {"sample": (each, 90_000)}
        if ended and tick == ticks - 1:
            times["decode"] = (1, ticks * SECOND_NS)
        live = not ended or tick < ticks - 1
        since = {"decode": at, "step": now - 1_000_000, "mlp": now - 20_000} if live else {}
        batches.append(
            [
                _delta(now, numbers, times, cuda, opened=since),
                _step(now, numbers, step_ns, cuda),
                RunProgress(
                    time_ns=now,
                    run=1,
                    stage=rename("decode"),
                    done=each * (tick + 1),
                    total=each * ticks,
                    unit=rename("tokens"),
                ),
                RunMetrics(
                    time_ns=now,
                    run=1,
                    metrics={
                        "tokens_per_s": 331.5 + tick,
                        "ttft_ms": 14.2,
                        "tpot_ms": 3.01,
                        "itl_p99_ms": 3.4,
                        "peak_memory_bytes": 1_310_000_000,
                    },
                ),
                RunOutput(
                    time_ns=now, run=1, stream="stderr", lines=(rename(f"token {tick} done"),)
                ),
            ]
        )
    if ended:
        batches.append([RunEnded(time_ns=now + 1, run=1, exit_code=0, reason="ended well")])
    return batches


def _delta(
    time_ns: int,
    numbers: Mapping[str, int],
    times: Mapping[str, tuple[int, int]],
    cuda: bool,
    opened: Mapping[str, int] | None = None,
) -> CaptureDelta:
    ranges = tuple(
        RangeDelta(
            range=numbers[name],
            cpu=dist(count, mean),
            gpu_busy_ns=int(count * mean * 0.7) if cuda else 0,
            gpu_total_ns=int(count * mean * 0.8) if cuda else 0,
            projected=dist(count, int(mean * 0.75)) if cuda else None,
        )
        for name, (count, mean) in times.items()
    )
    kernels = tuple(
        KernelDelta(
            process=1,
            range=numbers[name],
            kernel=kernel + 1,
            device=0,
            time=dist(count, max(900, int(mean * share))),
        )
        for name, (count, mean) in times.items()
        if name not in ("decode", "step", "load")
        for kernel, (_, share) in enumerate(KERNELS)
    )
    calls = tuple(
        ApiDelta(process=1, range=numbers[name], name=call, time=dist(count, 4_000))
        for name, (count, _) in times.items()
        for call in ("cudaLaunchKernel", "cudaStreamSynchronize")
    )
    copies = (
        MemoryOperationDelta(
            process=1,
            range=numbers.get("sample", 0),
            operation="[CUDA memcpy Device-to-Host]",
            device=0,
            time=dist(4, 1_700),
            size=dist(4, 8),
        ),
    )
    busy = sum(r.gpu_busy_ns for r in ranges)
    return CaptureDelta(
        time_ns=time_ns,
        process=1,
        ranges=ranges,
        kernels=kernels if cuda else (),
        api=calls if cuda else (),
        memory_operations=copies if cuda else (),
        devices=(
            DeviceDelta(
                process=1,
                device=0,
                busy_ns=busy // 2,
                operations=900,
                first_start_ns=time_ns - SECOND_NS,
                last_end_ns=time_ns,
            ),
        )
        if cuda
        else (),
        leaf_times=(
            LeafTime(1, 0, Scope.STEADY, 0, Leaf.MATMUL, SECOND_NS // 10),
            LeafTime(1, 0, Scope.STEADY, 0, Leaf.LAUNCH, SECOND_NS - SECOND_NS // 10),
        )
        if cuda
        else (),
        loops=(LoopDelta(1, 0, Scope.STEADY, 0, 100, 900, time_ns - SECOND_NS, time_ns),)
        if cuda
        else (),
        open_ranges=tuple(
            OpenRange(range=numbers[name], since_ns=since) for name, since in (opened or {}).items()
        ),
        records=20_000,
        callback_ns=3_000_000,
        reader_cpu_ns=8_000_000,
    )


def _step(time_ns: int, numbers: Mapping[str, int], step_ns: int, cuda: bool) -> StepTimeline:
    names = ["embedding", *LAYER * LAYERS, "lm_head", "sample"]
    each = step_ns // (len(names) + 1)
    spans = [StepSpan("cpu", numbers["step"], 0, step_ns)]
    for index, name in enumerate(names):
        spans.append(StepSpan("cpu", numbers[name], index * each, each - 2_000))
        if cuda:
            spans.append(StepSpan("gpu", numbers[name], index * each + 20_000, each // 2))
    return StepTimeline(
        time_ns=time_ns,
        process=1,
        range=numbers["step"],
        start_ns=time_ns - step_ns,
        duration_ns=step_ns,
        spans=tuple(spans),
    )


def gpu_session(gpus: int = 1, *, quiet: int = 60, ended: bool = True) -> list[Batch]:
    """A machine with GPUs watched for a while, then a run."""
    batches: list[Batch] = [[header(gpus), *(no_nvlink(index) for index in range(gpus))]]
    batches += [[machine(tick, gpus)] for tick in range(quiet)]
    for tick, batch in enumerate(decode_run(quiet, 3000, cuda=True, ended=ended)):
        batches.append([*batch, machine(quiet + tick, gpus)])
    return batches


def cpu_session(*, ended: bool = True) -> list[Batch]:
    """A machine without GPUs that runs a workload."""
    batches: list[Batch] = [[header(0)]]
    batches += [[machine(tick, 0)] for tick in range(30)]
    return batches + decode_run(30, 500, cuda=False, ended=ended)


HOSTILE = "[/] [b +] [red]x[/evil] $(id) 日本語 \N{REPLACEMENT CHARACTER}[0m %s {0} \u0301e"


def hostile_session() -> list[Batch]:
    """Every name is one that breaks markup, formats or widths. Control characters never get
    here: sources and the journal clean them out."""
    batches: list[Batch] = [[header(2, name=HOSTILE)]]
    batches += [[machine(tick, 2, command=HOSTILE)] for tick in range(5)]
    return batches + decode_run(5, 500, cuda=True, rename=lambda name: f"{name}{HOSTILE}")


def catalogue() -> Catalogue:
    """Two workloads with every kind of parameter."""
    return Catalogue(
        schema=JOURNAL_SCHEMA,
        workloads=(
            Workload(
                name="inference",
                summary="a GPT-2-shaped decoder: prefill, then decode",
                description="Random weights; greedy sampling; tokens copied back at every step.",
                parameters=(
                    Parameter(
                        name="size",
                        kind="choice",
                        default="small",
                        cpu_default="tiny",
                        help="the model's size",
                        choices=("tiny", "small", "medium"),
                        allowed="one of tiny, small, medium",
                    ),
                    Parameter(
                        name="batch",
                        kind="int",
                        default=1,
                        help="sequences at once",
                        minimum=1,
                        maximum=64,
                        allowed="a whole number from 1 to 64",
                    ),
                    Parameter(
                        name="temperature",
                        kind="float",
                        default=1.0,
                        help="of the sampling",
                        minimum=0.0,
                        allowed="a number of at least 0",
                    ),
                    Parameter(
                        name="compile", kind="bool", default=False, help="with torch.compile"
                    ),
                    Parameter(name="note", kind="text", default="", help="kept with the results"),
                ),
                presets=(Preset(name="throughput", help="large batches", values={"batch": 32}),),
                phases=("load", "decode"),
                step_range="step",
            ),
            Workload(name="train", summary="a training step", description="Trains."),
        ),
    )


class ScriptedRecording:
    """No journal, or one at `path`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.failure: str | None = None
        self.notices: list[str] = []


class ScriptedForecaster:
    """Answers as the workloads' process does."""

    def ask(self, workload: str, values: Mapping[str, Value], gpu: str | None) -> Forecast:
        """The real answer."""
        asked = {"workload": workload, "values": dict(values), "gpu": gpu}
        return msgspec.convert(answer(asked), Forecast)

    def close(self) -> None:
        """There is nothing to close."""


class ScriptedSource:
    """Gives batches when told to; notes what is asked of it. Looks like the live source."""

    def __init__(self, notify: Callable[[], None], path: Path | None = None) -> None:
        self.hub = Hub(notify)
        self.interval_s = 1.0
        self.recording = ScriptedRecording(path)
        self.started: list[tuple[str, dict[str, Value]]] = []
        self.stops = 0
        self.attached: list[int] = []
        self.closed = False

    def start(self) -> None:
        """Nothing of its own accord."""

    def close(self) -> bool:
        """Note it."""
        self.closed = True
        return True

    def give(self, batches: Sequence[Batch]) -> None:
        """Emit batches."""
        for batch in batches:
            self.hub.emit(batch)

    def catalogue(self) -> Catalogue:
        """The two workloads."""
        return catalogue()

    def forecaster(self) -> ScriptedForecaster:
        """The workloads' own answers, without their process."""
        return ScriptedForecaster()

    def start_workload(
        self, name: str, parameters: Mapping[str, Value], step_range: str | None = None
    ) -> None:
        """Note it."""
        del step_range
        self.started.append((name, dict(parameters)))

    @property
    def has_run(self) -> bool:
        """Whether a workload was started: what it does is left to the test."""
        return bool(self.started)

    def attach(self, pid: int) -> None:
        """Note it."""
        self.attached.append(pid)

    def stop_run(self) -> None:
        """Note it."""
        self.stops += 1
