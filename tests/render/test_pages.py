"""HTML, OpenMetrics and Parquet: read back by what reads such files."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    MachineSample,
    RangeDelta,
    ResultColumn,
    ResultTable,
    RunMetrics,
    RunResult,
)
from gputui.model.metrics import charted_fields
from gputui.model.units import percent
from gputui.render import formats
from gputui.render.html import FOLDED, TOP, line, timelines
from gputui.render.prometheus import figures, labels_text, series_name
from gputui.report.phases import phase_rows
from gputui.report.tables import own_tables
from gputui.state import HISTORY_SAMPLES, Session
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from tests.conftest import DATA
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times
from tests.render.pages_for_tests import Page

HOSTILE = "<script>alert(1)</script>'\"&</svg><img src=x onerror=alert(1)>"


def test_the_page_holds_charts_and_every_table(h200: Session) -> None:
    assert h200.run is not None
    text = formats.summary(h200, h200.run, "html")
    page = Page(text)
    assert page.tags.count("polyline") >= 4
    assert page.tags.count("table") == page.tags.count("caption") >= 6
    # A table is named, its headings say what they head, and keys can scroll it.
    assert text.count("<th>") == text.count("<th class") == 0
    assert text.count("class='scroll' tabindex='0' role='region'") == page.tags.count("table")
    # A kernel's long name is folded behind its beginning, and whole inside.
    long = next(k.name for k in h200.kernel_names.values() if len(k.name) > FOLDED)
    assert page.tags.count("details") == page.tags.count("summary") > 0
    assert f"{long[:FOLDED]}…{long[FOLDED:]}" in page.text
    for words in ("NVIDIA H200", "Power", "decode", "CUDA GPU Kernel Summary"):
        assert words in page.text
    # Of many phases the longest have bars.
    mlp = next(row for row in phase_rows(h200.run) if row.path == "decode/step/mlp")
    assert text.count(f">{percent(mlp.share_percent)}</span>") >= 1
    assert "<h2>Phases by share of the wall time of each step on the launching thread</h2>" in text
    assert "24 more, smaller or outside the steps, are in the table of phases" in text
    # Nothing is loaded from anywhere, nothing runs.
    assert page.is_inert


def test_every_string_is_escaped() -> None:
    session = Session.from_events(
        [
            header(gpu()),
            run_started(step_range=None),
            attached(),
            defined(1, HOSTILE),
            KernelDefined(time_ns=at(2), kernel=1, name=HOSTILE, mangled=HOSTILE),
            CaptureDelta(
                time_ns=at(3),
                process=1,
                ranges=(RangeDelta(range=1, cpu=times(5)),),
                kernels=(KernelDelta(process=1, range=1, kernel=1, device=0, time=times(5)),),
            ),
            run_ended(),
        ]
    )
    assert session.run is not None
    page = Page(formats.summary(session, session.run, "html"))
    assert page.is_inert
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_chromium_draws_the_page(h200: Session, tmp_path: Path) -> None:
    assert h200.run is not None
    path = tmp_path / "page.html"
    path.write_text(formats.summary(h200, h200.run, "html"))
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path / 'chromium'}", path.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<polyline") >= 4
    assert "CUDA GPU Kernel Summary" in done.stdout


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_long_names_make_no_page_wider_than_its_window(tmp_path: Path) -> None:
    """Ranges named after the modules of a model are words of any length."""
    recording = Path(__file__).parents[1] / "data" / "h200-annotated.gputui.gz"
    page = exported(recording, "html", tmp_path / "page.html")
    measured = "<script>document.title=`${document.documentElement.scrollWidth} ${innerWidth}`"
    text = page.read_text().replace("'none'", "'none'; script-src 'unsafe-inline'", 1)
    page.write_text(text + measured + "</script>")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--window-size=400,800", f"--user-data-dir={tmp_path / 'chromium'}", page.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"<title>(\d+) (\d+)</title>", done.stdout)
    assert found is not None
    wide, window = map(int, found.groups())
    assert wide <= window


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_every_column_is_on_the_printed_sheet(h200: Session, tmp_path: Path) -> None:
    """A4 is 1047 px wide between the page's margins."""
    assert h200.run is not None
    text = formats.summary(h200, h200.run, "html").replace("@media print", "@media screen", 1)
    text = text.replace("'none'", "'none'; script-src 'unsafe-inline'", 1)
    page = tmp_path / "page.html"
    page.write_text(
        text.replace("padding:0}", "padding:0;width:1047px}", 1)
        + "<script>document.title=[...document.querySelectorAll('table')]"
        ".map(t=>Math.round(t.getBoundingClientRect().right)).sort((a,b)=>b-a)[0]</script>"
    )
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--window-size=1047,800", f"--user-data-dir={tmp_path / 'chromium'}", page.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"<title>(\d+)</title>", done.stdout)
    assert found is not None
    assert 0 < int(found.group(1)) <= 1047


