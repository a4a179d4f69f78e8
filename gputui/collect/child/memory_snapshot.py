"""The memory snapshot that a run may leave: kept beside the recording, never looked into.

It is a pickle, which can hold any code, for PyTorch's viewer (https://pytorch.org/memory_viz).
The workloads write one where `-p snapshot=true` asks; any command may, to the file that the
environment variable GPUTUI_SNAPSHOT names: `torch.cuda.memory._dump_snapshot(path)`.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from gputui.store.errors import reason
from gputui.store.places import snapshot_path

VARIABLE = "GPUTUI_SNAPSHOT"

FILE = "snapshot.pickle"

ROOM_BYTES = 1 << 62
"""More than shared memory ever has: a snapshot may be larger than that, and waits on the disk."""


def keep_snapshot(made: Path, recording: Path | None, run: int) -> str | None:
    """Move what run `run` left at `made` to where its recording lies.

    A line that says where it is or why it was not kept; None where the run left nothing.
    """
    try:
        facts = made.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return "the memory snapshot was not kept: it is not a file"
    if recording is None:
        return "the memory snapshot was not kept: this session is not recorded to a file"
    target = snapshot_path(recording, run)
    try:
        if os.path.lexists(target):
            return f"the memory snapshot was not kept: {target} already exists"
        made.chmod(0o600)
        shutil.move(made, target)
    except OSError as error:
        return f"the memory snapshot was not kept: {reason(error)}"
    return f"the memory snapshot is {target}"
