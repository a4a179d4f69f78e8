"""Programs of several ranks, through gputui itself: each rank has its own phases and pid."""

from __future__ import annotations

import sys

from tests.inject.recorded import gputui, recorded

RANK = """
import os
import nvtx

rank = int(os.environ["RANK"])
with nvtx.annotate("setup"):
    pass
for _ in range(3 + rank):
    with nvtx.annotate("step"):
        with nvtx.annotate(f"only on {rank}"):
            pass
with open(os.path.join(os.path.dirname(__file__), f"pid{rank}"), "w") as file:
    file.write(str(os.getpid()))
"""


def test_each_rank_of_torchrun_has_its_own_phases_and_pid(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANK)
    # What the command `torchrun` runs.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    told, document = recorded(tmp_path, [], *torchrun, "--nproc-per-node", "2", str(script))
    pids = {rank: int((tmp_path / f"pid{rank}").read_text()) for rank in (0, 1)}
    assert pids[0] != pids[1]

    found = {rank: {} for rank in pids}
    for phase in document["phases"]:
        assert phase["pid"] == pids[phase["rank"]]
        found[phase["rank"]][phase["path"]] = phase["instances"]
    assert found == {
        rank: {"setup": 1, "step": 3 + rank, f"step/only on {rank}": 3 + rank} for rank in pids
    }

    ranked = {process["rank"]: process for process in document["run"]["processes"]}
    for rank, pid in pids.items():
        assert (ranked[rank]["pid"], ranked[rank]["local_rank"]) == (pid, rank)
    assert document["run"]["remarks"] == []

    (header,) = [line for line in told.splitlines() if line.startswith("Phase ")]
    assert header.split()[:3] == ["Phase", "Rank", "PID"]
    rows = [line.split()[:3] for line in told.splitlines() if line.startswith("step ")]
    assert sorted(rows) == [["step", str(rank), str(pid)] for rank, pid in sorted(pids.items())]
    steps = gputui("summary", str(tmp_path / "x.gputui"), "--table", "nvtx_pushpop_sum").stdout
    assert "only on 0" in steps
    assert "only on 1" in steps