def exported(path: Path, format_name: str, out: Path, *words: str) -> Path:
    assert gputui(["export", str(path), "--format", format_name, "-o", str(out), *words]) == 0
    return out


def points(path: Path) -> dict[str, dict[tuple[str, ...], list[tuple[float, float]]]]:
    """Sample name → labels → (seconds, value), as OpenMetrics' own parser reads them."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    found: dict[str, dict[tuple[str, ...], list[tuple[float, float]]]] = {}
    for family in parser.text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            moments = series.setdefault(tuple(sample.labels.values()), [])
            moments.append((float(sample.timestamp), sample.value))
    return found


def test_openmetrics_is_a_series_that_its_own_parser_reads(h200_path: Path, tmp_path: Path) -> None:
    found = points(exported(h200_path, "openmetrics", tmp_path / "x.om"))
    samples = [event for event in JournalReader.open(h200_path) if isinstance(event, MachineSample)]
    [power] = found["gputui_gpu_power_watts"].values()
    # And once at the end, where events came after the last sample.
    assert power[: len(samples)] == [
        (pytest.approx(sample.time_ns / 1e9), sample.gpus[0].power_watts) for sample in samples
    ]
    assert len(power) <= len(samples) + 1
    decode = [
        [value for _, value in series]
        for labels, series in found["gputui_phase_instances_total"].items()
        if "decode/step" in labels
    ]
    assert decode[0] == sorted(decode[0])
    assert decode[0][-1] == 63


def test_phases_are_counted_up_to_each_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    writer.write([header(gpu()), run_started(), attached(), defined(1, "step")])
    for second in range(2, 8):
        delta = CaptureDelta(
            time_ns=at(second), process=1, ranges=(RangeDelta(range=1, cpu=times(5)),)
        )
        writer.write([delta, MachineSample(time_ns=at(second), host=HostSample())])
    writer.write([run_ended()])
    writer.close()
    found = points(exported(path, "openmetrics", tmp_path / "x.om"))
    [steps] = found["gputui_phase_instances_total"].values()
    assert [value for _, value in steps] == [1, 2, 3, 4, 5, 6, 6]


def test_the_last_points_are_the_figures_that_the_whole_recording_gives(tmp_path: Path) -> None:
    # Its main loop is told by the usual length of its steps: by values, not by sums.
    path = DATA / "faults" / "two-launches.gputui.gz"
    session = Session.from_events(JournalReader.open(path, summed=True))
    assert session.run is not None
    last = {}
    for row in exported(path, "openmetrics", tmp_path / "x.om").read_text().splitlines():
        if not row.startswith("#"):
            series, value, _ = row.rsplit(" ", 2)
            last[series] = float(value)
    assert last == {
        series_name(family) + labels_text(labels): pytest.approx(float(value))
        for labels, found in figures(session, phase_rows(session.run))
        for family, value in found
    }


def test_openmetrics_of_a_session_without_a_run_goes_through_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gputui"
    writer = JournalWriter(path)
    readings = [
        MachineSample(time_ns=at(second), host=HostSample(cpu_percent=cpu))
        for second, cpu in ((1, 50.0), (3, 0.0), (2, 7.0), (4, 100.0))
    ]
    writer.write([header(gpu()), *readings])
    writer.close()
    capsys.readouterr()
    assert gputui(["export", str(path), "--format", "openmetrics"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("# EOF\n")
    (tmp_path / "x.om").write_text(text)
    # A clock that was set back gives no second point: series only go forward.
    [cpu] = points(tmp_path / "x.om")["gputui_host_cpu_ratio"].values()
    assert [(seconds - at(0) / 1e9, value) for seconds, value in cpu] == [
        (1, 0.5), (3, 0.0), (4, 1.0)
    ]  # fmt: skip


def test_names_and_figures_of_any_kind_are_openmetrics(tmp_path: Path) -> None:
    path = tmp_path / "x.gputui"
    hostile = 'a"b\\c{}=,# EOF\n\u202e'
    writer = JournalWriter(path)
    writer.write(
        [
            header(gpu()),
            run_started(step_range=None),
            attached(),
            defined(1, hostile),
            CaptureDelta(time_ns=at(3), process=1, ranges=(RangeDelta(range=1, cpu=times(5)),)),
            RunMetrics(time_ns=at(3), run=1, metrics={hostile: 1e308, "small": -5e-324}),
            run_ended(),
        ]
    )
    writer.close()
    found = points(exported(path, "openmetrics", tmp_path / "x.om"))
    assert [labels for labels in found["gputui_run_metric"] if 'a"b\\c{}=,# EOF' in labels[2]]
    assert len(found["gputui_phase_instances_total"]) == 1


def test_points_that_do_not_fit_the_memory_keep_their_order(
    h200_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(h200_path, "openmetrics", tmp_path / "whole.om").read_text()
    monkeypatch.setattr("gputui.render.prometheus.POINTS_IN_MEMORY", 100)
    assert exported(h200_path, "openmetrics", tmp_path / "x.om").read_text() == whole


def two_runs(path: Path) -> Path:
    """Run 1 from second 1 to 9, run 2 from 11 to 14, and a sample a second."""
    writer = JournalWriter(path)
    writer.write([header(gpu()), run_started(1), attached(1, 1), defined(1, "first")])
    samples = [
        MachineSample(time_ns=at(second), host=HostSample(cpu_percent=1.0))
        for second in range(1, 16)
    ]
    writer.write([*samples[:10], CaptureDelta(
        time_ns=at(8), process=1, ranges=(RangeDelta(range=1, cpu=times(5)),))])  # fmt: skip
    writer.write([run_ended(1), replace(run_started(2), time_ns=at(11)), attached(2, 2)])
    writer.write([*samples[10:], replace(run_ended(2), time_ns=at(14))])
    writer.close()
    return path


def test_a_run_is_chosen_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_runs(tmp_path / "x.gputui")
    seconds = [
        seconds - at(0) / 1e9
        for seconds, _ in points(
            exported(path, "openmetrics", tmp_path / "x.om", "--run", "2")
        )["gputui_host_cpu_ratio"][()]
    ]  # fmt: skip
    assert seconds == [11, 12, 13, 14]
    capsys.readouterr()
    for number, there in (("1", True), ("2", False)):
        assert gputui(["summary", str(path), "--run", number, "--full"]) == 0
        assert ("first" in capsys.readouterr().out) is there
    assert gputui(["export", str(path), "--format", "csv", "--run", "1"]) == 0
    assert "first" in capsys.readouterr().out
    for words in (["summary"], ["export", "--format", "md"]):
        assert gputui([*words, str(path), "--run", "3"]) == 1
        told = capsys.readouterr().err
        assert "has no run 3; it has 1 (inference, " in told
        assert told.count("\n") == 1


def test_parquet_holds_every_sample_and_table(
    h200_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "tables"
    assert gputui(["export", str(h200_path), "--format", "parquet", "-o", str(out)]) == 0
    samples = parquet.read_table(out / "samples.parquet").to_pylist()
    expected = [
        (event.time_ns, reading.index, reading.power_watts, reading.sm_active_percent)
        for event in JournalReader.open(h200_path)
        if isinstance(event, MachineSample)
        for reading in event.gpus
    ]
    found = [
        (row["time_ns"], row["gpu"], row["power_watts"], row["sm_active_percent"])
        for row in samples
    ]
    assert found == expected
    kernels = parquet.read_table(out / "cuda_gpu_kern_sum.parquet").to_pylist()
    assert kernels[0]["total_ns"] == max(row["total_ns"] for row in kernels)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tables"]
    capsys.readouterr()
    assert gputui(["export", str(h200_path), "--format", "parquet", "-o", str(out)]) == 1
    assert "already exists" in capsys.readouterr().err
    nowhere = str(tmp_path / "no" / "where")
    assert gputui(["export", str(h200_path), "--format", "parquet", "-o", nowhere]) == 1
    assert f"cannot write {nowhere}: no such file" in capsys.readouterr().err


def test_parquet_holds_the_host_of_a_machine_without_a_gpu(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "night.gputui"
    with closing(JournalWriter(path)) as writer:
        writer.write([header()])
        for second in range(3):
            host = HostSample(cpu_percent=10.0 * second, memory_used_bytes=second << 30)
            writer.write([MachineSample(time_ns=at(second), host=host)])
    rows = parquet.read_table(
        exported(path, "parquet", tmp_path / "out") / "samples.parquet"
    ).to_pylist()
    found = [
        (row["time_ns"], row["gpu"], row["host_cpu_percent"], row["host_memory_used_bytes"])
        for row in rows
    ]
    assert found == [(at(second), None, 10.0 * second, second << 30) for second in range(3)]


@pytest.mark.parametrize("index", [2**31, 2**62, -1])
def test_a_gpu_number_that_no_driver_gives_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], index: int
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "odd.gputui"
    lines: list[AnyEvent] = [header()]
    for second, number in enumerate((0, index, 0)):
        gpus = (GpuSample(index=number, power_watts=100.0),)
        lines.append(MachineSample(time_ns=at(second), host=HostSample(), gpus=gpus))
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    out = tmp_path / "out"
    assert gputui(["export", str(path), "--format", "parquet", "-o", str(out)]) == 0
    rows = parquet.read_table(out / "samples.parquet").to_pylist()
    assert [row["gpu"] for row in rows] == [0]
    assert "line 3 is damaged" in capsys.readouterr().err


def test_parquet_keeps_numbers_of_mixed_columns_numbers(h200_path: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(
        exported(h200_path, "parquet", tmp_path / "tables") / "metrics.parquet"
    )
    assert [str(kind) for kind in table.schema.types] == ["string", "double", "string"]
    found = {row["name"]: (row["value"], row["value_text"]) for row in table.to_pylist()}
    assert found["output_tokens"] == (64.0, None)
    assert found["effective_precision"] == (None, "bf16")


def test_a_page_without_a_gpu_has_charts_of_the_host(tmp_path: Path) -> None:
    events = JournalReader.open(two_runs(tmp_path / "x.gputui"))
    session = Session.from_events(events)
    page = formats.summary(session, session.runs[1], "html")
    assert "The host" in page
    assert page.count("<polyline") == 1


def test_a_chart_of_hours_goes_back_to_the_start() -> None:
    session = Session.from_events(
        [
            header(),
            *(
                MachineSample(
                    time_ns=at(second), host=HostSample(cpu_percent=90.0 if second < 600 else 10.0)
                )
                for second in range(0, 4 * HISTORY_SAMPLES, 2)
            ),
        ]
    )
    field, metric = next(iter(charted_fields(HostSample).items()))
    found = session.host_samples.track(field).peaks(at(0), session.readings.last_ns)
    assert found[0][1] == 90.0
    assert found == sorted(found)
    assert "up to 90 %" in line(metric, found, at(0), session.readings.last_ns, "the host")


def test_a_table_of_moments_is_drawn_with_its_parts_one_on_the_other() -> None:
    names = ("time_ms", "model_bytes", "<b>_bytes", "loss")
    units = (None, "bytes", "bytes", None)
    table = ResultTable(
        name="t", title="Memory <i>",
        columns=tuple(ResultColumn(name=n, unit=u) for n, u in zip(names, units, strict=True)),
        rows=((0.0, 100, 0, 9.0), (1.0, 100, 300, 7.0), (2.0, 100, 100, "x"), ("y", 1, 1, 1e300),
              (3.0, 100, float("nan"), None)),
    )  # fmt: skip
    session = Session.from_events([header(), run_started()])
    session.apply(
        [RunResult(time_ns=at(1), run=1, complete=True, parameters={}, results={}, tables=(table,))]
    )
    assert session.run is not None
    parts, loss = timelines(own_tables(session.run)[0])
    assert Page(parts).is_inert
    outlines = [
        [tuple(map(float, corner.split(","))) for corner in found.split()]
        for found in re.findall(r"<polygon points='([^']*)'", parts)
    ]
    # The second lies on the first, which is a quarter of the highest sum; a missing figure stays.
    bottom = max(y for outline in outlines for _, y in outline)
    heights = [[round((bottom - y) / (bottom - TOP), 2) for _, y in one] for one in outlines]
    assert heights == [
        [0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0], [0.25, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    ]  # fmt: skip
    assert "<b>, up to 300 B" in Page(parts).text
    assert loss.count("<polyline") == 1
    assert "What the workload measured over time" in formats.summary(session, session.run, "html")
