"""A run's summary written for people and programs: csv, json, md, and text for a terminal."""

from __future__ import annotations

from gputui.export.errors import ExportError
from gputui.export.write import FORMATS, export_text, write

__all__ = ["FORMATS", "ExportError", "export_text", "write"]
