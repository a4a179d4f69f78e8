"""What tests of several folders share: sessions made of events, and one recorded on an H200."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import hypothesis
import msgspec
import pytest

from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from tests.schemas_for_tests import checked

DATA = Path(__file__).parent / "data"

# Read when torch is imported, which several folders do, and in children: threads that wait for one
# another make tiny models ten times slower where several tests share the cores.
os.environ["OMP_NUM_THREADS"] = "1"

# Deadlines would test the machine: a property holds however long an example takes. Examples are the
# same in each run of the same test; `--hypothesis-profile explore` looks for new ones.
EXPLORED = hypothesis.settings(
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("explore", EXPLORED)
hypothesis.settings.register_profile("gputui", EXPLORED, derandomize=True)
hypothesis.settings.load_profile("gputui")


def pytest_configure() -> None:
    """Takes from this process what the tests' children would inherit of who runs them.

    Started in the background or by nohup, signals are ignored: a handler that does nothing keeps
    them from this process and is not inherited. Settings of the developer's own are forgotten.
    """
    ours = [name for name in os.environ if name.startswith("GPUTUI_")]
    for name in ("NO_COLOR", "CUDA_VISIBLE_DEVICES", *ours):
        os.environ.pop(name, None)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_MANY_MODULES = 100
_modules = [0]
"""How many were imported when all there was last stayed as it was."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    """The garbage collector does not go through what was imported, again and again: with torch and
    its compiler each time took 0.13 s, three fifths of what the workloads' tests took."""
    if len(sys.modules) > _modules[0] + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        _modules[0] = len(sys.modules)


def pytest_runtest_teardown() -> None:
    """Nor through what a test has imported."""
    pytest_collection_finish()


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or writes the developer's own settings and recordings."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg-data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg-config"))


@pytest.fixture(autouse=True)
def documents_as_their_schemas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document that a test makes is checked."""
    monkeypatch.setattr(msgspec.json, "encode", checked(msgspec.json.encode))


@pytest.fixture
def h200_path() -> Path:
    """`gputui --record --workload inference -p tokens=64` on an NVIDIA H200."""
    return DATA / "h200-inference.gputui"


@pytest.fixture
def h200(h200_path: Path) -> Session:
    """That recording, folded."""
    return Session.from_events(JournalReader.open(h200_path))
