"""A run as SQLite in nsys's export schema, for tools made for nsys.

The columns are those of `nsys export --type sqlite`, schema 3.28; those not captured are NULL, or 0
where nsys has NOT NULL. Times are relative to the session's start, as in nsys. Calls have the names
`nsys stats` prints.
"""

from __future__ import annotations

from gputui.render.nsys.schema import TABLES
from gputui.render.nsys.writer import write_nsys

__all__ = ["TABLES", "write_nsys"]
