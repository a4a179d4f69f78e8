"""The screen over links: slow ones, and a genuine SSH server with tmux behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import shlex
import shutil
import termios
import time
from collections import deque
from pathlib import Path

import asyncssh
import pytest

from tests.tui.test_dying import DEADLINE_S, ROOT, Screen
from tests.tui.test_tmux import RECORDING, REPLAY

REPLAYED = "import sys; from gputui.__main__ import main; del sys.argv[1]; sys.exit(main())"

BYTES_PER_S = 100_000
ONE_WAY_S = 0.1
"""Of a link with a round trip of 200 ms."""

CHANGE_OF_VIEW = 12_000
"""Bytes, at 120 × 40."""


class SlowLink:
    """The program on a terminal that is read at a line's rate; what either side sends arrives
    later."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._coming: deque[tuple[float, bytes]] = deque()
        self._going: deque[tuple[float, bytes]] = deque()
        self._free_s = time.monotonic()
        """When the line has taken what was put on it."""
        self.seen = b""
        self.before = 0
        """Bytes that had arrived when the newest key did."""

    def send(self, keys: str, every_s: float) -> None:
        """Keys, one after another."""
        began = time.monotonic() + ONE_WAY_S
        self._going += [(began + n * every_s, key.encode()) for n, key in enumerate(keys)]

    def until(self, *texts: bytes, silent_s: float = 0.0) -> int:
        """Until all of these have arrived and nothing more came for a while; all bytes so far."""
        deadline = time.monotonic() + DEADLINE_S
        newest = time.monotonic()
        while not all(text in self.seen for text in texts) or time.monotonic() < newest + silent_s:
            now = time.monotonic()
            assert now < deadline, self.seen[-300:]
            if self._going and self._going[0][0] <= now:
                os.write(self._screen.master, self._going.popleft()[1])
                self.before = len(self.seen)
            if self._coming and self._coming[0][0] <= now:
                self.seen += self._coming.popleft()[1]
                newest = now
            if self._free_s > now:
                select.select([], [], [], min(self._free_s - now, 0.005))
            elif select.select([self._screen.master], [], [], 0.005)[0]:
                data = os.read(self._screen.master, 1024)
                self._free_s = now + len(data) / BYTES_PER_S
                self._coming.append((self._free_s + ONE_WAY_S, data))
        return len(self.seen)


def test_a_slow_line_gets_the_newest_view_and_not_all_on_the_way_there(tmp_path: Path) -> None:
    size = {"COLUMNS": "120", "LINES": "40"}
    screen = Screen(tmp_path / "note", "--replay", str(RECORDING), program=REPLAYED, size=size)
    link = SlowLink(screen)
    try:
        first = link.until(b"LAUNCH-BOUND", b"quit", silent_s=1.0)
        assert first <= 2 * CHANGE_OF_VIEW
        # Clicks, drags and the wheel are reported, not each movement.
        assert b"1002" in link.seen
        assert b"1003" not in link.seen
        # Held down, keys ask for five times as many bytes as the line takes.
        link.send("234567" * 10 + "2", 0.02)
        last = link.until(b"idle.launch", silent_s=1.0)
        assert last - link.before <= 4 * CHANGE_OF_VIEW
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.master)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
async def test_the_tour_over_ssh_in_tmux(tmp_path: Path) -> None:
    """Verdict on the first screen, its evidence in two keys, back in two."""
    tmux = ["tmux", "-S", str(tmp_path / "tmux")]
    children: list[asyncio.subprocess.Process] = []

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        columns, lines, *_ = process.get_terminal_size()
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (lines, columns))
        command = ["env", f"HOME={tmp_path}", *REPLAY]
        words = [*tmux, "-f", "/dev/null", "new-session", "-c", str(ROOT), shlex.join(command)]
        environment = os.environ | {"TERM": process.get_terminal_type() or ""}
        child = await asyncio.create_subprocess_exec(
            *words, stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        loop = asyncio.get_running_loop()
        children.append(child)

        def forward() -> None:
            try:
                process.stdout.write(os.read(master, 65536))
            except OSError:  # tmux has ended
                loop.remove_reader(master)

        loop.add_reader(master, forward)
        try:
            while data := await process.stdin.read(4096):
                os.write(master, data)
        finally:
            loop.remove_reader(master)
            os.close(master)

    key = asyncssh.generate_private_key("ssh-ed25519")
    keys = asyncssh.import_authorized_keys(key.export_public_key().decode())
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[key],
        authorized_client_keys=keys,
        process_factory=serve,
        encoding=None,
        line_editor=False,
    )
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            asyncssh.connect(
                "127.0.0.1",
                server.get_port(),
                username="one",
                client_keys=[key],
                known_hosts=None,
                config=None,
            ) as connection,
            connection.create_process(
                term_type="xterm-256color", term_size=(120, 40), encoding=None
            ) as process,
        ):
            seen = b""

            async def until(keys: bytes, *texts: bytes) -> int:
                nonlocal seen
                seen = b""
                process.stdin.write(keys)
                while not all(text in seen for text in texts):
                    data = await process.stdout.read(65536)
                    assert data, seen[-300:]
                    seen += data
                return len(seen)

            await until(b"", b"LAUNCH-BOUND", b"Where each step goes")
            assert await until(b"\r", b"idle.launch") <= 2 * CHANGE_OF_VIEW
            assert await until(b"\r", b"Steps in order") <= 2 * CHANGE_OF_VIEW
            await until(b"\x1b", b"idle.launch")
            await until(b"\x1b", b"Where each step goes")
    finally:
        ending = await asyncio.create_subprocess_exec(*tmux, "kill-server")
        await ending.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        server.close()
        await server.wait_closed()
