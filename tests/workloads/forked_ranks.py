"""Starts ranks as torchrun does, but forks them from one process: what they import, it has.

`imported` starts that process. The command that it gives is in place of
`workloads.launching.torchrun`: it asks for ranks and ends as they do. The first rank that fails
ends the others.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Command = Callable[[int, str, str], list[str]]


@contextmanager
def imported(folder: Path, *modules: str) -> Iterator[Command]:
    """The command that starts ranks of these modules; what was started ends with the block."""
    from tests.workloads.forked_python import ForkedPython  # the command has no such path

    path = str(folder / "ranks")
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind(path)
        asked.listen()
        number = asked.fileno()
        words = ["-m", __name__, str(number), *modules]
        server = ForkedPython(words, os.environ, folder, [number])
    try:
        # Without site, for that takes longer than all else of it.
        yield lambda *words: [sys.executable, "-S", __file__, path, *map(str, words)]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def _ask(path: str, ranks: str, module: str, words: str) -> int:
    with socket.socket(socket.AF_UNIX) as server, server.makefile("rw") as lines:
        server.connect(path)
        print(json.dumps([int(ranks), module, words, dict(os.environ)]), file=lines, flush=True)
        return int(lines.readline())


def _serve(asked: socket.socket) -> None:
    gc.freeze()  # torch's own objects stay as they are: ranks share their memory
    while True:
        connection, _ = asked.accept()
        with connection, connection.makefile("rw") as lines:
            ranks, module, words, environment = json.loads(lines.readline())
            print(_launch(ranks, module, words, environment), file=lines, flush=True)


def _launch(ranks: int, module: str, words: str, environment: dict[str, str]) -> int:
    with socket.socket() as held:
        # Nobody else is given the port meanwhile; the ranks' store may listen there all the same.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        names = {
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": held.getsockname()[1],
        }
        alive = set[int]()
        for rank in range(ranks):
            pid = os.fork()
            if not pid:
                its = names | {"RANK": rank, "LOCAL_RANK": rank}
                os.environ |= environment | {name: str(value) for name, value in its.items()}
                _run(module, words)
            alive.add(pid)
        return _ended(alive)


def _ended(alive: set[int]) -> int:
    failed = 0
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not failed:
            failed = 1
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return failed


def _run(module: str, words: str) -> None:
    sys.argv = [sys.argv[0], words]
    status = 1
    try:
        sys.modules[module].main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) == 5 and not sys.argv[1].isdigit():
        sys.exit(_ask(*sys.argv[1:]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
