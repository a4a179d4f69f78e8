"""Cures reach an unmodified program: real interpreters, with real torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import gputui.cures
from gputui.cures import EXACT, Application, Cure, answering, cures, replaced
from gputui.inject.environment import trial_environment
from gputui.model.leaves import LEAVES, Leaf
from gputui.trial.blocks import BlockReader

SAYS = """
import gc, sys
print("gc", gc.isenabled(), "gputui" in sys.modules)
import torch
print("precision", torch.get_float32_matmul_precision())
"""


def output(program: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout


def tried(folder: Path, names: tuple[str, ...], program: str) -> tuple[list[str], list[object]]:
    """What a program printed under cures, and what its process says of each."""
    environment = trial_environment(folder, os.environ, names, "")
    printed = output(program, environment)
    files = [file.read_text().splitlines() for file in folder.glob("cures-*")]
    return printed.splitlines(), [json.loads(line) for lines in files for line in lines]


def test_chosen_cures_are_applied_in_the_child_and_no_others(tmp_path: Path) -> None:
    assert tried(tmp_path, (), SAYS) == (["gc True False", "precision highest"], [])
    assert tried(tmp_path, ("tf32", "gc_off"), SAYS) == (
        ["gc False False", "precision high"],
        [{"cure": "gc_off", "applied": True}, {"cure": "tf32", "applied": True}],
    )


def test_a_cure_says_the_line_that_calls_what_it_is_about(tmp_path: Path) -> None:
    """The latest of few: what is in the loop, not what is before it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "torch.cuda.empty_cache()\n"
        "loader = DataLoader([1, 2])\n"
        "for _ in range(5):\n"
        "    torch.cuda.empty_cache()\n"
    )
    run = f"import runpy; runpy.run_path({str(program)!r})"
    _, rows = tried(tmp_path, ("empty_cache_idle", "loader_workers"), run)
    places = {row["cure"]: row["place"] for row in rows if "place" in row}
    assert places == {"empty_cache_idle": "program.py:6", "loader_workers": "program.py:4"}


def test_a_cure_that_cannot_be_applied_leaves_the_program_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class cuda:\n"
        "    is_initialized = staticmethod(lambda: True)\n"
        "    get_device_capability = staticmethod(lambda: (7, 0))\n"
        "get_float32_matmul_precision = lambda: 'highest'\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SAYS}"
    printed, rows = tried(tmp_path, ("tf32", "no_such"), program)
    assert printed == ["gc True False", "precision highest"]
    assert rows == [
        {"cure": "no_such", "applied": False, "why": "there is no such cure"},
        {"cure": "tf32", "applied": False, "why": "this GPU has no TF32"},
    ]


def test_a_cure_with_which_memory_runs_out_ends_unless_it_does_so_without(tmp_path: Path) -> None:
    """A program may catch that, and go on with less to do in a step."""
    ooms = [0]
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda _device: {"num_ooms": ooms[0]},
    )  # fmt: skip
    ended = []
    for number, has_them_without in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        application = Application((), str(folder), ("gc_freeze",))
        application.imported(None)
        application.imported("torch", types.SimpleNamespace(cuda=cuda))
        application.look()
        ooms[0] += has_them_without
        application.look()
        assert application.switch("gc_freeze", True)
        ooms[0] += 1
        application.look()
        application.switch("gc_freeze", False)
        rows = [
            json.loads(line)
            for file in folder.iterdir()
            for line in file.read_text().split("\n")[:-1]
        ]
        ended.append([row["why"] for row in rows if row.get("ended")])
    assert ended == [["a GPU's memory runs out with it"], []]


def test_a_cure_that_ends_below_another_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has put in the place of a function is what the next one found there."""

    class Lower(Cure):
        name, library, result = "lower", None, EXACT

        def apply(self, _library: object) -> Callable[[], None]:
            called = module.called
            return replaced((module, "called", lambda: called() + self.name))

    class Upper(Lower):
        name = "upper"

    module = types.SimpleNamespace(called=lambda: "")
    monkeypatch.setattr(gputui.cures, "cures", lambda: {"lower": Lower, "upper": Upper})
    application = Application((), str(tmp_path), ("lower", "upper"))
    application.imported(None)
    assert application.switch("lower", True)
    assert application.switch("upper", True)
    assert module.called() == "lowerupper"
    monkeypatch.setattr(
        Lower, "look", lambda self: self.end("wrong") if type(self) is Lower else None
    )
    application.look()
    assert application.switch("upper", True)
    assert module.called() == "upper"
    application.switch("upper", False)
    assert module.called() == ""


def test_a_cure_that_fails_when_it_goes_on_again_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: else more of its blocks are waited for."""

    class Once(Cure):
        name, library, result = "once", None, EXACT

        def apply(self, _library: object) -> Callable[[], None]:
            if calls:
                raise RuntimeError("it is not here any more")
            calls.append(1)
            return lambda: None

    calls: list[int] = []
    monkeypatch.setattr(gputui.cures, "cures", lambda: {"once": Once})
    application = Application((), str(tmp_path), ("once",))
    application.imported(None)
    assert application.switch("once", True)
    assert application.switch("once", False)
    assert not application.switch("once", True)
    reader = BlockReader(tmp_path)
    reader.poll()
    assert reader.not_applied == {"once": "RuntimeError: it is not here any more"}


