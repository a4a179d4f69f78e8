"""Alerts that last: a line each, and the mark beside what they are about."""

from __future__ import annotations

from gputui.model.leaves import LEAVES, Leaf
from gputui.report.alerts import about, amount_text
from gputui.state import Gpu, Session, lasting_alerts
from gputui.tui.widgets.canvas import Row, clip

MARK = "▲"
_MOST = 3


def alert_rows(session: Session, width: int) -> list[Row]:
    """The newest alerts that last."""
    lasting = lasting_alerts(session)
    rows: list[Row] = []
    for span in lasting[-_MOST:]:
        told = span.raised
        worst = amount_text(told.what, span.worst)
        text = f" {MARK} ALERT {about(told)}: reached {worst}"
        more = f" and {len(lasting) - _MOST} more" if len(lasting) > _MOST and not rows else ""
        rows.append(clip(((text + more, "hot"),), width))
    return rows


def has_alert(session: Session, what: Gpu | Leaf) -> bool:
    """Whether an alert about a GPU, or a leaf of the time tree, lasts."""
    for span in lasting_alerts(session):
        told = span.raised
        if isinstance(what, Leaf):
            if told.what == LEAVES[what].key:
                return True
        elif told.gpu == what.facts.index:
            return True
    return False
