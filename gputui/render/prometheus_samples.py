"""A session's figures as Prometheus wants them: families, labels, values.

What is missing is left out, never 0; that a GPU does not answer is told by `gputui_gpu_up`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputui.render.prometheus_metrics import (
    OF_INSTANCE,
    OF_SAMPLE,
    OF_STATUS,
    PERCENT,
    Figures,
    counter,
    gauge,
)
from gputui.report.phase_totals import PhaseTotal
from gputui.state import Gpu, Run, Session

Labels = tuple[tuple[str, str], ...]
"""Names and values."""

Found = Iterator[tuple[Labels, Figures]]

_BUILD = gauge("build_info", "Versions")
_SAMPLES = counter("samples", "Samples taken")
_OWN_CPU = gauge("own_cpu_ratio", "What gputui itself uses of one core")
_HOST_CPU = gauge("host_cpu_ratio", "CPU use")
_HOST_MEMORY = gauge("host_memory_used_bytes", "Host memory in use")
_HOST_SWAP = gauge("host_swap_used_bytes", "Swap in use")
_HOST_LOAD = gauge("host_load1", "Load average of a minute")

_GPU_UP = gauge("gpu_up", "1 when the GPU answered")
_GPU_INFO = gauge("gpu_info", "What the GPU is")
_GPU_PEAK = gauge("gpu_memory_bandwidth_peak_bytes_per_second", "DRAM peak")
_GPU_MOMENT = gauge("gpu_sample_timestamp_seconds", "When it answered last")
_THROTTLED = gauge("gpu_throttled", "Why it is slowed now")
_ENERGY = counter("gpu_energy_joules", "Energy since the driver was loaded")
_PCIE_REPLAYS = counter("gpu_pcie_replays", "PCIe packets sent again")
_XID_ERRORS = counter("gpu_xid_errors", "Xid errors since gputui began to listen")
_ECC_ERRORS = counter("gpu_ecc_errors", "Memory errors in all its life")
_REMAPPED_ROWS = gauge("gpu_remapped_rows", "Rows of memory replaced")
_THROTTLE_SECONDS = counter("gpu_throttle_seconds", "Time slowed since the driver was loaded")

_PROCESS_MEMORY = gauge("process_gpu_memory_bytes", "GPU memory of a process")
_PROCESS_SM = gauge("process_sm_ratio", "Its use of the SMs")
_PROCESS_BANDWIDTH = gauge("process_memory_bandwidth_ratio", "Of the DRAM")

_RUN_ACTIVE = gauge("run_active", "1 while the program runs")
_RUN_DURATION = gauge("run_duration_seconds", "How long it ran")
_RUN_PROGRESS = gauge("run_progress", "How far the stage is")
_RUN_METRIC = gauge("run_metric", "What the workload reports, in its own unit")
_RECORDS = counter("capture_records", "Records captured")
_DROPPED = counter("capture_dropped_records", "Records lost")

_INSTANCES = counter("phase_instances", "Times the phase was passed through")
_CPU_SECONDS = counter("phase_cpu_seconds", "Time inside it on the launching thread")
_BUSY_SECONDS = counter("phase_gpu_busy_seconds", "Time the GPU ran its work")
_KERNELS = counter("phase_kernels", "Kernels it launched")
_LAUNCHES = counter("phase_launches", "CUDA calls that launched them")
_COPIED = counter("phase_memcpy_bytes", "Bytes it copied")


def figures(session: Session, phases: Iterable[PhaseTotal]) -> Found:
    """Everything the session knows now; `phases` are those of its newest run."""
    yield from _host(session)
    for _, gpu in sorted(session.gpus.items()):
        yield from _gpu(gpu)
    yield from _processes(session)
    run = session.run
    if run is not None:
        yield from _run(run)
        yield from _phases(run, phases)


def _host(session: Session) -> Found:
    if session.header:
        told = session.header
        labels = (
            ("version", told.gputui_version),
            ("driver_version", told.driver_version or ""),
            ("cuda_driver_version", told.cuda_driver_version or ""),
        )
        yield labels, [(_BUILD, 1)]
    found: Figures = [(_SAMPLES, session.samples)]
    if session.own_cpu_percent is not None:
        found.append((_OWN_CPU, session.own_cpu_percent * PERCENT))
    host = session.host
    if host is not None:
        found += [
            (family, value)
            for family, value in (
                (_HOST_CPU, _ratio(host.cpu_percent)),
                (_HOST_MEMORY, host.memory_used_bytes),
                (_HOST_SWAP, host.swap_used_bytes),
                (_HOST_LOAD, host.load_1m),
            )
            if value is not None
        ]
    yield (), found


def _gpu(gpu: Gpu) -> Found:
    facts = gpu.facts
    labels = (("gpu", str(facts.index)), ("uuid", facts.uuid))
    up = gpu.sample is not None and "device" not in gpu.unavailable
    about = (
        ("name", facts.name),
        ("pci_bus_id", facts.pci_bus_id or ""),
        ("compute_capability", facts.compute_capability or ""),
    )
    yield labels, [(_GPU_UP, up)]
    yield labels + about, [(_GPU_INFO, 1)]
    found: Figures = []
    if facts.peak_memory_bandwidth_bytes_per_s is not None:
        found.append((_GPU_PEAK, facts.peak_memory_bandwidth_bytes_per_s))
    if gpu.sample_ns:
        found.append((_GPU_MOMENT, gpu.sample_ns / 1e9))
    if gpu.sample is not None:
        found += OF_SAMPLE.figures(gpu.sample)
    yield labels, found
    if gpu.sample is not None:
        for reason in gpu.sample.throttle_reasons or ():
            yield (*labels, ("reason", reason)), [(_THROTTLED, 1)]
        profiles = {one.index: one for one in facts.mig_instances}
        for sample in gpu.sample.mig_instances:
            one = profiles.get(sample.index)
            where = (
                ("instance", str(sample.index)),
                ("profile", one.name if one else ""),
                ("instance_uuid", one.uuid if one else ""),
            )
            yield labels + where, OF_INSTANCE.figures(sample)
    yield from _status(gpu, labels)


def _status(gpu: Gpu, labels: Labels) -> Found:
    status = gpu.status
    if status is None:
        return
    counted = (
        (_ENERGY, status.energy_joules),
        (_PCIE_REPLAYS, status.pcie_replays),
        (_XID_ERRORS, status.xid_count),
    )
    yield (
        labels,
        OF_STATUS.figures(status)
        + [(family, value) for family, value in counted if value is not None],
    )
    for kind in ("corrected", "uncorrected"):
        errors = getattr(status, f"ecc_{kind}_lifetime")
        rows = getattr(status, f"remapped_rows_{kind}")
        both = ((_ECC_ERRORS, errors), (_REMAPPED_ROWS, rows))
        found = [(family, value) for family, value in both if value is not None]
        yield (*labels, ("kind", kind)), found
    for reason, seconds in (status.throttle_seconds or {}).items():
        yield (*labels, ("reason", reason)), [(_THROTTLE_SECONDS, seconds)]


def _processes(session: Session) -> Found:
    for process in session.processes:
        instance = "" if process.gpu_instance_id is None else str(process.gpu_instance_id)
        labels = (
            ("gpu", str(process.gpu)),
            ("instance", instance),
            ("pid", str(process.pid)),
            ("user", process.user or ""),
        )
        told = (
            (_PROCESS_MEMORY, process.gpu_memory_bytes),
            (_PROCESS_SM, _ratio(process.sm_percent)),
            (_PROCESS_BANDWIDTH, _ratio(process.memory_bandwidth_percent)),
        )
        yield labels, [(family, value) for family, value in told if value is not None]


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent * PERCENT


def _run(run: Run) -> Found:
    labels = _labels(run)
    yield labels, [(_RUN_ACTIVE, run.is_active), (_RUN_DURATION, run.duration_ns / 1e9)]
    if run.progress is not None:
        stage = (("stage", run.progress.stage), ("unit", run.progress.unit))
        yield labels + stage, [(_RUN_PROGRESS, run.progress.done)]
    for name, value in run.metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*labels, ("metric", name)), [(_RUN_METRIC, value)]
    for process in run.processes.values():
        attached = process.attached
        who = (("pid", str(attached.pid)), ("rank", _rank(attached.rank)))
        yield labels + who, [(_RECORDS, process.records), (_DROPPED, process.dropped)]


def _labels(run: Run) -> Labels:
    return (("run", str(run.started.run)), ("workload", run.started.name))


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _phases(run: Run, phases: Iterable[PhaseTotal]) -> Found:
    labels = _labels(run)
    for phase in phases:
        yield (
            (
                *labels,
                ("phase", phase.path),
                ("domain", phase.domain),
                ("pid", str(phase.pid)),
                ("rank", _rank(phase.rank)),
            ),
            [
                (_INSTANCES, phase.instances),
                (_CPU_SECONDS, phase.cpu_ns / 1e9),
                (_BUSY_SECONDS, phase.gpu_busy_ns / 1e9),
                (_KERNELS, phase.kernels),
                (_LAUNCHES, phase.launches),
                (_COPIED, phase.memcpy_bytes),
            ],
        )
