"""Who may use the counters, by the driver's parameters and the process's capabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.counters.sampler import counter_holders, counter_rights

ADMIN, PERFMON, NONE = "0000000000200000", "0000004000000000", "0000000000000000"


def rights(tmp_path: Path, restricted: str | None, capabilities: str, driver: int | None = 580):
    parameters, status = tmp_path / "params", tmp_path / "status"
    if restricted is not None:
        parameters.write_text(f"Other: 7\nRmProfilingAdminOnly: {restricted}\nMore: 1\n")
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    return counter_rights(parameters, status, driver)


@pytest.mark.parametrize(
    ("restricted", "capabilities", "driver", "is_open"),
    [
        ("0", NONE, 580, True),
        ("1", NONE, 580, False),
        ("1", ADMIN, None, True),
        ("1", PERFMON, 565, True),
        ("1", PERFMON, 560, False),
        ("1", PERFMON, None, False),
        (None, ADMIN, 580, None),
        ("x", ADMIN, 580, None),
    ],
)
def test_they_are_open_where_the_driver_or_a_capability_says_so(
    tmp_path, restricted, capabilities, driver, is_open
):
    found = rights(tmp_path, restricted, capabilities, driver)
    assert found.is_open is is_open
    assert (found.opening is not None) == (is_open is False)


def test_what_is_no_text_says_nothing(tmp_path):
    (tmp_path / "params").write_bytes(b"\xff\xfe\0RmProfilingAdminOnly")
    assert counter_rights(tmp_path / "params", tmp_path / "none").is_open is None
    assert counter_rights(tmp_path, tmp_path).is_open is None


def test_who_may_hold_them_is_named(tmp_path):
    for pid, name in (("812", "nv-hostengine"), ("9", "bash"), ("77", "gputui_counters"),
                      ("self", "ncu"), ("13", "ncu")):  # fmt: skip
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{name}\n")
    (tmp_path / "99").mkdir()  # has ended meanwhile

    named = ["ncu (ncu, PID 13)", "DCGM (nv-hostengine, PID 812)"]
    assert counter_holders(77, tmp_path) == named
    assert counter_holders(processes=tmp_path / "none") == []
