"""Marks of a program's steps, from real interpreters to the ring."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gputui.inject.build import CAPTURE
from gputui.model.events import ITEM_UNITS, STEP_SOURCES
from gputui.ring import ENDS, GROWN, LEARNS, RecordKind
from tests.inject.traced import python_of, run, run_python

pytestmark = pytest.mark.usefixtures("library")

LIBRARY = f"""
import ctypes
library = ctypes.PyDLL({str(CAPTURE.path)!r})
library.gputui_step_site.restype = ctypes.c_void_p
library.gputui_step.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
library.gputui_step.restype = None
site, step = library.gputui_step_site, library.gputui_step
"""


def _number(source):
    return STEP_SOURCES.index(source) + 1


def test_marks_stand_in_the_ring_as_they_were_made(tmp_path):
    tokens = ITEM_UNITS.index("tokens") + 1
    trace = run_python(
        f"""{LIBRARY}
adam = site({_number("optimizer")}, b"AdamW", 1)
bar = site({_number("tqdm")}, b"train.py:7", 0)
for n in range(3):
    step(bar, 0, 0)
    step(adam, 512 + n, {tokens})
step(None, 1, 0)
""",
        tmp_path,
    ).trace
    marks = trace.of(RecordKind.STEP)
    rows = [
        (STEP_SOURCES[mark["sub"] - 1], trace.name(mark["name"]), int(mark["value"]),
         int(mark["end"]), int(mark["source_kind"]))
        for mark in marks
    ]  # fmt: skip
    assert rows == [
        row
        for n in range(3)
        for row in (
            ("tqdm", "train.py:7", n + 1, 0, 0),
            ("optimizer", "AdamW", n + 1, 512 + n, tokens),
        )
    ]
    assert (marks["thread"] == trace.facts.pid).all()
    starts = marks["start"].tolist()
    assert starts == sorted(starts)
    assert starts[0] >= trace.facts.start_ns


def test_a_program_that_only_shows_progress_gets_no_ring_for_it(tmp_path):
    outcome = run_python(
        f"""{LIBRARY}
bar = site({_number("tqdm")}, b"download", 0)
assert bar is None
step(bar, 0, 0)
""",
        tmp_path,
    )
    assert outcome.traces == []


def test_sites_beyond_the_limit_are_not_marked(tmp_path):
    source = f"""{LIBRARY}
sites = [site({_number("module")}, str(n).encode(), 1) for n in range(2000)]
print(sum(s is not None for s in sites))
for s in sites:
    step(s, 0, 0)
"""
    outcome = run_python(source, tmp_path)
    assert outcome.words == ["1024"]
    assert len(outcome.trace.of(RecordKind.STEP)) == 1024


def test_a_forked_process_marks_nothing_and_its_marks_are_no_ranges(tmp_path):
    source = f"""{LIBRARY}
import os
adam = site({_number("optimizer")}, b"AdamW", 1)
step(adam, 0, 0)
if os.fork() == 0:
    step(adam, 0, 0)
    os._exit(0)
os.wait()
step(adam, 0, 0)
"""
    trace = run_python(source, tmp_path).trace
    assert trace.of(RecordKind.STEP)["value"].tolist() == [1, 2]
    assert trace.facts.unseen_forks == 0


# --- The hook, in programs that know nothing of it. Torch is real; libraries that are not installed
# here stand in with the same names.

# By a clock of its own: on a loaded machine turns would be slow enough to be a step.
LOOPS = """
import cupy, time; now_ns = [0]; time.perf_counter_ns = lambda: now_ns[0]
def inner(turns):
    for _ in range(turns):
        now_ns[0] += 1_000_000
def step(number):
    inner(4)
    return sum([each for each in range(3000)])
def main():
    with open(__file__) as file:
        file.read()
    try:
        inner(4)
    except OSError:
        pass
    for _ in range(3):
        step(0)
    number = 0
    while number < 100 or number < 0:
        number += 1
        if number % 7 == 3:
            step(1)
            continue
        step(number)
