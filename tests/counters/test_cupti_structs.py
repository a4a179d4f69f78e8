"""What the sampler passes to CUPTI, against NVIDIA's headers."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from tests.counters.cupti_structs import ours, theirs

VERSIONS = json.loads(Path(__file__).parents[1].joinpath("data/cupti_structs.json").read_text())


@pytest.fixture(scope="module")
def placed() -> dict[str, int]:
    return ours()


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_stand_where_the_headers_place_them(placed, version):
    assert placed == VERSIONS[version]


def test_the_measurements_are_those_of_the_headers_that_are_here(placed):
    headers = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "include")
    if not (headers / "cupti_pmsampling.h").exists():
        pytest.skip("no headers of CUPTI 13 beside this Python")
    assert theirs(headers) == placed
