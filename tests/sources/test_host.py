"""The host's facts and figures, read for real."""

from __future__ import annotations

import socket

import psutil

from gputui.sources.host import Host, host_facts


def test_the_facts_of_this_host() -> None:
    facts = host_facts()
    assert facts.hostname == socket.gethostname()
    assert facts.cpu_count == psutil.cpu_count()
    assert facts.memory_total_bytes == psutil.virtual_memory().total
    assert facts.system
    assert facts.system.isprintable()


def test_a_rate_needs_two_readings_and_says_so() -> None:
    host = Host()
    first, reasons = host.sample()
    assert first.cpu_percent is None
    assert reasons["cpu_percent"] == "measured from the second reading on"
    second, reasons = host.sample()
    assert second.cpu_percent is not None
    assert 0 <= second.cpu_percent <= 100
    assert second.memory_used_bytes is not None
    assert 0 < second.memory_used_bytes < host_facts().memory_total_bytes
    assert reasons == {}
