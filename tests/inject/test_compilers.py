"""The libraries under sanitizers, on another processor, with larger pages, and with musl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gputui.inject.build import CAPTURE, INJECTOR, RING, build
from gputui.ring import CudaState, RecordKind
from tests.inject.conftest import PROGRAMS
from tests.inject.traced import Outcome, run

pytestmark = pytest.mark.usefixtures("library")

WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiled(folder: Path, compiler: str, *flags: str) -> tuple[Path, Path]:
    """The capture library and the program that calls it."""
    library, program = folder / "capture.so", folder / "program"
    assert build(CAPTURE, library, *flags) == library
    command = [compiler, "-O1", "-w", str(PROGRAMS / "nvtx_program.c"), "-o", str(program), *flags]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return library, program


def run_with(
    library: Path, command: list[str], folder: Path, *, kernels: bool = False, **extra: str
) -> Outcome:
    entries = {"NVTX_INJECTION64_PATH": str(library), "CUDA_INJECTION64_PATH": str(library)}
    outcome = run(command, folder, entries | extra, kernels=kernels, drain=False)
    assert outcome.status == 0, outcome.output
    assert "anitizer" not in outcome.output
    assert outcome.problems == []
    return outcome


def sanitized(tmp_path_factory, kind: str) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sanitized")
    # Compiled without optimisation: three times as fast, and nothing wrong is optimised away.
    flags = ("-g", "-O0", f"-fsanitize={kind}", "-fno-sanitize-recover=all")
    probe = ["cc", "-x", "c", "-", "-o", str(folder / "probe"), *flags]
    program = "int main(void) { return 0; }"
    if subprocess.run(probe, input=program, text=True, capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler has no {kind} sanitizer")
    if subprocess.run([folder / "probe"], capture_output=True, check=False).returncode:
        pytest.skip(f"the {kind} sanitizer does not run here")
    return compiled(folder, "cc", *flags)


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> tuple[Path, Path]:
    return sanitized(tmp_path_factory, "address,undefined")


@pytest.fixture(scope="module")
def raced(tmp_path_factory) -> tuple[Path, Path]:
    return sanitized(tmp_path_factory, "thread")


@pytest.fixture(scope="module")
def cuda(compile_program) -> dict[str, str]:
    cupti = compile_program("fake_cupti.c", "libcupti.so.13", "-shared", "-fPIC").parent
    driver = compile_program(
        "fake_driver.c", "driver.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"
    )
    return {
        "GPUTUI_CUPTI_PATH": str(cupti),
        "GPUTUI_TEST_DRIVER": str(driver),
        "GPUTUI_RING_BYTES": str(1 << 16),
        "ASAN_OPTIONS": "detect_leaks=0",  # what is known of strings is kept for good
        "TSAN_OPTIONS": "die_after_fork=0",
    }


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("nesting", 0), ("strings", 0), ("attributes", 0), ("named-threads", 0), ("schemas", 0),
        ("deferred", 0), ("operators", 0), ("start-end", 0), ("threads", 200), ("names", 4000),
        ("forks", 0), ("domains", 0), ("short-threads", 50), ("signals", 500), ("resources", 0),
        ("forks-into-cuda", 5), ("steps-in-signals", 200),
    ],
)  # fmt: skip
def test_no_address_is_wrong_and_nothing_undefined(checked, cuda, tmp_path, part, count):
    library, program = checked
    extra = cuda | {"GPUTUI_TRACE_SAMPLING": "steps 1 2 step"}
    command = [str(program), part, str(count)]
    traces = run_with(library, command, tmp_path, kernels=True, **extra).traces
    assert len(traces) == 1 + (count if part == "forks-into-cuda" else 0)
    assert all(trace.exited for trace in traces[1:])


@pytest.mark.parametrize(("part", "count"), [("threads", 200), ("short-threads", 50)])
def test_threads_do_not_race(raced, cuda, tmp_path, part, count):
    library, program = raced
    trace = run_with(library, [str(program), part, str(count)], tmp_path, **cuda).trace
    assert trace.facts.cuda_state == CudaState.OFF
    assert len(trace.of(RecordKind.RANGE_PUSH)) > 0


@pytest.fixture(scope="module", params=["aarch64-linux-gnu-gcc", "musl-gcc"])
def foreign(request, tmp_path_factory) -> tuple[Path, Path]:
    compiler = request.param
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    folder = tmp_path_factory.mktemp("foreign")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        for other in (RING, INJECTOR):
            assert not isinstance(build(other, folder / other.stem, "-O1", *WARNINGS), str)
        return compiled(folder, compiler, "-O1", *WARNINGS)


@pytest.mark.parametrize("page_bytes", [4096, 65536])
def test_elsewhere_the_same_records_arrive(foreign, nvtx_program, tmp_path, request, page_bytes):
    library, program = foreign
    command = [str(program), "nesting"]
    if "aarch64" in request.node.callspec.params["foreign"]:
        machine = "qemu-aarch64"
        if not shutil.which(machine):
            pytest.skip(f"compiled for aarch64, but no {machine} to run it")
        command = [machine, "-p", str(page_bytes), "-L", "/usr/aarch64-linux-gnu", *command]
    rings, native = tmp_path / "rings", tmp_path / "native"
    rings.mkdir()
    native.mkdir()
    there = run_with(library, command, rings)
    here = run([nvtx_program, "nesting"], native)
    assert there.words == here.words
    assert there.trace.ranges() == here.trace.ranges() != []
