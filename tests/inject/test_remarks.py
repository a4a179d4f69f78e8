"""What gputui says of a capture that did not come to what was asked: real runs around programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.inject.recorded import recorded

CHILD = Path(__file__).with_name("cuda_child.py")


@pytest.fixture(scope="module")
def cupti(compile_program) -> Path:
    return compile_program("fake_cupti.c", "libcupti.so.13", "-shared", "-fPIC").parent


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("step", []),
        (
            "stepp",
            [
                "--trace-steps: no range named stepp occurred: kernels were traced all the time; "
                "ranges there were: step"
            ],
        ),
    ],
)
def test_a_step_that_never_occurs_traces_all_and_is_said(cupti, tmp_path, step, said):
    flags = ["--trace-steps", f"2/3:{step}"]
    child = [sys.executable, str(CHILD), str(cupti), "steps"]
    told, document = recorded(tmp_path, flags, *child, GPUTUI_CUPTI_PATH=str(cupti))
    assert document["run"]["remarks"] == said
    partly = document["overhead"]["kernels_traced_percent"] < 100
    assert partly == (not said)
    for line in said:
        assert f"gputui: {line}\n" in told  # as it goes
    assert bool(said) == ("--trace-steps" in told)


NOTHING = "--annotate: nothing to annotate: no Python process of the run imported torch"
MARK = "import nvtx; nvtx.mark('here')"
IGNORES = "import sys; sys.path.insert(0, sys.argv[1]); import torch; " + MARK


def test_a_run_that_has_nothing_to_annotate_is_told_from_one_that_has(nvtx_program, tmp_path):
    (tmp_path / "torch.py").touch()  # that there is one is all that the hook asks for
    python = [sys.executable, "-I", "-c", IGNORES, str(tmp_path)]
    # One that ignores PYTHONPATH, one without torch, and one that is not Python.
    shell = ["sh", "-c", f'"$@" && "$1" -c "{MARK}" && "$0" nesting', nvtx_program, *python]
    told, document = recorded(tmp_path, ["--annotate", "modules"], *shell)
    (line,) = document["run"]["remarks"]
    assert line.startswith(NOTHING)
    assert f"gputui: {line}\n" in told
    assert {phase["path"] for phase in document["phases"]} >= {"outer", "outer/inner", "again"}
    assert len(document["run"]["processes"]) == 3


MARKED = "import nvtx\nwith nvtx.annotate('a'): pass"
OTHER = "/opt/other/libtool.so"


@pytest.mark.parametrize(
    ("extra", "said", "phases"),
    [
        ({"NVTX_INJECTION64_PATH": OTHER}, "no phases (kernels are captured): NVTX_INJEC", []),
        ({"CUDA_INJECTION64_PATH": OTHER}, "no kernels (phases are captured): CUDA_INJEC", ["a"]),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, "maybe no kernels: NSYS_ variables", ["a"]),
    ],
)
def test_another_tool_is_named_in_one_line_and_the_rest_goes_on(tmp_path, extra, said, phases):
    told, document = recorded(tmp_path, [], sys.executable, "-c", MARKED, **extra)
    (line,) = document["run"]["remarks"]
    assert line.startswith(f"not captured: {said}")
    assert told.count(f"gputui: {line}\n") == 1
    assert [phase["path"] for phase in document["phases"]] == phases


def test_a_tool_that_is_preloaded_is_named_as_what_may_be_in_the_way(compile_program, tmp_path):
    tool = str(compile_program("preloaded.c", "libpreloaded.so", "-shared", "-fPIC"))
    told, document = recorded(tmp_path, [], sys.executable, "-c", MARKED, LD_PRELOAD=tool)
    (line,) = document["run"]["remarks"]
    assert line == (
        "not captured: maybe no phases and no kernels: LD_PRELOAD loads another tool "
        "(libpreloaded.so)"
    )
    assert told.count(f"gputui: {line}\n") == 1
    assert document["phases"] == []


@pytest.mark.parametrize(("count", "who"), [(1, "1 process"), (2, "2 processes")])
def test_rings_that_a_limit_of_file_sizes_forbids_are_counted(tmp_path, count, who):
    child = f"{sys.executable} -c \"import nvtx; nvtx.mark('a')\";"
    # Python before 3.12.8 leaves compiled modules cut off at the limit, for all that follow.
    command = ["env", "PYTHONDONTWRITEBYTECODE=1", "sh", "-c", f"ulimit -f 0; {child * count}"]
    told, document = recorded(tmp_path, [], *command)
    why = "no place for records: file too large: raise ulimit -f"
    assert document["run"]["remarks"] == [f"not captured: no phases and no kernels of {who}: {why}"]
    assert f": {why}\n" in told


def test_a_ring_that_finds_no_room_is_said(compile_program, tmp_path):
    full = str(compile_program("full_disk.c", "full_disk.so", "-shared", "-fPIC"))
    command = ["env", f"LD_PRELOAD={full}", sys.executable, "-c", MARKED]
    told, document = recorded(tmp_path, [], *command)
    (line,) = document["run"]["remarks"]
    reason, _, folder = line.rpartition(" ")
    assert reason == (
        "not captured: no phases and no kernels of 1 process: no place for records: "
        "no space left on device: make room in"
    )
    assert Path(folder).is_dir()
    assert f"gputui: {line}\n" in told
