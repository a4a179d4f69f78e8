"""Building the library: by hand and as the build hook of an installation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from gputui.inject import build as build_module
from gputui.inject.build import CAPTURE, HOOK, LIBRARIES, Library, build

PACKAGE = CAPTURE.folder.parent


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("library", LIBRARIES[1:])  # one of each kind
def test_it_builds_where_it_is_told(tmp_path, library: Library):
    target = tmp_path / "built.so"
    assert build(library, target) == target
    assert [path.name for path in tmp_path.iterdir()] == ["built.so"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/no/such/compiler -x", "/no/such/compiler could not compile"),
        ("false", "false could not compile gputui_capture.c: exit status 1"),
    ],
)
def test_a_compiler_that_fails_is_a_reason(tmp_path, monkeypatch, compiler, reason):
    monkeypatch.setenv("CC", compiler)
    result = build(CAPTURE, tmp_path / "built.so")
    assert isinstance(result, str)
    assert reason in result
    assert "\n" not in result
    assert list(tmp_path.iterdir()) == []


def test_no_compiler_and_no_linux_are_reasons(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install gcc or clang" in build(CAPTURE, tmp_path / "built.so")
    monkeypatch.setattr(build_module.sys, "platform", "darwin")
    assert build(CAPTURE) == "the capture library needs Linux, this is darwin"


@pytest.mark.usefixtures("library")
def test_a_library_without_the_mark_of_its_sources_is_refused(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; : > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert "left out the mark" in build(CAPTURE, tmp_path / "x.so")
    assert not (tmp_path / "x.so").exists()


class Application:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def project(tmp_path) -> Path:
    """A source tree like the one an installation builds from."""
    for library in LIBRARIES:
        folder = tmp_path / library.folder.relative_to(PACKAGE.parent)
        shutil.copytree(library.source.parent, folder / "src", dirs_exist_ok=True)
    shutil.copytree(HOOK, tmp_path / "gputui" / "inject" / "hook")
    shutil.copy(build_module.__file__, tmp_path / "gputui" / "inject")
    return tmp_path


def built(project: Path) -> set[Path]:
    programs = [path for library in LIBRARIES for path in project.rglob(library.path.name)]
    return {*project.rglob("*.so"), *programs}


def expected(project: Path) -> set[Path]:
    return {project / library.path.relative_to(PACKAGE.parent) for library in LIBRARIES}


def run_hook(project: Path, target: str, version: str = "standard") -> tuple[dict, list[str]]:
    pytest.importorskip("hatchling")
    from hatchling.builders.hooks.custom import CustomBuildHook as Loader

    app = Application()
    config = {"path": str(project / "gputui/inject/build.py")}
    hook = Loader(str(project), config, None, None, str(project), target, app)
    data: dict = {"pure_python": True, "force_include": {}}
    hook.initialize(version, data)
    return data, app.warnings


@pytest.mark.usefixtures("library", "quick_compiler")
def test_the_hook_compiles_and_marks_the_wheel(project):
    data, warnings = run_hook(project, "wheel")
    assert warnings == []
    assert built(project) == expected(project)
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-linux_")


def test_a_wheel_without_the_libraries_has_to_be_asked_for(project, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(RuntimeError, match=r"false could not compile.*set GPUTUI_NO_LIBRARY=1"):
        run_hook(project, "wheel")
    monkeypatch.setenv("GPUTUI_NO_LIBRARY", "1")
    data, (warning,) = run_hook(project, "wheel")
    assert warning == "gputui cannot look inside processes: $GPUTUI_NO_LIBRARY is set"
    assert data["pure_python"] is True
    assert "tag" not in data
    assert built(project) == set()


def test_an_editable_installation_without_a_compiler_warns(project, monkeypatch):
    monkeypatch.setenv("CC", "false")
    data, (warning,) = run_hook(project, "wheel", "editable")
    assert "false could not compile" in warning
    assert data == {
        "pure_python": True,
        "force_include": {},
        "force_include_editable": {"workloads/editable.py": "gputui_workloads.py"},
    }
    assert built(project) == set()


def test_the_workloads_are_installed_under_a_name_of_gputuis_own(project, monkeypatch):
    monkeypatch.setenv("GPUTUI_NO_LIBRARY", "1")
    assert run_hook(project, "wheel")[0]["force_include"] == {"workloads": "gputui_workloads"}


def test_the_hook_leaves_source_distributions_alone(project):
    assert run_hook(project, "sdist") == ({"pure_python": True, "force_include": {}}, [])
    assert built(project) == set()


@pytest.mark.usefixtures("library", "quick_compiler")
def test_by_hand(project, capfd):
    import subprocess

    script = project / "gputui" / "inject" / "build.py"
    subprocess.run([sys.executable, str(script)], check=True)
    assert {Path(line) for line in capfd.readouterr().out.splitlines()} == expected(project)
    assert built(project) == expected(project)
