"""Writes a workload of the user's own, the template under its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import CannotRun, WrongUsage

_TEMPLATE = Path(__file__).with_name("template.py")


def own_folder() -> Path:
    """Where the user's own workloads lie, a file or a package each."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "gputui", "workloads")


def write_own(name: str, is_taken: bool) -> Path:
    """A file in the folder of the user's own workloads, which runs as it is.

    Raises WrongUsage for a name that is not an identifier or `is_taken`, CannotRun if the file
    exists or cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise WrongUsage(f"{name[:64]!r}: use lower-case letters, digits and underscores")
    if is_taken:
        raise WrongUsage(f"there is a workload {name!r} already: use another name")
    text = _TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("saxpy", name).replace("SAXPY", name.upper())
    path = own_folder() / f"{name}.py"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotRun(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return path
