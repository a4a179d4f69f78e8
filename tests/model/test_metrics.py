"""Every figure of the machine is declared on its field, and declared consistently."""

from __future__ import annotations

import pytest
from msgspec import Struct

from gputui.model.events import (
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineSample,
    MigSample,
    ProcessSample,
)
from gputui.model.metrics import GROUPS, Metric, charted_fields, metrics_of, spread_fields
from gputui.state import gpu_metrics, mig_metrics

_IDENTITY = "says what the others are of"
_PARTS = "holds records with figures of their own"
_OF_SAMPLE = "the sample's field of this name is declared, and shown where it is known"
_HOW = "says where another field is from, and is shown beside it"

_OF_PROCESS = (
    "pid", "gpu", "user", "command", "kind", "start_time_ns", "parent_pid", "gpu_instance_id",
    "compute_instance_id",
)  # fmt: skip

EXCUSED: dict[type[Struct], dict[str, str]] = {
    GpuSample: {"index": _IDENTITY, "mig_instances": _PARTS},
    GpuStatus: {"gpu": _IDENTITY, "last_xid_time_ns": _HOW},
    GpuFacts: {
        "index": _IDENTITY,
        "name": _IDENTITY,
        "memory_total_bytes": _OF_SAMPLE,
        "power_limit_watts": _OF_SAMPLE,
        "peak_memory_bandwidth_source": _HOW,
        "gpm_supported": "is the reason of what is missing, which says so itself",
        "topology": "is a row for each other GPU",
        "mig_instances": _PARTS,
    },
    HostSample: {},
    ProcessSample: dict.fromkeys(_OF_PROCESS, _IDENTITY),
    MachineSample: {
        "host": _PARTS,
        "gpus": _PARTS,
        "processes": _PARTS,
        "launchers": _PARTS,
        "recorded_bytes": "is of the recording, not of the machine",
        "traced_bytes": "is of the recording, not of the machine",
        "clock_set_ns": "is an event",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", EXCUSED)
def test_every_field_is_declared_or_excused(kind: type[Struct]) -> None:
    fields = set(kind.__annotations__)
    assert fields - set(metrics_of(kind)) == set(EXCUSED[kind])


def test_a_mig_instance_has_figures_of_its_gpu() -> None:
    assert [*mig_metrics()] == [name for name in MigSample.__struct_fields__ if name != "index"]


def all_metrics() -> list[tuple[str, Metric]]:
    return [(name, metric) for kind in EXCUSED for name, metric in metrics_of(kind).items()]


def test_declarations_are_whole() -> None:
    for name, metric in all_metrics():
        assert metric.label, name
        assert metric.source, name
        assert metric.help[0].isupper() or metric.help[0].isdigit(), name
        assert not metric.help.endswith("."), name
        by_itself = metric.chart or metric.spread or metric.counter_track
        assert metric.title or not by_itself, f"{name} needs a title"


def test_no_two_figures_have_one_place() -> None:
    details = [metric.details for metric in gpu_metrics().values() if metric.details]
    assert len(details) == len(set(details))
    assert {group for group, _ in details} == set(GROUPS)
    for kind in (GpuSample, HostSample):
        places = [metric.chart.place for metric in charted_fields(kind).values() if metric.chart]
        assert places == sorted(set(places))


def test_names_end_in_their_units() -> None:
    endings = {
        "%": "_percent", "bytes": "_bytes", "bytes/s": "_bytes_per_s", "W": "_watts",
        "°C": "_celsius", "MHz": "_mhz", "J": "_joules", "bits": "_bits", "s": "_seconds",
    }  # fmt: skip
    for name, metric in all_metrics():
        if metric.unit.symbol:
            assert name.endswith(endings[metric.unit.symbol]), name
        if metric.prometheus is not None and metric.unit.base:
            assert metric.prometheus.endswith(metric.unit.base), name


def test_means_are_kept_of_numbers_only() -> None:
    for kind in (GpuSample, HostSample):
        for name in spread_fields(kind):
            assert metrics_of(kind)[name].unit.symbol, name
