from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.inject.build import build_all
from gputui.inject.environment import library_path

PROGRAMS = Path(__file__).with_name("programs")

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def library() -> Path:
    """The capture library of this checkout, built anew, with the monitor's, if missing or stale."""
    if library_path() is None and (failure := build_all()):
        pytest.skip(failure)
    built = library_path()
    assert built is not None
    return built


@pytest.fixture(scope="session")
def compile_program(
    library: Path,  # noqa: ARG001 - it skips where there is no compiler
    tmp_path_factory: pytest.TempPathFactory,
) -> Compile:
    """Compiles a program of `programs`: (source name, target name, flags …) → path."""
    folder = tmp_path_factory.mktemp("programs")

    def make(source: str, target: str, *flags: str) -> Path:
        path = folder / target
        if not path.exists():
            command = ["cc", "-O1", str(PROGRAMS / source), "-o", str(path), "-w", *flags]
            subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        return path

    return make


@pytest.fixture(scope="session")
def nvtx_program(compile_program: Compile) -> str:
    return str(compile_program("nvtx_program.c", "nvtx_program"))


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler that builds use, without optimising: it takes a third of the time."""
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
