"""Rules and tables of a serving engine's metrics, each just below and just above its threshold."""

from __future__ import annotations

import msgspec
import pytest

from gputui.model import units
from gputui.model.events import CaptureDelta, DeviceDelta, LatencyDelta, ServerSample
from gputui.model.leaves import Leaf
from gputui.render.prometheus import figures
from gputui.report.answer import answer
from gputui.report.explain import (
    Analysis,
    Finding,
    MachineAnalysis,
    conclusion,
    findings,
    machine_findings,
)
from gputui.report.tables.serving import LATENCIES, SERVERS, server_line
from gputui.state import Session
from tests.report.test_verdict import a_run, delta

HEALTHY = {Leaf.MATMUL: 0.95, Leaf.DEPENDENCY: 0.05}
URL = "http://127.0.0.1:8000/metrics"


def readings(count: int = 10, **fields: object) -> list[ServerSample]:
    """One a second, all alike."""
    return [
        ServerSample(
            time_ns=(1 + number) * 10**9,
            url=URL,
            engine="vLLM",
            interval_s=1.0 if number else None,
            **fields,  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


def found(leaves: dict[Leaf, float], *events: ServerSample) -> dict[str, Finding]:
    session, run = a_run(delta(leaves), *events)
    return {each.cause: each for each in findings(Analysis(session, run))}


def test_an_idle_server_has_no_finding():
    """Nobody asks: that is no fault."""
    assert found(HEALTHY, *readings(requests_running=0, requests_waiting=0)).keys() == (
        found(HEALTHY).keys()
    )


@pytest.mark.parametrize("running", [0, 1])
def test_a_server_that_nobody_asks_waits_for_work(running):
    """What the GPU idled for while it was set up is no fault of it."""
    session, run = a_run(
        delta({Leaf.MATMUL: 0.1, Leaf.HOST: 0.9}), *readings(requests_running=running)
    )
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert (answer.word == "WAITS FOR WORK") == (running == 0)
    assert bool(answer.findings) == (running == 1)


@pytest.mark.parametrize(("preemptions", "speaks"), [(0, False), (1, False), (3, True)])
def test_requests_that_are_put_back(preemptions, speaks):
    """From one in a hundred completed on."""
    samples = readings(11, requests_completed=20, preemptions=0, kv_cache_percent=99.0)
    samples.append(ServerSample(time_ns=20 * 10**9, url=URL, engine="vLLM", interval_s=1.0,
                                preemptions=preemptions, kv_cache_percent=99.0))  # fmt: skip
    result = found(HEALTHY, *samples).get("preemptions")

    assert (result is not None) == speaks
    if result is not None:
        assert result.sentence.startswith("3 requests were put back for want of KV cache, beside")
        assert "up to 99 % full" in result.sentence


@pytest.mark.parametrize(("waiting", "share"), [(6, 0.75), (0, 3 / 223)])
def test_where_requests_are_put_back_the_others_wait_for_the_cache(waiting, share):
    """What it costs is their share of all, not the prompts that are computed again alone: on an
    H200 LONG PROMPTS stood before a cache for which two of three requests waited."""
    gauges = {"requests_waiting": waiting, "requests_running": 2, "kv_cache_percent": 75.0}
    samples = readings(11, requests_completed=20, preemptions=0, **gauges)
    samples.append(ServerSample(time_ns=12 * 10**9, url=URL, engine="vLLM", interval_s=1.0,
                                preemptions=3, **gauges))  # fmt: skip
    result = found(HEALTHY, *samples)["preemptions"]
    assert result.recoverable == pytest.approx(share, rel=0.03)
    assert ("6.0 requests wait for it" in result.sentence) == bool(waiting)


def test_a_full_cache_does_not_lead_beside_the_requests_that_it_puts_back():
    """Both rules are of the machine; the one explains the other, which is still listed."""
    gauges = {"requests_waiting": 6, "requests_running": 2, "kv_cache_percent": 99.0}
    samples = readings(11, requests_completed=20, preemptions=1, **gauges)
    result = found(HEALTHY, *samples)
    assert result["preemptions"].leads
    assert not result["kv_cache_full"].leads


@pytest.mark.parametrize(
    ("percent", "waiting", "speaks"), [(94.0, 5, False), (96.0, 5, True), (96.0, 0, False)]
)
def test_a_full_cache(percent, waiting, speaks):
    """Full, and somebody waits."""
    samples = readings(kv_cache_percent=percent, requests_waiting=waiting, requests_running=5)

    assert ("kv_cache_full" in found(HEALTHY, *samples)) == speaks
    session = Session.from_events(samples)
    alone = machine_findings(MachineAnalysis(session))
    assert ("kv_cache_full" in {each.cause for each in alone}) == speaks


@pytest.mark.parametrize(("idle", "speaks"), [(0.28, False), (0.35, True)])
def test_requests_that_wait_beside_an_idle_gpu(idle, speaks):
    """The queue is the host's, if there is room in the cache."""
    leaves = {Leaf.MATMUL: 1 - idle, Leaf.LAUNCH: idle}
    samples = readings(requests_waiting=3, requests_running=5, kv_cache_percent=20.0)

    result = found(leaves, *samples)
    assert ("queue" in result) == speaks
    full = readings(requests_waiting=3, requests_running=5, kv_cache_percent=99.0)
    assert "queue" not in found(leaves, *full)
    if speaks:
        assert not result["queue"].leads


@pytest.mark.parametrize(
    ("running", "percent", "waiting", "speaks"),
    [
        ([8] * 7 + [2] * 3, 20.0, 40, True),
        ([8] * 6 + [2] * 4, 20.0, 40, False),
        ([8] * 10, 90.0, 40, False),
        ([8] * 10, 20.0, 0, False),
        ([8] * 10, None, 40, True),
    ],
)
def test_an_engine_that_admits_no_more(running, percent, waiting, speaks):
    """As many run as ever did whenever others wait, and there is room; llama.cpp does not tell how
    full its cache is."""
    gauges = {"requests_waiting": waiting, "kv_cache_percent": percent}
    samples = [
        msgspec.structs.replace(sample, requests_running=requests)
        for sample, requests in zip(readings(10, **gauges), running, strict=True)
    ]
    result = found(HEALTHY, *samples)
    assert ("batch_limit" in result) == speaks
    if speaks:
        assert result["batch_limit"].sentence.startswith(
            "40.0 requests wait in the mean, while never more than 8 run at once"
        )


def test_an_engine_that_was_never_read_says_why_in_the_answer():
    """In the lines at the end of a run, beside a run and without one."""
    gone = ServerSample(time_ns=2, url=URL, engine="", unavailable_reason="it answered 501")
    session, run = a_run(delta(HEALTHY), gone)
    for of_run in (run, None):
        lines = [line for group in answer(session, of_run) for line in group]
        assert [line.text for line in lines if line.label == "engine"] == [
            f"{URL}: it answered 501"
        ]


def test_two_readings_are_too_few():
    """For a mean over time."""
    assert "kv_cache_full" not in found(
        HEALTHY, *readings(2, kv_cache_percent=99.0, requests_waiting=9)
    )


def test_tables():
    """Means are weighted by time; a percentile is the bucket that holds it."""
    latency = LatencyDelta(sum_s=1.5, count=10, buckets=((0.1, 0.25, 9), (2.5, None, 1)))
    samples = [
        *readings(2, requests_running=4, output_tokens=100, kv_cache_percent=50.0),
        ServerSample(time_ns=5 * 10**9, url=URL, engine="vLLM", interval_s=3.0, ttft=latency,
                     requests_running=8, output_tokens=300),
    ]  # fmt: skip
    session = Session.from_events(samples)
    [server] = SERVERS.table(session, None).records()
    [ttft] = LATENCIES.table(session, None).records()

    assert server["running_mean"] == (4 * 1 + 8 * 3) / 4
    # The first reading, which has no interval, is of no amounts in a real recording.
    assert server["output_tokens_per_s"] == 500 / 4
    assert server["kv_cache_peak_percent"] == 50
    assert (ttft["latency"], ttft["mean_ns"], ttft["count"]) == ("TTFT", 150_000_000, 10)
    assert ttft["p50_ns"] == [100_000_000, 250_000_000]
    assert ttft["p99_ns"] == [2_500_000_000, None]
    assert server_line(session.servers[URL]) == (
        "vLLM, means: 7.0 running; TTFT 150 ms; 125 tokens/s out"
    )
    assert "over 2.50 s" in LATENCIES.table(session, None).for_people()[2][0]


def test_prometheus_passes_the_newest_on():
    """Under names of gputui's, and whether the page is read."""
    [sample] = readings(1, requests_running=4, kv_cache_percent=50.0)
    gone = ServerSample(time_ns=9 * 10**9, url=URL, engine="vLLM", unavailable_reason="refused")

    def exported(session: Session) -> dict[str, float]:
        return {
            family.name: value
            for labels, values in figures(session, ())
            for family, value in values
            if ("url", URL) in labels
        }

    assert exported(Session.from_events([sample])) == {
        "gputui_server_up": 1,
        "gputui_server_requests_running": 4,
        "gputui_server_kv_cache_ratio": 0.5,
    }
    assert exported(Session.from_events([sample, gone])) == {"gputui_server_up": 0}


def test_what_a_million_tokens_cost(monkeypatch):
    """By the hours of the GPU that the run used, and by its energy, each at its own price; with a
    second server nobody knows whose they are."""
    monkeypatch.setattr(units, "_gpu_hour", [units.Price(3.6, "USD")])
    monkeypatch.setattr(units, "_configured", [])
    samples = readings(11, output_tokens=100, kv_cache_percent=50.0)
    used = DeviceDelta(
        process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2
    )
    session, run = a_run(CaptureDelta(time_ns=2, process=1, devices=(used,)), *samples)
    [row] = SERVERS.table(session, run).records()
    # 10 s for 1100 tokens.
    assert row["million_tokens_gpu_cost"] == pytest.approx(1e6 / 1100 * 10 / 3600 * 3.6)
    assert row["million_tokens_energy_cost"] is None

    session.apply([msgspec.structs.replace(samples[0], url="http://other/metrics")])
    assert [each["million_tokens_gpu_cost"] for each in SERVERS.table(session, run).records()] == [
        None, None,
    ]  # fmt: skip
