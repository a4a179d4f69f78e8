"""The memory snapshot a run may leave: moved beside the recording, never opened.

It is a pickle, which can run code, for PyTorch's viewer (https://pytorch.org/memory_viz). The
workloads write one with `-p snapshot=true`; any command may write one with
`torch.cuda.memory._dump_snapshot(path)` to the file named by the environment variable
GPUTUI_SNAPSHOT.
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
"""Not in shared memory: a snapshot may be larger than that, so it goes to disk."""


def keep_snapshot(made: Path, recording: Path | None, run: int) -> str | None:
    """Move the snapshot of run `run` from `made` to beside its recording.

    Gives a line saying where it is or why it was not kept; None if the run left none.
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
