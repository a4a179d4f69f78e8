"""Theoretical occupancy, against a search by hand and figures of NVIDIA's calculator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import CaptureDelta, GpuFacts, KernelDefined, LaunchShape, ShapeLaunches
from gputui.report.tables.launches import SHAPES, Occupancy, occupancy, shape_rows
from gputui.state import Session
from tests.events_for_tests import at, attached, header, run_started


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "expected"),
    [
        # Register-bound: 5,376 a warp, 12 warps of 64.
        ("9.0", 128, 168, 0, Occupancy(18.75, 3, "registers")),
        # One block of 227 KiB: a persistent product.
        ("9.0", 384, 168, 227 * 1024, Occupancy(18.75, 1, "registers")),
        ("8.0", 256, 32, 0, Occupancy(100.0, 8, "nothing")),
        ("8.0", 256, 32, 82 * 1024, Occupancy(12.5, 1, "shared memory")),
        # Small blocks: 16 on an SM of 48 warps.
        ("8.6", 32, 16, 0, Occupancy(100 / 3, 16, "blocks")),
        ("7.5", 1024, 64, 0, Occupancy(100.0, 1, "nothing")),
        ("8.6", 1024, 32, 0, Occupancy(100 * 32 / 48, 1, "warps")),
        ("9.0", 1024, 255, 0, None),
        ("9.0", 128, 32, 300 * 1024, None),
        ("6.1", 128, 32, 0, None),
        ("", 128, 32, 0, None),
    ],
)
def test_launches(
    capability: str, threads: int, registers: int, shared: int, expected: Occupancy | None
) -> None:
    found = occupancy(capability, threads, registers, shared)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.percent == pytest.approx(expected.percent)
        assert found[1:] == expected[1:]


@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 227 * 1024))
def test_one_block_more_never_fits(threads: int, registers: int, shared: int) -> None:
    found = occupancy("9.0", threads, registers, shared)
    warps = -(-threads // 32)

    def fits(blocks: int) -> bool:
        # Four warps at a time share a quarter of the registers, in portions of 256.
        portion = -(-registers * 32 // 256) * 256
        quarter = 16_384 // portion
        of_shared = -(-(shared + 1024) // 128) * 128
        return (
            blocks <= 32
            and blocks * warps <= min(64, 4 * quarter)
            and blocks * of_shared <= 228 * 1024
        )

    most = max((blocks for blocks in range(1, 33) if fits(blocks)), default=0)
    assert (found.blocks if found else 0) == most


def test_the_table_has_it_and_how_to_look_further() -> None:
    session = Session()
    facts = GpuFacts(index=0, uuid="GPU-0", name="NVIDIA H200", compute_capability="9.0")
    session.apply(
        [
            header(facts), run_started(), attached(),
            KernelDefined(
                time_ns=at(2), kernel=1, name="void flash_fwd<64>(it's)", mangled="_Z9flash_fwd"
            ),
            LaunchShape(
                time_ns=at(2), shape=1, kernel=1, grid=(9, 1, 1), block=(128, 1, 1),
                registers_per_thread=168, static_shared_bytes=0, dynamic_shared_bytes=0,
            ),
            CaptureDelta(time_ns=at(3), process=1, shapes=(ShapeLaunches(1, 5),)),
        ]
    )  # fmt: skip
    assert session.run is not None
    (row,) = shape_rows(session, session.run)
    assert row.occupancy == (18.75, 3, "registers")
    table = SHAPES.table(session, session.run)
    assert table.note == (
        "to look into one: ncu --set full -c 1 -k regex:flash_fwd python -m workloads inference"
    )
    assert table.records()[0]["occupancy_limiter"] == "registers"
