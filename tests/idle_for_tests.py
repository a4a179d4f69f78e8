"""Waits for an application that a pilot presses keys of, by what its event loop has to do.

Textual's pilot sleeps 20 ms at least, four times a key, and has every widget of the screen answer a
message three times: a third of the time that the tests of the screen took.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from unittest import mock

from textual.pilot import Pilot

_SOON_S = 0.02
"""A frame is drawn within 17 ms after what changed it, another size within 8."""

_LOOK_S = 0.02
_WORKS_S = 0.001
"""CPU time within a look that says that a thread works, as Textual has it."""

_PATIENCE_S = 1.0
"""For what is never idle, as Textual has it."""


@contextmanager
def pilots_wait_for_idle() -> Iterator[None]:
    """Pilots wait until nothing is left to do, and no longer."""
    there = frozenset(threading.enumerate())

    async def wait(*_: object) -> bool:
        await idle(there)
        return True

    with (
        mock.patch("textual.pilot.wait_for_idle", wait),
        mock.patch("textual.app.wait_for_idle", wait),
        mock.patch.object(Pilot, "_wait_for_screen", wait),
    ):
        yield


async def idle(others: Collection[threading.Thread] = ()) -> None:
    """Until no callback is ready or due soon, and no thread but these works."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _PATIENCE_S
    await asyncio.sleep(0)
    while loop.time() < until_s:
        # All that a loop has to do, which no public function gives: Textual's messages, timers.
        if loop._ready:
            await asyncio.sleep(0)
            continue
        due_s = [timer.when() for timer in loop._scheduled if not timer.cancelled()]
        wait_s = min(due_s, default=until_s) - loop.time()
        if wait_s < _SOON_S:
            await asyncio.sleep(max(wait_s, 0.0))
        elif set(threading.enumerate()).issubset(others):
            return
        else:
            before_s = time.process_time()
            await asyncio.sleep(_LOOK_S)
            if time.process_time() - before_s < _WORKS_S:
                return
