"""Ranks of torchrun, recorded: whose phases are whose, and who is late."""

from __future__ import annotations

import os

from tests.inject.recorded import gputui, recorded
from workloads.launching import torchrun

RANK = """
import os
import sys
import time
import nvtx

rank = int(os.environ["RANK"])
with nvtx.annotate("setup"):
    pass
for _ in range(3 + rank):
    with nvtx.annotate("step"):
        with nvtx.annotate(f"only on {rank}"):
            pass
here, there = (os.path.join(sys.argv[1], f"to{number}") for number in (rank, 1 - rank))
if rank == 0:
    sends, hears = os.open(there, os.O_WRONLY), os.open(here, os.O_RDONLY)
else:
    hears, sends = os.open(here, os.O_RDONLY), os.open(there, os.O_WRONLY)
for _ in range(150):
    with nvtx.annotate("turn"):
        with nvtx.annotate("load"):
            if rank == 1:
                time.sleep(0.012)
                os.read(hears, 1)  # however busy the machine is, the other one waits already
        with nvtx.annotate("all_reduce", domain="comm", payload=4096):
            if rank == 0:
                os.write(sends, b".")
                os.read(hears, 1)
    if rank == 1:
        os.write(sends, b".")  # after its range: whoever is preempted, the other one left later
with open(os.path.join(sys.argv[1], f"pid{rank}"), "w") as file:
    file.write(str(os.getpid()))
"""
"""Ranks that wait for each other as in a collective; torch would take most of the test's time."""


def test_each_rank_of_torchrun_has_its_own_phases_and_pid_and_the_late_one_is_named(tmp_path):
    (tmp_path / "ranks_that_meet.py").write_text(RANK)
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"to{rank}")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command = torchrun(2, "ranks_that_meet", str(tmp_path))
    _, document = recorded(tmp_path, [], *command, PYTHONPATH=paths)
    pids = {rank: int((tmp_path / f"pid{rank}").read_text()) for rank in (0, 1)}
    assert pids[0] != pids[1]

    found = {rank: {} for rank in pids}
    for phase in document["phases"]:
        assert phase["pid"] == pids[phase["rank"]]
        if not phase["path"].startswith("turn") and phase["domain"] != "comm":
            found[phase["rank"]][phase["path"]] = phase["instances"]
    assert found == {
        rank: {"setup": 1, "step": 3 + rank, f"step/only on {rank}": 3 + rank} for rank in pids
    }

    ranked = {process["rank"]: process for process in document["run"]["processes"]}
    for rank, pid in pids.items():
        assert (ranked[rank]["pid"], ranked[rank]["local_rank"]) == (pid, rank)
        assert ranked[rank]["ended_cleanly"]
    assert document["run"]["remarks"] == []

    [late] = [one for one in document["findings"] if one["cause"] == "late_rank"]
    assert "% of the time for rank 1 in collectives" in late["sentence"]
    assert late["evidence"] == ["Rank 1: on its CPU, most of it in turn/load"]
    collectives = {row["rank"]: row for row in document["collectives"]}
    assert collectives[0]["wait_ns"] > collectives[1]["wait_ns"] == 0
    for row in collectives.values():
        assert (row["kind"], row["count"], row["message_bytes"]) == ("all_reduce", 150, 150 * 4096)
    assert [row["rank"] for row in document["ranks"]] == [1, 0]

    full = gputui("summary", str(tmp_path / "x.gputui"), "--full").stdout
    (header,) = [line for line in full.splitlines() if line.startswith("Phase ")]
    assert header.split()[:4] == ["Phase", "Domain", "Rank", "PID"]
    rows = [line.split()[:4] for line in full.splitlines() if line.startswith("step ")]
    assert sorted(rows) == [
        ["step", "default", str(rank), str(pid)] for rank, pid in sorted(pids.items())
    ]
    steps = gputui("summary", str(tmp_path / "x.gputui"), "--table", "nvtx_pushpop_sum").stdout
    assert "only on 0" in steps
    assert "only on 1" in steps
