from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gputui.inject.build import COUNTERS, build_all

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 and a libcupti.so.13 of ours; the sampler is built."""
    if not COUNTERS.is_current() and (failure := build_all()):
        pytest.skip(failure)
    folder = tmp_path_factory.mktemp("fakes")
    include = f"-I{COUNTERS.source.parent}"
    for source, target in (("fake_driver.c", "libcuda.so.1"), ("fake_cupti.c", "libcupti.so.13")):
        command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", include, str(HERE / source)]
        subprocess.run([*command, "-o", str(folder / target)], check=True)
    return folder


@pytest.fixture
def gpu(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sampler finds these; returns libcupti's path."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fakes))
    monkeypatch.setenv("GPUTUI_CUPTI_PATH", str(fakes))
    return fakes / "libcupti.so.13"
