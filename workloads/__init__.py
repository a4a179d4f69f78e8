"""The catalogue of workloads: programs that do on a GPU what language models do.

Each is declared once (`declaration`), found by name (`registry`), and runs in a process of its own:
`python -m workloads NAME [--KEY VALUE ...]` in a checkout; installed, the package is called
gputui_workloads. It shows what it does through NVTX ranges, and its progress through a pipe of JSON
lines (`report`); it depends on no monitor, so it also runs by itself or under another profiler.

`gputui workloads --new NAME` writes one from `template`; `inference` is a complete example.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

INSTALLED_NAME = "gputui_workloads"


class _InstalledName(MetaPathFinder, Loader):
    """In a checkout, gives a package that adds workloads these modules under their installed name:
    the very same ones, because a second copy's classes would be others."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        own = self._own(fullname) if fullname.split(".")[0] == INSTALLED_NAME else None
        return ModuleSpec(fullname, self, origin=own.origin) if own is not None else None

    def _own(self, fullname: str) -> ModuleSpec | None:
        return find_spec(fullname.replace(INSTALLED_NAME, __name__, 1))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.replace(INSTALLED_NAME, __name__, 1))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It ran under its own name; importing replaced its specification.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """What `python -m gputui_workloads.serve.client` runs."""
        own = self._own(fullname)
        loader: Any = own.loader if own is not None else None
        return loader.get_code(own.name) if own is not None and loader is not None else None


if __name__ != INSTALLED_NAME:
    sys.meta_path.insert(0, _InstalledName())
