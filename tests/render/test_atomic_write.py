"""Files that are whole or not there, and what they never replace."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gputui.cli.dispatch import run
from gputui.render import ExportError, atomic_write
from tests.conftest import DATA

RECORDING = DATA / "h200-inference.gputui"


def test_a_file_takes_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as place:
        place.write_text("half of it \udcff", encoding="utf-8")
    assert path.read_text() == "before"
    with atomic_write(path) as place:
        place.write_text("after")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [
        ("x.json", "after")
    ]


@pytest.mark.parametrize("name", ["x.gputui", "x.gputui.gz", "x.gputui-trace", "x.json"])
def test_a_recording_is_never_replaced(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(RECORDING.read_bytes())
    assert run(["export", str(RECORDING), "--format", "json", "-o", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"gputui: {path} is a recording")
    assert path.read_bytes() == RECORDING.read_bytes()


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    with atomic_write(path) as place:
        place.write_text("through")
    reader.join(30)
    assert read == ["through"]
    assert path.is_fifo()


def test_a_folder_is_not_replaced_either(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="directory"), atomic_write(tmp_path) as place:
        place.write_text("x")
    assert tmp_path.is_dir()
