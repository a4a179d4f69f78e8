"""How a child is given the library, and what is said when it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gputui
from gputui.inject import environment
from gputui.inject.build import Library
from gputui.inject.environment import LOCK_NAME, capture_environment, create_capture_folder

NSYS = "/opt/nvidia/nsight-systems/2025.5.1/target-linux-x64/libToolsInjection64.so"
NCU = "/opt/nvidia/nsight-compute/2025.3/target/libInjection.so"


def test_both_variables_name_the_library(library, tmp_path):
    made, problem = capture_environment(tmp_path, True, {"HOME": "/h"})
    assert problem == (None, None)
    assert made["CUDA_INJECTION64_PATH"] == made["NVTX_INJECTION64_PATH"] == str(library)
    assert made["GPUTUI_CAPTURE_DIR"] == str(tmp_path)
    assert made["GPUTUI_CAPTURE_KERNELS"] == "1"
    assert made["HOME"] == "/h"


def test_without_kernels_cuda_is_left_alone(library, tmp_path):
    made, problem = capture_environment(tmp_path, False, {"CUDA_INJECTION64_PATH": str(library)})
    assert problem == (None, None)
    assert "CUDA_INJECTION64_PATH" not in made
    assert made["NVTX_INJECTION64_PATH"] == str(library)
    made, problem = capture_environment(tmp_path, False, {"CUDA_INJECTION64_PATH": NSYS})
    assert problem == (None, None)
    assert made["CUDA_INJECTION64_PATH"] == NSYS


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("taken", "parts"),
    [
        ({"CUDA_INJECTION64_PATH": NSYS}, ["CUDA_INJECTION64_PATH", "nsys", "no kernels"]),
        ({"NVTX_INJECTION64_PATH": NCU}, ["NVTX_INJECTION64_PATH", "ncu", "no phases"]),
        ({"NVTX_INJECTION64_PATH": "/lib/libcupti.so.13"}, ["CUPTI", "no phases"]),
        ({"NVTX_INJECTION64_PATH": "./."}, ["a setting that disables tools"]),
        ({"CUDA_INJECTION64_PATH": "/x/lib\x1bodd.so"}, ["another tool (lib\ufffdodd.so)"]),
        (
            {"CUDA_INJECTION64_PATH": NSYS, "NVTX_INJECTION64_PATH": NSYS},
            ["no phases and no kernels: NVTX_INJECTION64_PATH and CUDA_INJECTION64_PATH are held"],
        ),
        ({"NVTX_DISABLE": "1"}, ["NVTX_DISABLE"]),
        ({"NVTX_INJECTION64_PATH": NCU}, ["no phases (kernels are captured): "]),
        ({"CUDA_INJECTION64_PATH": NSYS}, ["no kernels (phases are captured): "]),
        (
            {"CUDA_INJECTION64_PATH": NSYS, "NVTX_INJECTION64_PATH": NSYS},
            ["no phases and no kernels: "],
        ),
        ({"NSYS_PROFILING_SESSION_ID": "7"}, ["maybe no kernels: ", "nsys"]),
        (
            {"LD_PRELOAD": f"/usr/lib/libjemalloc.so.2:{NSYS}"},
            ["maybe no phases and no kernels: LD_PRELOAD loads Nsight Systems (nsys)"],
        ),
    ],
)
def test_what_another_tool_holds_stays_and_is_named(tmp_path, taken, parts):
    made, problem = capture_environment(tmp_path, True, taken)
    assert made.items() >= taken.items()
    # What is only feared is no fact: kernels may come all the same.
    is_feared = parts[0].startswith("maybe")
    known, feared = problem
    assert (known is None) is is_feared is (feared is not None)
    text = feared if is_feared else known
    assert "\n" not in text
    for part in parts:
        assert part in text


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("preloaded", ["libjemalloc.so.2", "/no/such.so", "/", "a:b c", "\udcff"])
def test_what_else_is_preloaded_is_nobodys_business(tmp_path, preloaded):
    assert capture_environment(tmp_path, True, {"LD_PRELOAD": preloaded})[1] == (None, None)


@pytest.mark.usefixtures("library")
def test_a_profiler_as_the_command_is_named(tmp_path):
    command = ["/opt/bin/nsys", "profile", "./a.out"]
    _, problem = capture_environment(tmp_path, True, {}, command=command)
    feared = "maybe no phases and no kernels: Nsight Systems (nsys) captures them itself"
    assert problem == (None, feared)


def test_a_library_that_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "LIBRARIES", [Library(tmp_path, "absent")])
    made, problem = capture_environment(tmp_path, True, {"A": "b"})
    assert made == {"A": "b"}
    assert "is not built" in problem.certain
    assert "-m gputui.inject.build" in problem.certain


@pytest.mark.usefixtures("library", "quick_compiler")
def test_a_library_of_other_sources_is_said_and_not_used(tmp_path):
    package = tmp_path / "gputui"
    shutil.copytree(
        Path(gputui.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "tui")
    )

    def ran(*words: str) -> str:
        there = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, *words]
        return subprocess.check_output(command, env=there, cwd=tmp_path, text=True)

    asked = (
        "import pathlib, gputui.inject.environment as e\n"
        "made, problem = e.capture_environment(pathlib.Path('x'), True, {'A': 'b'})\n"
        "print(problem.certain, made)\n"
        "import gputui.ring.reader as n\n"
        "try: print(n.ring_library())\n"
        "except n.RingError: print('refused')\n"
    )
    for changed in ("inject/src/layout.h", "ring/src/read.inc.c"):
        before = (package / changed).read_bytes()
        (package / changed).write_bytes(before + b"/* changed by an update */\n")
        said = ran("-c", asked)
        assert "from another version of gputui: run " in said
        assert "{'A': 'b'}" in said
        assert said.endswith("refused\n")
        if changed.startswith("inject"):
            (package / changed).write_bytes(before)
    ran("-m", "gputui.inject.build")
    said = ran("-c", asked)
    assert str(package / "ring") in said
    assert f"'NVTX_INJECTION64_PATH': '{package}" in said


def test_a_folder_is_private_and_goes_away():
    with create_capture_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "1-1.ring").write_bytes(b"x")
    assert not folder.exists()


def test_without_room_in_shared_memory_the_temporary_folder_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.tempfile, "gettempdir", lambda: str(tmp_path))
    with create_capture_folder(room_bytes=1 << 62) as folder:
        assert folder.parent == tmp_path


LEAVES_A_FOLDER = """
import os
from gputui.inject.environment import create_capture_folder
with create_capture_folder(1 << 62) as folder:
    print(folder, flush=True)
    {ending}
