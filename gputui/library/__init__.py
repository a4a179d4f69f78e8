"""The public library: recordings as data frames, comparisons, and readings of this machine.

`import gputui` gives what is here. Nothing of it runs a program, and nothing writes a file.
"""

from __future__ import annotations

from gputui.base.errors import GputuiError as Error
from gputui.library.recording import Comparison, Recording, Run, compare, devices, read
from gputui.render.columnar import MissingPackageError

__all__ = [
    "Comparison", "Error", "MissingPackageError", "Recording", "Run", "compare", "devices", "read",
]  # fmt: skip
