"""Whether a command can be started at all: known before a screen or a recording begins."""

from __future__ import annotations

import os
import shutil

from gputui.base.sanitize import sanitize


def refusal(command: str, search_path: str | None = None) -> tuple[int, str] | None:
    """The exit status and the reason, as a shell has them, why `command` cannot be started; None if
    it can. `search_path` stands for PATH."""
    if shutil.which(command, path=search_path) is not None:
        return None
    status, why = 127, "command not found"
    if os.sep in command:
        if os.path.isfile(command):
            status, why = 126, "permission denied"
        elif os.path.isdir(command):
            status, why = 126, "it is a folder"
    return status, f"cannot start {sanitize(command, 200)}: {why}"
