"""Figures served to Prometheus: their types, units and labels, and where they are served."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gputui.model.events import (
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    HostSample,
    MachineSample,
    MigFacts,
    MigSample,
    ProcessSample,
    RunMetrics,
)
from gputui.playback.opening import load
from gputui.render.prometheus import MOST_SERIES, prometheus_text
from gputui.render.prometheus_server import (
    CONNECTIONS,
    AddressError,
    Exporter,
    PrometheusError,
    parse_address,
)
from gputui.state import Session
from tests.events_for_tests import at, attached, gpu, header, run_started
from tests.reference import dashboard


@contextmanager
def free_port() -> Iterator[int]:
    """Meanwhile nobody else is given it; a server may listen there, which uses ports again."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.fixture
def port() -> Iterator[int]:
    with free_port() as found:
        yield found


def scrape(session: Session) -> dict[str, Metric]:
    with free_port() as port:
        exporter = Exporter(session, ("127.0.0.1", port))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text = answer.read().decode()
        finally:
            exporter.close()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for sample in families[name].samples
        if labels.items() <= sample.labels.items() and not sample.name.endswith("_created")
    ]
    return float(found)


@pytest.fixture
def session() -> Session:
    """Two GPUs, of which one is lost; one is divided."""
    divided = gpu(0)
    instance = MigFacts(index=1, uuid="MIG-1", name="1g.18gb", gpu_instance_id=3)
    return Session.from_events(
        [
            header(replace(divided, mig_instances=(instance,)), gpu(1)),
            GpuUnavailable(time_ns=at(1), gpu=1, reasons={"device": "lost"}),
            MachineSample(
                time_ns=at(2),
                host=HostSample(cpu_percent=50.0, memory_used_bytes=1 << 30),
                gpus=(
                    GpuSample(
                        index=0,
                        utilization_percent=97.0,
                        power_watts=612.5,
                        sm_clock_mhz=1980,
                        throttle_reasons=("power cap",),
                        mig_instances=(MigSample(index=1, sm_active_percent=25.0),),
                    ),
                    GpuSample(index=1),
                ),
                processes=(ProcessSample(pid=7, gpu=0, user="ann", gpu_memory_bytes=5),),
            ),
            GpuStatus(
                time_ns=at(2),
                gpu=0,
                energy_joules=1234.5,
                throttle_seconds={"power cap": 12.0},
                ecc_corrected_lifetime=5,
                ecc_uncorrected_lifetime=0,
                xid_count=0,
            ),
        ]
    )


def test_device_figures_are_in_base_units(session: Session) -> None:
    families = scrape(session)
    assert value(families, "gputui_gpu_utilization_ratio", gpu="0") == pytest.approx(0.97)
    assert value(families, "gputui_gpu_power_watts", uuid="GPU-0") == 612.5
    assert value(families, "gputui_gpu_sm_clock_hertz", gpu="0") == 1.98e9
    assert value(families, "gputui_gpu_throttled", reason="power cap") == 1
    assert value(families, "gputui_host_cpu_ratio") == 0.5
    assert value(families, "gputui_process_gpu_memory_bytes", pid="7", user="ann") == 5
    assert value(families, "gputui_mig_sm_active_ratio", profile="1g.18gb", gpu="0") == 0.25
    assert families["gputui_gpu_power_watts"].type == "gauge"


