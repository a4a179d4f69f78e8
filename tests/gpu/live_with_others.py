"""Programs that are hard to trace, on a GPU: none is harmed, and nothing is lost uncounted.

    python tests/gpu/live_with_others.py [CASE ...]

Needs a GPU and torch; the case with streams also nvcc. Runs each program under `gputui --record`
and prints a line of what was expected and found; status 1 where they differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from floor import build_launches

NSYS = "/opt/nvidia/nsight-systems/target-linux-x64/libToolsInjection64.so"
FLUSHED_S = 0.3
"""Longer than records wait in the program before they are in the ring."""

PRELUDE = """
import os, sys, threading, time, torch
x = torch.zeros(1 << 10, device="cuda")
torch.cuda.synchronize()
def launch(count):
    torch.cuda.nvtx.range_push("work")
    for _ in range(count):
        x.add_(1)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
"""

SCRIPTS = {
    "os._exit": f"launch(1000); time.sleep({FLUSHED_S}); os._exit(3)",
    "SIGKILL": f"launch(1000); time.sleep({FLUSHED_S}); os.kill(os.getpid(), 9)",
    "exception": "launch(1000); raise RuntimeError('as planned')",
    "threads": """
def one():
    launch(1)
for _ in range(100):
    threads = [threading.Thread(target=one) for _ in range(20)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
""",
    "fork": """
launch(1000)
from torch.utils.data import DataLoader
for batch in DataLoader(torch.randn(64, 8), batch_size=4, num_workers=2):
    x[:8] += batch[0].cuda()
torch.cuda.synchronize()
""",
    "spawn": """
import subprocess
program = '''PRELUDE
launch(500)'''
launch(500)
subprocess.run([sys.executable, "-c", program], check=True)
""".replace("PRELUDE", PRELUDE),
    "profiler": """
from torch.profiler import ProfilerActivity, profile
launch(500)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    launch(500)
kernels = sum(event.count for event in profiler.key_averages() if "add" in event.key
              and event.device_type == torch.autograd.DeviceType.CUDA)
print("profiler saw", kernels)
""",
    "graph off": """
# With steps 1/2: the graph is made in a step whose kernels are not traced.
graph = torch.cuda.CUDAGraph()
for step in range(8):
    torch.cuda.nvtx.range_push("step")
    if step == 1:
        with torch.cuda.graph(graph):
            for _ in range(100):
                x.add_(1)
    if step > 1:
        graph.replay()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
""",
    "no waiting": """
# Kernels are launched while their step is traced, and may run when it no longer is.
for step in range(8):
    torch.cuda.nvtx.range_push("step")
    for _ in range(200):
        x.add_(1)
    torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
""",
    "annotate": """
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 64, device="cuda")).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
""",
}


@dataclass
class Found:
    """What a recording of a program says."""

    status: int
    summary: dict[str, Any]
    text: str

    def kernels(self, part: str = "add") -> int:
        rows = self.summary["kernels"]
        return sum(row["instances"] for row in rows if part in row["name"].lower())

    def phase(self, path: str) -> dict[str, Any]:
        for row in self.summary["phases"]:
            if row["path"] == path:
                return dict(row)
        return {"kernels": 0, "instances": 0}

    @property
    def processes(self) -> list[dict[str, Any]]:
        return list(self.summary["run"]["processes"])


def record(
    command: list[str], *flags: str, extra: dict[str, str] | None = None, keep: Path | None = None
) -> Found:
    """Run `command` under gputui and read the recording."""
    with tempfile.TemporaryDirectory() as folder:
        path = keep or Path(folder, "run.gputui")
        gputui = [sys.executable, "-m", "gputui"]
        done = subprocess.run(
            [*gputui, "--record", *flags, "-o", str(path), "--", *command],
            capture_output=True,
            text=True,
            env=os.environ | (extra or {}),
            check=False,
            timeout=120,
        )
        document = subprocess.run(
            [*gputui, "summary", str(path), "--format", "json"],
            capture_output=True,
            check=True,
        ).stdout
    return Found(done.returncode, json.loads(document), done.stdout + done.stderr)


def script(name: str, *flags: str, extra: dict[str, str] | None = None) -> Found:
    return record([sys.executable, "-c", PRELUDE + SCRIPTS[name]], *flags, extra=extra)


_CASES: dict[str, Callable[[], list[tuple[str, object, object]]]] = {}
"""Name → what is checked: (what, expected, found)."""


def case(function: Callable[[], list[tuple[str, object, object]]]) -> None:
    _CASES[function.__name__.replace("_", "-")] = function


@case
def ends_suddenly() -> list[tuple[str, object, object]]:
    checks: list[tuple[str, object, object]] = []
    for name, status in (("os._exit", 3), ("SIGKILL", 137), ("exception", 1)):
        found = script(name)
        checks += [
            (f"{name}: status", status, found.status),
            (f"{name}: kernels", 1000, found.kernels()),
            (f"{name}: kernels of the range", 1000, found.phase("work")["kernels"]),
            (f"{name}: dropped", 0, found.summary["dropped_events"]),
        ]
    return checks


@case
def threads_that_end() -> list[tuple[str, object, object]]:
    found = script("threads")
    return [
        ("status", 0, found.status),
        ("kernels of 2,000 threads", 2000, found.kernels()),
        ("ranges of 2,000 threads", 2000, found.phase("work")["instances"]),
        ("kernels in them", 2000, found.phase("work")["kernels"]),
    ]


@case
def forks_and_spawns() -> list[tuple[str, object, object]]:
    fork, spawn = script("fork"), script("spawn")
    return [
        ("forked loaders: status", 0, fork.status),
        ("kernels before them", 1000, fork.phase("work")["kernels"]),
        ("spawned: status", 0, spawn.status),
        ("processes that trace", 2, sum(p["cuda_status"] == "tracing" for p in spawn.processes)),
        ("kernels of both", 1000, spawn.kernels()),
    ]


@case
def two_hundred_streams() -> list[tuple[str, object, object]]:
    with tempfile.TemporaryDirectory() as folder:
        launches = build_launches(Path(folder))
        if isinstance(launches, str):
            print(f"  left out: {launches}")
            return []
        found = record([str(launches), "streams", "200", "100000"])
    launched = int(found.text.split()[4])
    return [
        ("status", 0, found.status),
        ("kernels on 200 streams", launched, found.kernels("empty")),
        ("dropped", 0, found.summary["dropped_events"]),
    ]


@case
def a_profiler_in_the_program() -> list[tuple[str, object, object]]:
    with_us, alone = script("profiler"), script("profiler", "--no-kernels")
    return [
        ("torch.profiler beside gputui: status", 0, with_us.status),
        ("kernels", 1000, with_us.kernels()),
        ("lines that say so", 1, with_us.text.count("needs CUPTI too")),
        ("--no-kernels: status", 0, alone.status),
        ("the profiler's kernels", True, "profiler saw 500" in alone.text),
        ("ranges", 2, alone.phase("work")["instances"]),
    ]


@case
def another_tool_holds_the_variables() -> list[tuple[str, object, object]]:
    found = record(
        [sys.executable, "-c", PRELUDE + "launch(10)"], extra={"CUDA_INJECTION64_PATH": NSYS}
    )
    return [
        ("status", 0, found.status),
        ("lines that say so", 1, found.text.count("gputui: not captured: no kernels")),
        ("ranges", 1, found.phase("work")["instances"]),
        ("kernels", 0, found.kernels()),
    ]


@case
def some_steps_alone() -> list[tuple[str, object, object]]:
    """Steps 2, 4 and 6 of 8 are traced and replay the graph."""
    found = script("graph off", "--trace-steps", "1/2:step")
    hasty = script("no waiting", "--trace-steps", "1/2:step")
    share = found.summary["overhead"]["kernels_traced_percent"]
    return [
        ("status", 0, found.status),
        ("kernels of a graph made while kernels were off", 300, found.kernels()),
        ("ranges", 8, found.phase("step")["instances"]),
        ("kernels of steps that nobody waits for", 800, hasty.kernels()),
        ("traced share is told", True, 0 < share < 100 and "kernels traced" in found.text),
    ]


@case
def annotated() -> list[tuple[str, object, object]]:
    modules = script("annotate", "--annotate", "modules")
    operators = script("annotate", "--annotate", "autograd")
    profiled = script("profiler", "--annotate", "autograd")
    layer = modules.phase("Sequential/0")
    addmm = operators.phase("Sequential/0/aten::linear/aten::addmm")
    for row in operators.summary["phases"][:24]:
        print(f"    {row['path']:<64}{row['instances']:>6}{row['kernels']:>6}")
    return [
        ("modules: status", 0, modules.status),
        ("calls of the first layer", 20, layer["instances"]),
        ("kernels of the first layer", True, layer["kernels"] >= 20),
        ("optimizer steps", 20, modules.phase("AdamW.step")["instances"]),
        ("kernels of the optimizer", True, modules.phase("AdamW.step")["kernels"] > 0),
        ("autograd: status", 0, operators.status),
        ("operators in a layer", 20, addmm["instances"]),
        ("their kernels", True, addmm["kernels"] >= 20),
        ("autograd and torch.profiler: status", 0, profiled.status),
        ("kernels", 1000, profiled.kernels()),
    ]


def main(wanted: list[str]) -> int:
    """Run the cases; 0 where all is as expected."""
    fine = True
    for name, check in _CASES.items():
        if wanted and name not in wanted:
            continue
        print(name, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            for what, expected, found in check():
                agrees = expected == found
                fine &= agrees
                note = "" if agrees else "   DIFFERS"
                print(f"  {what:<52}{expected!s:>9}{found!s:>9}{note}", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
