"""HTML, OpenMetrics and Parquet: read back by what reads such files."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gputui.cli import run as gputui
from gputui.events import CaptureDelta, KernelDefined, KernelDelta, MachineSample, RangeDelta
from gputui.export.write import export_text
from gputui.journal import JournalReader
from gputui.session import Session
from tests.events_for_tests import (
    at,
    attached,
    defined,
    gpu,
    header,
    run_ended,
    run_started,
    times,
)

HOSTILE = "<script>alert(1)</script>'\"&</svg><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Tags that were opened, what they hold, and whether they close in order."""

    VOID = frozenset({"meta", "br", "line", "rect", "polyline", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_charts_and_every_table(h200: Session) -> None:
    assert h200.run is not None
    page = Page(export_text(h200, h200.run, "html"))
    assert page.tags.count("polyline") >= 4
    assert page.tags.count("table") >= 6
    for words in ("NVIDIA H200", "Power", "decode", "CUDA GPU Kernel Summary"):
        assert words in page.text
    # Nothing is loaded from anywhere, nothing runs.
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not any(name in ("src", "href") or name.startswith("on") for name, _ in page.attributes)


def test_every_string_is_escaped() -> None:
    session = Session()
    session.apply(
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
    page = Page(export_text(session, session.run, "html"))
    assert not {"script", "img"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_chromium_draws_the_page(h200: Session, tmp_path: Path) -> None:
    assert h200.run is not None
    path = tmp_path / "page.html"
    path.write_text(export_text(h200, h200.run, "html"))
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path / 'chromium'}", path.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<polyline") >= 4
    assert "CUDA GPU Kernel Summary" in done.stdout


def test_openmetrics_is_read_by_its_own_parser(h200: Session) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    assert h200.run is not None
    text = export_text(h200, h200.run, "openmetrics")
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    power = families["gputui_power_watts"] if "gputui_power_watts" in families else next(
        family for name, family in families.items() if name.endswith("power_watts")
    )  # fmt: skip
    sample = h200.gpus[0].sample
    assert sample is not None
    assert [value.value for value in power.samples] == [sample.power_watts]


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
    assert kernels[0]["Total Time (ns)"] == max(row["Total Time (ns)"] for row in kernels)
    capsys.readouterr()
    assert gputui(["export", str(h200_path), "--format", "parquet", "-o", str(out)]) == 1
    assert "already exists" in capsys.readouterr().err
