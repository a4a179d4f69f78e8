"""A run's summary written for people and programs: csv, json, md, and text for a terminal."""

from __future__ import annotations

from gputui.render.errors import ExportError
from gputui.render.write import FORMATS, export_text, write

__all__ = ["FORMATS", "ExportError", "export_text", "write"]
