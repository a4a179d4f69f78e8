"""Thresholds that were crossed."""

from __future__ import annotations

from gputui.model.events.base import Event, GpuIndex, Moment


class Alert(Event, frozen=True, kw_only=True, tag="alert"):
    """A condition of `--alert` has held for as long as it says, or (`raised` false) has not held
    for as long.

    `subject` is "gpu0", "host" or "run", `what` a field of a reading, or a leaf's name; `since_ns`
    is the first reading of those that made it, `value` the newest, `worst` the furthest from the
    limit while the alert lasted.
    """

    repeated_for = ("condition", "subject")

    condition: str
    subject: str
    what: str
    gpu: GpuIndex | None = None
    raised: bool = True
    since_ns: Moment
    value: float
    worst: float
