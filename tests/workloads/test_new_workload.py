"""A new workload is one folder beside the others, or one package, and nothing else."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gputui
import workloads.template
from tests.workloads.workload_child import ROOT
from workloads.registry import Broken, Entry, all_workloads

TEMPLATE = Path(workloads.template.__file__)


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
    assert "inference       GPT-2 and Llama" in done.stdout
    why = "built-in: ModuleNotFoundError: No module named 'no_such_module'"
    assert f"broken          fails to load: {why}" in done.stdout
    assert "nothing declares 0 workloads, not one" in done.stdout


def test_an_editable_installation_runs_them_under_their_installed_name(tmp_path: Path) -> None:
    shutil.copy(TEMPLATE.parent / "editable.py", tmp_path / "gputui_workloads.py")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    assert "inference       GPT-2 and Llama" in python("-m", "gputui_workloads")
    assert "Open-loop load" in python("-m", "gputui_workloads.serve.client", "--help")
    same = "import gputui_workloads.declaration as a, workloads.declaration as b; print(a is b)"
    assert python("-c", same) == "True\n"


def _blocks(language: str) -> list[str]:
    """The code of the page on one's own workload."""
    page = (ROOT / "gputui/docs/recipes/workload.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_page_followed_word_for_word_gives_a_workload(tmp_path: Path) -> None:
    # As it is installed: beside gputui, and under the name that the wheel gives it. One more folder
    # is one more workload there.
    installed = tmp_path / "gputui_workloads"
    shutil.copytree(TEMPLATE.parent, installed, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gputui").symlink_to(Path(gputui.__file__).parent)
    (installed / "saxpy").mkdir()
    shutil.copy(TEMPLATE, installed / "saxpy" / "__init__.py")
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": str(tmp_path / "data"),
    }  # fmt: skip

    def typed(line: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        program, *words = shlex.split(line)
        assert program == "gputui"
        done = subprocess.run(
            [sys.executable, "-m", "gputui", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done

    (commands,) = _blocks("sh")
    answers = [typed(line).stdout for line in commands.splitlines()]
    path = tmp_path / ".config/gputui/workloads/mine.py"
    assert answers[0].startswith(f"{path}: edit it, and run it: gputui --workload mine")
    assert "saxpy" not in path.read_text(encoding="utf-8").lower()
    assert answers[1].startswith("mine: y = a x + y")
    assert "y = a x + y" in answers[3]
    assert "1,024" in answers[3] or "1024" in answers[3]
    names = [line.split()[0] for line in typed("gputui workloads").stdout.splitlines()]
    assert (names[0], names[-2:]) == ("inference", ["saxpy", "mine"])
    # What is wrong is said: a second one of the name, a name that is none, a file that is not one.
    for taken in ("mine", "saxpy"):
        told = typed(f"gputui workloads --new {taken}", 2).stderr
        assert f"there is a workload '{taken}' already" in told
    assert "use lower-case letters" in typed("gputui workloads --new ../odd", 2).stderr


def own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> dict[str, Entry | Broken]:
    """What the registry makes of a user's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "gputui" / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    entries, broken = all_workloads()
    mine = [one for one in entries if str(tmp_path) in one.source]
    return {one.workload.name: one for one in mine} | {one.name: one for one in broken}


def test_the_users_folder_has_files_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    package = text.replace('name="saxpy"', 'name="larger"').replace(
        'run=f"{__name__}:run"', 'run=f"{__name__}.work:go"'
    )
    found = own(
        tmp_path,
        monkeypatch,
        {
            "one.py": text.replace('name="saxpy"', 'name="one"'),
            "larger/__init__.py": package,
            "larger/work.py": "def go(given, report): return 7\n",
            "other.py": text.replace('name="saxpy"', 'name="other"').replace(
                'f"{__name__}:run"', '"workloads.template:run"'
            ),
            "empty.py": "",
            "ends.py": "raise SystemExit(3)",
            "taken.py": text.replace('name="saxpy"', 'name="train"'),
        },
    )
    assert isinstance(found["one"], Entry)
    assert isinstance(found["larger"], Entry)
    assert found["larger"].workload.implementation()({}, None) == 7  # type: ignore[arg-type,comparison-overlap]
    # The user's function would never be called.
    assert isinstance(wrong := found["other"], Broken)
    assert wrong.error.endswith(
        """its run is 'workloads.template:run': write run=f"{__name__}:run\""""
    )
    assert isinstance(nothing := found["empty"], Broken)
    assert "declares 0 workloads" in nothing.error
    assert isinstance(ended := found["ends"], Broken)
    assert "SystemExit" in ended.error
    assert isinstance(twice := found["train"], Broken)
    assert "already named 'train'" in twice.error
