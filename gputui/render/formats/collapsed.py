"""Stacks as one line each, for flamegraph.pl, inferno and flamelens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputui.render.formats import Format

if TYPE_CHECKING:
    from gputui.state import Run, Session


def _stacks(_session: Session, run: Run | None, _width: int | None) -> str:
    from gputui.base.sanitize import sanitize
    from gputui.report.icicle import icicle

    if run is None:
        return ""
    # A semicolon would end a frame, and the last blank the stack.
    lines = [
        f"{';'.join(sanitize(name).replace(';', ':') for name in names)} {ns}\n"
        for names, ns in icicle(run).stacks()
    ]
    return "".join(lines)


FORMAT = Format(
    key="collapsed",
    title="GPU time by phase and cause, for flame graphs",
    order=75,
    text=_stacks,
)
