"""Each rule at its threshold: silent just under it, heard just over it, and with what figures."""

from __future__ import annotations

import pytest

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    MachineSample,
    MemoryOperationDelta,
    StreamDelta,
)
from gputui.report.explain import Insight, insights
from gputui.state import Session
from tests.events_for_tests import at, attached, gpu, header, run_started, times


def found(rule: str, *events: AnyEvent) -> list[Insight]:
    session = Session()
    session.apply([header(gpu(0), gpu(1)), run_started(), attached(), *events])
    assert session.run is not None
    return [entry for entry in insights(session, session.run) if entry.rule == rule]


def one(rule: str, *events: AnyEvent) -> Insight:
    (insight,) = found(rule, *events)
    assert insight.advice
    assert insight.source
    return insight


def captured(**parts: object) -> CaptureDelta:
    return CaptureDelta(time_ns=at(3), process=1, **parts)  # type: ignore[arg-type]


def device(busy_ns: int, span_ns: int = 1_000_000, number: int = 0, **more: object) -> DeviceDelta:
    return DeviceDelta(
        process=1, device=number, busy_ns=busy_ns, operations=1, first_start_ns=at(2),
        last_end_ns=at(2) + span_ns, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def kernel(*ns: int, number: int = 1) -> KernelDelta:
    return KernelDelta(process=1, range=0, kernel=number, device=0, time=times(*ns))


def calls(*ns: int, name: str = "cudaLaunchKernel") -> ApiDelta:
    return ApiDelta(process=1, range=0, name=name, time=times(*ns))


def readings(**fields: object) -> tuple[MachineSample, ...]:
    return tuple(
        MachineSample(
            time_ns=at(2 + second),
            host=HostSample(),
            gpus=(GpuSample(index=0, **fields),),  # type: ignore[arg-type]
        )
        for second in range(4)
    )


def test_a_run_of_which_nothing_is_known_gives_rise_to_nothing() -> None:
    session = Session()
    session.apply([header(gpu(0)), run_started(), attached()])
    assert session.run is not None
    assert insights(session, session.run) == []


def test_every_lost_record_counts() -> None:
    assert found("lost_records", captured(records=5)) == []
    assert one("lost_records", captured(dropped=1)).value == 1


def test_a_gpu_is_idle_under_half_of_the_time() -> None:
    assert found("gpu_idle", captured(devices=(device(500_000),))) == []
    assert found("gpu_idle", captured(devices=(device(1, span_ns=0),))) == []
    parts = (device(1, span_ns=0, number=0), device(490_000, number=1))
    insight = one("gpu_idle", captured(devices=parts))
    assert (insight.value, insight.threshold) == (49.0, 50)
    assert insight.verdict.startswith("GPU 1 was busy 49 % of the time: ")


def test_gaps_under_a_millisecond_are_lost_to_launching() -> None:
    def gaps(*ns: int) -> CaptureDelta:
        return captured(devices=(device(1, span_ns=10_000_000, idle=times(*ns)),))

    assert found("launch_gaps", gaps(*[900_000] * 2)) == []
    assert found("launch_gaps", gaps(1_000_000, 1_000_000, 1_000_000, 5_000_000)) == []
    assert one("launch_gaps", gaps(*[900_000] * 3, 5_000_000)).value == pytest.approx(27)


def test_launches_are_slow_over_ten_microseconds() -> None:
    assert found("slow_launches", captured(api=(calls(10_000, 10_000),))) == []
    assert found("slow_launches", captured(api=(calls(90_000, name="cudaMemcpyAsync"),))) == []
    insight = one("slow_launches", captured(api=(calls(10_000, 14_000),)))
    assert (insight.value, insight.threshold) == (12.0, 10)
    assert insight.verdict == "a launch call takes 12.0 µs on average"


def test_kernels_are_short_beside_their_launches() -> None:
    def run(*kernels: KernelDelta, queue: int | None = None) -> list[Insight]:
        waits = None if queue is None else times(queue)
        stream = StreamDelta(0, 7, 1, 1, queue=waits)
        api = (calls(5_000),)
        return found("short_kernels", captured(kernels=kernels, api=api, streams=(stream,)))

    long, short = kernel(*[9_000] * 7), kernel(*[4_999] * 3, number=2)
    assert run(long, short) == []  # just 30 %
    assert run(kernel(5_000)) == []
    (insight,) = run(kernel(*[9_000] * 6), kernel(*[4_999] * 4, number=2))
    assert (insight.value, insight.threshold) == (40.0, 30)
    assert "(5.0 µs)" in insight.verdict
    assert len(run(kernel(1), queue=5_000)) == 1
    assert run(kernel(1), queue=5_001) == []  # kernels wait for the GPU
    assert found("short_kernels", captured(kernels=(kernel(1),))) == []


def test_streams_overlap_where_they_could() -> None:
    def run(overlap_ns: int, second_ns: int = 1_000) -> list[Insight]:
        streams = (StreamDelta(0, 7, 1, 2_000), StreamDelta(0, 13, 1, second_ns))
        devices = (device(2_000, overlap_ns=overlap_ns),)
        return found("no_stream_overlap", captured(devices=devices, streams=streams))

    assert run(50) == []
    (insight,) = run(49)
    assert insight.value == pytest.approx(4.9)
    assert run(0, second_ns=99) == []  # too little to overlap
    assert len(run(0, second_ns=100)) == 1


@pytest.mark.parametrize(
    ("tensor", "sms", "matmul_ns", "heard"),
    [
        (0.0, 80.0, 501, True),
        (0.79, 80.0, 501, True),
        (0.8, 80.0, 501, False),
        (0.0, 80.0, 500, False),
        (0.7, 9.8, 501, False),  # mostly idle: this says nothing
        (0.0, 0.99, 501, False),  # it hardly did anything
        (0.0, None, 501, False),
    ],
)
def test_matrix_products_without_tensor_cores(
    tensor: float, sms: float | None, matmul_ns: int, heard: bool
) -> None:
    events = (
        KernelDefined(time_ns=at(2), kernel=1, name="ampere_sgemm_128x64_tn", mangled="g"),
        KernelDefined(time_ns=at(2), kernel=2, name="softmax_kernel", mangled="s"),
        *readings(tensor_active_percent=tensor, sm_active_percent=sms),
        captured(kernels=(kernel(matmul_ns), kernel(1000 - matmul_ns, number=2))),
    )
    if not heard:
        assert found("no_tensor_cores", *events) == []
        return
    assert sms is not None
    insight = one("no_tensor_cores", *events)
    assert insight.value == pytest.approx(100 * tensor / sms)
    assert insight.threshold == 1
    assert insight.verdict.startswith("matrix products are 50 % of kernel time, and GPU 0's tensor")
    assert insight.verdict.endswith("% of the time its SMs were")


def test_memory_is_full_over_nine_tenths() -> None:
    whole = 80 << 30
    assert found("memory_full", *readings(memory_used_bytes=whole * 9 // 10)) == []
    assert found("memory_full", *readings(power_watts=float(whole))) == []
    insight = one("memory_full", *readings(memory_used_bytes=whole * 95 // 100))
    assert insight.value == pytest.approx(95)
    assert insight.verdict == "GPU 0's memory was 95 % full"


def test_throttling_is_told_with_its_share_of_the_samples() -> None:
    cool = readings(throttle_reasons=(), temperature_celsius=40.0)
    assert found("throttled", *cool) == []
    hot = readings(throttle_reasons=("power cap",), temperature_celsius=80.0)
    insight = one("throttled", *cool[:3], hot[3])
    assert insight.value == 25.0
    assert insight.verdict.endswith("were throttled in 25 % of the samples: power cap")
    assert one("throttled", *readings(throttle_reasons=("power cap",))).value == 100.0


def copied(busy_ns: int, kind: str) -> MemoryOperationDelta:
    return MemoryOperationDelta(
        process=1, range=0, operation="[CUDA memcpy Host-to-Device]", device=0,
        source_kind=kind, destination_kind="device", time=times(busy_ns), size=times(1 << 20),
    )  # fmt: skip


def test_copies_of_pageable_memory_over_a_twentieth_of_the_work_are_named():
    work = device(1_000_000)
    assert not found(
        "pageable_copies",
        captured(devices=(work,), memory_operations=(copied(50_000, "pageable"),)),
    )
    assert not found(
        "pageable_copies", captured(devices=(work,), memory_operations=(copied(90_000, "pinned"),))
    )
    insight = one(
        "pageable_copies",
        captured(devices=(work,), memory_operations=(copied(60_000, "pageable"),)),
    )
    assert insight.value == pytest.approx(6.0)
    assert "(1.00 MiB) are 6 % of the GPUs' busy time" in insight.verdict


def test_what_several_gpus_have_in_common_is_said_once() -> None:
    idle = times(*[400_000] * 10)
    parts = tuple(device(busy, 10_000_000, n, idle=idle) for n, busy in ((0, 4_000_000), (1, 10)))
    insight = one("gpu_idle", captured(devices=parts))
    assert insight.value == pytest.approx(0.0001)
    assert insight.headline == "GPUs 0 and 1 idle 60 to 100 %"
    assert insight.verdict == (
        "GPUs 0 and 1 were busy 0 to 40 % of the time, least on GPU 1: the CPU cannot feed them"
    )
    insight = one("launch_gaps", captured(devices=parts))
    assert insight.verdict.startswith("GPUs 0 and 1 were idle 40 % of the time in sub-millisecond")
    assert insight.headline == "GPUs 0 and 1 wait 40 % for the next launch"


def test_gpus_that_are_held_back_by_one_thing_are_one_verdict() -> None:
    def sample(second: int, *held: int) -> MachineSample:
        return MachineSample(
            time_ns=at(2 + second),
            host=HostSample(),
            gpus=tuple(
                GpuSample(
                    index=index,
                    temperature_celsius=80.0,
                    throttle_reasons=("power cap",) if index in held else (),
                )
                for index in range(3)
            ),
        )

    events = [sample(0, 0, 1, 2), sample(1, 1, 2), sample(2, 1), sample(3, 1)]
    insight = one("throttled", header(gpu(2)), *events)
    assert insight.value == 100
    assert insight.headline == "GPUs 0 to 2 throttled: power cap"
    assert insight.verdict == (
        "the clocks of GPUs 0 to 2 were throttled in 25 to 100 % of the samples, most on GPU 1: "
        "power cap"
    )
