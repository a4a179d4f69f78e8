"""Links through a real sshd on loopback, where there is one."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gputui.collect.hosts.failures import Kind
from gputui.collect.hosts.fleet import Fleet
from gputui.collect.hosts.link import FarOptions
from gputui.collect.hosts.masters import Masters
from gputui.collect.hosts.target import ssh_target
from tests.collect.hosts.test_hosts import MISBEHAVING

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
SSH = shutil.which("ssh")

_CONFIG = """\
Host wrong-key
  IdentityFile {folder}/other
Host refused
  Port {closed}
Host no-such
  HostName no-such.invalid
Host unknown changed
  UserKnownHostsFile {folder}/%n
Host * !wrong-key
  IdentityFile {folder}/key
Host *
  HostName 127.0.0.1
  Port {port}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
"""
"""The first value of each counts."""


def _why_not() -> str:
    if SSHD is None or SSH is None:
        return "no sshd on this machine"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("sshd")
        except KeyError:
            return "sshd as root needs the user sshd"
        if not Path("/run/sshd").is_dir():
            return "sshd as root needs /run/sshd"
    return ""


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """A server that lets the key in, and an `ssh` that reads nothing of the tester's home."""
    for name in ("host", "key", "other"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    port, closed = _free_port(), _free_port()
    host_key = " ".join((tmp_path / "host.pub").read_text().split()[:2])
    other_key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (tmp_path / "changed").write_text(f"[127.0.0.1]:{port} {other_key}\n")
    (tmp_path / "authorized").write_text((tmp_path / "key.pub").read_text())
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nPidFile none\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    config = _CONFIG.format(port=port, closed=closed, folder=tmp_path)
    (tmp_path / "ssh_config").write_text(config)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {tmp_path}/ssh_config "$@"\n')
    wrapper.chmod(0o700)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    server = subprocess.Popen(
        [str(SSHD), "-D", "-e", "-f", str(tmp_path / "sshd_config")],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("Server listening"):
            break
    else:
        pytest.fail("sshd does not start")
    threading.Thread(target=server.stderr.read, daemon=True).start()
    yield psutil.Process(server.pid)
    server.terminate()
    server.wait()


def test_the_failures_of_ssh_are_distinguished_and_a_cut_is_survived(
    sshd: psutil.Process,
) -> None:
    there = (sys.executable, "-SE", str(MISBEHAVING), "answers")
    expected = {
        "wrong-key": Kind.NOT_LET_IN,
        "refused": Kind.REFUSED,
        "no-such": Kind.UNKNOWN_HOST,
        "unknown": Kind.KEY_UNKNOWN,
        "changed": Kind.KEY_CHANGED,
    }
    names = [*expected, "box-a", f"{getpass.getuser()}@box-b"]
    fleet = Fleet([ssh_target(name) for name in names], FarOptions(there))
    states: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    notice = threading.Event()

    def until_up(name: str, times: int) -> None:
        while sum(state == "up" for state, _ in states[name]) < times:
            assert notice.wait(20), states
            notice.clear()
            for one in fleet.take():
                if (
                    one.link is not None
                    and (one.link.state, one.link.reason) not in states[one.host][-1:]
                ):
                    states[one.host].append((one.link.state, one.link.reason))

    try:
        fleet.on_news(notice.set)
        fleet.connect(20)
        found = {name: fleet.links[name].failure for name in expected}
        assert {name: one and one.kind for name, one in found.items()} == expected
        until_up("box-a", 1)
        until_up(names[-1], 1)
        # The first generation are connections, in root's sshd each with a child of the user's.
        for connection in sshd.children():
            connection.kill()
        until_up("box-a", 2)
        until_up(names[-1], 2)
        assert states["box-a"] == [("up", ""), ("lost", "the link is lost"), ("up", "")]
    finally:
        assert fleet.close()
    assert not [child for child in sshd.children(recursive=True) if "misbehaving" in child.name()]

    missing = Fleet([ssh_target("box-a")], FarOptions(("/nowhere/gputui",)))
    missing.connect(20)
    failure = missing.links["box-a"].failure
    assert missing.close()
    assert failure is not None
    assert failure.kind is Kind.NOT_THERE


def test_a_connection_that_was_opened_on_the_terminal_is_gone_through(
    sshd: psutil.Process, tmp_path: Path
) -> None:
    masters = Masters()
    try:
        assert masters.open(ssh_target("wrong-key")) is None
        through = masters.open(ssh_target("box-a"))
        assert through is not None
        (tmp_path / "key").unlink()  # whoever connects anew is not let in
        there = (sys.executable, "-SE", str(MISBEHAVING), "answers")
        fleet = Fleet([through], FarOptions(there))
        fleet.connect(20)
        assert fleet.links["box-a"].failure is None
        assert fleet.close()
    finally:
        masters.close()
    psutil.wait_procs(sshd.children(), timeout=10)
    assert sshd.children() == []
