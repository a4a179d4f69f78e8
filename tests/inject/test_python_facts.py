"""Garbage collections and calls by line, from real interpreters with the start-up hook."""

from __future__ import annotations

import dis
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gputui.inject import hook
from gputui.inject.hook import python_facts
from tests.inject.traced import python_of

TORCH = """
from types import SimpleNamespace
__version__ = "{version}"
linalg = SimpleNamespace(inv=lambda matrix: matrix)
class Tensor:
    shape, dtype, nbytes, is_cuda = (4, 3), "torch.float32", 48, False
    def to(self, device): return self
    def item(self): return 1.0
    def float(self): return self
    def __float__(self): return 1.0
"""

WAIT_FOR_READINGS = """
def readings():
    from pathlib import Path
    import os
    [file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
    return sum(row.startswith("s ") for row in file.read_text().splitlines())
before = readings()
while readings() < before + 3:  # two at most are of one look, which may have begun before
    time.sleep(0.01)
"""

PROGRAM = f"""
import gc, sys, time, torch
gc.disable()
def train(tensor):
    for turn in range(5):
        tensor.to("cuda"); len("x")
        float(tensor)
        float(turn)
for epoch in range(3):
    train(torch.Tensor())
    gc.collect()
torch.Tensor().item()
{WAIT_FOR_READINGS}
"""


