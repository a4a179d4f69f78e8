"""Says, 10 times a second or as often as it was asked for, at which line each Python thread is.

Loaded by the start-up hook into the program that is looked at: a thread that sleeps, takes the
frames that the interpreter shows (`sys._current_frames`, tens of microseconds with the GIL), and
appends them to a file of the run's private folder. It calls nothing of the program, and where
anything fails it ends. Python 3.8 and later; nothing of gputui is imported.

Lines of the file: `d NUMBER LINE FUNCTION PATH` defines a line, `s TIME_NS` is followed by
`THREAD:NUMBER:KIND:FUNCTIONS` for each thread, where KIND is c (compiling), i (fetching input: a
data loader, a request to a server), q (reading a queue, which may be input or a server's requests),
r (in a collective), w (reporting to a server), l (held the GIL while this sampler waited for it) or
- (anything else). FUNCTIONS are the libraries' that the line is in, each as the line where it
begins, the outermost first, with dots between.
THREAD is 0, and KIND k, where one of autograd's threads computes a forward pass again. Lines that
begin otherwise are of python_facts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
import types
from typing import Any

RATE_HZ = 10.0
MOST_HZ = 100.0
MOST_BYTES = 64 << 20
MOST_LINES = 20_000
MOST_THREADS = 16
DEPTH = 80
MOST_FUNCTIONS = 32

LATE_NS = 20_000_000
"""How late a reading is from which a thread held the GIL in one call: between two lines of Python
it is let go every 5 ms (sys.setswitchinterval)."""
OF_LATE = 0.5
"""Part of this time that the thread ran which held it, and that the main thread did not run."""

_COMPILING = (
    "/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/_aot_autograd/",
    # What compiles, not what runs compiled code: vmap and the compiled passes have frames of
    # torch._functorch, too.
    "/torch/_functorch/partitioners", "/triton/compiler/",
    "/triton/runtime/autotuner", "/triton/backends/", "/numba/core/",
    "/jax/_src/interpreters/partial_eval", "/jax/_src/interpreters/mlir", "/jax/_src/compiler",
    "/cupy/cuda/compiler",
)  # fmt: skip
_NOT_THE_PROGRAMS = (
    "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>", "/torchinductor_",
)  # fmt: skip
# The hook's own files: it wraps modules, and the interpreter calls it back.
_HERE = os.path.dirname(os.path.abspath(__file__)).replace("\\", "/") + "/"
# What only calls on says nothing of where a program is.
_DISPATCH = (
    "/torch/nn/modules/module.py", "/contextlib.py", "/functools.py", "/_contextlib.py",
    # What runs compiled code, and what is never compiled: an optimizer's zero_grad. Where something
    # is compiled, others of _COMPILING are on the stack, too.
    "/torch/_dynamo/eval_frame.py", "/torch/_dynamo/external_utils.py",
    "/torch/_functorch/aot_autograd.py", "/torch/_functorch/_aot_autograd/utils.py",
    "/torch/_functorch/_aot_autograd/runtime_wrappers.py",
    "/torch/_functorch/_aot_autograd/subclass_codegen.py",
    "/torch/_inductor/output_code.py", "/torch/_inductor/cudagraph_trees.py",
    "/torch/_inductor/utils.py", "/torch/_inductor/runtime/triton_heuristics.py",
    "/triton/backends/nvidia/driver.py",
)  # fmt: skip
# What those of them do that come to something new.
_MAKES = {
    "record_function", "_record", "run_eager",  # a CUDA graph, of cudagraph_trees.py
    "precompile", "autotune_to_one_config", "coordinate_descent_tuning",  # of triton_heuristics.py
}  # fmt: skip
_LOADER = {
    "_next_data", "_try_get_data", "_get_data",
    "_get_iterator", "_reset", "_shutdown_workers",  # an epoch's workers start and end
}  # fmt: skip
_CLIENT = {"getresponse", "connect", "read", "readinto"}
# Functions whose requests fetch nothing.
_REPORTS = re.compile(
    r"(?:^|_)(?:log|logs|metrics?|notify|publish|report|reports|telemetry|track|upload)(?:_|$)"
)
_QUEUES = ("/queue.py", "/multiprocessing/queues.py", "/multiprocessing/connection.py")
_CHECKPOINT = "/torch/utils/checkpoint.py"
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/rendezvous.py")


class _Function:
    """What a code object's frames say, and its number once it has one."""

    __slots__ = ("code", "kind", "number", "recomputes", "reports")

    def __init__(self, code: Any) -> None:
        self.code, self.kind, self.number = code, _kind(code), 0
        self.reports = _REPORTS.search(code.co_name) is not None
        self.recomputes = code.co_filename.replace("\\", "/").endswith(_CHECKPOINT)


