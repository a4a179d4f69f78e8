"""The template, copied into a package and installed as the page says, is a workload."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import workloads.template
from tests.workloads.workload_child import ROOT, Child


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder on the path with `my_package`, which has the template as its own module."""
    text = Path(workloads.template.__file__).read_text()
    own = tmp_path / "my_package"
    own.mkdir()
    (own / "__init__.py").touch()
    (own / "saxpy.py").write_text(text)
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    page = (ROOT / "gputui/docs/recipes/workload.md").read_text()
    (declared,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    points = tomllib.loads(declared)["project"]["entry-points"]["gputui.workloads"]
    place = points["mine"].replace("mine", "saxpy").replace("MINE", "SAXPY")
    (metadata / "entry_points.txt").write_text(f"[gputui.workloads]\nsaxpy = {place}")
    return tmp_path


def test_it_is_in_the_catalogue_beside_ours(package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workloads", "--catalogue"],
        cwd=ROOT,
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    catalogue = json.loads(done.stdout)
    (found,) = [entry for entry in catalogue["workloads"] if entry["name"] == "saxpy"]
    assert found["source"] == "my_package"
    assert found["tables"][0]["columns"][0]["name"] == "elements"
    assert catalogue["broken"] == []


def test_it_runs_and_reports_its_table(package: Path) -> None:
    finished = Child("saxpy", "--device=cpu", "--largest=20000", path=package, torch=True).finish()
    assert finished.status == 0, finished.stderr
    assert [row["elements"] for row in finished.table("saxpy")] == [1024, 16384]
    assert finished.document()["unavailable"] == {"peak_percent": "the CPU's peak is unknown"}
    (table,) = finished.reported("table")
    assert len(table["rows"]) == 2


def test_it_refuses_what_cannot_fit_with_the_sum(package: Path) -> None:
    finished = Child(
        "saxpy", "--device=cpu", f"--largest={2**40}", path=package, torch=True
    ).finish()
    assert finished.status == 1
    assert "needs 8192.0 GiB = 2 arrays × 4 bytes × 1099511627776" in finished.stderr