def written(
    folder: Path, program: str, version: str = "2.11.0", python: str = sys.executable
) -> tuple[list[str], str]:
    """What a program's facts are, with lines as their numbers in the file, and what it printed."""
    (folder / "torch.py").write_text(TORCH.format(version=version))
    (folder / "program.py").write_text(program)
    folders = os.pathsep.join([str(Path(hook.__file__).parent), str(folder)])
    lines = {"GPUTUI_LINES": "10", "GPUTUI_CAPTURE_DIR": str(folder)}
    said = subprocess.run(
        [python, str(folder / "program.py")],
        env={**os.environ, "PYTHONPATH": folders, **lines},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr == ""
    [file] = folder.glob("lines-*")
    rows = file.read_text().splitlines()
    numbers = {row.split()[1]: row.split()[2] for row in rows if row.startswith("d ")}
    facts = []
    for row in rows:
        kind, name, line, *rest = row.split()
        if kind in "gc":
            facts.append(" ".join([kind, name, numbers.get(line, line), *rest]))
    return facts, said.stdout


def test_collections_are_told_with_the_line_that_they_begin_at(tmp_path: Path) -> None:
    facts, _ = written(tmp_path, PROGRAM)
    collections = [row.split() for row in facts if row.startswith("g 2 ")]
    assert {row[2] for row in collections} == {"11"}
    assert sum(int(row[3]) for row in collections) == 3
    for *_, count, total_ns, longest_ns, _objects in collections:
        assert int(total_ns) / int(count) <= int(longest_ns) <= int(total_ns)


def added(facts: list[str]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Calls and bytes, by call, line and shape."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in facts:
        kind, call, line, count, size, shape = row.split() if row.startswith("c ") else [""] * 6
        if kind:
            before = sums.get((call, line, shape), (0, 0))
            sums[call, line, shape] = before[0] + int(count), before[1] + int(size)
    return sums


@pytest.fixture(scope="session")
def python() -> str:
    """One that reports calls (sys.monitoring, 3.12), else another than that of the tests."""
    own = sys.executable if hasattr(sys, "monitoring") else None
    found = own or python_of("3.13") or python_of("3.12")
    if found is None:
        pytest.skip("no Python 3.12 or later")
    return found


LOADER = """
import functools, time, torch
class Frames:
    def __init__(self):
        vars(self)["transform"] = functools.partial(crop, 7)
    def __getattribute__(self, name):
        if name == "__dict__":
            return object.__getattribute__(self, name)
        raise SystemExit(name)  # no code of the program is called for it
    def __getitem__(self, index):
        return index
class Collate:
    def __call__(self, rows):
        return rows
def crop(size, frame):
    return frame
class Subset:
    def __init__(self):
        self.dataset = Frames()
LIBRARY = '''
class Iterator:
    def __init__(self, dataset, collate):
        self._dataset, self._collate_fn, self._num_workers = dataset, collate, 4
    def _next_data(self):
        wait()
'''
def wait():
{WAIT}
names = {{"wait": wait}}
exec(compile(LIBRARY, "/x/site-packages/torch/utils/data/dataloader.py", "exec"), names)
names["Iterator"](Subset(), Collate())._next_data()
"""


def test_a_loader_that_is_waited_for_tells_which_lines_make_its_samples(tmp_path: Path) -> None:
    wait = "\n".join(f"    {line}" for line in WAIT_FOR_READINGS.strip().splitlines())
    facts, _ = written(tmp_path, LOADER.format(WAIT=wait))
    assert added(facts) == {("loader.samples", line, "-"): (1, 4) for line in ("10", "13", "15")}


def test_calls_that_copy_and_wait_are_counted_by_line(python: str, tmp_path: Path) -> None:
    facts, _ = written(tmp_path, PROGRAM, python=python)
    assert added(facts) == {
        ("to", "6", "4x3:float32:cpu"): (15, 720),
        ("float", "7", "4x3:float32:cpu"): (15, 720),
        ("gc.collect", "11", "-"): (3, 0),
        ("item", "12", "4x3:float32:cpu"): (1, 48),
    }


def test_a_compiler_that_would_trace_the_callbacks_is_left_alone(
    python: str, tmp_path: Path
) -> None:
    facts, said = written(
        tmp_path,
        f"{PROGRAM}\nprint([sys.monitoring.get_tool(number) for number in range(6)])",
        version="2.8.0",
        python=python,
    )
    assert added(facts) == {}
    assert said == f"{[None] * 6}\n"


def test_a_profiler_of_the_programs_own_keeps_its_number(python: str, tmp_path: Path) -> None:
    program = f"""
import sys
for number in (3, 4):
    sys.monitoring.use_tool_id(number, "mine")
import time, torch
{WAIT_FOR_READINGS}
print([sys.monitoring.get_tool(number) for number in (3, 4)])
import gc; gc.collect()
{WAIT_FOR_READINGS}
"""
    facts, said = written(tmp_path, program, python=python)
    assert said == "['mine', 'mine']\n"
    assert added(facts) == {}


def test_padding_of_texts_is_counted_where_they_are_copied(python: str, tmp_path: Path) -> None:
    if subprocess.call([python, "-c", "import numpy"], stderr=subprocess.DEVNULL):
        pytest.skip("no NumPy there")
    program = f"""
import time
import numpy, torch
class Ids(torch.Tensor):
    dtype = "torch.int64"
    def __init__(self, rows):
        self.rows = numpy.asarray(rows)
        self.shape, self.nbytes = self.rows.shape, self.rows.nbytes
    def __getitem__(self, part):
        return Ids(self.rows[part])
    def numpy(self):
        return self.rows
    is_cuda = False
texts = numpy.full((8, 64), 3)
for row, length in enumerate(range(10, 18)):
    texts[row, :length] = numpy.arange(length) + 300
left, masks = texts[:, ::-1], numpy.minimum(texts, 255)
pages = numpy.where(texts == 3, 0, 64 * numpy.arange(8)[:, None] + texts)
Ids(texts).to("cuda")
Ids(left).to("cuda")
Ids(masks).to("cuda")
Ids(pages).to("cuda")
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    seen = [row.split() for row in facts if row.startswith("c tokens.")]
    lines: dict[str, list[tuple[str, int]]] = {}
    for row in seen:
        lines.setdefault(row[2], []).append((row[1], int(row[4])))
    padded = 8 * 64 - sum(range(10, 18))
    assert [*lines.values()] == 2 * [[("tokens.all", 8 * 64), ("tokens.padding", padded)]]


def test_a_tensor_that_a_line_copies_again_unchanged_is_told(python: str, tmp_path: Path) -> None:
    """Not one that is written to in between, also by NumPy, a new one each time, or a small one."""
    program = f"""
import time
import torch
class Table(torch.Tensor):
    nbytes, _version, values = 1 << 20, 0, [1, 2, 3]
    is_contiguous = detach = lambda self: self
    def view(self, _): return self
    def __len__(self): return 3
    def __getitem__(self, part): return self
    def tolist(self): return self.values
table, written, small, others = Table(), Table(), Table(), Table()
small.nbytes = 100
def some():
    for turn in range(5):
        table.to("cuda")
        written.to("cuda"); written._version += 1
        Table().to("cuda")
        small.to("cuda")
        others.to("cuda")
some()
{WAIT_FOR_READINGS}
others.values = [4]
some()
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    again = {key[1]: sums for key, sums in added(facts).items() if key[0] == "copied.again"}
    assert again == {"15": (9, 9 << 20), "19": (4, 4 << 20)}


def test_a_function_that_is_given_the_very_same_again_is_told(python: str, tmp_path: Path) -> None:
    """Not one whose tensor is written to, is another view, small, or has the type already."""
    program = f"""
import time
import torch
class Matrix(torch.Tensor):
    nbytes, _version, _base, is_cuda, at = 1 << 20, 0, None, True, 7
    def is_inference(self): return False
    def data_ptr(self): return self.at
kept, written, small, base = Matrix(), Matrix(), Matrix(), Matrix()
small.nbytes = 100
def some():
    for turn in range(12):
        torch.linalg.inv(kept)
        torch.linalg.inv(written); written._version += 1
        torch.linalg.inv(small)
        torch.linalg.inv(Matrix())
        kept.float()
        view, other = Matrix(), Matrix()
        view._base = other._base = base
        other.at = turn
        torch.linalg.inv(view)
        torch.linalg.inv(other)
some()
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    again = {key[:2]: sums for key, sums in added(facts).items() if key[0].startswith("again.")}
    assert again == {
        ("again.torch.linalg.inv", "12"): (11, 11 << 20),
        ("again.torch.linalg.inv", "20"): (11, 11 << 20),
    }


def test_what_torch_is_set_to_is_looked_at(python: str, tmp_path: Path) -> None:
    program = f"""
import time
import torch
from collections import Counter
from types import SimpleNamespace as Names
import sys
torch.backends = Names(cudnn=Names(enabled=False), cuda=Names(
    flash_sdp_enabled=lambda: False, mem_efficient_sdp_enabled=lambda: True))
sys.modules["torch._dynamo.utils"] = Names(counters={{"graph_break": Counter(item=3, print=1)}})
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    counted = {call: count for (call, *_), (count, _) in added(facts).items()}
    # It has no such profiler, which says nothing.
    assert counted == {"setting.looks": 1, "setting.cudnn.off": 1, "compiler.breaks": 4}


TEXTS = """
import os, time, types
from pathlib import Path
import torch
class Ids(torch.Tensor):
    dtype, rows = "torch.int64", []
    def __init__(self, rows): self.rows, self.shape = rows, (len(rows), len(rows[0]))
    def is_floating_point(self): return False
    def detach(self): return self
    def __getitem__(self, part): return Ids(self.rows[part])
    def copy_(self, other, non_blocking): self.rows = other.rows
    def tolist(self): return self.rows
class Module:
    def _call_impl(self, *args, **kwargs): return self.forward(*args, **kwargs)
    def parameters(self): return iter(())
class Embedding(Module):
    def forward(self, ids): return torch.Tensor()
kinds = types.SimpleNamespace(conv=types.SimpleNamespace(_ConvNd=type(None)))
torch.nn = types.SimpleNamespace(Module=Module, Linear=type(None), Embedding=Embedding,
    MultiheadAttention=type(None), modules=kinds)
torch.is_grad_enabled = lambda: False
torch._C = types.SimpleNamespace(_len_torch_dispatch_stack=lambda: 0)
torch.empty = lambda shape, **options: Ids([[0] * shape[1]] * shape[0])
embedding = Embedding()
[file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
turn = 0
while "beginning.all" not in file.read_text():
    turn += 1
    prompt = {prompt}
    embedding._call_impl(Ids([prompt + [100 + turn * 8 + row] * 20 for row in range(8)]))
    time.sleep(0.001)
"""


@pytest.mark.parametrize(
    ("prompt", "shared"),
    [
        ("[*range(80)]", 80),
        ("[7] * 80", 0),  # padding
        ("[turn] + [*range(79)]", 0),  # another one for each batch
    ],
)
def test_the_beginning_that_all_texts_share_is_told(
    python: str, tmp_path: Path, prompt: str, shared: int
) -> None:
    facts, _ = written(tmp_path, TEXTS.format(prompt=prompt), python=python)
    sums = {key[0]: size for key, (_, size) in added(facts).items()}
    assert sums["beginning.all"] % 100 == 0 < sums["beginning.all"]
    assert sums["beginning.shared"] / sums["beginning.all"] == shared / 100


LAYERS = """
import os, sys, time, types
from pathlib import Path
import torch
class Tensor(torch.Tensor):
    _version = 0
    requires_grad = True
    def numel(self): return 4_000_000
class Module:
    def __init__(self): self.weight = Tensor(); self.weight.shape = (3, 4)
    def parameters(self): return iter([self.weight])
    def _call_impl(self, *args, **kwargs):
        return self.forward(*args, **kwargs)
class Linear(Module):
    def forward(self, given): return Tensor()
class Block(Module):
    def __init__(self): super().__init__(); self.keys, self.out = Linear(), Linear()
    def forward(self, given, memory):
        self.keys._call_impl(memory)
        return self.out._call_impl(given)
class MultiheadAttention(Module):
    def forward(self, given): return given, self.weight
convolutions = types.SimpleNamespace(conv=types.SimpleNamespace(_ConvNd=type(None)))
torch.nn = types.SimpleNamespace(Module=Module, Linear=Linear,
    MultiheadAttention=MultiheadAttention, modules=convolutions)
torch.is_grad_enabled = lambda: False
block, memory, attention = Block(), Tensor(), MultiheadAttention()
[file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
def known(): return {known}
turn = 0
while not known():
    turn += 1
    if {renewed} and turn % 20 == 0: memory = Tensor()
    if {written}: memory._version += 1
    block._call_impl({given}, memory)
    attention._call_impl(Tensor())
    time.sleep(0.0001)
"""


@pytest.mark.parametrize(
    ("given", "renewed", "is_written", "is_found"),
    [
        ("Tensor()", True, False, True),
        ("Tensor()", True, True, False),
        ("Tensor()", False, False, False),  # one for the whole run: a constant
    ],
)
def test_layers_that_are_given_the_same_again_are_told_with_their_line(
    python: str, tmp_path: Path, given: str, renewed: bool, is_written: bool, is_found: bool
) -> None:
    known = (
        '"layers.repeated" in file.read_text()'
        if is_found
        else 'sum(row.startswith("s ") for row in file.read_text().splitlines()) >= 25'
    )
    program = LAYERS.format(known=known, renewed=renewed, written=is_written, given=given)
    facts, _ = written(tmp_path, program, python=python)
    sums = {call: size for (call, *_), (_, size) in added(facts).items()}
    [line] = {line for call, line, _ in added(facts) if call == "attention.weights"}
    assert program.splitlines()[int(line) - 1].strip() == "attention._call_impl(Tensor())"
    assert ("layers.repeated" in sums) is is_found
    if is_found:
        [line] = {line for call, line, _ in added(facts) if call == "layers.repeated"}
        assert program.splitlines()[int(line) - 1].strip() == "self.keys._call_impl(memory)"
        assert 0.4 < sums["layers.repeated"] / sums["layers.all"] < 0.5


@pytest.mark.parametrize(
    ("dropout", "second", "is_found"),
    [(0.0, True, True), (0.1, True, False), (0.1, False, True)],
)
def test_a_second_forward_pass_of_a_batch_is_told_unless_dropout_makes_it_another(
    python: str, tmp_path: Path, dropout: float, second: bool, is_found: bool
) -> None:
    """With gradients and without; each update writes to the weights."""
    known = (
        '"layers.repeated" in file.read_text()'
        if is_found
        else 'sum(row.startswith("s ") for row in file.read_text().splitlines()) >= 25'
    )
    program = f"""
{LAYERS.partition("class Block")[0]}
class Dropout(Module):
    training, p = True, {dropout}
class Net(Module):
    def __init__(self): super().__init__(); self.one, self.drop = Linear(), Dropout()
    def modules(self): return [self, self.one, self.drop]
    def forward(self, given): return self.one._call_impl(Tensor() if {dropout} else given)
Linear.modules = lambda self: [self]
kinds = types.SimpleNamespace(conv=types.SimpleNamespace(_ConvNd=type(None)),
                              dropout=types.SimpleNamespace(_DropoutNd=Dropout))
torch.nn = types.SimpleNamespace(Module=Module, Linear=Linear, MultiheadAttention=type(None),
                                 modules=kinds)
torch._C = types.SimpleNamespace(_current_graph_task_id=lambda: -1)
net, graded = Net(), True
torch.is_grad_enabled = lambda: graded
[file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
while not {known}:
    batch, graded = Tensor(), True
    net._call_impl(batch)
    graded = {second}
    net._call_impl(batch)  # the second one
    net.weight._version += 1
    net.one.weight._version += 1
    time.sleep(0.0001)
"""
    facts, _ = written(tmp_path, program, python=python)
    again = {line: size for (call, line, _), (_, size) in added(facts).items()
             if call == "layers.repeated"}  # fmt: skip
    assert len({line for call, line, _ in added(facts) if call == "forward.graded"}) == 1 + second
    lines = [program.splitlines()[int(line) - 1] for line in again]
    assert lines == is_found * ["    net._call_impl(batch)  # the second one"]
    if is_found:
        whole = sum(size for (call, *_), (_, size) in added(facts).items() if call == "layers.all")
        assert sum(again.values()) / whole == pytest.approx(0.5 if second else 0.25, abs=0.03)


def attends(attend: Any, q: Any, mask: Any) -> None:
    attend(q, q, q, attn_mask=mask[..., :3])
    attend(q, q, q, mask)
    attend(q, q, q, is_causal=True)
    attend(q, q, q, attn_mask=mask.bias, dropout_p=0.0)
    attend(q, q, q)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="calls are not watched")
def test_calls_that_are_given_a_mask_are_known_by_their_arguments() -> None:
    called = [
        each.offset for each in dis.get_instructions(attends) if each.opname in ("CALL", "CALL_KW")
    ]
    masked = [python_facts._has_mask(attends.__code__, offset) for offset in called]
    assert masked == [True, True, False, True, False]


def test_what_a_function_deletes_after_a_look_at_it_is_gone() -> None:
    def attends() -> object:
        tensor = threading.Event()
        gone = weakref.ref(tensor)
        assert python_facts._variables(sys._getframe())["tensor"] is tensor
        del tensor
        return gone()

    assert attends() is None
    names: dict[str, Any] = {"look": python_facts._variables, "frame": sys._getframe, "mask": 1}
    exec("variables = look(frame())", names)
    assert (names["mask"], names["variables"]["mask"]) == (1, 1)


def test_no_event_is_asked_for_while_a_graph_is_recorded() -> None:
    """It would end the recording."""
    asked = []
    event = SimpleNamespace(query=lambda: asked.append(1))
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    site: list[Any] = [None, set(), 1, 0, None, (event, None, 1, 64)]
    python_facts.AttentionCalls()._see_mask(site, None, [], 64, SimpleNamespace(cuda=cuda))
    cuda.is_current_stream_capturing = lambda: False
    assert not asked
    python_facts.AttentionCalls()._see_mask(site, None, [], 64, SimpleNamespace(cuda=cuda))
    assert asked


def test_tensors_of_a_class_of_the_programs_own_are_asked_for_nothing() -> None:
    class Own:
        __torch_function__ = None

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    own = Own()
    assert python_facts._as_given("softmax", own) == ((), own)


@pytest.mark.parametrize("step", [1, 3])
def test_a_triangle_lets_what_comes_before(step: int) -> None:
    rows = [[column <= row for column in range(12)] for row in range(0, 12, step)]
    barred = [[0.0 if let else float("-inf") for let in row] for row in rows]
    is_triangle = python_facts._is_triangle
    assert is_triangle(rows, step)
    assert is_triangle(barred, step)
    for other in ([[True] * 12] * len(rows), [[not let for let in row] for row in rows], rows[1:]):
        assert not is_triangle(other, step)


@pytest.mark.parametrize("image", ["Tensor()", "picture"])
def test_a_model_that_is_given_one_thing_all_the_time_is_told_beside_one_that_is_not(
    python: str, tmp_path: Path, image: str
) -> None:
    """As a text encoder whose prompts are the same for each batch; not in a benchmark."""
    known = (
        '"layers.repeated" in file.read_text()'
        if image == "Tensor()"
        else 'sum(row.startswith("s ") for row in file.read_text().splitlines()) >= 25'
    )
    program = f"""
{LAYERS.partition("class Block")[0]}
kinds = types.SimpleNamespace(conv=types.SimpleNamespace(_ConvNd=type(None)))
torch.nn = types.SimpleNamespace(Module=Module, Linear=Linear, MultiheadAttention=type(None),
                                 modules=kinds)
torch.is_grad_enabled = lambda: False
vision, text, prompts, picture = Linear(), Linear(), Tensor(), Tensor()
[file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
while not {known}:
    vision._call_impl({image})
    text._call_impl(prompts)  # constant
    time.sleep(0.0001)
"""
    facts, _ = written(tmp_path, program, python=python)
    sums = {call: size for (call, *_), (_, size) in added(facts).items()}
    assert ("layers.repeated" in sums) is (image == "Tensor()")
    if image == "Tensor()":
        [line] = {line for call, line, _ in added(facts) if call == "layers.repeated"}
        assert program.splitlines()[int(line) - 1].endswith("# constant")
        assert 0.4 < sums["layers.repeated"] / sums["layers.all"] < 0.6


@pytest.mark.parametrize("cached", [False, True])
def test_a_graph_convolution_that_keeps_nothing_of_the_same_is_told(
    python: str, tmp_path: Path, cached: bool
) -> None:
    """Its weights change with each update."""
    program = f"""
{LAYERS.partition("class Block")[0]}
class Convolution(Module):
    cached = {cached}
    def forward(self, features, edges): return Tensor()
kinds = types.SimpleNamespace(conv=types.SimpleNamespace(_ConvNd=type(None)))
torch.nn = types.SimpleNamespace(Module=Module, Linear=Linear, MultiheadAttention=type(None),
                                 modules=kinds)
torch._C = types.SimpleNamespace(_current_graph_task_id=lambda: -1)
torch.is_grad_enabled = lambda: True
convolution, features, edges = Convolution(), Tensor(), Tensor()
[file] = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("lines-*")
while sum(row.startswith("s ") for row in file.read_text().splitlines()) < 25:
    convolution._call_impl(features, edges)  # the same
    convolution._call_impl(Tensor(), edges)
    convolution._call_impl(features, edges)
    convolution.weight._version += 1
    time.sleep(0.0001)
"""
    facts, _ = written(tmp_path, program, python=python)
    lines = {int(line) for call, line, _ in added(facts) if call == "layers.uncached"}
    said = {program.splitlines()[line - 1].strip() for line in lines}
    assert said == (set() if cached else {"convolution._call_impl(features, edges)  # the same"})


def test_settings_for_debugging_are_told_and_where_a_loader_is_made(
    python: str, tmp_path: Path
) -> None:
    program = f"""
import os, sys, time, types
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
class DataLoader: pass
sys.modules["torch.utils.data"] = types.SimpleNamespace(DataLoader=DataLoader)
import torch
def load():
    return DataLoader()  # made here
load()
torch.is_anomaly_enabled = lambda: True
jax = sys.modules["jax"] = types.ModuleType("jax")
jax.config = types.SimpleNamespace(
    jax_debug_nans=False, jax_debug_infs=True, jax_disable_jit=False
)
def _malloc(size): pass
memory = types.SimpleNamespace(get_allocator=lambda: _malloc)
sys.modules["cupy"] = types.SimpleNamespace(cuda=memory)
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    told = {call for call, *_ in added(facts) if call.startswith("setting.")}
    assert told == {
        f"setting.{name}"
        for name in ("looks", "xla.platform", "jax.debug", "anomaly", "cupy.no.pool")
    }


def test_an_array_of_jax_never_changes_and_one_of_numpy_may(python: str, tmp_path: Path) -> None:
    program = f"""
import sys, time, types
numpy_, jax = types.ModuleType("jax.numpy"), types.ModuleType("jax")
linalg = types.ModuleType("jax.numpy.linalg")
linalg.inv = lambda matrix: matrix
jax.numpy, numpy_.linalg = numpy_, linalg
sys.modules.update({{"jax": jax, "jax.numpy": numpy_, "jax.numpy.linalg": linalg}})
import torch
class Array: nbytes = 1 << 20
class Other: nbytes = 1 << 20
Array.__module__ = "jaxlib._jax"
kept, other = Array(), Other()
def some():
    for turn in range(9):
        linalg.inv(kept)
        linalg.inv(other)
some()
{WAIT_FOR_READINGS}
"""
    facts, _ = written(tmp_path, program, python=python)
    again = {key[:2]: sums for key, sums in added(facts).items() if key[0].startswith("again.")}
    assert again == {("again.jax.numpy.linalg.inv", "15"): (8, 8 << 20)}