main()
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_turns_of_the_programs_loops_are_marks_with_how_many_others_they_lie_in(tmp_path, version):
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    files, rings = tmp_path / "files", tmp_path / "rings"
    files.mkdir()
    rings.mkdir()
    (files / "cupy.py").write_text(f"{LIBRARY}site({_number('module')}, b'cupy', 1)\n")
    (files / "program.py").write_text(LOOPS)
    outcome = run([python, str(files / "program.py")], rings, step_marks=True)
    assert outcome.status == 0, outcome.output
    turns, depths = _marks(outcome), {}
    for mark in outcome.trace.of(RecordKind.STEP):
        depths.setdefault(outcome.trace.name(mark["name"]), []).append(int(mark["end"]))
    assert turns["loop", "program.py:16"] == [1, 2, 3, 4, 4], "beginning, each turn's end, its own"
    assert turns["loop", "program.py:19"] == list(range(1, 101)), "back to its test, or on"
    assert set(depths["program.py:16"] + depths["program.py:19"]) == {0}
    inner = depths["program.py:4"]
    assert (inner[0], inner[-1]) == (0, 1), "once called outside of any loop, then in one"
    assert 200 < len(inner) < 300, "no more once the loop that it lies in has turned often"
    assert len(depths["program.py:8"]) < 100, "too fast for a step"


LEFT = """
import cupy, contextlib, time; now_ns = [0]; time.perf_counter_ns = lambda: now_ns[0]
def wait():
    now_ns[0] += 1_000_000
for n in range(9):
    wait()
    try:
        with contextlib.suppress(OSError):
            [0][n > 5]
    except IndexError:
        wait()
n = 0
while n < 9:
    wait()
    n += 1
for n in range(9):
    wait()
    if n == 5:
        break
print(n)
"""


def test_a_loop_is_marked_as_over_where_the_program_is_past_it(tmp_path):
    """Not where it handles an exception for the first time."""
    python = python_of("3.12")
    if python is None:
        pytest.skip("no Python 3.12")
    files, rings = tmp_path / "files", tmp_path / "rings"
    files.mkdir()
    rings.mkdir()
    (files / "cupy.py").write_text(f"{LIBRARY}site({_number('module')}, b'cupy', 1)\n")
    (files / "program.py").write_text(LEFT)
    outcome = run([python, str(files / "program.py")], rings, step_marks=True)
    assert outcome.status == 0, outcome.output
    ends: dict[str, list[bool]] = {}
    for mark in outcome.trace.of(RecordKind.STEP):
        ends.setdefault(outcome.trace.name(mark["name"]), []).append(mark["source_kind"] == ENDS)
    assert ends["program.py:5"] == [False] * 10 + [True]
    assert ends["program.py:13"] == [False] * 9 + [True], "the last turn of a `while` has no mark"
    assert ends["program.py:16"] == [False] * 6 + [True]


TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 8)))
optimizer = torch.optim.AdamW(model.parameters())
def micro_batch():
    model(torch.randn(4, 8)).square().mean().backward()
"""

WAIT_FOR_LOOK = """
import time
class Slow(nn.Module):
    def forward(self, x):
        while Slow.__call__ is nn.Sequential.__call__:  # until a look at the stacks came
            time.sleep(0.001)
        return self.inner(x)
    def __init__(self):
        super().__init__()
        self.inner = model
