"""A memory snapshot: from the program that writes it, beside the recording, to the viewer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.cli.dispatch import run
from gputui.state import Session
from gputui.store.journal.reader import JournalReader
from gputui.store.recordings import delete_recording, rename_recording

CODE = "import os, sys; open(os.environ['GPUTUI_SNAPSHOT'], 'wb').write(sys.argv[1].encode())"


def gputui(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gputui", *words],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def recorded(path: Path, content: str = "not a pickle", code: str = CODE) -> str:
    done = gputui("--record", "-o", str(path), "--", sys.executable, "-c", code, content)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A recording with its snapshot beside it, and what was said of it on standard error."""
    path = tmp_path_factory.mktemp("kept") / "x.gputui.gz"
    return path, recorded(path)


def log_of(path: Path) -> list[str]:
    session = Session.from_events(JournalReader.open(path))
    assert session.run is not None
    return [line.text for line in session.run.log]


def test_what_a_program_leaves_is_kept_and_exported_as_it_is(
    kept: tuple[Path, str], tmp_path: Path
) -> None:
    path, told = kept
    beside = path.with_name("x.run1.gputui-snapshot")
    assert f"gputui: memory snapshot {beside}\n" in told
    assert f"gputui: the memory snapshot is {beside}" in log_of(path)
    assert beside.read_text() == "not a pickle"
    assert beside.stat().st_mode & 0o777 == 0o600
    out = tmp_path / "s.pickle"
    words = ["export", str(path), "--format", "snapshot", "-o"]
    assert run([*words, str(out)]) == 0
    assert out.read_text() == "not a pickle"
    assert run([*words, str(beside)]) == 1
    assert run(["export", str(path), "--format", "snapshot"]) == 2


def test_where_there_is_none_a_line_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gputui"
    recorded(path, code="pass")
    assert run(["export", str(path), "--format", "snapshot", "-o", str(tmp_path / "s")]) == 1
    told = capsys.readouterr().err
    assert "has no memory snapshot of run 1" in told
    assert "-p snapshot=true" in told
    assert told.count("\n") == 1


def test_without_a_file_or_a_place_a_line_says_that_it_was_not_kept(tmp_path: Path) -> None:
    words = ["--record", "-o", "-", "--", sys.executable, "-c", CODE, "x"]
    assert "was not kept: this session is not recorded to a file" in gputui(*words).stdout
    taken = tmp_path / "x.run1.gputui-snapshot"
    taken.write_text("before")
    recorded(tmp_path / "x.gputui")
    assert taken.read_text() == "before"
    assert [line for line in log_of(tmp_path / "x.gputui") if "already exists" in line]


@pytest.mark.parametrize("what", ["os.mkdir(path)", "os.symlink('/etc/passwd', path)"])
def test_what_is_no_file_is_not_kept(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.gputui"
    recorded(path, code=f"import os; path = os.environ['GPUTUI_SNAPSHOT']; {what}")
    assert list(tmp_path.iterdir()) == [path]
    assert "gputui: the memory snapshot was not kept: it is not a file" in log_of(path)


def test_it_goes_where_its_recording_goes(kept: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(kept[0].parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "x.gputui.gz"
    (tmp_path / "x2.run1.gputui-snapshot").write_text("another's")
    renamed = rename_recording(path, "y")
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "y.gputui.gz", "y.run1.gputui-snapshot", "x2.run1.gputui-snapshot"
    }  # fmt: skip
    delete_recording(renamed)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x2.run1.gputui-snapshot"]


def test_of_a_report_of_nsys_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"SQLite format 3\0")
    words = ["export", str(report), "--format", "snapshot", "-o", str(tmp_path / "x.pickle")]
    assert run(words) == 1
    assert "which takes no memory snapshots: record the program" in capsys.readouterr().err
