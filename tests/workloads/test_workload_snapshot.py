"""Snapshots of GPU memory: when one is taken, what is written where. The GPU's own is not here."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.workload_child import Child
from workloads.errors import OutOfMemory
from workloads.report import Report
from workloads.snapshot import MAX_ENTRIES, VARIABLE, memory_snapshot


class Recorder:
    """Stands in for torch.cuda.memory, which there is on a GPU alone."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, dict[str, Any]]] = []

    def _record_memory_history(self, enabled: str | None, **options: Any) -> None:
        self.calls.append((enabled, options))

    def _snapshot(self) -> Mapping[str, Any]:
        return {"segments": [{"device": 0}], "device_traces": [[]]}


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


def test_what_was_recorded_is_written_whole_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    path = tmp_path / "s.pickle"
    monkeypatch.setenv(VARIABLE, str(path))
    recorder = Recorder()
    with memory_snapshot("train", "cuda", Report(None, told), recorder):
        assert recorder.calls == [("all", {"stacks": "python", "max_entries": MAX_ENTRIES})]
        assert not path.exists()
    assert pickle.loads(path.read_bytes()) == recorder._snapshot()
    assert list(tmp_path.iterdir()) == [path]
    assert recorder.calls[1:] == [(None, {})]
    assert told.getvalue().count("\n") == 1


def test_the_run_that_needs_it_most_gets_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "s.pickle"))
    with (
        pytest.raises(OutOfMemory),
        memory_snapshot("train", "cuda", Report(None, told), Recorder()),
    ):
        raise OutOfMemory("no more")
    assert (tmp_path / "s.pickle").exists()


def test_without_gputui_it_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with memory_snapshot("train", "cuda", Report(None, told), Recorder()):
        pass
    [made] = tmp_path.iterdir()
    assert made.name.startswith("train-")
    assert made.name.endswith(".snapshot.pickle")


def test_what_cannot_be_written_is_one_line_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no" / "s.pickle"))
    with memory_snapshot("train", "cuda", Report(None, told), Recorder()):
        pass
    assert "cannot be written" in told.getvalue()
    assert told.getvalue().count("\n") == 1


@pytest.mark.parametrize("name", ["train", "inference", "memory"])
def test_on_the_cpu_one_line_says_that_there_is_none(name: str, tmp_path: Path) -> None:
    words = ["--preset", "quick", "--device", "cpu", "--snapshot", "true"]
    done = Child(name, *words, folder=tmp_path, torch=True).finish()
    assert done.status == 0, done.stderr
    assert f"{name}: no snapshot: PyTorch records only GPU memory\n" in done.stderr
    assert done.document()["parameters"]["snapshot"] is True
    assert list(tmp_path.iterdir()) == []
