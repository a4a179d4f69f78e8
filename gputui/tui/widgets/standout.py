"""Why the run is slow, in one row, while it runs."""

from __future__ import annotations

from gputui.report.explain import findings
from gputui.state import Run, Session
from gputui.tui.widgets.canvas import Row, clip, row_width

LEAST_RUN_NS = 2_000_000_000
"""Before that a run is starting up, and always looks slow."""

_LABEL = "stands out "
_POINTER = "   5 says more"


class StandOut:
    """The headlines of the findings. The rules read every kernel of the run (4 ms for 30, 18 ms for
    8,000 pairs of range and kernel), so they run when there is news, not every frame.
    """

    def __init__(self) -> None:
        self._read: tuple[int, int, bool] | None = None
        self._headlines: tuple[str, ...] = ()

    def rows(self, session: Session, run: Run, width: int) -> list[Row]:
        """One row, or none if nothing stands out."""
        if run.duration_ns < LEAST_RUN_NS and run.is_active:
            return []
        moment = (run.started.time_ns, run.updated_ns, run.is_active)
        if moment != self._read:
            self._read = moment
            self._headlines = tuple(found.headline for found in findings(session, run))
        return [headline_row(self._headlines, width)] if self._headlines else []


def headline_row(headlines: tuple[str, ...], width: int) -> Row:
    """As many as fit completely, always the first; then the key for details, if it fits."""
    row: Row = ((_LABEL, "label"), (headlines[0], "warn"))
    for headline in headlines[1:]:
        longer: Row = (*row, (" · ", "dim"), (headline, "warn"))
        if row_width(longer) > width:
            break
        row = longer
    pointed: Row = (*row, (_POINTER, "dim"))
    return pointed if row_width(pointed) <= width else clip(row, width)
