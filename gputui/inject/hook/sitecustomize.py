"""Runs at the start of a child's interpreter, and waits until the program imports torch.

A private `sitecustomize` that then runs the one it hides. Once torch is there, ranges are put
around its operations (torch_ranges), so that a program without NVTX shows phases, and the lines
that run are sampled (python_lines).

If anything fails here, the program goes on without ranges. Python 3.8 and later; nothing of gputui
is imported, because the child may use another interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, Sequence  # noqa: UP035

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = "torch"


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets the other finders find torch, and annotates it once it has been executed."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != _TORCH or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module
        finder = self

        def exec_module(module: Any) -> None:
            execute(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(finder)
            with contextlib.suppress(Exception):
                if os.environ.get("GPUTUI_ANNOTATE"):
                    _beside("torch_ranges").annotate(module)
            with contextlib.suppress(Exception):
                _sample_lines()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _sample_lines() -> None:
    """Begin to say at which line the program is, where that is wanted."""
    folder = os.environ.get("GPUTUI_CAPTURE_DIR")
    if folder and os.environ.get("GPUTUI_LINES"):
        _beside("python_lines").start(folder)


def _beside(name: str) -> Any:
    """A module of this folder, under a name that is nobody else's."""
    path = os.path.join(_HERE, f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_gputui_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hand_on() -> None:
    """Run the sitecustomize that this one hides."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("GPUTUI_ANNOTATE") or os.environ.get("GPUTUI_LINES"):
        sys.meta_path.insert(0, _AfterTorch())
    _hand_on()
