"""A run that is recorded there: it outlives cuts of the link, and is followed without a gap."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gputui.cli import attach, hosts
from gputui.cli.declaration import UsageError
from gputui.cli.dispatch import parse
from gputui.cli.hosts import words_there
from gputui.cli.options import MAIN, command
from gputui.collect.hosts import (
    RECORDING,
    FarOptions,
    FarRun,
    HostTarget,
    begun_now,
    command_target,
    far_end,
    ssh_target,
)
from gputui.collect.hosts.far_end import FarRunError
from gputui.collect.hosts.fleet import Fleet
from gputui.model.events import AnyEvent
from gputui.state.session import Hosts
from gputui.store.journal.reader import JournalReader
from tests.collect.hosts.conftest import PATIENCE_S, SSH, Server

ROOT = Path(__file__).parents[3]


def test_a_run_outlives_a_cut_is_followed_without_a_gap_and_stopped(
    server: Server, tmp_path: Path
) -> None:
    outlives_a_cut(ssh_target("box-a"), server.cut, tmp_path)


@pytest.mark.skipif(SSH is not None, reason="the same is tested by ssh")
def test_a_run_outlives_a_cut_of_a_pipe(tmp_path: Path) -> None:
    def cut() -> None:
        (near,) = [one for one in psutil.Process().children() if "stream" in one.cmdline()]
        near.kill()

    outlives_a_cut(command_target("env"), cut, tmp_path)


def outlives_a_cut(target: HostTarget, cut: Callable[[], object], tmp_path: Path) -> None:
    typed = ["--host", "box", "--theme=plain", "-i", "0.1", "--no-kernels"]
    words = ["--record", "-o", RECORDING, *words_there(MAIN, typed)]
    assert words[-3:] == ["-i", "0.1", "--no-kernels"]
    run = begun_now("a/b", [*words, "--", "sh", "-c", "echo one; exec sleep 600"])
    folders = (f"XDG_DATA_HOME={tmp_path}", f"XDG_CACHE_HOME={tmp_path}/cache")
    there = ("env", *folders, f"PYTHONPATH={ROOT}", sys.executable, "-m", "gputui")
    fleet = Fleet([target], FarOptions(there, run=run))
    (name,) = fleet.names
    hosts, taken, notice = Hosts([name]), list[AnyEvent](), threading.Event()
    link, states = fleet.links[name], list[str]()

    def until(what: str) -> None:
        while what not in states:
            assert notice.wait(PATIENCE_S), (states, link.failure)
            notice.clear()
            for one in fleet.drain():
                hosts.apply([one])
                taken.extend(one.events)
                states.extend([one.link.state] if one.link else [])
            session = hosts[name].session
            states.extend(["said one"] if session.run and session.run.log_lines else [])

    try:
        fleet.on_news(notice.set)
        fleet.connect(PATIENCE_S)
        until("said one")
        cut()
        until("lost")
        link.stop_run()  # it is asked as soon as the link is back
        states.clear()
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


def test_a_run_on_several_hosts_has_the_number_of_each() -> None:
    typed = ["torchrun", "--nnodes", "{nodes}", "--node-rank={node}", "--master-addr", "{head}"]
    run = begun_now("torchrun", ["-o", RECORDING, *typed])
    head = ssh_target("ada@box").address
    first, second = (run.on(place, head, 2) for place in range(2))
    filled = "-o {recording} torchrun --nnodes 2 --node-rank=1 --master-addr box"
    assert second.words == tuple(filled.split())
    assert len({run.run_id, first.run_id, second.run_id}) == 3  # they may share their disk
    assert run.on(0, head, 1) == run
    far = FarRun(recording="x.gputui")
    assert far.on(1, head, 2) == far
    assert FarRun(recording="x{node}.gputui").on(1, head, 2).recording == "x1.gputui"
    with pytest.raises(UsageError, match="on one host"):
        hosts.record(parse(MAIN, ["--record", "--host", "a", "--host", "b"]), far)


def test_each_host_is_given_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*words: str) -> FarRun:
        found: list[FarRun] = []
        monkeypatch.setattr(sys, "argv", ["gputui", "attach", *words])
        monkeypatch.setattr(hosts, "record", lambda _, run: found.append(run) or 0)
        known = command("attach")
        assert known is not None
        attach.run_attach(parse(known, words))
        return found[0]

    one = asked("4711", "--host", "box", "--record", "-i", "0.5", "--annotate", "none")
    words = ("attach", "-o", RECORDING, "--record", "-i", "0.5", "--annotate", "none")
    assert (one.name, one.on(0, "box", 1).words) == ("attach-4711", (*words, "4711"))
    several = asked("pod:17", "box:18", "--record", "--via", "kubectl exec -i pod --")
    assert [several.on(place, "box", 2).words[-1] for place in range(2)] == ["18", "17"]
    for wrong in (
        ["17", "18"],
        ["17", "--host=a", "--host=b"],
        ["a:17", "18", "--host=a"],
        ["a:17", "--host=b"],
        ["a:1"],
    ):
        with pytest.raises(UsageError):
            asked(*wrong, "--record")


def test_a_recorder_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(far_end, "_POLL_S", 0.01)
    with pytest.raises(FarRunError, match="ended at once"):
        far_end.begin("1760000000-1a", "x", ["--record", "-o", RECORDING])
    assert os.listdir(Path(os.environ["XDG_DATA_HOME"], "gputui", "sessions")) == []
