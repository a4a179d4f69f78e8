"""The public library, by doing what a notebook does."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gputui
import gputui.library
from gputui.cli.dispatch import run as main
from gputui.model.events import AnyEvent, MachineSample, RunMetrics
from gputui.render import columnar
from tests.conftest import DATA
from tests.events_for_tests import at, gpu, header, run_ended, run_started

RECORDING = DATA / "h200-inference.gputui"
PACKAGES = ("pandas", "polars")


@pytest.fixture(scope="module")
def run() -> gputui.Run:
    return gputui.read(RECORDING).runs[-1]


def printed(*words: str) -> Any:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*words]) == 0
    return json.loads(out.getvalue())


def written(path: Path, *events: AnyEvent) -> Path:
    path.write_bytes(msgspec.json.Encoder().encode_lines(events))
    return path


# --- what is read


def test_rows_are_those_of_the_document(run: gputui.Run) -> None:
    document = printed("summary", str(RECORDING), "--format", "json")
    assert msgspec.to_builtins(run.rows("phases")) == document["phases"]
    assert msgspec.to_builtins(run.rows("kernels")) == document["kernels"]
    assert msgspec.to_builtins(run.rows("api")) == document["api"]
    assert run.rows("findings") == document["findings"]
    assert run.document() == document
    sizes = {row["operation"]: row for row in document["memops_size"]}
    for row, time in zip(run.rows("memory_operations"), document["memops_time"], strict=True):
        assert row.items() >= time.items()
        assert row.items() >= sizes[row["operation"]].items()
    assert run.metrics == document["metrics"]
    assert run.duration_ns == document["run"]["duration_ns"]
    assert (run.name, run.number, run.exit_code) == ("inference", 1, 0)


def test_every_table_can_be_had_by_name(run: gputui.Run) -> None:
    assert {"phases", "cuda_gpu_kern_sum", "cuda_gpu_kern_sum:base"} <= {*run.tables}
    for name in run.tables:
        for row in run.rows(name)[:2]:
            assert all(isinstance(key, str) for key in row)
    with pytest.raises(gputui.Error, match="there is no table 'nothing'; known: "):
        run.table("nothing")
    with pytest.raises(gputui.Error, match="there is no table 'nothing'"):
        run.rows("nothing")


def test_samples_are_those_of_the_recording(run: gputui.Run) -> None:
    from gputui.store.journal.reader import JournalReader

    samples = [one for one in JournalReader.open(RECORDING) if isinstance(one, MachineSample)]
    every = gputui.read(RECORDING).rows()
    assert [(row["time_ns"], row["gpu"]) for row in every] == [
        (sample.time_ns, gpu.index) for sample in samples for gpu in sample.gpus
    ]
    assert [row["power_watts"] for row in every] == [
        gpu.power_watts for sample in samples for gpu in sample.gpus
    ]
    within = [
        row for row in every
        if run.started_ns <= row["time_ns"] <= run.started_ns + run.duration_ns
    ]  # fmt: skip
    assert run.rows("samples") == within
    assert len(within) > 0


def test_steps_are_what_the_workload_reported(tmp_path: Path) -> None:
    reports = [
        RunMetrics(time_ns=at(2), run=1, metrics={"loss": 2.5, "step": 1}),
        RunMetrics(time_ns=at(3), run=1, metrics={"loss": 2.25, "note": "warm"}),
    ]
    path = written(tmp_path / "x.gputui", header(gpu()), run_started(), *reports, run_ended())
    one = gputui.read(path).runs[0]
    assert one.rows("steps") == [
        {"time_ns": at(2), "loss": 2.5, "step": 1, "note": None},
        {"time_ns": at(3), "loss": 2.25, "step": None, "note": "warm"},
    ]
    assert "steps" not in one.unavailable
    path = written(tmp_path / "y.gputui", header(gpu()), run_started(), run_ended())
    without = gputui.read(path).runs[0]
    assert without.steps is None
    assert without.unavailable["steps"] == "the workload reported no metrics while it ran"


@pytest.mark.parametrize("kind", ["gz", "zst", "nsys", "csv", "folder", "machine"])
def test_everything_that_the_program_reads(tmp_path: Path, kind: str) -> None:
    place, kernels = tmp_path / "x.gputui", True
    if kind == "gz":
        place = tmp_path / "x.gputui.gz"
        place.write_bytes(gzip.compress(RECORDING.read_bytes()))
    elif kind == "zst":
        zstandard = pytest.importorskip("zstandard")
        place = tmp_path / "x.gputui.zst"
        place.write_bytes(zstandard.ZstdCompressor().compress(RECORDING.read_bytes()))
    elif kind == "nsys":
        place = tmp_path / "x.sqlite"
        place.write_bytes(gzip.decompress((DATA / "h200-ranges.sqlite.gz").read_bytes()))
    elif kind == "csv":
        place = tmp_path / "tables"
        place.mkdir()
        rows = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),"
        (place / "r_cuda_gpu_kern_sum.csv").write_text(
            f"{rows}StdDev (ns),Name\n100.0,30,3,10.0,10.0,9,11,1.0,gemm\n"
        )
    elif kind == "folder":
        place = tmp_path / "ranks"
        place.mkdir()
        for name in ("b", "a"):
            shutil.copy(RECORDING, place / f"{name}.gputui")
        read = gputui.read(place)
        assert sorted(one.recording for one in read.runs) == [
            str(place / "a.gputui"), str(place / "b.gputui"),
        ]  # fmt: skip
        assert len(read.rows()) == 2 * len(gputui.read(RECORDING).rows())
    else:
        written(place, header(gpu()))
        assert gputui.read(place).runs == ()
        return
    one = gputui.read(place).runs[-1]
    assert bool(one.rows("kernels")) == kernels


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.gputui", "no such file or directory"),
        ("trace.json", "has no operators, annotations, CUDA calls or kernels"),
        ("trace.json.gz", "has no operators, annotations, CUDA calls or kernels"),
        ("pipe.gputui", "is not a file"),
        ("empty.gputui", "is empty"),
        ("-", "no such file or directory"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / name
    if name.startswith("trace"):
        path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    elif name.startswith("pipe"):
        os.mkfifo(path)
    elif name.startswith("empty"):
        path.touch()
    with pytest.raises(gputui.Error, match=words) as caught:
        gputui.read(path)
    assert "\n" not in str(caught.value)


# --- data frames


@pytest.mark.parametrize("package", PACKAGES)
def test_frames_hold_the_rows(package: Any) -> None:
    pytest.importorskip(package)
    run = gputui.read(RECORDING, frames=package).runs[-1]
    for name in ("phases", "kernels", "api", "memory_operations", "samples", "findings"):
        found = getattr(run, name)
        assert type(found).__module__.partition(".")[0] == package
        rows = run.rows(name)
        assert len(found) == len(rows), name
        assert not rows or [*found.columns] == [*rows[0]], name
    kernels = run.kernels
    assert list(kernels["name"]) == [row["name"] for row in run.rows("kernels")]
    assert kernels["total_ns"].sum() == sum(row["total_ns"] for row in run.rows("kernels"))
    assert type(run.table("metrics")).__module__.startswith(package)
    assert len(gputui.read(RECORDING, frames=package).samples) == len(gputui.read(RECORDING).rows())


@pytest.mark.parametrize("package", PACKAGES)
def test_columns_keep_their_types_where_they_are_empty(package: Any, tmp_path: Path) -> None:
    pytest.importorskip(package)
    path = written(tmp_path / "x.gputui", header(gpu()), run_started(), run_ended())
    empty = gputui.read(path, frames=package).runs[0]
    full = gputui.read(RECORDING, frames=package).runs[0]
    for name in ("kernels", "api"):
        assert len(getattr(empty, name)) == 0
        types = dict(zip(getattr(full, name).columns, getattr(full, name).dtypes, strict=True))
        found = dict(zip(getattr(empty, name).columns, getattr(empty, name).dtypes, strict=True))
        assert [*found] == [*types]
        assert found == types


@pytest.mark.parametrize("package", PACKAGES)
def test_hostile_values_become_frames_too(package: Any, tmp_path: Path) -> None:
    pytest.importorskip(package)
    values = [2**62, -(2**62), 1.5, None, "x\u202e", True, float("1e308"), "=1+1", ""]
    reports = [
        RunMetrics(time_ns=at(2 + i), run=1, metrics={"a": value, f"b{i}": value})
        for i, value in enumerate(values)
    ]
    lines = msgspec.json.Encoder().encode_lines((header(), run_started(), *reports, run_ended()))
    path = tmp_path / "x.gputui"
    path.write_bytes(lines)
    one = gputui.read(path, frames=package).runs[0]
    found = one.steps
    assert found is not None
    assert len(found) == len(one.rows("steps"))
    assert {"time_ns", "a", "a_text"} <= {*found.columns}


def test_pandas_comes_before_polars_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"pandas", "polars"}
    monkeypatch.setattr(columnar, "find_spec", lambda name: name if name in there else None)
    assert columnar.frames_package(None) == "pandas"
    there.discard("pandas")
    assert columnar.frames_package(None) == "polars"
    with pytest.raises(ImportError, match=r"need pandas: pip install 'gputui\[pandas\]'"):
        gputui.read(RECORDING, frames="pandas")
    there.discard("polars")
    run = gputui.read(RECORDING).runs[-1]
    with pytest.raises(gputui.Error, match=r"need pandas or polars: pip install 'gputui\[pandas"):
        _ = run.kernels
    assert run.rows("kernels")
    with pytest.raises(gputui.Error, match="give one of pandas, polars"):
        gputui.read(RECORDING, frames="numpy")  # type: ignore[arg-type]


# --- comparisons


def test_a_comparison_is_that_of_the_program(tmp_path: Path) -> None:
    other = tmp_path / "other.gputui"
    other.write_bytes(RECORDING.read_bytes())
    found = gputui.compare(RECORDING, other)
    document = printed("compare", str(RECORDING), str(other), "--format", "json")
    assert found.document() == document
    count = sum(len(item["figures"]) for item in document["items"])
    rows = found.rows()
    assert len(rows) == count
    assert all(row["difference"] in (0.0, None) for row in rows)
    assert found.failures("tokens_per_s<-3%", "decode.cpu_avg_ns>+0.1%") == []
    run = gputui.read(RECORDING).runs[-1]
    assert [row["value"] for row in gputui.compare(run, run).rows()] == [
        row["value"] for row in rows
    ]
    with pytest.raises(gputui.Error, match="two runs or more"):
        gputui.compare(RECORDING)
    with pytest.raises(gputui.Error):
        found.failures("nonsense")
    if columnar.find_spec("pandas"):
        assert len(found.figures) == count


# --- this machine


def _machine(monkeypatch: pytest.MonkeyPatch, *emissions: Sequence[AnyEvent]) -> list[str]:
    """Has a sampler emit these; what happened to it."""
    calls: list[str] = []

    class Fake:
        def __init__(self, interval_s: float, only: Sequence[int] | None) -> None:
            calls.append(f"{interval_s} {only}")

        def start(self, emit: Any) -> None:
            self._thread = threading.Thread(target=lambda: [*map(emit, emissions)], daemon=True)
            self._thread.start()

        def stop(self) -> None:
            calls.append("stop")

    monkeypatch.setattr("gputui.collect.live.Sampler", Fake)
    return calls


def test_devices_gives_one_reading_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from gputui.model.events import GpuSample, HostSample

    def tick(number: int) -> MachineSample:
        readings = tuple(GpuSample(index=i, power_watts=100.0 * i + number) for i in (0, 1))
        return MachineSample(time_ns=at(number), host=HostSample(), gpus=readings)

    emissions = [(header(gpu(0), gpu(1)),), (tick(1),), (tick(2),), (tick(3),)]
    calls = _machine(monkeypatch, *emissions)
    found = list(gputui.devices(0.5, count=2, only=[0, 1]))
    assert [(one["index"], one["power_watts"]) for one in found] == [
        (0, 1.0), (1, 101.0), (0, 2.0), (1, 102.0),
    ]  # fmt: skip
    assert found[0]["time"] != found[2]["time"]
    assert calls == ["0.5 [0, 1]", "stop"]


def test_devices_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gputui.Error, match="interval 0 s"):
        next(gputui.devices(0))
    reason = "no driver"
    none = msgspec.structs.replace(header(), gpu_unavailable_reason=reason)
    calls = _machine(monkeypatch, (none,))
    with pytest.raises(gputui.Error, match="no GPU: no driver"):
        next(gputui.devices())
    assert calls[-1] == "stop"


# --- the package


def test_the_name_alone_costs_nothing() -> None:
    code = (
        "import sys, gputui; before = {*sys.modules}; assert gputui.__version__;"
        "print(sorted(name for name in before if name.startswith(('gputui', 'numpy', 'msgspec'))));"
        "gputui.read; print('textual' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['gputui']\nFalse False\n"
    code = f"import sys; sys.path[:0] = {sys.path!r}; import gputui; print('typing' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_what_is_public_is_listed() -> None:
    assert {*gputui.__all__} <= {*dir(gputui)}
    assert [getattr(gputui, name) for name in gputui.__all__] == [
        getattr(gputui.library, name) for name in gputui.library.__all__
    ]
    assert gputui.__all__ == gputui.library.__all__
    assert (Path(gputui.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError, match="'gputui' has no attribute 'nothing'"):
        _ = gputui.nothing


def test_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    page = (Path(gputui.__file__).parent / "docs" / "library.md").read_text()
    for name in ("run", "other"):
        shutil.copy(RECORDING, tmp_path / f"{name}.gputui")
    cells = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.py").write_text("\nprint('---')\n".join(cells))
    done = subprocess.run(
        [sys.executable, "page.py"], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(cells) > 4
    assert all(part.strip() for part in done.stdout.split("---\n"))
