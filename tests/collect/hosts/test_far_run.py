"""A run that is recorded there: it outlives cuts of the link, and is followed without a gap."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from pathlib import Path

import psutil
import pytest

from gputui.cli.hosts import begun_now, words_there
from gputui.cli.options import MAIN
from gputui.collect.hosts import far_run
from gputui.collect.hosts.far_run import RECORDING, FarRunError
from gputui.collect.hosts.fleet import Fleet
from gputui.collect.hosts.link import FarOptions
from gputui.collect.hosts.target import command_target
from gputui.model.events import AnyEvent
from gputui.state.hosts import Hosts
from gputui.store.journal import JournalReader


def test_a_run_outlives_a_cut_is_followed_without_a_gap_and_stopped(tmp_path: Path) -> None:
    typed = ["--host", "box", "--theme=plain", "-i", "0.1", "--no-kernels"]
    words = ["--record", "-o", RECORDING, *words_there(MAIN, typed)]
    assert words[-3:] == ["-i", "0.1", "--no-kernels"]
    run = begun_now("a/b", [*words, "--", "sh", "-c", "echo one; exec sleep 600"])
    there = (sys.executable, "-m", "gputui")
    via = shlex.join(["env", f"XDG_DATA_HOME={tmp_path}", f"XDG_CACHE_HOME={tmp_path}/cache"])
    fleet = Fleet([command_target(via)], FarOptions(there, run=run))
    (name,) = fleet.names
    hosts, taken, notice = Hosts([name]), list[AnyEvent](), threading.Event()
    link, states = fleet.links[name], list[str]()

    def until(what: str) -> None:
        while what not in states:
            assert notice.wait(20), (states, link.failure)
            notice.clear()
            for one in fleet.take():
                hosts.apply([one])
                taken.extend(one.events)
                states.extend([one.link.state] if one.link else [])
            session = hosts[name].session
            states.extend(["said one"] if session.run and session.run.log_lines else [])

    try:
        fleet.on_news(notice.set)
        fleet.connect(30)
        until("said one")
        (near,) = [one for one in psutil.Process().children() if "stream" in one.cmdline()]
        near.kill()
        until("lost")
        states.clear()
        until("up")
        link.stop_run()
        until("ended")
    finally:
        assert fleet.close()
    assert link.run_ended is not None
    assert link.run_ended.stopped
    recording = Path(link.recording)
    assert recording.parent == tmp_path / "gputui" / "sessions"
    assert taken == list(JournalReader.open(recording))
    assert list(recording.parent.iterdir()) == [recording]
    assert list((tmp_path / "cache" / "gputui" / "runs").iterdir()) == []  # the lock is gone


def test_a_recorder_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(far_run, "_POLL_S", 0.01)
    with pytest.raises(FarRunError, match="ended at once"):
        far_run.begin("1760000000-1a", "x", ["--record", "-o", RECORDING])
    assert os.listdir(Path(os.environ["XDG_DATA_HOME"], "gputui", "sessions")) == []
