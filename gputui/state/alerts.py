"""One alert that was raised. What folds it is in fold_machine."""

from __future__ import annotations

import msgspec

from gputui.model.events import Alert


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
