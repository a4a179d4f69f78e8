"""Ranges in programs that have none: the start-up hook, in real interpreters with real torch."""

from __future__ import annotations

import os
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from gputui.inject.environment import HOOK, capture_environment
from gputui.inject.hook import torch_ranges
from gputui.model.naming import stage_of_name
from gputui.ring import RecordKind
from tests.inject.recorded import recorded
from tests.inject.traced import environment, run

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

TRAINING = """
from torch.utils.data import DataLoader

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(torch.randn(4, 8), batch_size=2):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""

COMES_AND_GOES = """
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

COMPILED = """
model = Model()
compiled = torch.compile(model, backend="eager", fullgraph=True)
x = torch.randn(2, 8)
assert torch.equal(compiled(x), model(x))
"""

OF_TORCH = """
nvtx.push_range("package")
try:
    torch.cuda.nvtx.range_push("torch")
    torch.cuda.nvtx.range_pop()
except RuntimeError:
    print("no-nvtx")
nvtx.pop_range()
"""

DEEP = """
import bisect, sys

class Nest(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x if self.inner is None else self.inner(x)

def fails(depth):
    model = None
    for _ in range(depth):
        model = Nest(model)
    try:
        model(1)
    except RecursionError:
        return True
    return False

def limit():
    return bisect.bisect_left(range(1000), True, lo=100, key=fails)

with_ranges = limit()
ranged, nn.Module.__call__ = nn.Module.__call__, nn.Module._wrapped_call_impl
assert nn.Module.__call__ is not ranged
without = limit()
sys.setrecursionlimit(10_000)
print(with_ranges, without)
"""

PARTS = {
    "training": TRAINING,
    "comes and goes": COMES_AND_GOES,
    "compiled": COMPILED,
    "of torch": OF_TORCH,
    "deep": DEEP,
}

BLOCK = ["blocks.{}", "blocks.{}/blocks.{}.norm", "blocks.{}/blocks.{}.mlp"] + [
    f"blocks.{{}}/blocks.{{}}.mlp/blocks.{{}}.mlp.{number}" for number in range(3)
]


@dataclass
class Parts:
    """What each of PARTS did, in one process: importing torch costs more than all of them."""

    paths: dict[str, list[str]]
    """The path of every range of a part in order of its push."""
    words: list[str]


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Parts:
    marked = [f"nvtx.mark({name!r})\n{source}" for name, source in PARTS.items()]
    source = f"import nvtx\n{MODEL}" + "".join(marked)
    outcome = run([sys.executable, "-c", source], tmp_path_factory.mktemp("p"), annotate="modules")
    assert outcome.status == 0, outcome.output
    trace = outcome.trace
    stack: list[str] = []
    found: dict[str, list[str]] = {}
    for record in trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP, RecordKind.MARK):
        name = trace.name(record["name"])
        if record["kind"] == RecordKind.MARK:
            assert not stack  # pushes and pops match
            found[name] = part = []
        elif record["kind"] == RecordKind.RANGE_PUSH:
            stack.append(name)
            part.append("/".join(stack))
        else:
            stack.pop()
    assert not stack
    return Parts(found, outcome.words)


def test_a_training_script_without_nvtx_shows_its_phases(parts):
    forward = ["Model"] + [
        "Model/" + path.replace("{}", str(number)) for number in range(2) for path in BLOCK
    ]
    assert parts.paths["training"] == [
        *("dataloader next", *forward, "backward", "AdamW.step") * 2,
        "dataloader next",
    ]


def test_an_exception_closes_what_it_leaves_and_modules_that_come_and_go_are_named_anew(parts):
    failed = ["Model", "Model/blocks.0", "Model/blocks.0/blocks.0.norm"]
    # A module called by itself is a model of its own.
    alone = ["Block", "Block/norm", "Block/mlp", *(f"Block/mlp/mlp.{n}" for n in range(3))]
    # What only has a number goes by its class.
    inside = "Sequential/Sequential[1]"
    listed = ["Sequential", "Sequential/Linear[0]", inside, f"{inside}/Tanh[1.0]"]
    expected = [*failed, *failed, *alone, *listed, *["Tanh", "Linear"] * 100]
    assert parts.paths["comes and goes"] == expected


def test_a_compiler_finds_the_modules_as_they_were(parts):
    found = parts.paths["compiled"]
    assert found[:2] == ["OptimizedModule", "Model"]
    assert "Model/blocks.1/blocks.1.mlp" in found


def test_torch_ranges_where_torch_has_them(parts):
    if "no-nvtx" in parts.words:
        pytest.skip("this torch makes no ranges")
    assert parts.paths["of torch"] == ["package", "package/torch"]