"""


def _marks(outcome):
    """(source, site) → the ordinals of its marks."""
    trace = outcome.trace
    marks: dict[tuple[str, str], list[int]] = {}
    for mark in trace.of(RecordKind.STEP):
        key = STEP_SOURCES[mark["sub"] - 1], trace.name(mark["name"])
        marks.setdefault(key, []).append(int(mark["value"]))
    return marks


def test_the_end_of_an_optimizers_step_is_a_mark_with_accumulated_gradients_and_each_its_own(
    tmp_path,
):
    outcome = run_python(
        TRAINING + "other = torch.optim.AdamW(nn.Linear(2, 2).parameters())\n"
        "for n in range(5):\n    [micro_batch() for _ in range(3)]\n"
        "    optimizer.step()\n    n == 4 or other.step()\n    optimizer.zero_grad()\n",
        tmp_path, step_marks=True,
    )  # fmt: skip
    marks = _marks(outcome)
    assert marks["optimizer", "AdamW"] == [1, 2, 3, 4, 5]
    assert marks["optimizer", "AdamW 2"] == [1, 2, 3, 4]


def test_the_outermost_module_is_marked_and_none_inside_it(tmp_path):
    outcome = run_python(
        TRAINING + WAIT_FOR_LOOK + "slow = Slow()\nfor _ in range(3):\n"
        "    slow(torch.randn(4, 8))\nwith torch.no_grad():\n    slow(torch.randn(4, 8))\n",
        tmp_path, step_marks=True,
    )  # fmt: skip
    ((key, ordinals),) = _marks(outcome).items()
    assert key == ("module", "Slow")
    assert ordinals == [1, 2, 3], "all after the one in which it was found"
    steps = outcome.trace.of(RecordKind.STEP)
    assert set(steps["end"].tolist()) == {4}, "the samples of a batch"
    assert ((steps["source_kind"] & LEARNS) != 0).tolist() == [True, True, False]


def test_gradients_that_no_optimizer_uses_are_told_once_with_the_line_of_the_call(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        TRAINING + WAIT_FOR_LOOK + "slow, head = Slow(), nn.Linear(8, 8)\n"
        "whole = nn.Sequential(slow, head)\noptimizer = torch.optim.SGD(head.parameters())\n"
        "for n in range(24):\n"
        "    whole(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
        f"[lines] = __import__('pathlib').Path({str(tmp_path)!r}).glob('lines-*')\n"
        "while 'gradients.unused' not in lines.read_text():\n    time.sleep(0.001)\n"
    )
    lines = {"GPUTUI_LINES": "20"}
    outcome = run([sys.executable, str(program)], tmp_path, lines, step_marks=True)
    assert outcome.status == 0, outcome.output
    [file] = tmp_path.glob("lines-*")
    rows = [row.split() for row in file.read_text().splitlines()]
    places = {row[1]: row[2] for row in rows if row[0] == "d"}
    source = program.read_text().splitlines()
    made = [source[int(places[row[2]]) - 1] for row in rows if row[:2] == ["c", "optimizer.made"]]
    assert made == ["optimizer = torch.optim.AdamW(model.parameters())"], (
        "the first of the function"
    )
    facts = {row[1]: (places[row[2]], row[3], int(row[4])) for row in rows if row[0] == "c"
             and row[1].startswith("gradients")}  # fmt: skip
    at = next(str(number) for number, line in enumerate(program.read_text().splitlines(), 1)
              if line.startswith("    whole("))  # fmt: skip
    assert facts == {
        "gradients.used": (at, "1", 4 * 8 * 9),
        "gradients.unused": (at, "1", 4 * (8 * 16 + 16 + 16 * 8 + 8)),
    }


def test_a_text_that_grows_by_one_from_call_to_call_is_marked_so(tmp_path):
    """Written as language models are called, and as a first argument; of a cache each call has one
    token, in training all have as many."""
    outcome = run_python(
        TRAINING + WAIT_FOR_LOOK.replace("def forward(self, x)", "def forward(self, x=None, **k)")
        .replace("return self.inner(x)", "return x") + """
slow = Slow()
def call(length, named):
    texts = torch.zeros(3, length, dtype=torch.int64)
    slow(input_ids=texts) if named else slow(texts)
call(9, True)  # is found meanwhile
for lengths, named in (((4, 5, 6, 6), True), ((4, 5, 6, 1, 1), False)):
    for length in lengths:
        call(length, named)
