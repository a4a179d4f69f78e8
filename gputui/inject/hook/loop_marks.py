"""Marks each turn of the program's own loops, from Python 3.12 on, for step_marks: which of them is
the step is decided by the reader; and finds what a program does again and again, a function of its
own or a loop in it, where nothing else marks the steps that a trial times.

`sys.monitoring` reports the jumps back in code that lies in no library; loops that cannot be the
step are turned off. 1.3 to 2.1 µs a turn that is marked (tests/bench/bench_steps.py), nothing for
the others. Python 3.8 and later, where it does nothing before 3.12; nothing of gputui is imported,
because the program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import dis
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Iterable  # noqa: UP035

from .step_sites import LAST_S, LOOP_END, comes_still, uses_gpu

MOST_LOOPS = 256
MOST_CODES = 20_000
DEEPEST = 2
"""Loops around one that is marked, at most."""

MOST_FRAMES = 1000

LOOK = 32
"""Turns from one look at a loop to the next: how fast it turns, and inside of which others."""
FAST_NS, OUTERMOST_FAST_NS = 250_000, 100_000
"""Turns that are faster are no steps. A mark takes about 1 µs."""
FAST_LOOKS = 64
"""Looks at an outermost loop that is fast: of a loop of graphs that take 10 ms each, a thousand
launches were made within 10 ms, as many as the driver queues."""
SETTLED_TURNS, SLOW_NS = 64, 5_000_000
"""Turns of an outermost loop after which what turns inside of it is marked no more, but turns that
take so long: the batches of an epoch."""

_LIBRARIES = re.compile(
    r"/(site|dist)-packages/|/lib/python3[.\d]*/|^<|"
    + re.escape(os.path.dirname(os.path.abspath(__file__)).replace("\\", "/") + "/")
)


def _is_own(code: Any) -> bool:
    return not _LIBRARIES.search(code.co_filename.replace("\\", "/"))


def _line_of(code: Any, begin: int, end: int) -> int:
    """The first line of a loop: a `while` is tested at its end."""
    lines = (line for a, b, line in code.co_lines() if a <= begin < b or a <= end < b)
    return min(filter(None, lines), default=0)


def _lines_of(code: Any, begin: int, end: int) -> set[int | None]:
    """The lines of a loop, with those that handle its exceptions: these lie at the code's end."""
    entries: Any = dis.Bytecode(code)
    entries = entries.exception_entries
    ranges = [(begin, end)]
    for first, last in ranges:
        handlers = {each.target for each in entries if first <= each.start <= last}
        ranges += [
            (each.start, each.end)
            for each in entries
            if each.start in handlers and (each.start, each.end) not in ranges
        ]
    return {line for a, b, line in code.co_lines() if any(a <= z and y < b for y, z in ranges)}


class _Loop:
    """A loop of the program, from its first turn on."""

    __slots__ = ("begin", "code", "depth", "end", "lines", "looks", "seen_ns", "site", "turns")

    def __init__(self, code: Any, begin: int, end: int) -> None:
        self.code, self.begin, self.end = code, begin, end
        self.site: Any = None
        self.lines = _lines_of(code, begin, end)
        self.turns = self.looks = self.depth = 0
        self.seen_ns = time.perf_counter_ns()


_JUMP_BACKWARD = dis.opmap.get("JUMP_BACKWARD", -1)