def test_modules_nest_as_deep_as_without_ranges(parts):
    with_ranges, without = map(int, parts.words[-2:])
    assert with_ranges == without > 200
    deepest = max(parts.paths["deep"], key=lambda path: path.count("/")).split("/")
    assert len(deepest) > 200
    assert deepest[-1] == ".".join(["inner"] * (len(deepest) - 1))


OPERATORS = """
x = torch.empty(4, 8).t().unsqueeze(0).expand(2, 8, 4).detach()[0].view(8, 4)
with torch.profiler.record_function("mine"):
    y = torch.mm(x, x.t())
Block()(y)
"""


def test_operators_on_request_less_those_that_compute_nothing(tmp_path):
    # A process of a process, and NVTX is there, and read, before torch is.
    script = tmp_path / "operators.py"
    script.write_text(f"import nvtx\nnvtx.mark('here')\n{MODEL}{OPERATORS}")
    shell = ["sh", "-c", 'echo; "$0" "$1"', sys.executable, str(script)]
    told, document = recorded(tmp_path, ["--annotate", "autograd"], *shell)
    assert document["run"]["remarks"] == []
    assert "--annotate" not in told
    paths = {phase["path"] for phase in document["phases"]}
    assert {"aten::mm", "Block", "Block/mlp/mlp.0/aten::addmm"} <= paths
    looks = ("empty", "t", "unsqueeze", "expand", "detach", "select", "view")
    assert paths.isdisjoint(f"aten::{name}" for name in looks)


def test_shapes_of_inputs_are_in_every_table_of_ranges(tmp_path):
    program = tmp_path / "products.py"
    program.write_text(
        "import torch\nfor rows in (2, 2, 3):\n    torch.ones(rows, 4) @ torch.ones(4, 5)\n"
    )
    _, document = recorded(tmp_path, ["--annotate", "shapes"], sys.executable, str(program))
    counts = {phase["path"]: phase["instances"] for phase in document["phases"]}
    assert counts["aten::mm [[2, 4], [4, 5]]"] == 2
    assert counts["aten::mm [[3, 4], [4, 5]]"] == 1


def test_the_hook_and_the_library_leave_the_same_operators_out():
    library = (HOOK.parent / "src" / "operators.inc.c").read_text()
    listed = re.findall(r'"([^"]+)"', library.partition("names[] = {")[2].partition("};")[0])
    hook = (HOOK / "torch_ranges.py").read_text().partition("_COMPUTE_NOTHING")[2]
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


ENGINE = """
class Batch:
    def __init__(self, lengths):
        self.requests_in_batch = [type("R", (), {"query_length": n}) for n in lengths]

class Pairs:
    def __init__(self, lengths):
        self.current_pair = 1
        self.io_pairs = [None, type("P", (), {"host_io": Batch(lengths)})]

class ContinuousBatchProcessor:
    def prepare_next_batch(self): return True
    def update_batch(self): pass
    def _generation_step(self, model):
        if model is None: raise RuntimeError
        return model
"""
TURNS = """
from transformers.generation.continuous_batching import continuous_api as api

engine = api.ContinuousBatchProcessor()
for inputs in (api.Batch([9, 3]), api.Pairs([1, 1]), api.Pairs([1, 7]), api.Batch([]), object()):
    engine.inputs_and_outputs = inputs
    assert engine.prepare_next_batch()
    assert engine._generation_step("a model") == "a model"
    engine.update_batch()
try:
    engine._generation_step(None)
except RuntimeError:
    pass
"""


def test_the_turns_of_continuous_batching_have_ranges_without_being_asked(tmp_path):
    """By what is in them, in a module of transformers' name: the tests have no transformers. A
    version that is another has turns of no known kind."""
    folder = tmp_path / "transformers" / "generation" / "continuous_batching"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()  # transformers may be installed, too
    (folder / "continuous_api.py").write_text(ENGINE)
    hook = environment(tmp_path, step_marks=True)["PYTHONPATH"]
    extra = {"PYTHONPATH": os.pathsep.join((hook, str(tmp_path)))}
    outcome = run([sys.executable, "-c", TURNS], tmp_path, extra, step_marks=True)
    assert outcome.status == 0, outcome.output
    names = [name for word, name, *_ in outcome.trace.ranges() if word == "push"]
    turns = [name for name in names if "[" in name]
    kinds = ("prefill", "decode", "mixed", "empty", "empty", "empty")
    assert turns == [f"continuous_batching [{kind}]" for kind in kinds]
    assert names[:3] == ["continuous_batching: schedule", turns[0], "continuous_batching: update"]
    assert [word for word, *_ in outcome.trace.ranges()].count("pop") == len(names)


