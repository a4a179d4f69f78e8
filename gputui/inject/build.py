"""Builds the C libraries with the system's C compiler, by hand and on installation.

`python -m gputui.inject.build` builds them in place. The installation runs this same file as its
build hook, so it imports nothing of gputui. Without the libraries gputui cannot look inside
processes; so it is installed outside Linux, as an editable installation without a compiler, and
as a wheel only if $GPUTUI_NO_LIBRARY asks for it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
elif __name__.startswith("gputui."):
    # Of the package, not hatchling's hook: where it is installed, importing it took 33 of the 61 ms
    # of all that starting a run imports of `inject`.
    BuildHookInterface = object
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:
        BuildHookInterface = object

_PACKAGE = Path(__file__).parents[1]


class Library(NamedTuple):
    """A C library or program of gputui: compiled from one file in the folder `src` beside it, which
    includes the others.
    """

    folder: Path
    stem: str
    is_program: bool = False

    @property
    def path(self) -> Path:
        """The path of the built library."""
        return self.folder / (self.stem if self.is_program else f"lib{self.stem}.so")

    @property
    def source(self) -> Path:
        """The file that is compiled."""
        return self.folder / "src" / f"{self.stem}.c"

    def is_current(self) -> bool:
        """Whether it was built from the sources as they are: after an update of an editable
        installation, the old library writes records that the new reader would misread.
        """
        return self.path.is_file() and sources_mark().encode() in self.path.read_bytes()


CAPTURE = Library(_PACKAGE / "inject", "gputui_capture")
"""Lives in traced processes."""

CALLS = Library(_PACKAGE / "inject", "gputui_calls")
"""Stands before cuBLAS and cuDNN in traced processes, on request."""

RING = Library(_PACKAGE / "ring", "gputui_ring")
"""Reads what they write, in the monitor."""

INJECTOR = Library(_PACKAGE / "inject" / "injector", "gputui_inject", is_program=True)
"""Hands the first to a program that runs."""

COUNTERS = Library(_PACKAGE / "counters", "gputui_counters", is_program=True)
"""Samples a GPU's hardware counters from outside the programs on it."""

PAGES = Library(_PACKAGE / "imports" / "nsys", "gputui_pages")
"""Finds when the rows of a large report begin and end."""

_INJECTS = platform.machine() in ("x86_64", "aarch64")
_EVERYWHERE = (CAPTURE, CALLS, RING, COUNTERS, PAGES)
LIBRARIES = (*_EVERYWHERE, INJECTOR) if _INJECTS else _EVERYWHERE
HOOK = CAPTURE.folder / "hook"
"""Python that runs in traced programs: found by their interpreter, or taken from the library."""

_MARK = "gputui library of sources "
_FLAGS = ("-O2", "-std=gnu11", "-fvisibility=hidden")
_KIND_FLAGS = {False: ("-shared", "-fPIC"), True: ("-pie", "-fPIE")}
# Where they find the layout of a ring.
_SHARED = CAPTURE.source.parent

_SYSTEM_LIBRARIES = ("-ldl", "-lpthread")  # of their own before glibc 2.34
# A symbol is not looked up in the middle of a signal handler of the program.
_AT_ONCE = "-Wl,-z,now"
_TIMEOUT_S = 120
NO_LIBRARY = "GPUTUI_NO_LIBRARY"
"""Set, gputui is installed without the libraries: it cannot look inside processes."""


@functools.cache
def sources_mark() -> str:
    """The mark that libraries built from the current sources contain. All libraries have the same,
    since they share the layout of a ring."""
    digest = hashlib.sha256()
    for path in sorted(HOOK.glob("*.py")):  # the capture library contains them
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for library in LIBRARIES:
        for path in sorted(library.source.parent.iterdir()):
            if path.suffix in (".c", ".h"):
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{_MARK}{digest.hexdigest()[:32]}"


def build(library: Library, target: Path | None = None, *flags: str) -> Path | str:
    """Compile `library` in place, or to `target`; returns its path, or one line saying why it could
    not.

    Uses $CC if set, else the first of cc, gcc and clang.
    """
    if not sys.platform.startswith("linux"):
        return f"the capture library needs Linux, this is {sys.platform}"
    compiler = _compiler()
    if compiler is None:
        return "no C compiler: install gcc or clang, or set CC"
    target = target or library.path
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler, *_FLAGS, *_KIND_FLAGS[library.is_program], *flags, f"-I{_SHARED}"]
    command += [f'-DSOURCES_MARK="{sources_mark()}"', f'-DHOOK_FOLDER="{HOOK}"']
    command += [str(library.source), "-o", str(temporary), _AT_ONCE, *_SYSTEM_LIBRARIES]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return f"{compiler[0]} could not compile {library.source.name}: {lines[0]}"
        if sources_mark().encode() not in temporary.read_bytes():
            return f"{compiler[0]} left out the mark of the sources, which nothing in them reads"
        # Replaced, not rewritten: a process that has the old one mapped keeps it.
        temporary.replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{compiler[0]} could not compile {library.source.name}: {error}"
    finally:
        temporary.unlink(missing_ok=True)
    return target


def build_all() -> str | None:
    """Compile every library in place; returns None, or one line saying why it could not."""
    return next((built for built in map(build, LIBRARIES) if isinstance(built, str)), None)


def _compiler() -> list[str] | None:
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        return chosen
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compiles the libraries into the package, for wheels and editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Tag the wheel for this platform if the libraries were built.

        Raises RuntimeError for a wheel that would lack them, unless $GPUTUI_NO_LIBRARY asks for
        that. An editable installation only warns.
        """
        if self.target_name != "wheel":
            return
        if version == "standard":
            # In site-packages the folder's own name could be anybody's.
            build_data["force_include"]["workloads"] = "gputui_workloads"
        else:
            editable = build_data.setdefault("force_include_editable", {})
            editable["workloads/editable.py"] = "gputui_workloads.py"
        asked = os.environ.get(NO_LIBRARY)
        if failure := f"${NO_LIBRARY} is set" if asked else build_all():
            for library in LIBRARIES:
                library.path.unlink(missing_ok=True)
            reason = f"gputui cannot look inside processes: {failure}"
            if version == "standard" and not asked and sys.platform.startswith("linux"):
                raise RuntimeError(f"{reason}; to install it without, set {NO_LIBRARY}=1")
            self.app.display_warning(reason)
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"


if __name__ == "__main__":
    if failure := build_all():
        sys.exit(f"gputui: {failure}")
    print(*(library.path for library in LIBRARIES), sep="\n")
