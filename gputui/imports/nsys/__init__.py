"""Files of nsys as a source: its SQLite export, and the CSV tables of `nsys stats`."""

from __future__ import annotations

from gputui.imports.nsys.report import NsysReport
from gputui.imports.nsys.stats_csv import NsysTables

__all__ = ["NsysReport", "NsysTables"]
