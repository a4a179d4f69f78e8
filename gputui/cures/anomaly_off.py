"""Autograd's anomaly mode off, which compares each gradient with NaN and reads the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, CannotApply, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    was_on = torch.is_anomaly_enabled()
    checked = torch.is_anomaly_check_nan_enabled()
    real = torch.set_anomaly_enabled
    wanted = [was_on, checked]
    mode = torch.autograd.anomaly_mode
    if not was_on and not _entered_in_steps(torch):
        raise CannotApply("the program is not in anomaly mode")

    def off(mode: bool, check_nan: bool = True) -> None:
        wanted[:] = [mode, check_nan]

    undo_calls = replaced(
        (torch, "set_anomaly_enabled", off), (mode.torch, "set_anomaly_enabled", off)
    )
    real(False)

    def undo() -> None:
        undo_calls()
        real(*wanted)

    return undo


def _entered_in_steps(torch: Any) -> bool:
    """Whether the program enters and leaves it in each step."""
    return bool(getattr(torch.autograd.anomaly_mode, "_gputui_entered", False))


def _prepare(torch: Any) -> None:
    mode = torch.autograd.anomaly_mode
    real = torch.set_anomaly_enabled

    def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
        if enabled:
            mode._gputui_entered = True
        real(enabled, check_nan)

    torch.set_anomaly_enabled = set_anomaly_enabled


CURE = Cure(
    name="anomaly_off",
    title="autograd's anomaly mode is off",
    answers=(ANY, "idle.sync", "idle.launch", "idle.host"),
    result=EXACT,
    change="torch.autograd.set_detect_anomaly(False)",
    apply=_apply,
    library="torch",
    prepare=_prepare,
    advice="set_detect_anomaly",
)
