"""The whole file, from a session and its trace."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import numpy as np

from gputui.render.atomic_write import atomic_write
from gputui.render.nsys.cuda import CudaRows
from gputui.render.nsys.facts import write_facts
from gputui.render.nsys.nvtx import NvtxRows
from gputui.render.nsys.rows import Rows
from gputui.state import Run, Session
from gputui.store.trace import TraceReader


def write_nsys(path: Path, session: Session, run: Run, trace: TraceReader) -> int:
    """Write the SQLite file, completely or not at all; how many records it has. Raises
    ExportError.
    """
    with atomic_write(path) as place:
        try:
            with contextlib.closing(sqlite3.connect(place)) as connection:
                return _write(connection, session, run, trace)
        except sqlite3.Error as error:
            raise OSError(None, str(error)) from None


def _write(connection: sqlite3.Connection, session: Session, run: Run, trace: TraceReader) -> int:
    rows = Rows(connection, session, run)
    nvtx = NvtxRows(rows, run)
    cuda = CudaRows(rows, session, trace)
    # A session may have had other runs before this one.
    ours = np.array(sorted(run.processes), np.uint32)
    count = 0
    for portion in trace.portions():
        part = portion[np.isin(portion["process"], ours)]
        count += len(part)
        nvtx.write(part)
        cuda.write(part)
    if not trace.has_marks:
        nvtx.write_kept_marks()
    nvtx.write_names()
    write_facts(rows, session, run, trace.dropped)
    rows.finish()
    return count
