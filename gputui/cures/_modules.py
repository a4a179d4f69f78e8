"""Calls of torch modules that no other module calls, for cures that change a whole model."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 256
"""Calls of outermost modules after which no new one is expected. The wrapper stays: torch.compile
would compile again what it was in."""


def before_first_calls(torch: Any, change: Callable[[Any, tuple[Any, ...]], None]) -> Any:
    """Calls `change(module, arguments)` before the first call of each outermost module that has
    parameters, for the first CALLS of such calls; returns what takes that back."""
    kind = torch.nn.Module
    call = kind.__call__
    is_compiling = torch.compiler.is_compiling
    inside = threading.local()
    seen: dict[int, Any] = {}
    left = [CALLS]
    main = threading.main_thread().ident

    def undo() -> None:
        if kind.__call__ is changed:
            kind.__call__ = call

    @functools.wraps(call)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        # What autograd's threads call is computed again, and inside another one.
        if is_compiling() or getattr(inside, "any", False) or threading.get_ident() != main:
            return call(module, *args, **kwargs)
        inside.any = True
        try:
            left[0] -= 1
            if left[0] >= 0 and id(module) not in seen:
                seen[id(module)] = module  # kept, so that no other gets its number
                if next(module.parameters(), None) is not None:
                    change(module, (*args, *kwargs.values()))
            return call(module, *args, **kwargs)
        finally:
            inside.any = False

    kind.__call__ = changed
    return undo
