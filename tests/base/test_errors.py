"""Errors: one base class, and the exit status it carries."""

from __future__ import annotations

import importlib
from pathlib import Path

import gputui
from gputui.base import FAILED, WRONG_USAGE, GputuiError
from gputui.report.compare import NOT_COMPARABLE

ROOT = Path(gputui.__file__).parent
ELSEWHERE = ("gputui.__main__", "gputui.inject.hook", "gputui.cures", "gputui.inject.build")
"""What runs when imported, in the traced process, and while the package is built."""


def test_every_error_of_the_program_derives_from_one_class() -> None:
    names = [
        ".".join(("gputui", *path.relative_to(ROOT).with_suffix("").parts))
        for path in ROOT.rglob("*.py")
    ]
    errors = {
        value
        for name in names
        if not name.startswith(ELSEWHERE)
        for value in vars(importlib.import_module(name.removesuffix(".__init__"))).values()
        if isinstance(value, type) and issubclass(value, Exception)
        and value.__module__.startswith("gputui.")
    }  # fmt: skip
    assert len(errors) > 10
    assert [error for error in errors if not issubclass(error, GputuiError)] == []
    assert {error.exit_status for error in errors} == {
        FAILED, WRONG_USAGE, NOT_COMPARABLE,
    }  # fmt: skip
