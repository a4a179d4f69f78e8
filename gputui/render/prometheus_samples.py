"""A session's figures as Prometheus wants them: families, labels, values.

Missing values are left out, never 0; `gputui_gpu_up` says whether a GPU answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from gputui.model.events import (
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineSample,
    ProcessSample,
)
from gputui.model.leaves import LEAVES
from gputui.model.metrics import metrics_of
from gputui.render.prometheus_metrics import Exported, Family, Found, Labels, counter, gauge
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import PhaseRow
from gputui.state import Gpu, Run, Session, mig_metrics

_OF_TICK = Exported("", metrics_of(MachineSample))
_OF_HOST = Exported("host_", metrics_of(HostSample))
_OF_FACTS = Exported("gpu_", metrics_of(GpuFacts))
_OF_SAMPLE = Exported("gpu_", metrics_of(GpuSample))
_OF_STATUS = Exported("gpu_", metrics_of(GpuStatus))
_OF_INSTANCE = Exported("mig_", mig_metrics())
_OF_PROCESS = Exported("process_", metrics_of(ProcessSample))

_BUILD = gauge("build_info", "Versions")
_SAMPLES = counter("samples", "Samples taken")

_GPU_UP = gauge("gpu_up", "1 when the GPU answered")
_GPU_INFO = gauge("gpu_info", "What the GPU is")
_GPU_MOMENT = gauge("gpu_sample_timestamp_seconds", "When it answered last")

_RUN_ACTIVE = gauge("run_active", "1 while the program runs")
_RUN_DURATION = gauge("run_duration_seconds", "How long it ran")
_RUN_PROGRESS = gauge("run_progress", "How far the stage is")
RUN_METRIC = gauge("run_metric", "What the workload reports, in its own unit")
_RECORDS = counter("capture_records", "Records captured")
DROPPED = counter("capture_dropped_records", "Records lost")

_STEPS = gauge("steps", "Steady steps of the GPU so far")
STEP_SECONDS = gauge("step_seconds", "Mean length of a steady step")
CAUSE_SHARE = gauge("cause_share_ratio", "Part of the GPU's wall time in steady steps")
_CAUSE_SECONDS = gauge("cause_seconds", "Time of the GPU in steady steps")

_INSTANCES = counter("phase_instances", "Instances of the phase that have ended")
CPU_SECONDS = counter("phase_cpu_seconds", "Time inside it on the launching thread")
BUSY_SECONDS = counter("phase_gpu_busy_seconds", "Time the GPU ran its work")
_KERNELS = counter("phase_kernels", "Kernels it launched")
_LAUNCHES = counter("phase_launches", "CUDA calls that launched them")
_COPIED = counter("phase_memcpy_bytes", "Bytes it copied")


def figures(session: Session, phases: Iterable[PhaseRow]) -> Found:
    """Everything the session knows now; `phases` are those of its newest run."""
    yield from _host(session)
    for _, gpu in sorted(session.gpus.items()):
        yield from _gpu(gpu)
    yield from _processes(session)
    run = session.run
    if run is not None:
        yield from _run(run)
        yield from _causes(run)
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
    yield (), [(_SAMPLES, session.samples)]
    yield from _OF_TICK.of(session)
    if session.host is not None:
        yield from _OF_HOST.of(session.host)


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
    yield from _OF_FACTS.of(facts, labels)
    if gpu.sample_ns:
        yield labels, [(_GPU_MOMENT, gpu.sample_ns / 1e9)]
    if gpu.sample is not None:
        yield from _OF_SAMPLE.of(gpu.sample, labels)
        profiles = {one.index: one for one in facts.mig_instances}
        for sample in gpu.sample.mig_instances:
            one = profiles.get(sample.index)
            where = (
                ("mig_instance", str(sample.index)),
                ("profile", one.name if one else ""),
                ("mig_uuid", one.uuid if one else ""),
            )
            yield from _OF_INSTANCE.of(sample, labels + where)
    if gpu.status is not None:
        yield from _OF_STATUS.of(gpu.status, labels)


def _processes(session: Session) -> Found:
    for process in session.processes:
        instance = "" if process.gpu_instance_id is None else str(process.gpu_instance_id)
        labels = (
            ("gpu", str(process.gpu)),
            ("gpu_instance", instance),
            ("pid", str(process.pid)),
            ("user", process.user or ""),
        )
        yield from _OF_PROCESS.of(process, labels)


def _run(run: Run) -> Found:
    labels = _labels(run)
    yield labels, [(_RUN_ACTIVE, run.is_active), (_RUN_DURATION, run.duration_ns / 1e9)]
    if run.progress is not None:
        stage = (("stage", run.progress.stage), ("unit", run.progress.unit))
        yield labels + stage, [(_RUN_PROGRESS, run.progress.done)]
    for name, value in run.metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*labels, ("metric", name)), [(RUN_METRIC, value)]
    for process in run.processes.values():
        attached = process.attached
        who = (("pid", str(attached.pid)), ("rank", _rank(attached.rank)))
        yield labels + who, [(_RECORDS, process.records), (DROPPED, process.dropped)]


def _causes(run: Run) -> Found:
    """Every leaf of the time tree of each GPU, also those without time: a series must not end."""
    for gpu in sorted({key.device for key in run.leaf_times}):
        tree = time_tree(run, gpu)
        if tree is None:
            continue
        labels = (*_labels(run), ("gpu", str(gpu)))
        if tree.has_steps:
            yield labels, [(_STEPS, tree.steps), (STEP_SECONDS, tree.step_mean_ns / 1e9)]
        for leaf, meaning in LEAVES.items():
            ns = tree.leaves.get(leaf, 0)
            yield (
                (*labels, ("cause", meaning.key)),
                [(CAUSE_SHARE, tree.share(ns)), (_CAUSE_SECONDS, ns / 1e9)],
            )


def _labels(run: Run) -> Labels:
    return (("run", str(run.started.run)), ("workload", run.started.name))


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _phases(run: Run, phases: Iterable[PhaseRow]) -> Found:
    labels = _labels(run)
    for phase in phases:
        found: list[tuple[Family, float | None]] = [
            (_INSTANCES, phase.instances),
            (CPU_SECONDS, phase.cpu_ended_ns / 1e9),
            (BUSY_SECONDS, phase.gpu_busy_ns / 1e9),
            (_KERNELS, phase.kernels),
            (_LAUNCHES, phase.launches),
            (_COPIED, phase.memcpy_bytes),
        ]
        yield (
            (
                *labels,
                ("phase", phase.path),
                ("domain", phase.domain),
                ("pid", str(phase.pid)),
                ("rank", _rank(phase.rank)),
            ),
            [(family, value) for family, value in found if value is not None],
        )