class _Sampler(threading.Thread):
    def __init__(self, folder: str) -> None:
        super().__init__(name="gputui lines", daemon=True)
        path = os.path.join(folder, f"lines-{os.getpid()}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._pid = os.getpid()
        self._room = MOST_BYTES
        self._known: dict[tuple[Any, int], int] = {}
        # What is known of each code object: 36 µs for 40 frames with the libraries' functions, 80
        # when each was looked at anew.
        self._functions: dict[Any, _Function] = {}
        self._period_s = 1 / _rate_hz()
        self._read_ns = time.monotonic_ns()
        self._ran_ns: dict[int, int] = {}
        self.facts: Any = None
        """What else is written, of the hook's python_facts."""

    def run(self) -> None:
        with contextlib.suppress(Exception):  # the program goes on without
            while self._room > 0 and os.getpid() == self._pid:
                due_ns = time.monotonic_ns() + round(self._period_s * 1e9)
                time.sleep(self._period_s)
                self._sample(time.monotonic_ns() - due_ns)

    def _sample(self, late_ns: int = 0) -> None:
        now_ns = time.time_ns()
        frames = sys._current_frames()
        out: list[str] = []
        entries: list[str] = []
        threads = threading.enumerate()[:MOST_THREADS]
        holder = self._holder(threads, late_ns)
        if holder is not None and (held := frames.get(holder.ident or 0)) is not None:
            line = self._place(held, out)[0]
            out.append(f"s {now_ns - late_ns // 2} {holder.native_id}:{line}:l:\n")
            del held
        for thread in threads:
            frame = frames.pop(thread.ident or 0, None)
            number = getattr(thread, "native_id", None)
            if frame is None or number is None or thread is self:
                continue
            line, kind, inside = self._place(frame, out)
            for function in inside:
                function.number = function.number or self._number(
                    function.code, function.code.co_firstlineno, out
                )
            functions = ".".join([str(function.number) for function in inside])
            entries.append(f"{number}:{line}:{kind}:{functions}")
        # What is left are threads that Python did not start, such as autograd's.
        for frame in list(frames.values())[:MOST_THREADS]:
            if self._recomputes(frame):
                entries.append(f"0:{self._place(frame, out)[0]}:k:")
        del frames
        if entries:
            out.append(f"s {now_ns} {' '.join(entries)}\n")
        if self.facts is not None:
            facts: list[str] = []
            self.facts.write(lambda code, line: self._number(code, line, out), facts.append)
            out += facts
        if out:
            data = "".join(out).encode("utf-8", "replace")
            self._room -= len(data)
            os.write(self._file, data)

    def _holder(self, threads: list[threading.Thread], late_ns: int) -> Any:
        """The thread that held the GIL while this one waited for it; None where none did for long,
        or where that was the main one."""
        before, self._ran_ns = self._ran_ns, {}
        elapsed_ns, self._read_ns = time.monotonic_ns() - self._read_ns, time.monotonic_ns()
        ran: dict[Any, int] = {}
        for thread in threads:
            number = getattr(thread, "native_id", None)
            if number is None or thread is self:
                continue
            with contextlib.suppress(OSError):  # it has ended
                # As pthread_getcpuclockid has it, which must not be asked of one that has ended.
                now_ns = self._ran_ns[number] = time.clock_gettime_ns((~number << 3) | 6)
                ran[thread] = now_ns - before.get(number, now_ns)
        main_ns = ran.pop(threading.main_thread(), None)
        if late_ns < LATE_NS or main_ns is None or elapsed_ns - main_ns < OF_LATE * late_ns:
            return None
        holder = max(ran, key=lambda thread: ran[thread], default=None)
        return holder if holder is not None and ran[holder] >= OF_LATE * late_ns else None

    def program_frame(self, frame: Any) -> Any:
        """The first frame of the program's own code among one and those that called it; None if
        there is none."""
        for _ in range(DEPTH):
            if frame is None or self._function(frame.f_code).kind == "u":
                return frame
            frame = frame.f_back
        return None

    def _recomputes(self, frame: Any) -> bool:
        for _ in range(DEPTH):
            if frame is None:
                return False
            if self._function(frame.f_code).recomputes:
                return True
            frame = frame.f_back
        return False

    def _function(self, code: Any) -> _Function:
        function = self._functions.get(code)  # once: a code object's hash is dear
        if function is None:
            function = self._functions[code] = _Function(code)
        return function

    def _place(self, frame: Any, out: list[str]) -> tuple[int, str, list[_Function]]:
        calling, kind = None, "-"
        innermost = frame
        reports = False
        depth = 0
        inside: list[_Function] = []
        while frame is not None and depth < DEPTH:
            function = self._function(frame.f_code)
            kind_of_function = function.kind
            reports = reports or function.reports
            if kind_of_function == "u":
                calling = calling or frame
            elif kind_of_function != "d":
                if kind_of_function == "i" and self.facts is not None:
                    self._see_loader(frame)
                if kind == "-" or (kind, kind_of_function) == (
                    "q",
                    "i",
                ):  # a loader reads a queue of its own
                    kind = kind_of_function
                if calling is None:
                    inside.append(function)
            frame = frame.f_back
            depth += 1
        if kind == "h":
            # A request that reports, as of metrics at each step, was taken for the wait for the
            # next batch.
            kind = "w" if reports else "i"
        reported = calling or innermost
        if calling is None:  # an import, say: there is no line that the libraries are called from
            inside = []
        inside.reverse()
        return (
            self._number(reported.f_code, reported.f_lineno or 0, out),
            kind,
            inside[:MOST_FUNCTIONS],
        )

    def _see_loader(self, frame: Any) -> None:
        """Have it written which functions of the program make the samples of a loader that is
        waited for: its workers are other processes, whose lines are not read. No code of the
        program is called for it."""
        with contextlib.suppress(Exception):
            own = _own(frame.f_locals.get("self"))
            makers = [own.get("_collate_fn")]
            dataset = own.get("_dataset")
            for _ in range(4):  # a Subset has another one
                its = _own(dataset)
                for name, value in its.items():
                    if "transform" in name:
                        makers += [value, *(_own(value).get("transforms") or ())]
                kinds = type(dataset).__mro__
                for name in ("__getitem__", "__getitems__", "__iter__"):
                    makers.append(next((vars(k)[name] for k in kinds if name in vars(k)), None))
                dataset = its.get("dataset")
            for maker in makers:
                code = _code(maker)
                if code is not None and self._function(code).kind == "u":
                    line, workers = code.co_firstlineno, own.get("_num_workers") or 0
                    self.facts.note_code("loader.samples", code, line, workers)

    def _number(self, code: Any, line: int, out: list[str]) -> int:
        number = self._known.get((code, line))
        if number is None:
            if len(self._known) >= MOST_LINES:
                return 0
            number = self._known[code, line] = len(self._known) + 1
            text = f"d {number} {line} {code.co_name} {code.co_filename}".replace("\n", " ")
            out.append(f"{text[:1024]}\n")
        return number


def _rate_hz() -> float:
    """Readings a second, as the environment says; RATE_HZ where it says nothing that is one."""
    with contextlib.suppress(ValueError):
        if 1 <= (rate := float(os.environ.get("GPUTUI_LINES", ""))) <= MOST_HZ:
            return rate
    return RATE_HZ


def _own(owner: Any) -> Any:
    """The attributes of an object, whatever its class makes of being asked for them."""
    with contextlib.suppress(AttributeError):
        return object.__getattribute__(owner, "__dict__")
    return {}


def _code(maker: Any) -> Any:
    """The code of a function, a method, a partial of one or an object that is called as one; None
    of others."""
    if type(maker) is functools.partial:
        maker = maker.func
    if not isinstance(maker, (types.FunctionType, types.MethodType)):
        kinds = type(maker).__mro__
        maker = next((vars(k)["__call__"] for k in kinds if "__call__" in vars(k)), None)
    maker = maker.__func__ if isinstance(maker, types.MethodType) else maker
    return maker.__code__ if isinstance(maker, types.FunctionType) else None


def _script() -> str | None:
    """The file that the program was started with: its outermost lines are the program's."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def _kind(code: Any) -> str:
    """c, i, q or r where a frame says so; h for a request to a server; u for the program's own
    code; d for what only calls on; - for other libraries."""
    if code.co_name == "<module>" and code.co_filename != _script():  # an import
        return "-"
    path = code.co_filename.replace("\\", "/").partition(":codegen(")[0]
    if path.startswith(_HERE):  # called back at a garbage collection
        return "d"
    if path.endswith(_DISPATCH):
        return "c" if code.co_name in _MAKES and "/torch/_inductor/" in path else "d"
    if any(part in path for part in _COMPILING):
        return "c"
    if code.co_name in _LOADER and "/torch/utils/data/" in path:
        return "i"
    if (code.co_name in _CLIENT and path.endswith("/http/client.py")) or "/httpcore/" in path:
        return "h"
    if code.co_name in ("get", "recv_bytes", "recv") and path.endswith(_QUEUES):
        return "q"
    if path.endswith(_COLLECTIVES):
        return "r"
    return "-" if any(part in path for part in _NOT_THE_PROGRAMS) else "u"


def start(folder: str) -> Any:
    """Begin, if the folder can be written to; None if not."""
    with contextlib.suppress(Exception):  # the program goes on without
        sampler = _Sampler(folder)
        sampler.start()
        return sampler
    return None
