"""The host as rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gputui.model.units import MISSING, percent, rate, size, whole_percent
from gputui.state import Session
from gputui.tui.widgets.canvas import Row, clip, labelled
from gputui.tui.widgets.chart import Chart
from gputui.tui.widgets.hosts import link_text

if TYPE_CHECKING:
    from gputui.tui.model import Model


def link_rows(model: Model, width: int) -> list[Row]:
    """How the link to the host is that is shown, if it is another one and not up; else how far its
    clock is from this one's.
    """
    if model.hosts is None:
        return []
    host = model.hosts[model.host]
    if not host.is_up:
        text = link_text(host, time.time_ns())
        is_over = host.link.state == "ended"
        role = "hot" if host.link.reason and not is_over else "dim"
        return [clip(((f"  {'■' if is_over else '✗'} {host.name}: {text}", role),), width)]
    its = host.link.clock
    clock: Row = (("link ", "label"), (host.name, "text"), ("   clock ", "label"))
    missing: Row = ((f"   {host.link.reason}", "warn"),) if host.link.reason else ()
    return [clip((*clock, (MISSING if its is None else its.text, "value"), *missing), width)]


def host_items(session: Session) -> list[Row]:
    """The host's figures, one after another."""
    host = session.host
    header = session.header
    if host is None or header is None:
        return [(("host: no reading yet", "dim"),)]
    total = header.host.memory_total_bytes
    load = MISSING if host.load_1m is None else f"{host.load_1m:.2f}"
    items: list[Row] = [
        (("host ", "label"), (header.host.hostname[:40], "text")),
        (("CPU ", "label"), (f"{whole_percent(host.cpu_percent):>5}", "value")),
        (
            ("memory ", "label"),
            (f"{size(host.memory_used_bytes)} of {size(total)}", "value"),
        ),
        (("load ", "label"), (load, "value"), (f" on {header.host.cpu_count} CPUs", "dim")),
    ]
    if host.swap_used_bytes:
        items.append((("swap ", "label"), (size(host.swap_used_bytes), "value")))
    if host.infiniband_sent_bytes_per_s is not None:
        moved = f"{rate(host.infiniband_sent_bytes_per_s)} out"
        moved += f", {rate(host.infiniband_received_bytes_per_s)} in"
        items.append((("InfiniBand ", "label"), (moved, "value")))
    if session.own_cpu_percent is not None:
        own = f"{whole_percent(session.own_cpu_percent):>4}"  # what follows stays where it is
        items.append((("gputui ", "label"), (own, "value"), (" CPU", "dim")))
    if header.driver_version:
        items.append((("driver ", "label"), (header.driver_version, "text")))
    if header.cuda_driver_version:
        items.append((("CUDA ", "label"), (header.cuda_driver_version, "text")))
    return items


def host_charts(session: Session) -> list[Chart]:
    """CPU and memory over time."""
    header, host = session.header, session.host
    total = header.host.memory_total_bytes if header else 0
    used = host.memory_used_bytes if host else None
    track = session.host_samples.track
    return [
        Chart(
            (("CPU", percent(host.cpu_percent if host else None)),),
            "utilization",
            100.0,
            percent,
            track("cpu_percent"),
        ),
        Chart(
            (("Memory", f"{size(used)} of {size(total)}"), ("Memory", size(used))),
            "memory",
            float(total) or None,
            size,
            track("memory_used_bytes"),
        ),
    ]


def host_details(session: Session) -> tuple[Row, ...]:
    """The host's facts, and the reasons for what is missing."""
    if session.header is None:
        return ()
    host = session.header.host
    facts = (
        ("host", host.hostname),
        ("system", host.system),
        ("CPU", host.cpu_model or MISSING),
        ("cores", str(host.cpu_count)),
        ("memory", size(host.memory_total_bytes)),
    )
    missing = [(field, f"n/a: {reason}") for field, reason in session.host_unavailable.items()]
    return (*labelled(facts, 14), *labelled(missing, 14, "dim"))
