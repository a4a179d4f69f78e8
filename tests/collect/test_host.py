"""The host's facts and figures, read for real."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import psutil
import pytest

from gputui.collect.host import HostReader, host_facts


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
