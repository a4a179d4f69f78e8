"""What goes wrong with exports, in words."""

from __future__ import annotations


class ExportError(Exception):
    """The export could not be made. One line for people."""


class NoRunError(ExportError):
    """What was asked for is of a run, and the recording has none."""
