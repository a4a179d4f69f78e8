"""Thread names: from the program through NVTX, or from the system."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from gputui.attribute.arrays import Slots
from gputui.attribute.records import MAX_LABEL, Strings
from gputui.base.sanitize import sanitize
from gputui.model.events import ThreadNamed
from gputui.ring.layout import NAMED_BY_SYSTEM

MAX_THREADS = 4096
"""Named threads per process."""

ASKED_AT_ONCE = 64
"""Threads whose system name is read in one tick, in turn: it can change."""


class Threads:
    """The names of one process's threads. `ask` returns the system's name of a thread, or None."""

    def __init__(
        self, process: int, strings: Strings, ask: Callable[[int], str | None] | None
    ) -> None:
        self._process = process
        self._strings = strings
        self._ask = ask
        self._names: dict[int, tuple[str, Literal["nvtx", "system"]]] = {}
        self._seen: dict[int, None] = {}
        self._changed: set[int] = set()

    def define(self, records: Slots) -> None:
        """Add THREAD_NAME records: the program's name wins over the system's."""
        columns = records["thread"].tolist(), records["name"].tolist(), records["sub"].tolist()
        for thread, number, sub in zip(*columns, strict=True):
            known = self._names.get(thread)
            if known is None and len(self._names) >= MAX_THREADS:
                continue
            name = self._strings.label(number)
            if sub != NAMED_BY_SYSTEM:
                self._name(thread, name, "nvtx")
                self._seen.pop(thread, None)
            elif known is None or known[1] == "system":
                self._name(thread, name, "system")

    def see(self, threads: Iterable[int]) -> None:
        """Register active threads."""
        for thread in threads:
            known = self._names.get(thread)
            if (known is None or known[1] == "system") and len(self._seen) < MAX_THREADS:
                self._seen.setdefault(thread)

    def collect(self, now_ns: int) -> list[ThreadNamed]:
        if self._ask is not None:
            for thread in list(self._seen)[:ASKED_AT_ONCE]:
                self._seen[thread] = self._seen.pop(thread)  # until the turn is over
                if name := self._ask(thread):
                    self._name(thread, sanitize(name, MAX_LABEL), "system")
        named = [
            ThreadNamed(
                time_ns=now_ns,
                process=self._process,
                thread=thread,
                name=self._names[thread][0],
                source=self._names[thread][1],
            )
            for thread in sorted(self._changed)
        ]
        self._changed.clear()
        return named

    def _name(self, thread: int, name: str, source: Literal["nvtx", "system"]) -> None:
        if self._names.get(thread) != (name, source):
            self._names[thread] = name, source
            self._changed.add(thread)
