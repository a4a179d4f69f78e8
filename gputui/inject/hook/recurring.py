"""What a program does again and again, where nothing else marks the steps that a trial times: a
function of its own, or a loop in it.

Loaded by the start-up hook beside trial. Python 3.8 and later; nothing of gputui is imported,
because the program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Iterable  # noqa: UP035

UNMARKED_S, UNMARKED_OTHERS_S = 4.0, 1.0
"""How long a program uses the GPU without a mark before its functions are looked at: with torch,
which may mark steps yet, and without it,"""
SAMPLED_S, EACH_S = 1.0, 0.02
"""for how long its stack is looked at then, and how often;"""
COUNTED_S, LONGER = (2.0, 10.0), 1.5
"""for how long what it has is counted at first and at most, and how many times as long each time
that nothing came again and again."""
LEAST_CALLS = 4
GONE_S = 10.0
"""What is gone for so long is a step no more."""
_OWN = os.path.join(os.path.abspath(__file__).rsplit(os.sep, 3)[0], "")
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")


class _Recurring:
    """What a program comes to again and again: the end of a function, or with `start` the beginning
    of a loop in it, which is gone back to from several places."""

    def __init__(self, code: Any, start: int | None, depth: int, comes_still: Any) -> None:
        self.code, self.start, self.depth, self._comes_still = code, start, depth, comes_still
        self.count = self.width = 0
        self.first_s = self.last_s = time.monotonic()

    def goes_on(self, least_s: float) -> bool:
        """Whether it came often, and comes still: a loop before the one that trains has ended."""
        now_s = time.monotonic()
        return self.count >= LEAST_CALLS and bool(
            self._comes_still(self.count, self.first_s, self.last_s, now_s, least_s)
        )

    @property
    def site(self) -> str:
        """What marks the steps here, as a trial's plan names it: "loop FILE:FUNCTION"."""
        return f"{'function' if self.start is None else 'loop'} {_name(self.code)}"

    @property
    def order(self) -> tuple[int, bool, int]:
        """The outermost first: a function, a wide loop in it, a loop in that."""
        return self.depth, self.start is not None, -self.width


