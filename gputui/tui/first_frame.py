"""The machine as the first frame shows it: the rows of GPUs, as text for a terminal."""

from __future__ import annotations

from gputui.state import Session
from gputui.tui.shell.views import GROUP_OF, GROUPS, tab_texts
from gputui.tui.widgets.canvas import Row, clip, flow, heading, wrap
from gputui.tui.widgets.gpu import card_rows
from gputui.tui.widgets.gpu_figures import figures
from gputui.tui.widgets.host import host_items
from gputui.tui.widgets.series import Look

_BOLD, _DIM, _REVERSE, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[0m"
_LOOKS = {
    **dict.fromkeys(("title", "value", "head", "good", "warn", "hot", "accent"), _BOLD),
    **dict.fromkeys(("dim", "rule", "label", "tab"), _DIM),
    "tab-active": _REVERSE,
}
"""Without the theme, which comes with Textual."""


def first_frame(session: Session, width: int, height: int) -> str:
    """All lines but the last."""
    interval_s = session.header.interval_s if session.header else 1.0
    devices = GROUP_OF["devices"]
    rows: list[Row] = [tuple(
        (text, "tab-active" if group is devices else "tab")
        for group, text in zip(GROUPS, tab_texts(width, devices), strict=True)
    )]  # fmt: skip
    gpus, look = list(session.gpus.values()), Look()
    if len(gpus) == 1:
        rows += card_rows(gpus[0], width, height - 6, interval_s, session.now_ns, look)
    elif not gpus:
        reason = session.header.gpu_unavailable_reason if session.header else None
        rows += [(), *wrap(reason or "no GPU", width - 2, "warn", "  "), ()]
    else:
        for gpu in gpus[: (height - 6) // 2]:
            rows += [heading(f"GPU {gpu.facts.index}  {gpu.facts.name}", width)]
            rows += flow(figures(gpu), width, 1)
    rows += flow(host_items(session), width, 1)
    return "".join(
        f"\x1b[{y};1H{_styled(clip(row, width))}" for y, row in enumerate(rows[: height - 1], 1)
    )


def _styled(row: Row) -> str:
    return "".join(f"{_LOOKS.get(role, '')}{text}{_PLAIN}" for text, role in row)
