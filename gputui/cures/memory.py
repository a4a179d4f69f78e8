"""The GPU's memory: its allocator, and activations that are kept or computed again."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from . import EXACT, CannotApply, Cure
from .changing import Idled, idle, replaced

if TYPE_CHECKING:
    from . import Undo


class EmptyCacheIdle(Idled):
    """No torch.cuda.empty_cache(), which gives the allocator's blocks back to the driver."""

    name = "empty_cache_idle"
    title = "torch.cuda.empty_cache() does nothing"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "no torch.cuda.empty_cache() in the loop"
    # What the allocator keeps is a state: switched in one run it gained 2.36, in runs of its own
    # 1.96, in the source 1.8 (H200).
    in_one_run = False
    advice = "empty_cache"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        cuda = torch.cuda
        return (
            (cuda, "empty_cache"), (cuda.memory, "empty_cache"), (torch._C, "_cuda_emptyCache")
        )  # fmt: skip


class CupyPoolKept(Cure):
    """No free_all_blocks() of CuPy's memory pools, which gives their blocks back to the driver."""

    name = "cupy_pool_kept"
    title = "CuPy's memory pools keep their blocks"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "no free_all_blocks() in the loop"
    library = "cupy"
    in_one_run = False

    def apply(self, cupy: Any) -> Undo:
        def kept(get_pool: Any) -> Any:
            @functools.wraps(get_pool)
            def called() -> Any:
                return _KeptPool(get_pool())

            return called

        names = ("get_default_memory_pool", "get_default_pinned_memory_pool")
        return replaced(*((cupy, name, kept(getattr(cupy, name))) for name in names))


class _KeptPool:
    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.free_all_blocks = idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OPTION = "expandable_segments"


class ExpandableSegments(Cure):
    """An allocator whose segments grow, where sizes vary."""

    name = "expandable_segments"
    title = "the allocator's segments grow instead of being freed"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    library = None
    in_one_run = False
    forecast = None
    advice = "expandable_segments"

    def apply(self, _library: object) -> Undo:
        name = next((name for name in _VARIABLES if os.environ.get(name)), _VARIABLES[1])
        before = os.environ.get(name)
        if before and _OPTION in before:
            raise CannotApply(f"{name} says already what segments are")
        os.environ[name] = f"{before},{_OPTION}:True" if before else f"{_OPTION}:True"

        def undo() -> None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

        return undo


_OPTIONS_OF_CHECKPOINT = (
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop",
    "preserve_rng_state",
)  # fmt: skip


def _direct(function: Any, *args: Any, **kwargs: Any) -> Any:
    own = {name: kwargs[name] for name in kwargs if name not in _OPTIONS_OF_CHECKPOINT}
    return function(*args, **own)


class CheckpointingOff(Cure):
    """Activations are kept instead of computed again."""

    name = "checkpointing_off"
    title = "activations are kept, none is computed again"
    answers = ("recomputation",)
    result = EXACT
    change = "no gradient checkpointing, or of fewer layers: it needs more memory"
    library = "torch.utils.checkpoint"
    in_one_run = False

    def apply(self, checkpoint: Any) -> Undo:
        return replaced((checkpoint, "checkpoint", _direct))