class _Loops:
    """Marks the turns of loops in the program's own code, on its main thread, as `items` how many
    loops each lies in.

    `sys.monitoring` reports the jumps in code that has loops, those back to a loop's head as long
    as the loop may be the step: no loop that turns too fast, lies too deep, or inside of one that
    has turned often. Loops of libraries count where the program called them.
    """

    def __init__(self, marks: Any, tool: int) -> None:
        self._marks, self._tool = marks, tool
        self._monitoring: Any = getattr(sys, "monitoring")  # noqa: B009
        self._loops: dict[tuple[int, int], _Loop | None] = {}
        self._heads: dict[int, tuple[list[tuple[int, int]], bool, Any]] = {}
        """The first and last instruction of each loop of a code object, whether it is the
        program's, and the code object, so that no other gets its number."""
        self._turning: dict[int, list[_Loop]] = {}
        """The loops of a code object that have begun to turn and are not over."""
        self._lines: dict[int, dict[int, tuple[int, int]]] = {}
        """The loops of a code object that have not begun, by the line at which they do."""
        self._pid = os.getpid()

    def start(self) -> None:
        monitoring, tool = self._monitoring, self._tool
        events = monitoring.events
        monitoring.register_callback(tool, events.JUMP, self._callback())
        monitoring.register_callback(tool, events.LINE, self._entered)
        monitoring.register_callback(tool, events.PY_START, self._started)
        monitoring.set_events(tool, events.PY_START)
        frame: Any = sys._getframe(1)
        while frame is not None:  # a loop at the program's top level may have begun already
            self._started(frame.f_code, 0)
            frame = frame.f_back

    def stop(self) -> None:
        monitoring, tool = self._monitoring, self._tool
        monitoring.set_events(tool, 0)
        for *_, code in list(self._heads.values()):
            monitoring.set_local_events(tool, code, 0)
        for event in (monitoring.events.JUMP, monitoring.events.LINE, monitoring.events.PY_START):
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    def _started(self, code: Any, _offset: int) -> Any:
        with contextlib.suppress(Exception):
            # Code that is made anew in each step is kept only where it has loops.
            if _is_own(code) and _JUMP_BACKWARD in code.co_code[::2] and self._loops_in(code)[0]:
                events = self._monitoring.events
                if id(code) in self._heads:
                    # Of two loops at a line the outermost is last.
                    self._lines[id(code)] = {
                        _line_of(code, *loop): loop for loop in reversed(self._loops_in(code)[0])
                    }
                self._monitoring.set_local_events(self._tool, code, events.JUMP | events.LINE)
        return self._monitoring.DISABLE

    def _entered(self, code: Any, line: int) -> Any:
        """Mark where the program first comes to a loop that lies in no other one: the jumps back
        are the ends of turns, the first of which would have no beginning."""
        with contextlib.suppress(Exception):
            begin, end = self._lines[id(code)].pop(line, (0, 0))
            loop = self._new(code, end, begin) if end else None
            if loop is not None and not loop.turns and not self._place(loop, sys._getframe(1))[0]:
                loop.site = self._site_of(loop)
                self._marks.step(loop.site, 0, 0)
            self._end(code, line)
        return self._monitoring.DISABLE

    def _end(self, code: Any, line: int) -> None:
        """Mark the end of an outermost loop where the program comes to a line after it, for the
        first time."""
        for loop in self._turning.get(id(code), []):
            if not loop.depth and line not in loop.lines:
                self._turning[id(code)].remove(loop)
                self._marks.step(loop.site, 0, LOOP_END)
                return

    def _callback(self) -> Callable[[Any, int, int], Any]:
        loops, step, off = self._loops, self._marks.step, self._monitoring.DISABLE

        def jumped(code: Any, origin: int, target: int) -> Any:
            if target > origin:
                return off
            try:
                loop = loops[id(code), target]
            except KeyError:
                loop = self._new(code, origin, target)
            try:
                if loop is None:
                    return off
                if loop.turns % LOOK == 0 and not self._is_worth(loop, sys._getframe(1)):
                    for key in [key for key, its in loops.items() if its is loop]:
                        loops[key] = None
                    return off
                if not loop.turns:
                    self._turning.setdefault(id(code), []).append(loop)
                loop.turns += 1
                step(loop.site, loop.depth, 0)
            except Exception:
                return off
            return None

        return jumped

    def _loops_in(self, code: Any) -> tuple[list[tuple[int, int]], bool]:
        """The loops of a code object, by their first and last instruction, in order; and whether it
        is the program's own."""
        entry = self._heads.get(id(code))
        if entry is None:
            ends: dict[int, int] = {}
            if _JUMP_BACKWARD in code.co_code[::2]:
                # What handles exceptions, of a `with` too, lies at the end, and jumps back to where
                # the program goes on.
                instructions: Any = dis.Bytecode(code)
                handlers = (each.target for each in instructions.exception_entries)
                cold = min(handlers, default=len(code.co_code))
                for each in instructions:
                    if each.opname == "JUMP_BACKWARD" and each.offset < cold:
                        ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
            loops: list[tuple[int, int]] = []
            for begin, end in sorted(ends.items()):
                # A `continue` jumps to the test of a loop, its end to what follows the test.
                if loops and loops[-1][1] < end and begin <= loops[-1][1]:
                    begin, _ = loops.pop()
                loops.append((begin, end))
            entry = loops, _is_own(code), code
            if len(self._heads) < MOST_CODES:
                self._heads[id(code)] = entry
        return entry[:2]

    def _new(self, code: Any, origin: int, target: int) -> _Loop | None:
        """The loop of a jump; None for what is not marked."""
        loop = None
        with contextlib.suppress(Exception):
            around = [(a, b) for a, b in self._loops_in(code)[0] if a <= target and origin <= b]
            begin, end = max(around)
            loop = self._loops.get((id(code), begin))
            is_main = threading.current_thread() is threading.main_thread()
            if loop is None and is_main and len(self._loops) < MOST_LOOPS:
                loop = _Loop(code, begin, end)
                self._loops[id(code), begin] = loop
        self._loops[id(code), target] = loop
        return loop

    def _is_worth(self, loop: _Loop, frame: Any) -> bool:
        """Whether a loop may be the step, as it is now."""
        now_ns = time.perf_counter_ns()
        if os.getpid() != self._pid:
            return False
        loop.depth, outermost = self._place(loop, frame)
        if loop.site is None:
            loop.site = self._site_of(loop)
        if self._marks.keeps_loops:
            return loop.site is not None
        loop.looks += 1
        turn_ns = (now_ns - loop.seen_ns) / LOOK if loop.turns else FAST_NS
        loop.seen_ns = now_ns
        if loop.depth == 0:
            return turn_ns >= OUTERMOST_FAST_NS or loop.looks < FAST_LOOKS
        if loop.depth > DEEPEST or turn_ns < FAST_NS:
            return loop.turns == 0
        return outermost is None or outermost.turns < SETTLED_TURNS or turn_ns >= SLOW_NS

    def _site_of(self, loop: _Loop) -> Any:
        line = _line_of(loop.code, loop.begin, loop.end)
        name = f"{os.path.basename(loop.code.co_filename)}:{line}"
        # Nothing is captured before CUDA begins, and set-up has loops, too.
        return self._marks.site("loop", name, begins=False)

    def _place(self, loop: _Loop, frame: Any) -> tuple[int, _Loop | None]:
        """In how many loops a loop lies, of the program and of what it calls; and the outermost of
        them, where that is marked."""
        inside = [
            (loop.code, begin)
            for begin, end in self._loops_in(loop.code)[0]
            if begin <= loop.begin and loop.end <= end and (begin, end) != (loop.begin, loop.end)
        ]
        its = inside[::-1]
        pending: list[tuple[Any, int]] = []
        for _ in range(MOST_FRAMES):
            frame = frame.f_back
            if frame is None:
                break
            code, instruction = frame.f_code, frame.f_lasti
            loops, is_own = self._loops_in(code)
            if loops:  # the innermost of them is the last
                pending += [(code, a) for a, b in reversed(loops) if a <= instruction <= b]
            if is_own and pending:
                # What runs a notebook or a test loops around the program.
                its += pending
                pending = []
        if not its:
            return 0, None
        code, begin = its[-1]
        return len(its), self._loops.get((id(code), begin))