def test_an_attribute_that_was_none_is_none_again() -> None:
    class Base:
        inherited = 1

    class Owner(Base):
        own = None

    undo = replaced((Owner, "own", 2), (Owner, "inherited", 3), (Owner, "missing", 4))
    assert (Owner.own, Owner.inherited) == (2, 3)
    undo()
    assert (Owner.own, Owner.inherited) == (None, 1)
    assert {*vars(Owner)} & {"own", "inherited", "missing"} == {"own"}


EACH_CURE = Path(__file__).with_name("programs") / "each_cure.py"
"""Switches every cure on and off and looks at what it changes."""


def test_every_cure_acts_in_a_real_interpreter_and_is_undone(tmp_path: Path) -> None:
    """numa_affinity without a GPU says so; what the driver does without CUDA_LAUNCH_BLOCKING needs
    one."""
    environment = {**os.environ, "GPUTUI_ROOT": str(Path(gputui.__file__).parents[1])}
    printed = subprocess.run(
        [sys.executable, str(EACH_CURE)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    outcomes = json.loads(printed.stdout.splitlines()[-1])
    assert outcomes == dict.fromkeys(cures(), "acts, undone")


def test_a_cure_says_what_it_answers() -> None:
    simt = [cure.name for cure in answering(LEAVES[Leaf.MATMUL_SIMT].key)]
    assert "tf32" in simt
    assert simt[-2:] == ["bf16_autocast", "bf16_weights"]  # they change results most
    assert answering("no such finding") == []
    classes = {
        gputui.cures.EXACT,
        gputui.cures.ROUNDING,
        gputui.cures.DIFFERENT,
        gputui.cures.BOUND,
    }
    for name, cure in cures().items():
        assert name == cure.name
        assert cure.result in classes
        assert all((cure.answers, cure.change, cure.title))


def test_cures_answer_findings_that_there_are() -> None:
    explained = "".join(
        path.read_text() for path in (Path(gputui.__file__).parent / "report" / "explain").glob("*")
        if path.suffix == ".py"
    )  # fmt: skip
    known = {meaning.key for meaning in LEAVES.values()} | {gputui.cures.ANY}
    for cure in cures().values():
        for key in cure.answers:
            assert key in known or f'"{key}"' in explained, (cure.name, key)


NESTED = """
import sys
sys.path.insert(0, {root!r})
from gputui.cures import cures

def make():
    number = 0

    def counted(step=1, *, more=0):
        nonlocal number
        number += step + more
        return number

    def twice(): return counted(more=1), counted(2)

    return twice

twice = make()
print(*twice())
undo = cures()["skip"]("nested.py:counted").apply(None)
print(*twice(), *twice())
undo()
print(*twice())
"""


@pytest.mark.parametrize("version", ["", "3.8", "3.10", "3.12", "3.13"])
def test_a_function_within_another_is_skipped_and_is_itself_again(
    tmp_path: Path, version: str
) -> None:
    python = sys.executable if not version else shutil.which(f"python{version}")
    if python is None or subprocess.call([python, "-c", ""], stderr=subprocess.DEVNULL):
        pytest.skip(f"no Python {version}")
    program = tmp_path / "nested.py"
    program.write_text(NESTED.format(root=str(Path(gputui.__file__).parents[1])))
    printed = subprocess.run([python, str(program)], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == ["2 4", "6 6 6 6", "8 10"]


def test_tensors_are_made_where_the_program_says_under_cures(tmp_path: Path) -> None:
    """With functions of torch replaced, `with torch.device` still reaches each of them."""
    program = """if 1:
        import torch
        with torch.device("meta"):
            made = [
                torch.zeros(2), torch.ones(2), torch.full((2,), 1.0), torch.eye(2), torch.empty(2),
                torch.tensor([1.0]), torch.as_tensor([1.0]), torch.arange(2),
                torch.nn.Linear(2, 2).bias,
            ]
        print({each.device.type for each in made})
    """
    switched = [name for name, cure in cures().items() if cure.in_one_run and not cure.argument]
    environment = trial_environment(tmp_path, os.environ, (), json.dumps({"cures": switched}))
    assert output(program, environment) == "{'meta'}\n"
