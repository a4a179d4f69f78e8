"""Calls of cuBLAS and cuDNN as ranges: our real libraries before stand-ins for theirs, which a
program's own library is linked with, as torch's is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputui.inject.build import CALLS
from tests.inject.traced import run

NAMES = {"libcublas.so.13": "-DBLAS", "libcublasLt.so.13": "-DLT", "libcudnn.so.9": "-DDNN"}

PROGRAM = """
import ctypes, sys
import nvtx

nvtx.mark("here")
library = ctypes.CDLL(sys.argv[1])
status = (ctypes.c_int * 4)()
with nvtx.annotate("step"):
    library.products(status)
print(*status)
"""

STATUS = "14 118 101 14"
CALLED = [
    ("cuBLASLt", "cublasLtMatmul bf16 in tf32 TN 1024x512x256 of 3"),
    ("cuBLAS", "cublasSgemm_v2 fp32 NT 64x32x16"),
    ("cuBLAS", "cublasGemmStridedBatchedEx fp16 CN 8x4x2 of 12"),
    ("cuDNN", "cudnnBackendExecute"),
]


@pytest.fixture(scope="module")
def linked(compile_program) -> Path:
    """A library that is linked with stand-ins beside it."""
    libraries = [
        compile_program("fake_blas.c", name, "-shared", "-fPIC", which, f"-Wl,-soname,{name}")
        for name, which in NAMES.items()
    ]
    folder = libraries[0].parent
    return compile_program(
        "fake_blas.c", "linked.so", "-shared", "-fPIC", *map(str, libraries), f"-Wl,-rpath,{folder}"
    )


def called(linked, folder, **extra):
    command = [sys.executable, "-c", PROGRAM, str(linked)]
    outcome = run(command, folder, extra, step_marks=True)
    assert outcome.status == 0, outcome.output
    assert " ".join(outcome.words) == STATUS  # the library's own, whoever stands before it
    return [row for row in outcome.trace.ranges() if row[0] == "push"]


def test_calls_are_ranges_of_their_library_with_types_and_shapes(linked, tmp_path):
    pushes = called(linked, tmp_path, LD_PRELOAD=str(CALLS.path))
    assert [row[1:3] for row in pushes] == [
        ("step", ""),
        *((text, domain) for domain, text in CALLED),
    ]


def test_without_being_asked_nothing_stands_before_them(linked, tmp_path):
    assert [row[1] for row in called(linked, tmp_path)] == ["step"]


def test_a_program_without_the_libraries_is_told_that_they_are_not_there(tmp_path):
    text = """
import ctypes
print(ctypes.CDLL(None).cublasSgemm_v2(None, 0, 0, 1, 1, 1, *[None] * 8))
"""
    outcome = run([sys.executable, "-c", text], tmp_path, {"LD_PRELOAD": str(CALLS.path)})
    assert outcome.words == ["1"]
