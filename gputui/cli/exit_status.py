"""The exit status of gputui once a run has ended."""

from __future__ import annotations

from gputui.model.events import RunEnded


def exit_status(kind: str, ended: RunEnded | None) -> int:
    """The exit status for a run of this kind.

    Around a user's command it is that command's own, 128 + n if signal n ended it, as in a shell; a
    workload gives 0, 2 if its parameters were refused, otherwise 1.
    """
    if ended is None:
        return 1
    if kind == "command":
        number = ended.signal
        return 128 + number if number is not None else ended.exit_code or 0
    if ended.exit_code in (0, 2):
        return ended.exit_code
    return 1
