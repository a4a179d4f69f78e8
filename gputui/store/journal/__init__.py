"""The recording: an append-only file of JSON lines, a header line first, then one event a line.

Every write is flushed to the operating system, compressed or not, so that a killed recording
loses at most the line being written. Reading type-checks every line; damage ends it, with a message
saying where; unknown events are skipped and counted. gputui/docs/recording.md describes the file.
"""

from __future__ import annotations

from gputui.base import JournalError, TakenError
from gputui.store import default_path, make_folder
from gputui.store.journal.files import Limits
from gputui.store.journal.reader import JournalReader, RotatedReader, open_journal
from gputui.store.journal.writer import JournalWriter, RunRecorder

__all__ = [
    "JournalError", "JournalReader", "JournalWriter", "Limits", "RotatedReader", "RunRecorder",
    "TakenError", "default_path", "make_folder", "open_journal",
]  # fmt: skip
