"""A figure is added in two files, its field and its reading, and shows everywhere; a table and a
rule in one file each.

The recipes of docs, carried out on a copy of the package.
"""

from __future__ import annotations

from pathlib import Path

from tests.package_copies_for_tests import check_copy, copy_package

_FIELD = """
    ofa_percent: Annotated[float | None, Metric(
        "optical flow", "Use of the optical flow accelerator", PERCENT,
        "nvmlDeviceGetOfaUtilization", ("Load", 110), title="Optical flow", chart=Chart(90),
        spread=True, counter_track=True, prometheus="ofa_ratio",
    )] = None
"""
_CALL = """
    def ofa_percent(self, handle: Handle) -> float:
        return float(self._call("nvmlDeviceGetOfaUtilization", handle)[0])
"""
_ADDED = (
    ("model/events/gpu.py", "    mig_instances: tuple[MigSample, ...] = ()\n", _FIELD),
    ("collect/nvml/bindings.py", "    def decoder_percent(self", _CALL),
)
"""File, what stands behind the new lines, and those."""

_TABLE = """
from gputui.report.schema import TableSpec, count, text
from gputui.state import Gpu, Run, Session


def _gpus(session: Session, run: Run | None) -> list[Gpu]:
    return [session.gpus[gpu] for gpu in sorted(session.gpus)]


TABLES = (
    TableSpec(
        key="gpu_names",
        title="Names",
        meaning="How GPUs are called.",
        columns=(
            text("Name", "name", lambda row: row.facts.name, "The driver's name"),
            count("Letters", "letters", lambda row: len(row.facts.name), "Of the name"),
        ),
        rows=_gpus,
        order=900,
        in_summary=True,
        document="gpu_names",
    ),
)
"""
_RULE = """
from collections.abc import Iterator

from gputui.report.explain.analysis import MachineAnalysis, MachineRule
from gputui.report.explain.finding import Finding


def optical_flow(analysis: MachineAnalysis) -> Iterator[Finding]:
    for gpu, field, series in analysis.readings.gpu_series():
        if field == "ofa_percent" and series.average > 45:
            yield Finding(
                cause="optical_flow", word="optical flow",
                sentence=f"GPU {gpu} computes optical flow {series.average:.0f} % of the time.",
                advice="Play no film.", value=series.average, threshold=45, source="this test",
            )


RULES = (MachineRule(90, optical_flow),)
"""

_CHECK = """
import json
from types import SimpleNamespace

import gputui
from gputui.collect.nvml import device
from gputui.model.events import GpuFacts, GpuSample, Header, HostFacts, HostSample, MachineSample
from gputui.model.events import JOURNAL_SCHEMA, RunStarted
from gputui.render.chrome import counter_lines
from gputui.render.prometheus import write_openmetrics
from gputui.render.formats import summary
from gputui.report.summary_document import summary_document
from gputui.state import Session
from tests.reference import recording_page
from gputui.tui.widgets.gpu_charts import charts
from gputui.tui.widgets.gpu import detail_rows
import io

assert gputui.__file__.startswith(FOLDER), gputui.__file__
assert "ofa_percent" in device._TICK_CALLS
second = 10**9
header = Header(
    time_ns=second, schema=JOURNAL_SCHEMA, gputui_version="0", python_version="3", monotonic_ns=0,
    interval_s=1.0, host=HostFacts(hostname="h", system="s", cpu_count=1, memory_total_bytes=1),
    gpus=(GpuFacts(index=0, uuid="GPU-0", name="G"),),
)
samples = [
    MachineSample(
        time_ns=(2 + n) * second, host=HostSample(),
        gpus=(GpuSample(index=0, ofa_percent=40.0 + 10 * n),),
    )
    for n in range(3)
]
events = [header, *samples]
session = Session.from_events(events)
gpu = session.gpus[0]
rows = ["".join(text for text, _ in row) for row in detail_rows(gpu, session.now_ns, 1.0)]
assert any(row.startswith("optical flow") and row.endswith("60 %") for row in rows), rows
assert ("Optical flow", "60 %") in [chart.titles[0] for chart in charts(gpu)]
assert charts(gpu)[-1].series.field == "ofa_percent"
(document,) = summary_document(session, None)["devices"]
assert document["figures"]["ofa_percent"] == {"mean": 50.0, "min": 40.0, "max": 60.0, "samples": 3}
text = io.StringIO()
write_openmetrics(text, events)
assert "# HELP gputui_gpu_ofa_ratio Use of the optical flow accelerator" in text.getvalue()
assert 'gputui_gpu_ofa_ratio{gpu="0",uuid="GPU-0"} 0.6 ' in text.getvalue()
run = SimpleNamespace(started=header, duration_ns=10 * second)
tracks = [json.loads(line.rstrip(",\\n")) for line in counter_lines(run, second, samples, 1)]
assert [track["args"]["value"] for track in tracks if track["name"] == "Optical flow (%)"] == [
    40.0, 50.0, 60.0
]
assert "Use of the optical flow accelerator" in recording_page()
started = RunStarted(
    time_ns=second, run=1, kind="command", name="r", arguments=("r",), parameters={}, pid=1
)
session = Session()
session.apply([header, started, *samples])
document = summary_document(session, session.runs[1])
assert document["gpu_names"] == [{"name": "G", "letters": 1}]
assert [one["cause"] for one in document["findings"]] == ["optical_flow"]
text = summary(session, session.runs[1], "table")
assert "Names\\n─────\\nName  Letters\\nG           1" in text, text
assert "GPU 0 computes optical flow 50 % of the time." in text, text
"""


def test_a_figure_is_its_field_and_its_reading(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    for name, before, added in _ADDED:
        path = package / name
        text = path.read_text(encoding="utf-8")
        at = text.rindex(before)
        path.write_text(f"{text[:at].rstrip()}\n{added}\n{text[at:]}", encoding="utf-8")
    (package / "report/tables/gpu_names.py").write_text(_TABLE, encoding="utf-8")
    (package / "report/explain/optical_flow.py").write_text(_RULE, encoding="utf-8")
    check_copy(tmp_path, _CHECK)
