"""What has a terminal notify its user."""

from __future__ import annotations

import sys
from typing import Literal, get_args

from gputui.base.sanitize import sanitize

Way = Literal["bell", "osc9", "osc777"]
"""The bell; with it the message of iTerm2 (OSC 9), or that of urxvt (OSC 777)."""

WAYS: tuple[str, ...] = get_args(Way)
_LONGEST = 200


def notify(way: str | None, text: str) -> None:
    """Have the terminal that standard error is announce a text, if there is one."""
    if way and sys.stderr.isatty():
        sys.stderr.write(notification(way, text))
        sys.stderr.flush()


def notification(way: str, text: str) -> str:
    """What to write to a terminal. A terminal that does not know a message shows nothing; in tmux
    only the bell arrives."""
    plain = sanitize(text, _LONGEST).replace(";", ",")
    start = {"osc9": "\x1b]9;gputui: ", "osc777": "\x1b]777;notify;gputui;"}.get(way)
    return f"{start}{plain}\x07\x07" if start else "\x07"
