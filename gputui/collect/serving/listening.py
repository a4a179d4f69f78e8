"""Where a known engine listens, found through the tree of processes: the process that answers
requests is often not the one on the GPU, but its parent or child.

From sockets to processes as `ss` finds it: /proc/PID/net/tcp has the sockets that listen, with
their inodes, and /proc/PID/fd who holds them (proc(5)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# Command lines of engines, and of the workload `serve`: nobody else's ports are asked anything.
_ENGINE = re.compile(
    r"(?:^|[/\s.\0_-])(?:vllm|sglang|trtllm|tensorrt_llm|text-generation-(?:router|launcher)"
    r"|llama-server|llama_cpp|dynamo|tritonserver)(?=$|[/\s.\0:_-])|workloads\0serve\0",
    re.IGNORECASE,
)

_LISTENS = "0A"
# Parents to follow from the process that is looked at: an engine's API server is one or two up.
_DEEPEST = 4

MOST_PROCESSES = 500
MOST_PORTS = 8


class Listening(NamedTuple):
    """An engine's process, and a port at which it listens on this machine."""

    pid: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """Its page of metrics, as all known engines call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


def engines_listening(roots: Iterable[int]) -> list[Listening]:
    """The ports of the engines among these processes, their parents and all below, lowest first.

    Only what this user may look into, and only in this network namespace: a port of another one is
    not reachable through this machine's loopback.
    """
    network = _namespace("self")
    ports: list[Listening] = []
    for pid in _tree(roots):
        if len(ports) >= MOST_PORTS:
            break
        if not _ENGINE.search(_command(pid)) or _namespace(pid) != network:
            continue
        sockets = _sockets(pid)
        ports += [
            Listening(pid, host, port)
            for inode, host, port in (_listening(pid) if sockets else ())
            if inode in sockets
        ]
    alone = {port.port: port for port in reversed(ports)}
    return sorted(alone.values(), key=lambda port: port.port)[:MOST_PORTS]


def _tree(roots: Iterable[int]) -> list[int]:
    import psutil

    pids: dict[int, None] = {}
    for root in roots:
        try:
            process = psutil.Process(root)
            above = [parent for parent in process.parents()[:_DEEPEST] if _is_engine(parent.pid)]
            top = above[-1] if above else process
            for each in (top, *top.children(recursive=True)):
                pids[each.pid] = None
        except (psutil.Error, OSError):
            continue
        if len(pids) > MOST_PROCESSES:
            break
    return [*pids][:MOST_PROCESSES]


def _is_engine(pid: int) -> bool:
    return _ENGINE.search(_command(pid)) is not None


def _command(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _namespace(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _sockets(pid: int) -> set[str]:
    """The inodes of its sockets."""
    inodes = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    except OSError:
        return set()
    return inodes


def _listening(pid: int) -> Iterator[tuple[str, str, int]]:
    """Inode, the address to ask, and port of what listens in a process's network namespace."""
    for table, width, loopback in (("tcp", 8, "127.0.0.1"), ("tcp6", 32, "::1")):
        try:
            with Path(f"/proc/{pid}/net/{table}").open() as file:
                lines = file.read(4_000_000).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTENS:
                continue
            address, _, port = words[1].partition(":")
            if len(address) != width or not re.fullmatch(r"[0-9A-F]{4}", port):
                continue
            host = _reachable(address, loopback)
            if host is not None:
                yield words[9], host, int(port, 16)


def _reachable(address: str, loopback: str) -> str | None:
    """Through which loopback address it is reached; None where it listens elsewhere only. Addresses
    are written as 32-bit words in the machine's order, all of which are little-endian here."""
    if address == "0" * 32:
        return "127.0.0.1"  # "::" takes IPv4 too, unless it is told not to
    if not address.strip("0") or address == "0" * 24 + "01000000":
        return loopback
    if len(address) == 8 and address.endswith("7F"):
        return ".".join(str(int(address[place : place + 2], 16)) for place in (6, 4, 2, 0))
    return None
