"""CUPTI alone, under a program: what no tool that uses it can get below. Also what compiles it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gputui.inject.environment import capture_environment

PROGRAMS = Path(__file__).with_name("programs")

AS_GPUTUI = "kernel copies calls nodes"
"""What gputui asks CUPTI for."""


def build_floor(folder: Path) -> Path:
    """The library, compiled into `folder`."""
    target = folder / "floor.so"
    words = ["-O2", "-shared", "-fPIC", str(PROGRAMS / "floor.c"), "-o", str(target)]
    subprocess.run(["cc", *words, "-ldl", "-lpthread"], check=True)
    return target


def build_launches(folder: Path) -> Path | str:
    """The program that launches empty kernels, or why there is none."""
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        return "no nvcc: launches.cu needs CUDA's compiler on the PATH"
    target = folder / "launches"
    subprocess.run([compiler, "-O2", "-o", target, PROGRAMS / "launches.cu"], check=True)
    return target


def floor_environment(library: Path, words: str = AS_GPUTUI) -> dict[str, str]:
    """The environment of a program under CUPTI alone; `words` as floor.c explains them."""
    clear = {name: value for name, value in os.environ.items() if "INJECTION64" not in name}
    captured, _ = capture_environment(library.parent, True, clear)
    environment = clear | {"CUDA_INJECTION64_PATH": str(library), "FLOOR": words}
    if "GPUTUI_CUPTI_PATH" in captured:
        environment["GPUTUI_CUPTI_PATH"] = captured["GPUTUI_CUPTI_PATH"]
    return environment
