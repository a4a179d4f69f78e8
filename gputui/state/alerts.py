"""Alerts that were raised, and which of them last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gputui.model.events import Alert

if TYPE_CHECKING:
    from gputui.state.session import Session

KEPT = 1000
"""Alerts kept, the newest."""


class AlertSpan(msgspec.Struct):
    """One alert: `since_ns` the first reading over the limit, `until_ns` the first that is not any
    more, None while it lasts."""

    raised: Alert
    since_ns: int
    worst: float
    until_ns: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether it is not over."""
        return self.until_ns is None


def alert(session: Session, event: Alert) -> None:
    """An alert begins or is over. What a file of a rotated recording repeats is known."""
    lasting = next(
        (
            span
            for span in reversed(session.alerts)
            if span.lasts
            and (span.raised.condition, span.raised.subject) == (event.condition, event.subject)
        ),
        None,
    )
    if lasting is None and event.raised:
        session.alerts.append(AlertSpan(event, event.since_ns, event.worst))
        del session.alerts[:-KEPT]
    elif lasting is not None and not event.raised:
        lasting.until_ns = max(event.since_ns, lasting.since_ns)
        lasting.worst = event.worst


def lasting_alerts(session: Session) -> list[AlertSpan]:
    """Those that are not over, the oldest first."""
    return [span for span in session.alerts if span.lasts]
