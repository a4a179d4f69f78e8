"""Starts ranks as torchrun does, but forks them: torch is imported once for all of them.

`python -m tests.workloads.forked_ranks RANKS MODULE WORDS`; `command` is in place of
`workloads.launching.torchrun`. The first rank that fails ends the others.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import traceback
from types import ModuleType


def command(ranks: int, module: str, words: str) -> list[str]:
    return [sys.executable, "-m", __name__, str(ranks), module, words]


def _run(rank: int, ranks: int, port: int, module: ModuleType, words: str) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    sys.argv = [sys.argv[0], words]
    status = 1
    try:
        module.main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    ranks, module = int(sys.argv[1]), importlib.import_module(sys.argv[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alive = set[int]()
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            _run(rank, ranks, port, module, sys.argv[3])
        alive.add(pid)
    failed = 0
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not failed:
            failed = 1
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main())
