"""What nsys wrote, as a source: its SQLite export, and the CSV tables of `nsys stats`."""

from __future__ import annotations

from gputui.sources.nsys.report import NsysReport
from gputui.sources.nsys.stats import NsysTables

__all__ = ["NsysReport", "NsysTables"]
