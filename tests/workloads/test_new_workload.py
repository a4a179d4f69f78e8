"""A new workload is one folder beside the others, or one package, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gputui
import workloads.template
from tests.workloads.workload_child import ROOT, Child

TEMPLATE = Path(workloads.template.__file__)


def test_a_folder_with_the_template_is_listed_and_run(tmp_path: Path) -> None:
    # As it is installed: beside gputui, and under the name that the wheel gives it.
    installed = tmp_path / "gputui_workloads"
    shutil.copytree(TEMPLATE.parent, installed, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gputui").symlink_to(Path(gputui.__file__).parent)
    added = installed / "saxpy"
    added.mkdir()
    shutil.copy(TEMPLATE, added / "__init__.py")

    def ran(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gputui", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = [line.split()[0] for line in ran("workloads").splitlines()]
    assert names[0] == "inference"
    assert names[-1] == "saxpy"
    words = ["-p", "device=cpu", "-p", "largest=1024", "-p", "passes=1", "-o", "x.gputui"]
    ran("--record", "--workload", "saxpy", *words)
    assert "y = a x + y" in ran("summary", "x.gputui", "--full")


def test_a_folder_that_does_not_load_hides_no_other(tmp_path: Path) -> None:
    copied = tmp_path / "workloads"
    shutil.copytree(TEMPLATE.parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("broken", "import no_such_module\n"), ("nothing", "")):
        (copied / name).mkdir()
        (copied / name / "__init__.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "workloads"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "inference       GPT-2 or Llama" in done.stdout
    why = "built-in: ModuleNotFoundError: No module named 'no_such_module'"
    assert f"broken          fails to load: {why}" in done.stdout
    assert "nothing declares 0 workloads, not one" in done.stdout


def test_the_package_that_is_written_runs_once_it_is_installed(tmp_path: Path) -> None:
    def new(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gputui", "workloads", "--new", name]
        path = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False
        )

    done = new("mine")
    assert done.returncode == 0, done.stderr
    assert "pip install -e mine" in done.stdout
    project = tmp_path / "mine"
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    points = declared["entry-points"]["gputui.workloads"]
    metadata = project / "mine-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[gputui.workloads]", *lines, ""]))
    finished = Child("mine", "--device=cpu", "--largest=1024", path=project).finish()
    assert finished.status == 0, finished.stderr
    assert [row["elements"] for row in finished.table("mine")] == [1024]

    assert (again := new("mine")).returncode == 1
    assert "File exists" in again.stderr
    assert (odd := new("../odd")).returncode == 2
    assert "use lower-case letters" in odd.stderr