OTHER_ENGINES = """
class Worker:
    def execute_model(self, scheduled): return scheduled
    def sample_tokens(self, output): return output

class Scheduler:
    def run_batch(self, batch, proxies=None): return batch
"""


def _scheduled(new: dict[str, int], cached: dict[str, int], contexts: set[str]) -> object:
    """What vLLM's scheduler hands its worker: tokens by request, `contexts` of which are prompts
    that go on."""
    return types.SimpleNamespace(
        num_scheduled_tokens=cached | new,
        total_num_scheduled_tokens=sum(new.values()) + sum(cached.values()),
        scheduled_new_reqs=[types.SimpleNamespace(req_id=request) for request in new],
        scheduled_cached_reqs=types.SimpleNamespace(is_context_phase=contexts.__contains__),
    )


def test_the_turns_of_vllm_and_sglang_are_named_as_their_profilers_name_them():
    """In modules of their names; what is not understood has no stage, and is done all the same."""
    engine = types.ModuleType("engine")
    exec(OTHER_ENGINES, engine.__dict__)
    started = (Path(torch_ranges.__file__).parent / "sitecustomize.py").read_text()
    assert all(f'"{name}"' in started for name in torch_ranges.ENGINES)
    names: list[str] = []
    ranges = types.SimpleNamespace(
        push=names.append,
        pop=lambda: names.append("pop"),
        handle=str,
        around=lambda made, name: lambda *given: names.append(name) or made(*given),
    )
    for name in ("vllm.v1.worker.gpu_worker", "sglang.srt.managers.scheduler"):
        torch_ranges.ENGINES[name](engine, ranges)
    worker, scheduler = engine.Worker(), engine.Scheduler()
    for given in (
        _scheduled({"a": 9}, {}, set()),
        _scheduled({"a": 9}, {"b": 1}, set()),
        _scheduled({}, {"a": 1, "b": 1}, set()),
        _scheduled({}, {"a": 3, "b": 1}, set()),  # three were guessed
        _scheduled({}, {"a": 64, "b": 1}, {"a"}),
        _scheduled({}, {}, set()),
        None,
    ):
        assert worker.execute_model(given) is given
    assert worker.sample_tokens("tokens") == "tokens"
    for mode in ("EXTEND", "DECODE", "MIXED", "ANOTHER"):
        batch = types.SimpleNamespace(forward_mode=types.SimpleNamespace(name=mode))
        assert scheduler.run_batch(batch, proxies=None) is batch

    turns = [name for name in names if name != "pop"]
    stages = ["prefill", "mixed", "decode", "decode", "mixed", None, None, "sampling"]
    assert [stage_of_name(name, False) for name in turns] == [
        *stages, "prefill", "decode", "mixed", None,
    ]  # fmt: skip
    assert len(names) == 2 * len(turns) - 1  # the stand-in of `around` has no end


def test_what_was_put_around_the_turns_is_taken_back():
    """As on detaching; not what the program has replaced since."""
    engine = types.ModuleType("engine")
    exec(ENGINE, engine.__dict__)
    processor = engine.ContinuousBatchProcessor
    before = dict(vars(processor))
    ranges = types.SimpleNamespace(
        push=print, pop=print, handle=str, around=lambda made, _: lambda *given: made(*given)
    )
    of_transformers = next(name for name in torch_ranges.ENGINES if name.startswith("transformers"))
    replaced = torch_ranges.ENGINES[of_transformers](engine, ranges)
    assert vars(processor)["update_batch"] is not before["update_batch"]
    processor.prepare_next_batch = own = print
    for each in replaced:
        each.remove()
    after = dict(vars(processor))
    assert after.pop("prepare_next_batch") is own
    assert after == {name: before[name] for name in after}


def test_a_program_without_torch_is_left_alone(tmp_path):
    source = "import json; print('hello')"
    outcome = run([sys.executable, "-c", source], tmp_path, annotate="modules")
    assert (outcome.status, outcome.output) == (0, "hello\n")
    assert outcome.traces == []


@pytest.mark.parametrize("library", ["/nowhere.so", None])
def test_a_library_or_a_torch_that_is_not_as_expected_leaves_the_program_as_it_was(
    tmp_path, library
):
    (tmp_path / "torch.py").write_text("size = 3")
    extra = {"GPUTUI_CAPTURE_LIBRARY": library} if library else {}
    paths = environment(tmp_path, annotate="modules")["PYTHONPATH"]
    extra["PYTHONPATH"] = os.pathsep.join((paths, str(tmp_path)))
    source = "import torch; print(torch.size)"
    outcome = run([sys.executable, "-c", source], tmp_path, extra, annotate="modules")
    assert (outcome.status, outcome.output) == (0, "3\n")
