"""The recording: an append-only file of JSON lines, a header line first, then one event a line.

Every write is flushed to the operating system, compressed or not, so that a killed recording
loses at most the line being written. Reading types every line; what is damaged ends the reading
with a word about where, what is unknown is skipped and counted. FORMAT.md describes the file.
"""

from __future__ import annotations

from gputui.journal.errors import JournalError, TakenError
from gputui.journal.places import default_path, make_folder
from gputui.journal.reader import LINE_LIMIT, JournalReader
from gputui.journal.recorder import RunRecorder
from gputui.journal.rotated import RotatedReader, open_journal
from gputui.journal.rotation import Limits
from gputui.journal.writer import JournalWriter

__all__ = [
    "LINE_LIMIT",
    "JournalError",
    "JournalReader",
    "JournalWriter",
    "Limits",
    "RotatedReader",
    "RunRecorder",
    "TakenError",
    "default_path",
    "make_folder",
    "open_journal",
]
