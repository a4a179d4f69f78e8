"""Hosts without gputui: it is sent there, or nvidia-smi is read, or the reason stands."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from gputui.cli import dispatch
from gputui.collect.hosts import (
    FailureKind,
    FarOptions,
    HostTarget,
    command_target,
    far_loader,
    link,
)
from gputui.collect.hosts.fleet import Fleet, ShipError, bundle, misfit, ship_gputui
from gputui.model.events import Header, MachineSample
from tests.collect.hosts.ssh_server import PATIENCE_S

LINE = "{}, GPU-{}, NVIDIA H200, 580.1, 87, 1024, 143771, 512.25, 700.00, 54, 1980, [N/A]\n"


def bare(folder: Path, **programs: str) -> HostTarget:
    """A host with these programs and no other; its cache is in `folder`."""
    (folder / "bin").mkdir()
    for name, text in programs.items():
        program = folder / "bin" / name.replace("_", "-")
        program.write_text(text)
        program.chmod(0o700)
    words = ["env", "-i", f"PATH={folder}/bin", f"XDG_CACHE_HOME={folder}/cache", f"HOME={folder}"]
    return command_target(shlex.join(words))


def test_gputui_is_sent_once_and_runs_where_there_was_only_python(tmp_path: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    target = bare(tmp_path, python3=f'#!/bin/sh\nexec {base} "$@"\n')
    sent = ship_gputui(target)
    (folder,) = (tmp_path / "cache" / "gputui" / "remote").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    written = folder.stat().st_mtime_ns
    assert ship_gputui(target) == sent
    assert folder.stat().st_mtime_ns == written
    fleet = Fleet([sent], FarOptions(("no-gputui",)))
    try:
        fleet.connect(PATIENCE_S)
        assert fleet.links[sent.name].failure is None
        fleet.wait_for_samples(PATIENCE_S)
        kinds = {type(event) for one in fleet.drain() for event in one.events}
        assert kinds >= {Header, MachineSample}
    finally:
        assert fleet.close()


def test_what_cannot_run_there_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match="Python is missing there"):
        ship_gputui(bare(tmp_path))
    assert "3.99" in misfit((3, 99), "x86_64", "linux")
    names = zipfile.ZipFile(io.BytesIO(bundle(libraries=False))).namelist()
    assert not [name for name in names if "/tui/" in name or name.endswith("_capture.so")]
    assert {"gputui/cli/once.py", "msgspec/__init__.py", "pynvml.py"} <= set(names)


def test_an_archive_that_was_changed_on_the_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["-c", "abcd"])
    stdin = io.TextIOWrapper(io.BytesIO(b"0" * 64 + b" 4\nPK00"))
    monkeypatch.setattr(sys, "stdin", stdin)
    far_loader.load()
    said = [json.loads(line.split(" ", 2)[2]) for line in capsys.readouterr().out.splitlines()]
    assert said[-1] == {"error": "what arrived is not what was sent"}
    assert os.listdir(tmp_path / "gputui" / "remote") == []


def test_without_gputui_nvidia_smi_shows_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = LINE.format(0, "a", "") + LINE.format(1, "b", "")
    (tmp_path / "lines").write_text(both * 2)
    text = f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < {tmp_path}/lines\nread -r _\n'
    target = bare(tmp_path, nvidia_smi=text)
    via = shlex.join(target.prefix)
    assert dispatch.run_mode(["--once", "--json", "--via", via, "--there", "no-gputui"], None) == 0
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    gpu, other = host["machine"]["gpus"]
    assert (gpu["name"], gpu["utilization_percent"]) == ("NVIDIA H200", 87.0)
    assert (gpu["memory_used_bytes"], gpu["power_watts"]) == (1 << 30, 512.25)
    assert gpu["memory_clock_mhz"] is None
    assert other["index"] == 1
    assert host["machine"]["host"]["unavailable"]["processes"] == link.REASON


def test_without_nvidia_smi_the_first_reason_stands(tmp_path: Path) -> None:
    options = FarOptions(("no-gputui",))
    target = bare(tmp_path)
    fleet = Fleet([target], options)
    fleet.connect(PATIENCE_S)
    failure = fleet.links[target.name].failure
    assert failure is not None
    assert failure.kind is FailureKind.NOT_THERE
    assert fleet.close()


@pytest.mark.parametrize(
    "line", ["x" * 5000, "a,b\n", LINE.format(2**40, ""), '"\n', LINE.format(0, "\x1b[31m", "")]
)
def test_any_line_of_nvidia_smi_is_figures_or_the_end(line: str) -> None:
    stream = io.BytesIO((line * 2).encode())
    for event in link.events(stream, "box", 1.0):
        if isinstance(event, Header):
            assert "\x1b" not in event.gpus[0].uuid
