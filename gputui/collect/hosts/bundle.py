"""gputui as an archive for a host that has Python, and nothing else of it."""

from __future__ import annotations

import io
import platform
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import gputui

STARTER = "gputui-far.py"
"""The file in the archive that starts it: its folder is then the first that is searched."""

_STARTER_TEXT = "import sys\n\nfrom gputui.__main__ import main\n\nsys.exit(main())\n"
_NEEDED = ("msgspec", "psutil", "nvidia-ml-py")
"""Distributions that reading a machine needs; NumPy, as large as all the rest 20 times, is not."""
_LEFT_OUT = ("tui", "docs", "__pycache__")
_KINDS = (".py", ".json")
_LIBRARY = ".so"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same files give the same archive, and with it the same sum."""


@cache
def bundle(*, libraries: bool) -> bytes:
    """The archive; with the capture libraries if they can be loaded there."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_files(libraries)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def misfit(python: tuple[int, int], machine: str, system: str) -> str:
    """Why the archive of this machine does not run there, "" if it does: its packages have parts
    that are made for one version of Python on one kind of machine.
    """
    here = sys.version_info[:2], platform.machine(), sys.platform
    if (python, machine, system) == here:
        return ""
    return (
        f"Python {python[0]}.{python[1]} on {machine} there, "
        f"{here[0][0]}.{here[0][1]} on {here[1]} here: the packages of one do not run on the other"
    )


def _files(libraries: bool) -> Iterator[tuple[str, bytes]]:
    yield STARTER, _STARTER_TEXT.encode()
    root = Path(gputui.__file__).parent
    for path in root.rglob("*"):
        part = path.relative_to(root)
        kinds = (*_KINDS, _LIBRARY) if libraries else _KINDS
        if path.suffix in kinds and path.is_file() and not set(part.parts) & set(_LEFT_OUT):
            yield f"gputui/{part}", path.read_bytes()
    for name in _NEEDED:
        for file in metadata.files(name) or ():
            part = Path(str(file))
            is_code = part.suffix in (".py", _LIBRARY) and "tests" not in part.parts
            if is_code and ".." not in part.parts:
                yield str(part), Path(str(file.locate())).read_bytes()
