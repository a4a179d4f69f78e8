"""Connections that need an answer: opened in the plain terminal, before the screen is drawn.

ssh asks for passwords, second factors and new host keys on the terminal itself, across whatever is
drawn there. So it asks here, and leaves a connection open that later commands go through.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from gputui.collect.hosts.target import SSH_OPTIONS, Target

_PERSISTS_S = 30
"""How long a connection stays open without a command: long enough to begin one, and should gputui
be killed, no longer than that.
"""

_CLOSING_S = 5.0


class Masters:
    """Open connections, in a private folder. Close them."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._open: list[Target] = []

    def open(self, target: Target) -> Target | None:
        """Connect, with ssh's questions on the terminal; the target through that, None if it
        fails: ssh has then printed why.
        """
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gputui-ssh-"))
        through = msgspec.structs.replace(target, control=str(self._folder / "%C"))
        master = [
            *("ssh", *SSH_OPTIONS, "-oControlMaster=auto", f"-oControlPath={through.control}"),
            *(f"-oControlPersist={_PERSISTS_S}", "--", target.ssh, "true"),
        ]
        try:
            done = subprocess.run(master, check=False, stdout=subprocess.DEVNULL)
        except OSError:
            return None
        if done.returncode == 255:  # else it is the status of `true`, on whatever runs there
            return None
        self._open.append(through)
        return through

    def close(self) -> None:
        """Close what was opened."""
        for target in self._open:
            words = ["ssh", f"-oControlPath={target.control}", "-O", "exit", "--", target.ssh]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    words,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_CLOSING_S,
                )
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
