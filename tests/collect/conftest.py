"""The fake driver library, built once a session, and children that read the machine on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.collect.fake_machine import HERE, FakeMachine, Probe


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], Path]:
    """Builds the library without the functions named; gives the folder it is in."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the fake driver library needs a C compiler (cc)")

    def build_without(missing: Sequence[str]) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        hidden = folder / "hidden.map"
        hidden.write_text(f"{{ local: {' '.join(f'{name};' for name in missing)} }};")
        script = [f"-Wl,--version-script={hidden}"] if missing else []
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *script]
        output = ["-o", str(folder / "libnvidia-ml.so.1")]
        subprocess.run(
            [compiler, *flags, *output, str(HERE / "fake_nvml.c"), "-lpthread"], check=True
        )
        return folder

    return build_without


@pytest.fixture(scope="session")
def library(build: Callable[[Sequence[str]], Path]) -> Path:
    return build(())


@pytest.fixture(scope="session")
def shared_probe(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FakeMachine, Probe]]:
    machine = FakeMachine(tmp_path_factory.mktemp("machine") / "state")
    probe = Probe(machine, library)
    yield machine, probe
    assert probe.close() == 0


@pytest.fixture
def machine(shared_probe: tuple[FakeMachine, Probe]) -> FakeMachine:
    """One H200, idle of processes; the machine that `probe` reads."""
    machine, _ = shared_probe
    machine.reset()
    machine.write()
    return machine


@pytest.fixture
def probe(shared_probe: tuple[FakeMachine, Probe], machine: FakeMachine) -> Probe:
    """Reads `machine`, whose state file it shares."""
    assert shared_probe[0] is machine
    return shared_probe[1]


@pytest.fixture
def own_probe(machine: FakeMachine, library: Path) -> Iterator[Callable[..., Probe]]:
    """Makes probes of the test's own: for streams, libraries built otherwise, calls that hang."""
    probes: list[Probe] = []

    def make(folder: Path | None = None, *, hasty: bool = False) -> Probe:
        probes.append(Probe(machine, folder or library, hasty=hasty))
        return probes[-1]

    yield make
    for probe in probes:
        assert probe.close() == 0
