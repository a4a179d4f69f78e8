"""Runs at the start of a child's interpreter, and waits until the program imports a library that
uses GPUs.

A private `sitecustomize` that then runs the one it hides. Once there is such a library, the lines
that run are sampled (python_lines); once there is torch, ranges are put around its operations
(torch_ranges), so that a program without NVTX shows phases. Torch, and libraries that have a loop
or show one, mark the program's steps (step_marks). Cures that are tried (gputui.cures) are applied
once the library that they change is there, or switched on and off between steps (trial).

If anything fails here, the program goes on without ranges, marks or cures. Python 3.8 and later;
nothing of gputui is imported, because the child may use another interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, Sequence  # noqa: UP035

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_gputui_hook"
_CURES = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "cures")
_TORCH = "torch"
# The keys of torch_ranges.ENGINES, which only programs with torch load.
_ENGINES = {
    "transformers.generation.continuous_batching.continuous_api",
    "vllm.v1.worker.gpu_worker",
    "sglang.srt.managers.scheduler",
}
# Lines of any of these programs are sampled: it once began with torch only.
_USE_GPUS = {_TORCH, "jax", "cupy", "tensorflow", "pycuda"}


class _AfterLibraries(importlib.abc.MetaPathFinder):
    """Lets the other finders find a library that uses GPUs, has a loop, or that a cure waits for;
    once it has been executed, has lines sampled and steps marked, annotates torch and applies the
    library's cures."""

    def __init__(self, cures: Any, steps: Any, trial: Any) -> None:
        self._looking = False
        self._loops = set(steps.PLACES) if steps is not None else set()
        self._awaited = _USE_GPUS.union(self._loops, cures.libraries if cures is not None else ())
        if os.environ.get("GPUTUI_CAPTURE_LIBRARY"):
            self._awaited |= _ENGINES
        self._sampling = False
        self._facts: Any = None
        self._cures = cures
        self._steps = steps
        self._trial = trial
        self._marks: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname not in self._awaited or self._looking:
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
            finder._executed(fullname, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _executed(self, name: str, module: Any) -> None:
        self._awaited.discard(name)
        if name == _TORCH and self._trial is not None:
            with contextlib.suppress(Exception):
                self._trial.imported_torch(module)
        if self._cures is not None:
            self._cures.imported(name, module)
        if name == "jax" and self._trial is None:
            with contextlib.suppress(Exception):
                _beside("jax_compiled").count_hits(module)
        if name == _TORCH:
            if not self._loops and (self._cures is None or not self._cures.libraries):
                # Whatever is imported later finds lines sampled already.
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
            with contextlib.suppress(Exception):
                if os.environ.get("GPUTUI_ANNOTATE"):
                    _beside("torch_ranges").annotate(module)
        if name in _ENGINES:
            with contextlib.suppress(Exception):
                hook = _beside("torch_ranges")
                hook.ENGINES[name](module, hook.Ranges(os.environ["GPUTUI_CAPTURE_LIBRARY"]))
        if name in self._loops:
            with contextlib.suppress(Exception):
                if self._marks is None:
                    if self._trial is not None:
                        self._marks = self._steps.Marks(self._trial.sites.define, self._trial.step)
                        self._marks.returned = self._trial.results.returned
                        if self._trial.sites.wants_loops:
                            self._marks.keeps_loops = True
                            self._marks.watch_loops = self._watch_loops
                    else:
                        library = os.environ["GPUTUI_CAPTURE_LIBRARY"]
                        self._marks = self._steps.from_library(library)
                        self._marks.watch_loops = self._watch_loops
                self._marks.mark(name, module)
        if name in _USE_GPUS:
            with contextlib.suppress(Exception):
                if self._facts is not None:
                    self._facts.find_functions()
                if not self._sampling:
                    self._sampling = True
                    self._facts = _sample_lines()
                if self._marks is not None and self._facts is not None:
                    self._marks.note = self._facts.note

    def _watch_loops(self) -> None:
        _beside("loop_marks").start(self._marks, _beside("python_facts").free_tool())


def _sample_lines() -> Any:
    """Begin to say at which line the program is, and what it calls there, where that is wanted."""
    folder = os.environ.get("GPUTUI_CAPTURE_DIR")
    if not folder or not os.environ.get("GPUTUI_LINES"):
        return None
    sampler = _beside("python_lines").start(folder)
    if sampler is not None:
        sampler.facts = _beside("python_facts").start(sampler.program_frame)
    return sampler.facts if sampler is not None else None


def _beside(name: str) -> Any:
    """A module of this folder, in a package whose name is nobody else's."""
    if _PACKAGE not in sys.modules:
        spec = importlib.machinery.ModuleSpec(_PACKAGE, None, is_package=True)
        spec.submodule_search_locations = [_HERE]
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _chosen_cures() -> Any:
    """Those that were chosen for this program, or that a trial switches, the ones that wait for no
    library applied already; None where none were chosen."""
    names = [name for name in os.environ.get("GPUTUI_CURES", "").split(",") if name]
    switched: list[str] = []
    asked: list[str] = []
    with contextlib.suppress(Exception):
        if os.environ.get("GPUTUI_TRIAL"):
            tried = json.loads(os.environ["GPUTUI_TRIAL"])
            switched = [*tried.get("cures", ()), *tried.get("held", ())]
            asked = [*tried.get("asked", ())]
    if not names and not switched and not asked:
        return None
    spec = importlib.util.spec_from_file_location(
        "_gputui_cures", os.path.join(_CURES, "__init__.py"), submodule_search_locations=[_CURES]
    )
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its families import from it
    try:
        spec.loader.exec_module(module)
        cures = module.Application(names, os.environ.get("GPUTUI_CAPTURE_DIR"), switched, asked)
    except Exception:
        return None
    cures.imported(None)
    return cures


def _what_marks_steps() -> Any:
    """The module that marks steps; None where that is not wanted."""
    with contextlib.suppress(Exception):
        if os.environ.get("GPUTUI_STEP_MARKS"):
            return _beside("step_marks")
    return None


def _what_is_tried(cures: Any, steps: Any) -> Any:
    """The trial of this program; None where there is none."""
    text = os.environ.get("GPUTUI_TRIAL")
    with contextlib.suppress(Exception):
        if text and steps is not None:
            trial = _beside("trial").begin(text, cures, steps.SOURCES)
            with contextlib.suppress(Exception):
                _beside("loop_marks").find_recurring(trial)
            return trial
    return None


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
    cures = _chosen_cures()
    steps = _what_marks_steps()
    trial = _what_is_tried(cures, steps)
    wanted = os.environ.get("GPUTUI_ANNOTATE") or os.environ.get("GPUTUI_LINES")
    if cures is not None or steps is not None or wanted:
        sys.meta_path.insert(0, _AfterLibraries(cures, steps, trial))
    _hand_on()
