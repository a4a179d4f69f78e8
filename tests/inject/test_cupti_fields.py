"""The offsets at which CUPTI's records are read, against NVIDIA's headers of every version."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from gputui.state.remarks import NEWEST_CUPTI
from tests.inject.cupti_headers import api_version, fields_of, fields_read

VERSIONS = json.loads(Path(__file__).parents[1].joinpath("data/cupti_fields.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_stand_where_the_headers_place_them(version):
    placed = {name: tuple(place) for name, place in VERSIONS[version]["fields"].items()}
    assert fields_read() == placed


def test_the_newest_version_tested_is_the_newest_one_accepted_without_a_remark():
    assert max(version["api_version"] for version in VERSIONS.values()) == NEWEST_CUPTI


def installed() -> Path | None:
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    found = [packages / "cu13/include", packages / "cuda_cupti/include"]
    return next((folder for folder in found if (folder / "cupti_activity.h").exists()), None)


def test_fields_stand_where_the_headers_of_an_installed_package_place_them():
    headers = installed()
    if headers is None:
        pytest.skip("no package with CUPTI's headers is installed")
    assert fields_of(headers) == fields_read()
    assert api_version(headers) > 0