"""


def leave_folder(tmp_path, ending: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_A_FOLDER.format(ending=ending)],
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[0]


def test_the_end_of_the_interpreter_removes_the_folder_and_a_fork_does_not(tmp_path):
    left = leave_folder(tmp_path, "pid = os.fork()\n    if pid: os.waitpid(pid, 0); os._exit(0)")
    assert os.path.isdir(left)
    assert not os.path.exists(leave_folder(tmp_path, "raise SystemExit"))


def test_folders_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path, monkeypatch):
    dead = leave_folder(tmp_path, "os._exit(0)")
    assert os.path.isdir(dead)
    monkeypatch.setattr(environment.tempfile, "gettempdir", lambda: str(tmp_path))
    foreign = tmp_path / "gputui-notes"
    foreign.mkdir(mode=0o700)
    shared = tmp_path / "gputui-shared"
    shared.mkdir(mode=0o755)
    (shared / LOCK_NAME).touch()
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / LOCK_NAME).touch()
    (tmp_path / "gputui-link").symlink_to(target)
    with (
        create_capture_folder(room_bytes=1 << 62) as first,
        create_capture_folder(room_bytes=1 << 62) as second,
    ):
        assert not os.path.exists(dead)
        for path in (first, second, foreign, shared, target):
            assert path.is_dir()


def test_a_folder_that_is_being_made_is_not_taken_for_that_of_a_dead_one(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.tempfile, "gettempdir", lambda: str(tmp_path))
    lock = environment.fcntl.flock

    def another_starts(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            monkeypatch.setattr(environment.fcntl, "flock", lock)
            with create_capture_folder(room_bytes=1 << 62):
                pass
        lock(descriptor, how)

    monkeypatch.setattr(environment.fcntl, "flock", another_starts)
    with create_capture_folder(room_bytes=1 << 62) as folder:
        assert os.listdir(folder) == [LOCK_NAME]
        assert os.listdir(tmp_path) == [folder.name]


KILLED_AT_EACH_MOMENT = """
import os, sys, tempfile
from gputui.inject.environment import create_capture_folder

calls = {"os.mkdir", "open", "fcntl.flock", "os.listdir", "os.remove", "os.rmdir", "os.scandir"}

def lives(moment):
    def audit(event, _arguments):
        nonlocal moment
        moment -= event in calls
        if moment == 0:
            os._exit(1)
    sys.addaudithook(audit)
    with create_capture_folder(1 << 62) as folder:
        os.mkdir(folder / "annotated")
        (folder / "1-1.ring").touch()
    os._exit(0)

moment, there = 0, tempfile.gettempdir()
while True:
    moment += 1
    child = os.fork()
    if child == 0:
        lives(moment)
    status = os.waitpid(child, 0)[1]
    with create_capture_folder(1 << 62) as folder:
        assert os.listdir(there) == [folder.name], (moment, os.listdir(there))
    if status == 0:
        break
print(moment)
"""


def test_whoever_is_killed_at_any_moment_leaves_what_the_next_one_removes(tmp_path):
    there = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED_AT_EACH_MOMENT]
    done = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    assert os.listdir(tmp_path) == []
