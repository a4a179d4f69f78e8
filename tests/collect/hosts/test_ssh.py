"""Links by the system's `ssh` to genuine SSH servers on loopback: asyncssh's, and sshd where there
is one."""

from __future__ import annotations

import contextlib
import getpass
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from gputui.collect.hosts import HELLO_S, FailureKind, FarOptions, HostTarget, ssh_target
from gputui.collect.hosts.fleet import Fleet, Masters
from gputui.collect.hosts.link import HANDSHAKES
from tests.collect.hosts.conftest import PATIENCE_S, Server
from tests.collect.hosts.ssh_server import SshServer
from tests.collect.hosts.test_hosts import MISBEHAVING


def answering(kind: str = "answers") -> tuple[str, ...]:
    return (sys.executable, "-SE", str(MISBEHAVING), kind)


class Watched:
    """A fleet, and the states that each host was in."""

    def __init__(self, targets: Sequence[HostTarget], hello_s: float = HELLO_S) -> None:
        self.fleet = Fleet(targets, FarOptions(answering(), hello_s=hello_s))
        self.states: dict[str, list[tuple[str, str]]] = {name: [] for name in self.fleet.names}
        self._notice = threading.Event()
        self.fleet.on_news(self._notice.set)
        self.fleet.connect(PATIENCE_S)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Take news until then."""
        while not is_so():
            assert self._notice.wait(PATIENCE_S), self.states
            self._notice.clear()
            for one in self.fleet.drain():
                if one.link is not None:
                    state = one.link.state, one.link.reason
                    seen = self.states[one.host]
                    seen += [state] if seen[-1:] != [state] else []

    def ups(self, name: str) -> int:
        return sum(state == "up" for state, _ in self.states[name])


def test_the_failures_of_ssh_are_distinguished_and_a_cut_is_survived(server: Server) -> None:
    expected = {
        "wrong-key": FailureKind.NOT_LET_IN,
        "refused": FailureKind.REFUSED,
        "no-such": FailureKind.UNKNOWN_HOST,
        "unknown": FailureKind.KEY_UNKNOWN,
        "changed": FailureKind.KEY_CHANGED,
        "bare": FailureKind.NOT_THERE,
        "newer": FailureKind.WRONG_VERSION,
    }
    there = {"bare": ("/nowhere/gputui",), "newer": answering("newer")}
    names = [*expected, "box-a", f"{getpass.getuser()}@box-b"]
    targets = [
        msgspec.structs.replace(ssh_target(name), there=there.get(name, ())) for name in names
    ]
    watched = Watched(targets)
    try:
        links = watched.fleet.links
        found = {name: links[name].failure for name in expected}
        assert {name: one and one.kind for name, one in found.items()} == expected
        for times in (1, 2):
            watched.until(lambda: all(watched.ups(name) >= times for name in names[-2:]))  # noqa: B023
            if times == 1:
                server.cut()
        assert watched.states["box-a"] == [("up", ""), ("lost", "the link is lost"), ("up", "")]
    finally:
        assert watched.fleet.close()
    server.commands_end()


def test_a_rack_behind_one_sshd_is_up_in_the_end(server: Server) -> None:
    """24 at once are refused by sshd's defaults (MaxStartups 10:30:100); one goes by a jump."""
    names = ["behind", *(f"box-{number}" for number in range(1, 24))]
    watched = Watched([ssh_target(name) for name in names])
    try:
        watched.until(lambda: all(map(watched.ups, names)))
    finally:
        assert watched.fleet.close()
    if isinstance(server, SshServer):
        assert 1 < server.most_starting <= HANDSHAKES + 1  # the jump's own beside its goal's
        assert server.jumps == 1


def test_a_connection_that_was_opened_on_the_terminal_is_gone_through(
    server: Server, tmp_path: Path
) -> None:
    masters = Masters()
    try:
        assert masters.open(ssh_target("wrong-key")) is None
        through = masters.open(ssh_target("box-a"))
        assert through is not None
        (tmp_path / "key").unlink()  # whoever connects anew is not let in
        watched = Watched([through])
        assert watched.fleet.links["box-a"].failure is None
        server.cut()
        again = "the connection is lost, and ssh would ask again: start gputui again"
        watched.until(lambda: ("failed", again) in watched.states["box-a"])
        assert watched.fleet.close()
    finally:
        masters.close()
    server.commands_end()


def closes(_: socket.socket) -> None:
    """Before a word."""


def hangs_up(connection: socket.socket) -> None:
    """In the midst of the handshake."""
    connection.sendall(b"SSH-2.0-nobody\r\n")
    connection.recv(4096)


def is_no_sshd(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"hello\r\n" * 100)


def says_nothing(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.usefixtures("server")
def test_what_listens_and_misbehaves_has_its_reason(tmp_path: Path) -> None:
    expected = {
        closes: (FailureKind.BUSY, "MaxStartups"),
        hangs_up: (FailureKind.BUSY, "MaxStartups"),
        is_no_sshd: (FailureKind.NO_SSHD, "what listens there is no sshd"),
        says_nothing: (FailureKind.TIME_OUT, "no answer within 0.5 s"),
    }
    listening = {kind: socket.create_server(("127.0.0.1", 0)) for kind in expected}

    def serve(kind: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listening[kind].accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                kind(connection)

    for kind in expected:
        threading.Thread(target=serve, args=(kind,), daemon=True).start()
    config = tmp_path / "ssh_config"
    ports = [
        f"Host {kind.__name__}\n  Port {one.getsockname()[1]}" for kind, one in listening.items()
    ]
    config.write_text("\n".join([*ports, config.read_text()]))
    *prompt, silent = (ssh_target(kind.__name__) for kind in expected)
    fleets = [Watched(prompt).fleet, Watched([silent], hello_s=0.5).fleet]
    found = {name: link.failure for fleet in fleets for name, link in fleet.links.items()}
    for one in listening.values():
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    assert all(fleet.close() for fleet in fleets)
    for kind, (failure, words) in expected.items():
        its = found[kind.__name__]
        assert its is not None
        assert (its.kind, words in its.line) == (failure, True), its
