"""Ablations of what a program does itself: a function at a finding's line, what it saves, and what
it writes for trackers."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from . import ANY, BOUND, CannotApply, Cure
from .changing import combined, idle, replaced

if TYPE_CHECKING:
    from . import Undo


class Skip(Cure):
    """A function of the program returns its last result instead of running."""

    name = "skip"
    title = "a function returns its last result"
    answers = ("idle.host", "idle.wait", "idle.sync", "idle.launch")
    result = BOUND
    change = "make it cheaper, call it less often, or on another thread"
    library = None
    argument = "FILE:FUNCTION"

    def apply(self, _library: object) -> Undo:
        file, _, name = self.given.rpartition(":")
        if not file or not name.isidentifier():
            raise CannotApply(f"{self.given}: give FILE:FUNCTION")
        owners = _owners(os.path.basename(file), name)
        if not owners:
            raise CannotApply(f"no function {name} is imported from {os.path.basename(file)}")
        codes = {getattr(vars(owner)[name], "__code__", None) for owner in owners}
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code in codes:
                raise CannotApply(f"steps end within {name}: without it there would be none")
            frame = frame.f_back
        return combined(*(_skipped(owner, name) for owner in owners))


def _owners(file: str, name: str) -> list[Any]:
    """The modules and classes of a file that have a function of the name, and modules that took it
    from there."""
    owners: list[Any] = []
    functions: list[Any] = []
    modules = [each for each in list(sys.modules.values()) if hasattr(each, "__dict__")]
    for module in modules:
        if os.path.basename(getattr(module, "__file__", None) or "") != file:
            continue
        classes = [value for value in list(vars(module).values()) if isinstance(value, type)]
        for owner in (module, *classes):
            function = vars(owner).get(name)
            if callable(function) and owner not in owners:
                owners.append(owner)
                functions.append(function)
    for module in modules:
        if module not in owners and any(vars(module).get(name) is each for each in functions):
            owners.append(module)
    return owners


_LAST: dict[Any, Any] = {}
"""The last result of each function that was skipped."""


def _skipped(owner: Any, name: str) -> Undo:
    function = vars(owner)[name]

    @functools.wraps(function)
    def skipped(*args: Any, **kwargs: Any) -> Any:
        if function not in _LAST:
            _LAST[function] = function(*args, **kwargs)
        return _LAST[function]

    return replaced((owner, name, skipped))


class NoSaves(Cure):
    """Nothing is saved: torch.save, and safetensors, pickles and Orbax where they are imported."""

    name = "no_saves"
    title = "nothing is saved"
    answers = ("idle.host", "idle.wait", "busy.copy_pageable")
    result = BOUND
    change = "save less often, or from another thread (torch.distributed.checkpoint.async_save)"
    advice = "sav"

    _saves = 0

    def apply(self, torch: Any) -> Undo:
        places = [(torch, "save"), (torch.serialization, "save")]
        for module, *names in _SAVING:
            owner: Any = sys.modules.get(module)
            for name in names[:-1]:
                owner = getattr(owner, name, None)
            if owner is not None:
                places.append((owner, names[-1]))
        return replaced(*((owner, name, self._counted) for owner, name in places))

    def _counted(self, *_args: Any, **_kwargs: Any) -> None:
        self._saves += 1

    def note(self) -> str:
        return f"{self._saves} saves were left out" if self._saves else "nothing was saved in it"


_SAVING = (
    ("safetensors.torch", "save_file"),
    ("safetensors.numpy", "save_file"),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("pickle", "dump"),
    ("joblib", "dump"),
    ("numpy", "save"),
    ("numpy", "savez"),
    ("orbax.checkpoint", "CheckpointManager", "save"),
    ("orbax.checkpoint", "PyTreeCheckpointer", "save"),
)
"""Where else programs save: modules, and names within."""


class NoTensorboard(Cure):
    """Nothing is written for TensorBoard: a trial is no run that somebody wants to see there."""

    name = "no_tensorboard"
    title = "nothing is written for TensorBoard, in every trial"
    answers = (ANY,)
    result = BOUND
    change = "add_scalar and the like less often"
    library = "torch.utils.tensorboard.writer"
    in_one_run = False

    def apply(self, writer: Any) -> Undo:
        # TensorBoard's writers stay idle in trials, as other trackers do.
        return replaced((writer, "FileWriter", _FileWriter))


class _FileWriter:
    """Stands in for what SummaryWriter writes its events with."""

    def __init__(self, log_dir: Any, *_args: Any, **_kwargs: Any) -> None:
        self._log_dir = str(log_dir)

    def get_logdir(self) -> str:
        return self._log_dir

    def __getattr__(self, _name: str) -> Any:
        return idle