""",
        tmp_path, step_marks=True,
    )  # fmt: skip
    marks = outcome.trace.of(RecordKind.STEP)[-9:]
    grown = (marks["source_kind"] & GROWN).astype(bool).tolist()
    assert grown == [False, True, True, False, False, True, True, False, False]
    numbers = (marks["source_kind"] & ~np.uint8(GROWN | LEARNS)).tolist()
    units = [ITEM_UNITS[number - 1] for number in numbers]
    assert units == ["tokens"] * 4 + ["samples", "tokens", "tokens", "samples", "samples"]
    assert marks["end"].tolist() == [12, 15, 18, 18, 3, 15, 18, 3, 3]


def test_a_model_that_was_marked_is_copied_and_saved_as_without(tmp_path):
    outcome = run_python(
        TRAINING + WAIT_FOR_LOOK + "import copy, io, pickle\nslow = Slow()\n"
        "for _ in range(2):\n    slow(torch.randn(4, 8))\n"
        "copied = copy.deepcopy(slow)\nassert not slow._forward_pre_hooks\n"
        "assert b'gputui' not in pickle.dumps(optimizer.state_dict())\n"
        "buffer = io.BytesIO()\ntorch.save(slow, buffer)\n"
        "assert b'gputui' not in buffer.getvalue()\nprint('saved')\n",
        tmp_path, step_marks=True,
    )  # fmt: skip
    assert outcome.words == ["saved"]


def test_what_torch_compiles_is_what_it_compiles_without(tmp_path):
    outcome = run_python(
        TRAINING + WAIT_FOR_LOOK + "slow = Slow()\nslow(torch.randn(4, 8))\n"
        "compiled = torch.compile(model, backend='eager', fullgraph=True)\nx = torch.randn(4, 8)\n"
        "for _ in range(3):\n    assert torch.equal(compiled(x), model(x))\n"
        "step = torch.compile(lambda x: slow.inner(x), backend='eager', fullgraph=True)\n"
        "step(x)\nprint('compiled')\n",
        tmp_path, step_marks=True,
    )  # fmt: skip
    assert outcome.words == ["compiled"]


TQDM = '''
"""Stands in for tqdm: the parts of it that show where a loop is."""
class tqdm:
    def __init__(self, iterable=None, unit="it"):
        self.iterable, self.unit, self.n = iterable, unit, 0
    def __iter__(self):
        for item in self.iterable:
            yield item
            self.n += 1
            if self.n % 3 == 0:
                self.update(0)
    def update(self, n=1):
        self.n += n
'''


@pytest.fixture
def stand_ins(tmp_path):
    """Packages of names that are not installed, by their files."""
    folder = tmp_path / "packages"

    def make(files: dict[str, str]) -> str:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for parent in path.parents:
                if parent == folder:
                    break
                (parent / "__init__.py").touch()
            path.write_text(text)
        return f"import sys; sys.path.insert(0, {str(folder)!r})\n"

    return make


def test_iterations_of_a_progress_bar_are_marked_by_the_line_of_the_loop(tmp_path, stand_ins):
    captures = f"{LIBRARY}\nsite({_number('optimizer')}, b'x', 1)\n"
    outcome = run_python(
        stand_ins({"tqdm/std.py": TQDM}) + captures + "from tqdm.std import tqdm\n"
        "for epoch in tqdm(range(2)):\n    for batch in tqdm(range(5)):\n        pass\n"
        "bar = tqdm()\nfor _ in range(3):\n    bar.update()\n"
        "download = tqdm(unit='B')\ndownload.update()\n",
        tmp_path, step_marks=True,
    )  # fmt: skip
    marks = _marks(outcome)
    assert sorted(map(len, marks.values())) == [2, 3, 10]
    assert all(source == "tqdm" and site.startswith("<string>:") for source, site in marks)


def test_frameworks_mark_the_ends_of_their_batches(tmp_path, stand_ins):
    files = {
        "transformers/generation/utils.py": """
class GenerationMixin:
    def _update_model_kwargs_for_generation(self, outputs, model_kwargs):
        return model_kwargs
""",
        "transformers/trainer_callback.py": """
class CallbackHandler:
    def on_step_end(self, args): return args
    def on_prediction_step(self, args): return args
""",
        "lightning/pytorch/trainer/call.py": """
def _call_callback_hooks(trainer, hook_name, *args):
    return hook_name
""",
        "accelerate/optimizer.py": """
class AcceleratedOptimizer:
    def __init__(self, state): self.gradient_state = state
    def step(self, closure=None): return closure
""",
        "keras/src/callbacks/callback_list.py": """
class CallbackList:
    def on_train_batch_end(self, batch, logs=None): pass
""",
    }
    source = """
from types import SimpleNamespace as Space
from transformers.generation import utils
from transformers import trainer_callback
from lightning.pytorch.trainer import call
from accelerate.optimizer import AcceleratedOptimizer
from keras.src.callbacks.callback_list import CallbackList
outputs = Space(logits=Space(shape=(16, 1, 9)))
for token in range(6):
    assert utils.GenerationMixin()._update_model_kwargs_for_generation(outputs, {1: 2}) == {1: 2}
trainer_callback.CallbackHandler().on_step_end(1)
for name in ("on_train_start", "on_train_batch_end", "on_train_batch_end"):
    assert call._call_callback_hooks(None, name, 1) == name
for sync in (False, False, True):
    AcceleratedOptimizer(Space(sync_gradients=sync)).step()
CallbackList().on_train_batch_end(0, logs={})
"""
    outcome = run_python(stand_ins(files) + source, tmp_path, step_marks=True)
    counts = {key: len(ordinals) for key, ordinals in _marks(outcome).items()}
    assert counts == {
        ("token", "generate"): 6,
        ("trainer", "training step"): 1,
        ("lightning", "train batch"): 2,
        ("accelerate", "optimizer step"): 1,
        ("keras", "train batch"): 1,
    }
    items = outcome.trace.of(RecordKind.STEP)["end"].tolist()
    assert items[:6] == [16] * 6, "a token for each sequence"
