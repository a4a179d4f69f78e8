"""Errors of exports, in words."""

from __future__ import annotations

from gputui.base.errors import WRONG_USAGE, GputuiError


class ExportError(GputuiError):
    """The export failed. One line for people."""


class NoRunError(ExportError):
    """The request needs a run, and the recording has none."""


class UnknownNameError(ExportError):
    """There is no table or format of that name."""

    exit_status = WRONG_USAGE
