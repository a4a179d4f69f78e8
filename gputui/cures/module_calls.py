"""Calls of torch's modules, which several cures look at or answer: one function is in their way."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    Around = Callable[..., Any]
    """Is called with the call itself, the module and what it is given, and gives its result."""


class ModuleCalls:
    """What is called around each call of a module while it is started. One function in the place
    of `Module.__call__` serves all cures: with one for each of three a decoder of 24 layers, whose
    318 modules the host is busy with, took 7 % longer, whether a cure was on or not."""

    _started: tuple[Around, ...] = ()
    """Of all of them; the last is called first."""
    _is_in_place = False

    def __init__(self, torch: Any, around: Around) -> None:
        self._around = around
        if not ModuleCalls._is_in_place:
            ModuleCalls._is_in_place = True
            call, is_compiling = torch.nn.Module.__call__, torch.compiler.is_compiling

            @functools.wraps(call)
            def called(module: Any, *args: Any, **kwargs: Any) -> Any:
                # Asked first: a compiler would compile anew for each change of what is started.
                if is_compiling() or not ModuleCalls._started:
                    return call(module, *args, **kwargs)
                through = call
                for each in ModuleCalls._started:
                    through = functools.partial(each, through)
                return through(module, *args, **kwargs)

            replaced((torch.nn.Module, "__call__", called))

    def start(self) -> None:
        """From the next call on; once, however often it is asked for."""
        if self._around not in ModuleCalls._started:
            ModuleCalls._started = (*ModuleCalls._started, self._around)

    def stop(self) -> None:
        """Not from the next call on; nothing where it was not started."""
        started = ModuleCalls._started
        ModuleCalls._started = tuple(each for each in started if each != self._around)