class _Functions(threading.Thread):
    """Finds what a program does again and again where nothing else marks its steps (JAX, CuPy, own
    kernels): of the program's functions on the main thread's stack, and the loops in them, the
    outermost that ended LEAST_CALLS times. Its ends are reported by sys.monitoring, from Python
    3.12 on."""

    def __init__(self, trial: Any, trials: Any) -> None:
        """`trial` is the one of this process, `trials` its module."""
        super().__init__(name="gputui functions", daemon=True)
        self._trial, self._trials, self._pid = trial, trials, os.getpid()

    def run(self) -> None:
        with contextlib.suppress(Exception):  # the program goes on without
            since: float | None = None
            counted_s = COUNTED_S[0]
            while os.getpid() == self._pid and not self._trial.has_begun:
                time.sleep(0.25)
                if self._trial.has_marks or not _may_watch() or not self._trials.uses_gpu():
                    since = None
                    continue
                since = since or time.monotonic() - self._trial.unmarked_s
                least_s = UNMARKED_S if "torch" in sys.modules else UNMARKED_OTHERS_S
                step = None
                if time.monotonic() - since > least_s:
                    step = self._counted(self._seen(SAMPLED_S), counted_s)
                    counted_s = min(LONGER * counted_s, COUNTED_S[1])
                elif wanted := self._trial.wanted:
                    seen = self._seen(SAMPLED_S / 4)
                    if wanted.partition(" ")[2] in map(_name, seen):
                        step = self._counted(seen, COUNTED_S[0] / 2)
                        step = step if step is not None and step.site == wanted else None
                if step is not None and not self._trial.has_marks:
                    self._mark(step)

    def _seen(self, seconds: float) -> dict[Any, int]:
        """The program's functions on the stack in so many seconds, and how deep in it."""
        seen: dict[Any, int] = {}
        main = threading.main_thread().ident or 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(EACH_S)
            frame: Any = sys._current_frames().get(main)
            codes = []
            while frame is not None:
                codes.append(frame.f_code)
                frame = frame.f_back
            for depth, code in enumerate(reversed(codes)):
                path = code.co_filename
                if not _INSTALLED.search(path) and not path.startswith(_OWN):
                    seen[code] = min(depth, seen.get(code, depth))
        return seen

    def _counted(self, seen: dict[Any, int], seconds: float) -> _Recurring | None:
        """The outermost that recurs; None where nothing does. Of a loop and the function whose
        call it is, the function."""
        ends: dict[Any, _Recurring] = {}
        comes_still = self._trials.comes_still

        def ended(code: Any, start: int | None = None, width: int = 0) -> None:
            end = ends.setdefault((code, start), _Recurring(code, start, seen[code], comes_still))
            end.count, end.width = end.count + 1, max(end.width, width)
            end.last_s = time.monotonic()

        def jumped(code: Any, place: int, start: int) -> None:
            if start < place:
                ended(code, start, place - start)

        undo = self._report(seen, lambda code, *_: ended(code), jumped)
        time.sleep(seconds)
        undo()
        often = [end for end in ends.values() if end.goes_on(self._trials.LAST_S)]
        wanted = [end for end in often if end.site == self._trial.wanted]
        first = min(wanted or often, key=lambda end: end.order, default=None)
        if first is None or first.start is None or wanted:
            return first
        calls = [
            end for end in often
            if end.start is None and end.depth == first.depth + 1
            and abs(end.count - first.count) <= 1
        ]  # fmt: skip
        return calls[0] if len(calls) == 1 else first

    def _mark(self, step: _Recurring) -> None:
        code, start = step.code, step.start
        trial, site = self._trial, self._trial.site(*step.site.split(" ", 1))
        main = threading.main_thread().ident

        def ended(_code: Any, *where: Any) -> Any:
            if start is not None and not where[1] == start < where[0]:
                return sys.monitoring.DISABLE  # type: ignore[attr-defined] # of this jump
            if threading.get_ident() == main:
                step.count, step.last_s = step.count + 1, time.monotonic()
                trial.step(site, 0, 0)
            return None

        undo = self._report((code,), *((ended, None) if start is None else (None, ended)))
        while step.goes_on(GONE_S) and not trial.has_begun:
            time.sleep(0.25)
        if not trial.has_begun:
            undo()  # it was another loop
            trial.remove(site)

    def _report(
        self,
        codes: Iterable[Any],
        returned: Callable[..., Any] | None,
        jumped: Callable[..., Any] | None,
    ) -> Callable[[], None]:
        monitoring = getattr(sys, "monitoring")  # noqa: B009 (Python 3.12)
        tool = next(number for number in (5, 4, 3) if monitoring.get_tool(number) is None)
        monitoring.use_tool_id(tool, "gputui trial")
        events = 0
        for event, callback in (
            (monitoring.events.PY_RETURN, returned), (monitoring.events.JUMP, jumped)
        ):  # fmt: skip
            monitoring.register_callback(tool, event, callback)
            events |= event if callback is not None else 0
        for code in codes:
            monitoring.set_local_events(tool, code, events)

        def undo() -> None:
            for code in codes:
                monitoring.set_local_events(tool, code, 0)
            for event in (monitoring.events.PY_RETURN, monitoring.events.JUMP):
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

        return undo


def _name(code: Any) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_name}"


def _may_watch() -> bool:
    """Whether functions may be watched: torch's compiler would not take them then."""
    compiled: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return not compiled.get("frames")


def start(trial: Any, trials: Any) -> None:
    """Begin to look for functions, for a trial and by the rules of its module, where they can be
    watched and it wants them."""
    if hasattr(sys, "monitoring") and trial.wants_functions:
        _Functions(trial, trials).start()
