"""Ranges in programs that have none: the start-up hook, in real interpreters with real torch."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from gputui.inject.environment import HOOK, capture_environment
from gputui.ring.layout import RecordKind
from tests.inject.traced import Trace, run

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.mlp(self.norm(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""

TRAINING = (
    MODEL
    + """
from torch.utils.data import DataLoader

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(torch.randn(4, 8), batch_size=2):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
)

BLOCK = ["blocks.{}", "blocks.{}/blocks.{}.norm", "blocks.{}/blocks.{}.mlp"] + [
    f"blocks.{{}}/blocks.{{}}.mlp/blocks.{{}}.mlp.{number}" for number in range(3)
]


def paths(trace: Trace) -> list[str]:
    """The path of every range in order of its push; pushes and pops match."""
    stack: list[str] = []
    found = []
    for record in trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP):
        if record["kind"] == RecordKind.RANGE_PUSH:
            stack.append(trace.name(record["name"]))
            found.append("/".join(stack))
        else:
            stack.pop()
    assert not stack
    return found


def annotated(tmp_path: Path, source: str, annotate: str = "modules", **extra: str) -> Trace:
    outcome = run([sys.executable, "-c", source], tmp_path, extra, annotate=annotate)
    assert outcome.status == 0, outcome.output
    return outcome.trace


def test_a_training_script_without_nvtx_shows_its_phases(tmp_path):
    found = paths(annotated(tmp_path, TRAINING))
    forward = ["Model"] + [
        "Model/" + path.replace("{}", str(number)) for number in range(2) for path in BLOCK
    ]
    assert found == [
        *("dataloader next", *forward, "backward", "AdamW.step") * 2,
        "dataloader next",
    ]


def test_an_exception_closes_what_it_leaves_and_modules_that_come_and_go_are_named_anew(tmp_path):
    source = (
        MODEL
        + """
import gc
model = Model()
for _ in range(2):
    try:
        model(torch.randn(2, 9))
    except RuntimeError:
        pass
Block()(torch.randn(2, 8))
nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Tanh()))(torch.zeros(1, 8))
for number in range(200):
    (nn.Linear(8, 8) if number % 2 else nn.Tanh())(torch.zeros(1, 8))
gc.collect()
"""
    )
    found = paths(annotated(tmp_path, source))
    failed = ["Model", "Model/blocks.0", "Model/blocks.0/blocks.0.norm"]
    # A module called by itself is a model of its own.
    alone = ["Block", "Block/norm", "Block/mlp", *(f"Block/mlp/mlp.{n}" for n in range(3))]
    # What only has a number goes by its class.
    inside = "Sequential/Sequential[1]"
    listed = ["Sequential", "Sequential/Linear[0]", inside, f"{inside}/Tanh[1.0]"]
    assert found == [*failed, *failed, *alone, *listed, *["Tanh", "Linear"] * 100]


def test_a_compiler_finds_the_modules_as_they_were(tmp_path):
    source = (
        MODEL
        + """
model = Model()
compiled = torch.compile(model, backend="eager", fullgraph=True)
x = torch.randn(2, 8)
assert torch.equal(compiled(x), model(x))
"""
    )
    found = paths(annotated(tmp_path, source))
    assert found[:2] == ["OptimizedModule", "Model"]
    assert "Model/blocks.1/blocks.1.mlp" in found


def test_operators_on_request_less_those_that_compute_nothing(tmp_path):
    source = (
        MODEL
        + """
x = torch.empty(4, 8).t().unsqueeze(0).expand(2, 8, 4).detach()[0].view(8, 4)
with torch.profiler.record_function("mine"):
    y = torch.mm(x, x.t())
Block()(y)
"""
    )
    found = paths(annotated(tmp_path, source, "autograd"))
    assert found[0] == "aten::mm"  # the six before it only look at the same numbers
    assert "Block/mlp/mlp.0/aten::addmm" in found


DEPTH = """
import sys
import torch

class Nest(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x if self.inner is None else self.inner(x)

def nested(depth):
    model = None
    for _ in range(depth):
        model = Nest(model)
    return model

def works(depth):
    try:
        nested(depth)(1)
    except RecursionError:
        return False
    return True

depth = next(depth for depth in range(100, 1000) if not works(depth))
sys.setrecursionlimit(10_000)
print(depth)
"""


def test_modules_nest_as_deep_as_without_ranges(tmp_path):
    depths = []
    for annotate in (None, "modules"):
        folder = tmp_path / str(annotate)
        folder.mkdir()
        outcome = run([sys.executable, "-c", DEPTH], folder, annotate=annotate)
        assert outcome.status == 0, outcome.output
        depths.append(int(outcome.output))
    assert depths[0] == depths[1] > 200
    levels = outcome.trace.of(RecordKind.RANGE_PUSH)["d"]
    assert levels.max() > 200
    assert outcome.trace.name(outcome.trace.of(RecordKind.RANGE_PUSH)["name"][-1]) == ".".join(
        ["inner"] * levels[-1]
    )


def test_the_hook_and_the_library_leave_the_same_operators_out():
    library = (HOOK.parent / "src" / "operators.inc.c").read_text()
    listed = re.findall(r'"([^"]+)"', library.partition("names[] = {")[2].partition("};")[0])
    hook = (HOOK / "sitecustomize.py").read_text().partition("_COMPUTE_NOTHING")[2]
    assert re.findall(r'"([^"]+)"', hook.partition("}")[0]) == listed


def test_the_hidden_sitecustomize_runs(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.found = __file__")
    rings = tmp_path / "rings"
    rings.mkdir()
    clear = {name: value for name, value in os.environ.items() if "INJECTION64" not in name}
    environment, _ = capture_environment(
        rings, False, clear | {"PYTHONPATH": str(site)}, annotate="modules"
    )
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(HOOK), str(site)]
    source = "import sitecustomize; print(found, sitecustomize.__file__)"
    outcome = run(
        [sys.executable, "-c", source], rings, {"PYTHONPATH": environment["PYTHONPATH"]},
        annotate="modules",
    )  # fmt: skip
    assert outcome.words == [str(site / "sitecustomize.py")] * 2


@pytest.mark.parametrize("source", ["print('hello')", "import json; print('hello')"])
def test_a_program_without_torch_is_left_alone(tmp_path, source):
    outcome = run([sys.executable, "-c", source], tmp_path, annotate="modules")
    assert (outcome.status, outcome.output) == (0, "hello\n")
    assert outcome.traces == []


def test_an_unreadable_library_leaves_the_program_as_it_was(tmp_path):
    source = MODEL + "print(Model()(torch.zeros(1, 8)).shape)"
    outcome = run(
        [sys.executable, "-c", source], tmp_path, {"GPUTUI_CAPTURE_LIBRARY": "/nowhere.so"},
        annotate="modules",
    )  # fmt: skip
    assert (outcome.status, outcome.output) == (0, "torch.Size([1, 8])\n")