def asked(port: int, *headers: str) -> bytes:
    """The first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        lines = ["GET /metrics HTTP/1.1", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        return client.makefile("rb").readline()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9400", 200), ("localhost:9400", 200), ("LOCALHOST", 200), ("[::1]:9400", 200),
        ("10.0.0.7", 200), ("evil.example:9400", 421), ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)  # fmt: skip
def test_on_loopback_a_page_of_another_name_reads_nothing(
    session: Session, port: int, host: str, status: int
) -> None:
    exporter = Exporter(session, ("127.0.0.1", port))
    try:
        assert int(asked(port, f"Host: {host}").split()[1]) == status
        assert int(asked(port).split()[1]) == 200
    finally:
        exporter.close()


def test_elsewhere_any_name_may_lead_here(session: Session, port: int) -> None:
    exporter = Exporter(session, ("0.0.0.0", port))
    try:
        assert b" 200 " in asked(port, "Host: node1.cluster:9400")
    finally:
        exporter.close()


def test_clients_that_send_a_byte_now_and_then_are_cut_off(
    session: Session, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.render.prometheus_server.REQUEST_S", 0.5)
    exporter = Exporter(session, ("127.0.0.1", port))
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    try:
        for client in slow:
            client.settimeout(0.02)
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        ended: set[socket.socket] = set()
        began = time.monotonic()
        while len(ended) < CONNECTIONS:
            assert time.monotonic() - began < 60
            for client in [one for one in slow if one not in ended]:
                try:
                    client.sendall(b"X")
                    if client.recv(1) == b"":
                        ended.add(client)
                except TimeoutError:
                    pass
                except OSError:
                    ended.add(client)
        assert b" 200 " in asked(port)
    finally:
        for client in slow:
            client.close()
        exporter.close()


def test_a_gpu_that_is_lost_is_down_and_tells_nothing(session: Session) -> None:
    families = scrape(session)
    assert value(families, "gputui_gpu_up", gpu="0") == 1
    assert value(families, "gputui_gpu_up", gpu="1") == 0
    assert {s.labels["gpu"] for s in families["gputui_gpu_power_watts"].samples} == {"0"}
    assert "gputui_gpu_fan_ratio" not in families


def test_counters_are_counters(session: Session) -> None:
    families = scrape(session)
    for name, expected in (
        ("gputui_gpu_energy_joules", 1234.5),
        ("gputui_gpu_throttle_seconds", 12.0),
        ("gputui_gpu_xid_errors", 0.0),
    ):
        assert families[name].type == "counter"
        assert families[name].samples[0].name == f"{name}_total"
        assert value(families, name, gpu="0") == expected
    assert value(families, "gputui_gpu_ecc_errors", kind="corrected") == 5


def test_units_and_types_are_told_by_names(session: Session, h200: Session) -> None:
    for family in [*scrape(session).values(), *scrape(h200).values()]:
        assert family.documentation
        assert family.name.startswith("gputui_")
        assert not family.name.endswith(("percent", "_mhz", "_ns", "_ms", "_total"))
        assert family.type in {"gauge", "counter"}
        labels = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(labels) == len(set(labels)), family.name


def test_a_run_serves_its_metrics_and_phases(h200: Session) -> None:
    families = scrape(h200)
    assert value(families, "gputui_run_active") == 0
    assert value(families, "gputui_run_metric", metric="tokens_per_s") > 0
    phases = {s.labels["phase"]: s.value for s in families["gputui_phase_kernels"].samples}
    assert families["gputui_phase_kernels"].type == "counter"
    assert max(phases.values()) > 0
    assert families["gputui_phase_gpu_busy_seconds"].samples


def test_hostile_names_stay_in_their_labels(session: Session) -> None:
    session.apply([run_started(), attached()])
    name = 'a"} 1\ngputui_gpu_up{gpu="9"} 1\n#'
    session.apply([RunMetrics(time_ns=at(3), run=1, metrics={name: 4.0, "text": "no"})])
    families = scrape(session)
    assert value(families, "gputui_run_metric", metric=name) == 4.0
    assert {s.labels["gpu"] for s in families["gputui_gpu_up"].samples} == {"0", "1"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("box:1", ("box", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "0", "65536", ":9400", "box:", "-1", "٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match="--prometheus"):
        parse_address(text)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


def test_a_port_in_use_is_said_in_one_line(taken: int) -> None:
    with pytest.raises(PrometheusError, match=f"cannot listen on 127.0.0.1 port {taken}: Addr"):
        Exporter(Session(), ("127.0.0.1", taken))


def gputui(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gputui", *words], capture_output=True, text=True, check=False
    )


def test_on_the_command_line(taken: int) -> None:
    done = gputui("--record", "--prometheus", str(taken), "--duration", "1s")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot listen" in done.stderr
    done = gputui("--record", "--prometheus", "nine")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert gputui("--once", "--prometheus", "9400").returncode == 2


def test_a_recording_is_served_while_it_runs(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gputui", "--record", "-o", str(tmp_path / "r.gputui")]
    with (
        free_port() as port,
        subprocess.Popen(
            [*words, "--prometheus", str(port)], stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == f"gputui: serving http://127.0.0.1:{port}/metrics\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"gputui_samples_total" in answer.read()
        process.terminate()
        process.wait()


def test_connections_are_bounded(session: Session, port: int) -> None:
    exporter = Exporter(session, ("127.0.0.1", port))
    before = threading.active_count()
    held = []
    try:
        for _ in range(CONNECTIONS):
            held.append(socket.create_connection(("127.0.0.1", port)))
        # Connections are taken in their order: the answer to this one follows the others' threads.
        with socket.create_connection(("127.0.0.1", port)) as late:
            assert late.recv(100).startswith(b"HTTP/1.0 503 ")
        assert threading.active_count() == before + CONNECTIONS
        held[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while part := held[0].recv(1 << 16):
            answer += part
        assert b"gputui_gpu_up" in answer
    finally:
        for connection in held:
            connection.close()
        exporter.close()


def test_a_scrape_says_what_its_limit_left_out(session: Session) -> None:
    session.apply([run_started(), attached()])
    metrics: dict[str, float | int | str | bool | None] = {f"m{n}": float(n) for n in range(500)}
    session.apply([RunMetrics(time_ns=at(3), run=1, metrics=metrics)])

    def parsed(most: int) -> dict[str, Metric]:
        return {
            one.name: one for one in text_string_to_metric_families(prometheus_text(session, most))
        }

    everything, some = parsed(MOST_SERIES), parsed(300)
    assert value(everything, "gputui_scrape_left_out_series") == 0
    left_out = value(some, "gputui_scrape_left_out_series")
    count = sum(len(family.samples) for family in everything.values())
    assert sum(len(family.samples) for family in some.values()) == count - left_out
    assert len(some["gputui_gpu_up"].samples) == 2
    assert 0 < len(some["gputui_run_metric"].samples) < 500


def test_phases_of_too_many_ranges_are_left_out(
    h200: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert value(scrape(h200), "gputui_scrape_left_out_ranges") == 0
    monkeypatch.setattr("gputui.render.prometheus.MOST_RANGES", 3)
    families = scrape(h200)
    assert h200.run is not None
    assert value(families, "gputui_scrape_left_out_ranges") == len(h200.run.ranges) > 3
    assert "gputui_phase_kernels" not in families
    assert "gputui_run_active" in families


def test_no_label_is_one_that_prometheus_sets(session: Session, h200: Session) -> None:
    for family in [*scrape(session).values(), *scrape(h200).values()]:
        for sample in family.samples:
            assert not {"instance", "job"} & set(sample.labels), family.name


def test_queries_of_the_dashboard_find_their_series_and_labels(h200: Session) -> None:
    launch = load(str(Path(__file__).parents[1] / "data" / "faults" / "launch.gputui.gz")).session
    exported = {
        family.name + "_total" * (family.type == "counter"): family
        for session in (h200, launch)
        for family in text_string_to_metric_families(prometheus_text(session))
        if family.samples
    }
    panels = [panel for panel in dashboard()["panels"] if panel["type"] == "timeseries"]
    assert len(panels) > 15
    for panel in panels:
        [target] = panel["targets"]
        query = target["expr"]
        assert query.count("(") == query.count(")")
        [name] = re.findall(r"gputui_\w+", query)
        family = exported[name]
        # A rate is of a counter, and a counter by itself says nothing.
        assert ("rate(" in query) == (family.type == "counter"), query
        # `instance` is Prometheus's own.
        known = {"instance", *(label for sample in family.samples for label in sample.labels)}
        kept = re.findall(r"by \((\w+)\)", query)
        shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
        assert set(kept) | set(shown) <= known, query
        assert not kept or set(shown) <= set(kept), query
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
