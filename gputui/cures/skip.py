"""Ablation: a function of the program returns its last result instead of running."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from . import BOUND, CannotApply, Cure
from ._replacing import combined, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(_library: object, argument: str) -> Callable[[], None]:
    file, _, name = argument.rpartition(":")
    if not file or not name.isidentifier():
        raise CannotApply(f"{argument}: give FILE:FUNCTION")
    owners = _owners(os.path.basename(file), name)
    if not owners:
        raise CannotApply(f"no function {name} is imported from {os.path.basename(file)}")
    codes = {getattr(vars(owner)[name], "__code__", None) for owner in owners}
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code in codes:
            raise CannotApply(f"steps end within {name}: without it there would be none")
        frame = frame.f_back
    return combined(*(_skipped(owner, name) for owner in owners))


def _owners(file: str, name: str) -> list[Any]:
    """The modules and classes of a file that have a function of the name, and modules that took it
    from there."""
    owners: list[Any] = []
    functions: list[Any] = []
    modules = [each for each in list(sys.modules.values()) if hasattr(each, "__dict__")]
    for module in modules:
        if os.path.basename(getattr(module, "__file__", None) or "") != file:
            continue
        classes = [value for value in list(vars(module).values()) if isinstance(value, type)]
        for owner in (module, *classes):
            function = vars(owner).get(name)
            if callable(function) and owner not in owners:
                owners.append(owner)
                functions.append(function)
    for module in modules:
        if module not in owners and any(vars(module).get(name) is each for each in functions):
            owners.append(module)
    return owners


_LAST: dict[Any, Any] = {}
"""The last result of each function that was skipped."""


def _skipped(owner: Any, name: str) -> Callable[[], None]:
    function = vars(owner)[name]

    @functools.wraps(function)
    def skipped(*args: Any, **kwargs: Any) -> Any:
        if function not in _LAST:
            _LAST[function] = function(*args, **kwargs)
        return _LAST[function]

    return replaced((owner, name, skipped))


CURE = Cure(
    name="skip",
    title="a function returns its last result",
    answers=("idle.host", "idle.wait", "idle.sync", "idle.launch"),
    result=BOUND,
    change="make it cheaper, call it less often, or on another thread",
    apply=_apply,
    argument="FILE:FUNCTION",
)
