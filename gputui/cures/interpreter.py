"""Python and its threads: garbage collection, operators on the CPU, and the cores they run on."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from . import ANY, BOUND, EXACT, CannotApply, Cure
from .changing import Idled

if TYPE_CHECKING:
    from . import Undo


class GcOff(Cure):
    """Python's garbage collector off, which stops the program for each full collection."""

    name = "gc_off"
    title = "Python's garbage collector is off"
    answers = ("garbage_collection",)
    result = EXACT
    change = "gc.freeze() once the model is built, or gc.disable() and gc.collect() every N steps"
    library = None
    forecast = None

    def apply(self, _library: object) -> Undo:
        was_on = gc.isenabled()
        gc.disable()
        return gc.enable if was_on else gc.disable


class GcFreeze(Cure):
    """What exists by now is left out of Python's garbage collections."""

    name = "gc_freeze"
    title = "garbage collections leave out what was made before the loop"
    answers = ("garbage_collection",)
    result = EXACT
    change = "gc.collect(); gc.freeze() once the model is built"
    library = None
    advice = r"gc\.freeze"

    def apply(self, _library: object) -> Undo:
        gc.collect()
        gc.freeze()
        return gc.unfreeze


class GcCollectIdle(Idled):
    """No gc.collect(), which goes through all that the program holds, in the loop."""

    name = "gc_collect_idle"
    title = "gc.collect() does nothing"
    answers = (ANY, "garbage_collection", "idle.host", "idle.alloc")
    result = EXACT
    change = "no gc.collect() in the loop"
    library = None
    advice = r"gc\.collect"
    value = 0

    def places(self, _library: object) -> tuple[tuple[Any, str], ...]:
        return ((gc, "collect"),)


def _with_threads(torch: Any, count: int) -> Undo:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return functools.partial(torch.set_num_threads, before)


class OneThread(Cure):
    """One thread for torch's operators on the CPU."""

    name = "one_thread"
    title = "operators on the CPU use one thread"
    answers = ("idle.scheduler", "idle.host")
    result = EXACT
    change = "torch.set_num_threads(1), or OMP_NUM_THREADS=1"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        if torch.get_num_threads() == 1:
            raise CannotApply("torch uses one thread")
        return _with_threads(torch, 1)


class AllThreads(Cure):
    """A thread for each core for torch's operators on the CPU."""

    name = "all_threads"
    title = "operators on the CPU use all cores"
    answers = ("idle.host",)
    result = EXACT
    change = "torch.set_num_threads(cores), or a larger OMP_NUM_THREADS"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
        if before >= cores:
            raise CannotApply(f"torch uses {before} threads on {cores} cores")
        return _with_threads(torch, cores)


HELD_S = 1.0
"""How long a thread is held at a call: one that the program waits for goes on after that."""

_LOADING = os.path.join("torch", "utils", "data")


class HoldThreads(Cure):
    """Ablation: other threads of Python wait at their next call, which leaves the interpreter's
    lock to the one that takes the steps. Those of loaders go on."""

    name = "hold_threads"
    title = "other Python threads wait"
    answers = ("lock_held", "idle.wait")
    result = BOUND
    change = "another process instead of a thread, or a library that lets the lock go"
    library = None

    def apply(self, _library: object) -> Undo:
        profile = getattr(threading, "setprofile_all_threads", None)
        if profile is None:
            raise CannotApply("threads can be held from Python 3.12 on")
        own = threading.get_ident()
        if all(thread.ident == own for thread in threading.enumerate()):
            raise CannotApply("the program has no other Python thread")
        released = threading.Event()

        def hold(frame: Any, *_event: Any) -> None:
            if threading.get_ident() != own and _LOADING not in frame.f_code.co_filename:
                released.wait(HELD_S)

        profile(hold)
        sys.setprofile(None)

        def undo() -> None:
            profile(None)
            released.set()

        return undo


class NumaAffinity(Cure):
    """The program's threads on the cores that are next to its GPU."""

    name = "numa_affinity"
    title = "the program stays on the cores next to its GPU"
    answers = ("idle.launch", "busy.copy_pageable", "busy.copy_pinned", "slow_link")
    result = EXACT
    change = "numactl --cpunodebind=NODE --membind=NODE, of the GPU's node (nvidia-smi topo -m)"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        near, before = _near_cores(torch), {}
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(OSError):  # it has ended
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, near)

        def undo() -> None:
            for thread, cores in before.items():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, cores)

        return undo


def _near_cores(torch: Any) -> set[int]:
    """The cores of the NUMA node of the current GPU, by sysfs, of those that are allowed."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        raise CannotApply("the program does not use a GPU")
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not hasattr(card, "pci_bus_id"):
        raise CannotApply("this torch does not say where the GPU is")
    place = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    try:
        with open(f"/sys/bus/pci/devices/{place}/local_cpulist") as file:
            text = file.read().strip()
    except OSError:
        raise CannotApply("the system does not say which cores are next to the GPU") from None
    near: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        near.update(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    if not near & allowed or near >= allowed:
        raise CannotApply("all cores that the program may use are next to its GPU, or none is")
    return near & allowed
