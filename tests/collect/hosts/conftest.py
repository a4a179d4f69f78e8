"""Genuine SSH servers on loopback: asyncssh's, and sshd where there is one."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from tests.collect.hosts.ssh_server import PATIENCE_S, SshServer

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
Host behind
  ProxyJump box-1
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


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine."""
    hosts = ("cli.hosts._CONNECTING_S", "cli.hosts._READING_S", "collect.hosts.fleet._CLOSING_S")
    for limit in hosts:
        monkeypatch.setattr(f"gputui.{limit}", PATIENCE_S)


class Server(Protocol):
    """What listens on `port`."""

    port: int

    def cut(self) -> None: ...
    def commands_end(self) -> None: ...
    def close(self) -> None: ...


class Sshd:
    """OpenSSH's."""

    def __init__(self, host_key: Path, authorized: Path) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.port: int = listening.getsockname()[1]
        config = host_key.with_name("sshd_config")
        config.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {authorized}\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        self._server = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True
        )
        assert self._server.stderr is not None
        for line in self._server.stderr:
            if line.startswith("Server listening"):
                break
        else:
            pytest.fail("sshd does not start")
        self._reading = threading.Thread(target=self._server.stderr.read, daemon=True)
        self._reading.start()
        self._process = psutil.Process(self._server.pid)

    def cut(self) -> None:
        # The first generation are connections, in root's sshd each with a child of the user's.
        for connection in self._process.children():
            connection.kill()

    def commands_end(self) -> None:
        _, alive = psutil.wait_procs(self._process.children(), timeout=PATIENCE_S)
        assert not alive

    def close(self) -> None:
        self.cut()  # a connection that is left has the pipe of what sshd prints
        self._server.terminate()
        self._server.wait()
        self._reading.join()
        assert self._server.stderr is not None
        self._server.stderr.close()


def _why_no_sshd() -> str:
    if SSHD is None:
        return "no sshd on this machine"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("sshd")
        except KeyError:
            return "sshd as root needs the user sshd"
        if not Path("/run/sshd").is_dir():
            return "sshd as root needs /run/sshd"
    return ""


@pytest.fixture(
    params=[
        SshServer,
        pytest.param(Sshd, marks=pytest.mark.skipif(bool(_why_no_sshd()), reason=_why_no_sshd())),
    ]
)
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A server that lets the key in, and an `ssh` that reads nothing of the tester's home."""
    if SSH is None:
        pytest.skip("no ssh on this machine")
    for name in ("host", "key", "other"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    made: Server = request.param(tmp_path / "host", tmp_path / "key.pub")
    host_key, other_key = (
        " ".join((tmp_path / f"{name}.pub").read_text().split()[:2]) for name in ("host", "other")
    )
    (tmp_path / "known").write_text(f"[127.0.0.1]:{made.port} {host_key}\n")
    (tmp_path / "changed").write_text(f"[127.0.0.1]:{made.port} {other_key}\n")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        config = _CONFIG.format(port=made.port, closed=closed.getsockname()[1], folder=tmp_path)
        (tmp_path / "ssh_config").write_text(config)
        (tmp_path / "bin").mkdir()
        wrapper = tmp_path / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {tmp_path}/ssh_config "$@"\n')
        wrapper.chmod(0o700)
        monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        yield made
    made.close()
