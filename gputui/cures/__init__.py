"""Cures that are tried on an unmodified program, each a module of this package with its CURE, and
ablations, which take a cause away, and the results with it, to measure what it costs.

Read by gputui, which offers them, and by the start-up hook (inject/hook/sitecustomize.py), which
applies those that GPUTUI_CURES names within the program, or has a trial switch them on and off
(inject/hook/trial.py). So this package runs in the program's own interpreter (Python 3.8 and
later), imports nothing of gputui, and gets the library that it changes as an argument. Modules
whose names begin with an underscore are what several cures need.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VARIABLE = "GPUTUI_CURES"
"""Names of the cures to apply, with commas between."""

EXACT, ROUNDING, DIFFERENT, BOUND = "exact", "rounding", "different", "bound"
"""What a cure leaves of the results: the same bits, the same but for rounding, others; or that it
is an ablation, whose results are wrong: what is measured bounds what any cure of its cause gains.
"""

ANY = "any"
"""Stands for every finding, and for none: for faults that no diagnosis sees."""


class Cure(NamedTuple):
    """What is changed in a program from outside, and what that answers."""

    name: str
    """As a person chooses it: the name of its module."""
    title: str
    """What it does, as a clause."""
    answers: tuple[str, ...]
    """Keys of the findings (`Finding.cause`) that it is for, or ANY."""
    result: str
    """What it leaves of the results: EXACT, ROUNDING, DIFFERENT or BOUND."""
    change: str
    """What the user writes into the source for it, as code or as a clause."""
    apply: Callable[..., Callable[[], None]]
    """Switches it on, given the library or None and, where it has an `argument`, that; returns what
    switches it off again. Raises `CannotApply` with the reason where this program, library or card
    does not allow it or has no use for it."""
    library: str | None = None
    """The library whose import it waits for; None where it is applied when the program starts."""
    in_one_run: bool = True
    """Whether it may be switched on and off while the program runs: False where something is kept
    that was made under it (compiled code, a captured graph, an allocator's blocks, workers)."""
    argument: str = ""
    """What follows its name after an @, where it needs that: skip@train.py:report."""
    prepare: Callable[[Any], None] | None = None
    """What is done to the library once it is imported, before the program's own lines take
    functions of it by name, for a cure that is switched later. It changes nothing by itself."""
    advice: str = ""
    """Words of a finding's advice that mean this cure: where the advice has them, it comes before
    others, and where it has not, nothing is forecast of it. Empty for one of whatever advice."""
    useless: Callable[[Any], str | None] | None = None
    """Asked once the program is in its loop, given the library: why the cure would change nothing
    there, None where it may. A cure that needs runs of its own then gets none."""
    forecast: str | None = ""
    """Which of a finding's gains is its (`Gain.cure`), where the finding has several; None where it
    is only one of many things that the finding may be about: nothing is promised of it."""


class CannotApply(Exception):
    """A cure is not possible here, or changes nothing; its text says why."""


def cures() -> dict[str, Cure]:
    """Every cure by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {
        name: importlib.import_module(f"{__name__}.{name}").CURE
        for name in names
        if not name.startswith("_")
    }


def answering(cause: str) -> list[Cure]:
    """The cures of a finding by its key, those that change results least first."""
    order = (EXACT, ROUNDING, DIFFERENT, BOUND)
    matching = [cure for cure in cures().values() if cause in cure.answers]
    return sorted(matching, key=lambda cure: order.index(cure.result))


# Within the program.


class Application:
    """The cures of one process: which are on, and which could not be applied and why.

    Written to the run's private folder as `cures-PID`, a line of JSON for each cure when it is
    first applied: {"cure": name, "applied": true} or {"cure": name, "applied": false, "why":
    reason}. `names` are applied as soon as their library is there, `switched` when `switch` says
    so. Either may have an argument: name@argument.
    """

    def __init__(
        self, names: Iterable[str], folder: str | None, switched: Iterable[str] = ()
    ) -> None:
        self._every = cures()
        self._folder = folder
        self._said: set[str] = set()
        self._modules: dict[str | None, Any] = {None: None}
        self._waiting = self._existing(names)
        self._switched = self._existing(switched)
        self.undo: dict[str, Callable[[], None]] = {}
        """What switches each off that is on."""

    def _existing(self, names: Iterable[str]) -> list[str]:
        existing = []
        for name in names:
            if name.partition("@")[0] in self._every:
                existing.append(name)
            else:
                self._report(name, "there is no such cure")
        return existing

    def _cure(self, name: str) -> Cure:
        return self._every[name.partition("@")[0]]

    @property
    def libraries(self) -> list[str]:
        """Those whose import cures wait for."""
        awaited = [self._cure(name).library for name in (*self._waiting, *self._switched)]
        return [library for library in awaited if library is not None]

    def imported(self, library: str | None, module: Any = None) -> None:
        """Applies the cures of a library that was imported just now, or with None those that need
        none. Never raises: a cure that fails leaves the program as it is."""
        self._modules[library] = module
        due = [name for name in self._waiting if self._cure(name).library == library]
        self._waiting = [name for name in self._waiting if name not in due]
        for name in due:
            self._apply(name)
        for name in self._switched:
            cure = self._cure(name)
            if cure.library == library and cure.prepare is not None:
                try:
                    cure.prepare(module)
                except Exception as error:
                    self._report(name, f"{type(error).__name__}: {error}")

    def ask(self, names: Iterable[str]) -> None:
        """Reports those of these cures that would change nothing, as not applied."""
        for name in self._existing(names):
            cure = self._cure(name)
            why: str | None = None
            module = sys.modules.get(cure.library) if cure.library is not None else None
            if cure.library is not None and module is None:
                why = f"the program does not import {cure.library}"
            elif cure.useless is not None:
                try:
                    why = cure.useless(module)
                except Exception:  # what cannot be told is tried
                    why = None
            if why is not None:
                self._report(name, why)

    def switch(self, name: str, on: bool) -> bool:
        """Switches a cure on or off; whether it now is as wanted. Never raises."""
        if name.partition("@")[0] not in self._every:
            return False
        if on:
            return name in self.undo or self._apply(name)
        undo = self.undo.pop(name, None)
        if undo is None:
            return True
        try:
            undo()
        except Exception as error:
            self._said.discard(name)
            self._report(name, f"it could not be switched off: {type(error).__name__}: {error}")
            return False
        return True

    def _apply(self, name: str) -> bool:
        cure = self._cure(name)
        argument = name.partition("@")[2]
        if cure.library not in self._modules:
            self._report(name, f"the program does not import {cure.library}")
            return False
        try:
            module = self._modules[cure.library]
            if cure.argument:
                self.undo[name] = cure.apply(module, argument)
            else:
                self.undo[name] = cure.apply(module)
        except CannotApply as reason:
            self._report(name, str(reason))
        except Exception as error:
            self._report(name, f"{type(error).__name__}: {error}")
        else:
            self._report(name, None)
            return True
        return False

    def _report(self, name: str, why_not: str | None) -> None:
        if self._folder is None or name in self._said:
            return
        self._said.add(name)
        row: dict[str, Any] = {"cure": name, "applied": why_not is None}
        if why_not is not None:
            row["why"] = why_not[:500]
        path = os.path.join(self._folder, f"cures-{os.getpid()}")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            pass