def start(marks: Any, tool: int | None) -> None:
    """Begin to mark loops, under a number of `sys.monitoring`; nothing where that is None."""
    if tool is not None:
        loops = _Loops(marks, tool)
        marks.when_undone(loops.stop)
        loops.start()


# What a program does again and again, where nothing else marks its steps.

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

    def __init__(self, code: Any, start: int | None, depth: int) -> None:
        self.code, self.start, self.depth = code, start, depth
        self.count = self.width = 0
        self.first_s = self.last_s = time.monotonic()

    def goes_on(self, least_s: float) -> bool:
        """Whether it came often, and comes still: a loop before the one that trains has ended."""
        now_s = time.monotonic()
        return self.count >= LEAST_CALLS and bool(
            comes_still(self.count, self.first_s, self.last_s, now_s, least_s)
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

    def __init__(self, trial: Any) -> None:
        """`trial` is the one of this process."""
        super().__init__(name="gputui functions", daemon=True)
        self._trial, self._sites, self._pid = trial, trial.sites, os.getpid()

    def run(self) -> None:
        with contextlib.suppress(Exception):  # the program goes on without
            since: float | None = None
            counted_s = COUNTED_S[0]
            while os.getpid() == self._pid and not self._trial.has_begun:
                time.sleep(0.25)
                if self._sites.has_marks or not _may_watch() or not uses_gpu():
                    since = None
                    continue
                since = since or time.monotonic() - self._sites.unmarked_s
                least_s = UNMARKED_S if "torch" in sys.modules else UNMARKED_OTHERS_S
                step = None
                if time.monotonic() - since > least_s:
                    step = self._counted(self._seen(SAMPLED_S), counted_s)
                    counted_s = min(LONGER * counted_s, COUNTED_S[1])
                elif wanted := self._sites.wanted:
                    seen = self._seen(SAMPLED_S / 4)
                    if wanted.partition(" ")[2] in map(_name, seen):
                        step = self._counted(seen, COUNTED_S[0] / 2)
                        step = step if step is not None and step.site == wanted else None
                if step is not None and not self._sites.has_marks:
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

        def ended(code: Any, start: int | None = None, width: int = 0) -> None:
            end = ends.setdefault((code, start), _Recurring(code, start, seen[code]))
            end.count, end.width = end.count + 1, max(end.width, width)
            end.last_s = time.monotonic()

        def jumped(code: Any, place: int, start: int) -> None:
            if start < place:
                ended(code, start, place - start)

        undo = self._report(seen, lambda code, *_: ended(code), jumped)
        time.sleep(seconds)
        undo()
        often = [end for end in ends.values() if end.goes_on(LAST_S)]
        wanted = [end for end in often if end.site == self._sites.wanted]
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
        trial, site = self._trial, self._sites.add(*step.site.split(" ", 1))
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
            self._sites.remove(site)

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


def find_recurring(trial: Any) -> None:
    """Begin to look for functions, for a trial, where they can be watched and it wants them."""
    if hasattr(sys, "monitoring") and trial.sites.wants_functions:
        _Functions(trial).start()
