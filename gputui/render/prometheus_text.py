"""A session in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from gputui.render.prometheus_metrics import (
    Family,
    escaped,
    gauge,
    labels_text,
    number,
    series_name,
)
from gputui.render.prometheus_samples import figures
from gputui.report.phases import phase_rows
from gputui.state import Session

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_SERIES = 50_000
"""Series of one scrape, which take a third of a second. Those of phases come last and are the first
to be left out; how many were is `gputui_scrape_left_out_series`."""

MOST_RANGES = 50_000
"""Ranges of a run whose phases are added up for a scrape: 0.5 s, in which events wait. More give
none, and `gputui_scrape_left_out_ranges` says how many they are."""

_RANGES_LEFT_OUT = gauge("scrape_left_out_ranges", "Ranges too many to add up their phases")
_LEFT_OUT = gauge("scrape_left_out_series", "Series of this scrape that its limit left out")


def prometheus_text(session: Session, most: int = MOST_SERIES) -> str:
    """Everything the session knows now, at most `most` series of it and one that says how many
    are missing."""
    run = session.run
    ranges = len(run.ranges) if run is not None else 0
    adds_up = ranges <= MOST_RANGES
    phases = phase_rows(run) if run is not None and adds_up else []
    families: dict[Family, list[str]] = {}
    count = left_out = 0
    for labels, found in figures(session, phases):
        if count + len(found) > most:
            left_out += len(found)
            continue
        count += len(found)
        text = labels_text(labels)
        for family, value in found:
            line = f"{series_name(family)}{text} {number(value)}\n"
            families.setdefault(family, []).append(line)
    families[_LEFT_OUT] = [f"{_LEFT_OUT.name} {left_out}\n"]
    families[_RANGES_LEFT_OUT] = [f"{_RANGES_LEFT_OUT.name} {0 if adds_up else ranges}\n"]
    parts = []
    for family, lines in families.items():
        name = series_name(family)
        parts += [f"# HELP {name} {escaped(family.help)}\n# TYPE {name} {family.kind}\n", *lines]
    return "".join(parts)
