"""gputui: the machine and the program on it, live, in a terminal.

`read`, `compare` and `devices` are the library (`gputui.library`), which is imported when one of
its names is used: the program itself starts without it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes longer to import than all else that --version needs
if TYPE_CHECKING:
    from gputui.library import (
        Comparison,
        Error,
        MissingPackageError,
        Recording,
        Run,
        compare,
        devices,
        read,
    )

__version__: str

__all__ = [
    "Comparison", "Error", "MissingPackageError", "Recording", "Run", "compare", "devices", "read",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        # The name alone loads nothing else: a test counts the modules.
        return str(import_module("gputui.base").VERSION)
    if name not in __all__:
        raise AttributeError(f"module 'gputui' has no attribute {name!r}")
    return getattr(import_module("gputui.library"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), "__version__", *__all__])
