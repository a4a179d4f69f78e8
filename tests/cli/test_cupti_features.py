"""What a newer libcupti offers is seen without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.cli.doctor import unused_features

V2 = "cuptiSubscribe_v2 cuptiActivityEnable_v2 cuptiActivityGetNextRecord_v2 "


@pytest.mark.parametrize(
    ("functions", "names"),
    [
        ("cuptiSubscribe cuptiActivityEnable", []),
        ("cuptiSubscribe cuptiSubscribe_v2", []),  # 13.0 has that alone
        (V2, ["several subscribers"]),
        (V2 + "cuptiActivityRegisterCallbacks_v2", ["several subscribers", "selected fields"]),
        ("cuptiActivityEnableHWTrace", ["hardware tracing"]),
        ("cuptiActivityEnableHWTraceX", []),
    ],
)
def test_functions_tell_the_features(tmp_path: Path, functions: str, names: list[str]) -> None:
    library = tmp_path / "libcupti.so.13"
    library.write_bytes(b"\x7fELF\0" + b"\0".join(functions.encode().split()) + b"\0")
    assert [feature.name for feature in unused_features(library)] == names


def test_a_library_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert unused_features(tmp_path / "empty") == unused_features(tmp_path / "none") == []
