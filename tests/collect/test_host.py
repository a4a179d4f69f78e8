"""The host's facts and figures, read for real."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import psutil
import pytest

from gputui.collect.machine_reader import HostReader, InfiniBandReader, host_facts


def test_the_facts_of_this_host() -> None:
    facts = host_facts()
    assert facts.hostname == socket.gethostname()
    assert facts.cpu_count == psutil.cpu_count()
    assert facts.memory_total_bytes == psutil.virtual_memory().total
    assert facts.system
    assert facts.system.isprintable()


@pytest.mark.parametrize(
    "content", [b'NAME="D\xe9bian"\n', b"\x00\xff" * 4096, b"\x1b[31m=\n", b""]
)
def test_an_os_release_that_is_no_text_costs_its_name_alone(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "os-release"
    release.write_bytes(content)
    monkeypatch.setattr(platform, "_os_release_candidates", (str(release),))
    monkeypatch.setattr(platform, "_os_release_cache", None)
    facts = host_facts()
    assert facts.system.startswith("Linux")
    assert facts.system.isprintable()


def test_a_rate_needs_two_readings_and_says_so() -> None:
    host = HostReader()
    first, reasons = host.sample()
    assert first.cpu_percent is None
    assert reasons["cpu_percent"] == "measured from the second reading on"
    second, reasons = host.sample()
    assert second.cpu_percent is not None
    assert 0 <= second.cpu_percent <= 100
    assert second.memory_used_bytes is not None
    assert 0 < second.memory_used_bytes < host_facts().memory_total_bytes
    assert reasons == {}


def test_all_ports_of_infiniband_are_added_up_in_bytes(tmp_path: Path) -> None:
    def count(port: str, sent: int, received: int) -> None:
        counters = tmp_path / "mlx5_0" / "ports" / port / "counters"
        counters.mkdir(parents=True, exist_ok=True)
        (counters / "port_xmit_data").write_text(f"{sent}\n")
        (counters / "port_rcv_data").write_text(f"{received}\n")

    reader = InfiniBandReader(tmp_path)
    assert reader.rates() == (None, None)  # a host without
    count("1", 1_000, 0)
    count("2", 2_000, 5)
    assert reader.rates() == (None, None)  # a rate needs two readings
    count("1", 1_000_000, 0)
    count("2", 2_000_000, 5)
    sent, received = reader.rates()
    assert sent is not None
    assert sent > 0
    assert received == 0.0
    count("2", 0, 5)  # it was set back
    assert reader.rates() == (None, None)
    (tmp_path / "mlx5_0" / "ports" / "1" / "counters" / "port_xmit_data").write_text("no number")
    with pytest.raises(ValueError, match="no number"):
        reader.rates()


def test_what_infiniband_moved_is_what_its_counters_say(tmp_path: Path) -> None:
    counters = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    for name in ("port_xmit_data", "port_rcv_data"):
        (counters / name).write_text("0")
    reader = InfiniBandReader(tmp_path)
    reader.rates()
    (counters / "port_xmit_data").write_text("3000")
    (counters / "port_rcv_data").write_text("1000")
    sent, received = reader.rates()
    assert sent is not None
    assert received is not None
    assert sent / received == pytest.approx(3)
