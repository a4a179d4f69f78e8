"""`gputui env`: loads the capture library into programs, asleep until `gputui attach` wakes it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gputui.base.errors import GputuiError
from gputui.base.standard_streams import say


def run(options: argparse.Namespace) -> int:
    """Print the variables for a shell; return the exit status."""
    from gputui.inject.build import CAPTURE
    from gputui.inject.environment import LOADERS, holder_of, library_path, missing_library_reason

    library = library_path()
    if library is None and not options.unset:
        raise GputuiError(missing_library_reason())
    for variable in LOADERS:
        holder = os.environ.get(variable, "")
        if holder and Path(holder).name != CAPTURE.path.name:
            say(f"{variable} is left alone: it is held by {holder_of(holder)}")
        else:
            print(_line(options.shell, variable, None if options.unset else str(library)))
    sys.stdout.flush()
    return 0


def _line(shell: str, variable: str, value: str | None) -> str:
    if shell == "fish":
        if value is None:
            return f"set -e {variable};"
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {variable} '{quoted}';"
    if value is None:
        return f"unset {variable};"
    import shlex

    return f"export {variable}={shlex.quote(value)};"
