"""Builds the capture library with the system's C compiler, by hand and on installation.

`python -m gputui.inject.build` builds it in place. The installation runs this same file as its
build hook, so it imports nothing of gputui; without a compiler, or outside Linux, gputui is
installed all the same, but cannot look inside processes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:
        BuildHookInterface = object

LIBRARY_NAME = "libgputui_capture.so"
SOURCES = Path(__file__).with_name("src")
SOURCE = SOURCES / "gputui_capture.c"
"""The file that is compiled: it includes the others of its folder."""
_MARK = "gputui capture library of sources "
_FLAGS = ("-O2", "-std=gnu11", "-fvisibility=hidden", "-shared", "-fPIC")
_LIBRARIES = ("-ldl", "-lpthread")  # of their own before glibc 2.34
_TIMEOUT_S = 120


def sources_mark() -> str:
    """The mark contained in a library built from the current sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{_MARK}{digest.hexdigest()[:32]}"


def is_of_these_sources(library: Path) -> bool:
    """Whether `library` was built from the sources beside this file: after an update of an editable
    installation, the old library writes records that the new reader would misread.
    """
    return sources_mark().encode() in library.read_bytes()


def build(target_dir: Path) -> Path | str:
    """Compile the library into `target_dir`; returns its path, or one line saying why it could not.

    Uses $CC if set, else the first of cc, gcc and clang.
    """
    if not sys.platform.startswith("linux"):
        return f"the capture library needs Linux, this is {sys.platform}"
    compiler = _compiler()
    if compiler is None:
        return "no C compiler: install gcc or clang, or set CC"
    target = target_dir / LIBRARY_NAME
    temporary = target_dir / f".{LIBRARY_NAME}.{os.getpid()}"
    command = [*compiler, *_FLAGS, f'-DSOURCES_MARK="{sources_mark()}"', str(SOURCE)]
    command += ["-o", str(temporary), *_LIBRARIES]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return f"{compiler[0]} could not compile {SOURCE.name}: {lines[0]}"
        # Replaced, not rewritten: a process that has the old one mapped keeps it.
        temporary.replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{compiler[0]} could not compile {SOURCE.name}: {error}"
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _compiler() -> list[str] | None:
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        return chosen
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compiles the library into the package, for wheels and editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Tag the wheel for this platform if the library was built. Never fails."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "gputui" / "capture"
        built = build(folder)
        if isinstance(built, str):
            (folder / LIBRARY_NAME).unlink(missing_ok=True)
            self.app.display_warning(f"gputui cannot look inside processes: {built}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    result = build(Path(__file__).parent)
    if isinstance(result, str):
        sys.exit(f"gputui: {result}")
    print(result)
