"""The C library and gputui/ring describe the same ring."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

from gputui import ring
from gputui.inject.build import CALLS, CAPTURE, RING, Library, build
from gputui.inject.target import LAYOUT_VERSION
from gputui.model.events import PayloadType
from gputui.ring.reader import FUNCTIONS


@pytest.fixture(scope="module")
def described() -> dict[str, str]:
    out = ctypes.create_string_buffer(16384)
    loaded = ctypes.CDLL(str(RING.path))
    assert loaded.gputui_layout(out, ctypes.c_uint64(len(out))) > 0
    return dict(line.split("=") for line in out.value.decode().splitlines())


@pytest.mark.parametrize(("struct", "dtype"), [("Slot", ring.SLOT), ("Header", ring.HEADER)])
def test_fields_stand_where_python_reads_them(described, struct, dtype):
    in_c = {name: where for name, where in described.items() if name.startswith(struct + ".")}
    in_python = {
        f"{struct}.{name}": f"{field[1]},{field[0].itemsize}"
        for name, field in dtype.fields.items()
    }
    assert in_c == in_python


NAMED = re.compile(r"(?:#define (\w+) |\b([A-Z]\w+) = )(0x[0-9A-F]+|\d+)")


def test_numbers_are_the_same():
    header = CAPTURE.source.with_name("layout.h").read_text(encoding="utf-8")
    numbers = {a or b: int(value, 0) for a, b, value in NAMED.findall(header)}
    del numbers["NAME_BYTES_MAX"]  # of the writer's only
    expected = {
        "RING_MAGIC": ring.MAGIC,
        "LAYOUT_VERSION": LAYOUT_VERSION,
        "HEADER_BYTES": ring.HEADER_BYTES,
        "SLOT_BYTES": ring.SLOT_BYTES,
        "STRING_BYTES_PER_SLOT": ring.STRING_BYTES_PER_SLOT,
        "STRING_BYTES_MAX": ring.STRING_BYTES_MAX,
        "SAMPLE_EVERY": ring.SAMPLE_EVERY,
        "SAMPLE_NS_MAX": ring.SAMPLE_NS_MAX,
        "FLAG_COLORED": ring.FLAG_COLORED,
        "FLAG_PAYLOAD": ring.FLAG_PAYLOAD,
        "FLAG_COMMUNICATOR": ring.FLAG_COMMUNICATOR,
        "UNKNOWN_DEVICE": ring.UNKNOWN_DEVICE,
        "NAMED_BY_SYSTEM": ring.NAMED_BY_SYSTEM,
        "REFUSED_DEFERRED": ring.REFUSED_DEFERRED,
    }
    for prefix, values in [
        ("KIND", ring.RecordKind),
        ("PAYLOAD", PayloadType),
        ("CUDA", ring.CudaState),
        ("WINDOW", ring.WindowEdge),
        ("RESOURCE", ring.Resource),
        ("PART", ring.GraphPart),
    ]:
        expected |= {f"{prefix}_{value.name}": value.value for value in values}
    assert numbers == expected


def test_calls_that_alternate_are_timed_alike():
    timed = [
        ring.SAMPLE_EVERY * n % 2 for n in range(1, 101)
    ]  # pushes are odd calls, pops even ones
    assert timed.count(0) == timed.count(1)


EXPORTS = {
    CAPTURE: {
        "InitializeInjection",
        "InitializeInjectionNvtx2",
        "InitializeInjectionNvtxExtension",
        "gputui_library_pop",
        "gputui_library_push",
        "gputui_name",
        "gputui_pop",
        "gputui_push",
        "gputui_step",
        "gputui_step_site",
    },
    RING: {"gputui_layout", *FUNCTIONS},
    CALLS: {
        "cublasCgemm_v2",
        "cublasDgemmStridedBatched",
        "cublasDgemm_v2",
        "cublasGemmBatchedEx",
        "cublasGemmEx",
        "cublasGemmStridedBatchedEx",
        "cublasHgemm",
        "cublasHgemmStridedBatched",
        "cublasLtMatmul",
        "cublasSgemmStridedBatched",
        "cublasSgemm_v2",
        "cudnnBackendExecute",
        "cudnnConvolutionForward",
        "gputui_calls_sources",
    },
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("library", EXPORTS)
def test_it_compiles_without_warnings_and_exports_no_more_than_is_called(
    tmp_path, library: Library
):
    target = tmp_path / "library.so"
    assert build(library, target, "-Wall", "-Wextra", "-Werror") == target
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(target)], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == EXPORTS[library]
