"""The machine's GPUs as the first frame shows them, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputui.model.units import celsius, percent, size, watts
from gputui.tui.shell.views import GROUP_OF, GROUPS, tab_texts
from gputui.tui.widgets.canvas import Row, clip, flow, heading, wrap

if TYPE_CHECKING:
    from gputui.collect.nvml.opening import Glance

_BOLD, _DIM, _REVERSE, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[0m"
_LOOKS = {
    **dict.fromkeys(("title", "value", "warn"), _BOLD),
    **dict.fromkeys(("dim", "rule", "label", "tab"), _DIM),
    "tab-active": _REVERSE,
}
"""Without the theme, which comes with Textual."""


def first_frame(gpus: Sequence[Glance], reason: str | None, width: int, height: int) -> str:
    """All lines but the last; `reason` says why there is no GPU."""
    devices = GROUP_OF["devices"]
    rows: list[Row] = [tuple(
        (text, "tab-active" if group is devices else "tab")
        for group, text in zip(GROUPS, tab_texts(width, devices), strict=True)
    )]  # fmt: skip
    for gpu in gpus:
        rows += [heading(f"GPU {gpu.gpu}  {gpu.name}", width), *flow(_figures(gpu), width, 1)]
    if not gpus:
        rows += [(), *wrap(reason or "no GPU", width - 2, "warn", "  ")]
    rows += [(), (("  the other figures need a second reading", "dim"),)] if gpus else []
    return "".join(
        f"\x1b[{y};1H{_styled(clip(row, width))}" for y, row in enumerate(rows[: height - 1], 1)
    )


def _figures(gpu: Glance) -> list[Row]:
    memory = gpu.memory
    used = f"{size(memory.used)} of {size(memory.total)}" if memory else None
    limit = f" of {watts(gpu.power_limit_watts)}" if gpu.power_limit_watts else ""
    told = (
        ("GPU utilization", gpu.utilization_percent, percent(gpu.utilization_percent)),
        ("memory", used, used),
        ("power", gpu.power_watts, watts(gpu.power_watts) + limit),
        ("temperature", gpu.temperature_celsius, celsius(gpu.temperature_celsius)),
        ("SM clock", gpu.sm_clock_mhz, f"{gpu.sm_clock_mhz} MHz"),
    )
    return [
        ((f"{label} ", "label"), (text, "value"))
        for label, value, text in told
        if value is not None and text is not None
    ]


def _styled(row: Row) -> str:
    return "".join(f"{_LOOKS.get(role, '')}{text}{_PLAIN}" for text, role in row)
