"""A session as metrics for prometheus-client to serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gputui.render.prometheus_samples import figures
from gputui.report.phase_totals import phase_totals
from gputui.state import Session

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def metrics(session: Session) -> Iterator[Metric]:
    """Everything the session knows now."""
    phases = phase_totals(session.run) if session.run is not None else []
    families: dict[str, Any] = {}
    for labels, found in figures(session, phases):
        for family, value in found:
            if family.name not in families:
                names = [name for name, _ in labels]
                made = _KINDS[family.kind](family.name, family.help, labels=names)
                families[family.name] = made
            families[family.name].add_metric([text for _, text in labels], float(value))
    yield from families.values()
