"""Cures that are tried on an unmodified program, each a module of this package with its CURE.

Read by gputui, which offers them, and by the start-up hook (inject/hook/sitecustomize.py), which
applies those that GPUTUI_CURES names within the program. So this package runs in the program's own
interpreter (Python 3.8 and later), imports nothing of gputui, and gets the library that it changes
as an argument.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VARIABLE = "GPUTUI_CURES"
"""Names of the cures to apply, with commas between."""

EXACT, ROUNDING, DIFFERENT = "exact", "rounding", "different"
"""What a cure leaves of the results: the same bits, the same but for rounding, or others."""


class Cure(NamedTuple):
    """What is changed in a program from outside, and what that answers."""

    name: str
    """As a person chooses it: the name of its module."""
    title: str
    """What it does, as a clause."""
    answers: tuple[str, ...]
    """Keys of the findings (`Finding.cause`) that it is for."""
    result: str
    """What it leaves of the results: EXACT, ROUNDING or DIFFERENT."""
    change: str
    """What the user writes into the source for it, as code or as a clause."""
    apply: Callable[[Any], Callable[[], None]]
    """Switches it on, given the library or None, and returns what switches it off again. Raises
    `CannotApply` with the reason where this program, library or card does not allow it."""
    library: str | None = None
    """The library whose import it waits for; None where it is applied when the program starts."""
    in_one_run: bool = True
    """Whether it may be switched on and off while the program runs: False where something is kept
    that was made under it (compiled code, a captured graph, an allocator's blocks, workers)."""


class CannotApply(Exception):
    """A cure is not possible here; its text says why."""


def cures() -> dict[str, Cure]:
    """Every cure by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").CURE for name in names}


def answering(cause: str) -> list[Cure]:
    """The cures of a finding by its key, those that change results least first."""
    order = (EXACT, ROUNDING, DIFFERENT)
    matching = [cure for cure in cures().values() if cause in cure.answers]
    return sorted(matching, key=lambda cure: order.index(cure.result))


# Within the program.


class Application:
    """The cures of one process: which are on, and which could not be applied and why.

    Written to the run's private folder as `cures-PID`, a line of JSON for each cure when it is
    applied: {"cure": name, "applied": true} or {"cure": name, "applied": false, "why": reason}.
    """

    def __init__(self, names: Iterable[str], folder: str | None) -> None:
        every = cures()
        self._folder = folder
        self._waiting: list[Cure] = []
        self.undo: dict[str, Callable[[], None]] = {}
        """What switches each off that is on."""
        for name in names:
            if name in every:
                self._waiting.append(every[name])
            else:
                self._report(name, "there is no such cure")

    @property
    def libraries(self) -> list[str]:
        """Those whose import cures wait for."""
        return [cure.library for cure in self._waiting if cure.library is not None]

    def imported(self, library: str | None, module: Any = None) -> None:
        """Applies the cures of a library that was imported just now, or with None those that need
        none. Never raises: a cure that fails leaves the program as it is."""
        due = [cure for cure in self._waiting if cure.library == library]
        self._waiting = [cure for cure in self._waiting if cure.library != library]
        for cure in due:
            try:
                self.undo[cure.name] = cure.apply(module)
            except CannotApply as reason:
                self._report(cure.name, str(reason))
            except Exception as error:
                self._report(cure.name, f"{type(error).__name__}: {error}")
            else:
                self._report(cure.name, None)

    def _report(self, name: str, why_not: str | None) -> None:
        if self._folder is None:
            return
        row: dict[str, Any] = {"cure": name, "applied": why_not is None}
        if why_not is not None:
            row["why"] = why_not
        try:
            with open(os.path.join(self._folder, f"cures-{os.getpid()}"), "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            pass
