"""Genuine SSH servers on loopback, whose connections a test can cut.

asyncssh's stands for the sshd that a fresh machine lacks; the client is the system's `ssh`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncssh

PATIENCE_S = 60
"""What never comes must fail a test, not hold up those after it."""

WELCOME = b"Welcome to this box!\nYou have mail.\n"
"""What a shell's start-up files print before the command's own output."""


class SshServer:
    """Listens on loopback from its making to `close`; commands run by this machine's `sh`."""

    def __init__(self, host_key: Path, authorized: Path) -> None:
        self.most_starting = 0
        """How many connections were in their handshake at once, at most."""
        self.jumps = 0
        """How many connections went on to another host."""
        self._starting = 0
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._commands: list[asyncio.subprocess.Process] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listening = self._do(
            asyncssh.listen(
                "127.0.0.1",
                0,
                server_host_keys=[str(host_key)],
                authorized_client_keys=str(authorized),
                server_factory=lambda: _Connection(self),
                process_factory=self._run,
                encoding=None,
            )
        )
        self.port: int = self._listening.get_port()

    def cut(self) -> None:
        """Drop every connection without a word."""

        async def cut() -> None:
            for connection in [*self._connections]:
                connection.abort()

        self._do(cut())

    def commands_end(self) -> None:
        """Wait for the end of everything that was run. Raises TimeoutError."""

        async def ended() -> None:
            await asyncio.gather(*(command.wait() for command in self._commands))

        self._do(ended())

    def close(self) -> None:
        """End."""
        self.cut()

        async def end() -> None:
            self._listening.close()
            await self._listening.wait_closed()

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def came(self, connection: asyncssh.SSHServerConnection) -> None:
        """A connection was made."""
        self._connections.add(connection)
        self._starting += 1
        self.most_starting = max(self.most_starting, self._starting)

    def is_in(self) -> None:
        """A connection's handshake is over, well or not."""
        self._starting -= 1

    def went(self, connection: asyncssh.SSHServerConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)

    def _do(self, what: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await what

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(PATIENCE_S)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            process.command or "",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._commands.append(child)
        process.stdout.write(WELCOME)
        with contextlib.suppress(OSError):  # one of both ends is gone
            taking = asyncio.create_task(_take(process.stdin, child.stdin))
            pairs = (child.stdout, process.stdout), (child.stderr, process.stderr)
            await asyncio.gather(*(_pass(*pair) for pair in pairs))
        process.exit(await child.wait())
        taking.cancel()


async def _pass(source: Any, target: Any) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()


async def _take(source: Any, target: Any) -> None:
    try:
        with contextlib.suppress(OSError, asyncssh.Error):
            await _pass(source, target)
    finally:
        target.close()


class _Connection(asyncssh.SSHServer):
    def __init__(self, server: SshServer) -> None:
        self._server = server
        self._left: Callable[[], None] = server.is_in

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.came(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.auth_completed()
        self._server.went(self._connection)

    def auth_completed(self) -> None:
        self._left()
        self._left = lambda: None

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002
        self._connection.send_auth_banner("Authorized users only.\n")
        return True

    def connection_requested(self, *_place: object) -> bool:
        self._server.jumps += 1
        return True
