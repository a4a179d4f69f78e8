"""Ranks of one machine, started by torchrun, and what rank 0 reports of them.

A launch never hangs: each process group has a time-out of its own, and the launch is ended where
nothing is reported for longer than that. What was reported until then is kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from .declaration import Value
from .errors import CannotRun

POLL_S = 0.05
GRACE_S = 10.0
"""How long ranks have to end after they were asked to."""

START_S = 120.0
"""For torchrun, imports and the first connection, before the first report."""

Line = dict[str, object]


class RanksFailed(Exception):
    """The ranks ended, or were ended, before they had reported everything: why, in one line."""


def rank_count(asked: int, device: torch.device) -> int:
    """How many ranks to start: 0 stands for one a GPU, or two on the CPU.

    Raises CannotRun for more ranks than GPUs.
    """
    if device.type != "cuda":
        return asked or 2
    count = torch.cuda.device_count()
    if asked > count:
        raise CannotRun(f"ranks: {asked} ranks need {asked} GPUs; torch sees {count}")
    return asked or count


def launch(
    module: str,
    ranks: int,
    spec: Mapping[str, Value | Sequence[str]],
    timeout_s: float,
    is_stopped: Callable[[], bool],
) -> Iterator[Line]:
    """Start `module` in so many ranks, and yield what rank 0 reports, line by line.

    Raises RanksFailed. Ends the ranks where the caller stops listening, or `is_stopped`.
    """
    with tempfile.TemporaryDirectory(prefix="gputui-ranks-") as name:
        reports = Path(name, "reports")
        reports.touch()
        words = json.dumps({**spec, "reports": str(reports), "timeout_s": timeout_s})
        child = subprocess.Popen(
            torchrun(ranks, module, words),
            env=_environment(str(spec["device"])),
            stdin=subprocess.DEVNULL,
            stdout=2,
        )
        try:
            yield from _follow(child, reports, timeout_s, is_stopped)
        finally:
            _end(child)


def torchrun(ranks: int, module: str, words: str) -> list[str]:
    """The command that starts the ranks of this machine."""
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={ranks}", "-m", module, words]


def _environment(device: str) -> dict[str, str]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    # torchrun is found where this package is, and so are its ranks.
    root = str(Path(__file__).parent.parent)
    paths = [root, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if device == "cpu" and sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # In-switch reduction moves other bytes than the formulas say.
    environment.setdefault("NCCL_NVLS_ENABLE", "0")
    return environment


def _follow(
    child: subprocess.Popen[bytes], reports: Path, timeout_s: float, is_stopped: Callable[[], bool]
) -> Iterator[Line]:
    read, waits_s, heard_s = 0, START_S, time.monotonic()
    while True:
        status = child.poll()
        with reports.open("rb") as file:
            file.seek(read)
            whole, _, _ = file.read().rpartition(b"\n")
        for line in whole.splitlines():
            read += len(line) + 1
            waits_s, heard_s = timeout_s, time.monotonic()
            yield json.loads(line)
        if status == 0 or is_stopped():
            return
        if status is not None:
            raise RanksFailed(f"the ranks ended with status {status}: see their output")
        if time.monotonic() - heard_s > waits_s + GRACE_S:
            raise RanksFailed(f"nothing for {waits_s:.0f} s: a rank hangs")
        time.sleep(POLL_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask, then insist. Ranks end by themselves where torchrun is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                continue
