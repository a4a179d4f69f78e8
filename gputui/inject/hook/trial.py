"""Times the steps of a program in blocks, and switches cures on and off between them.

Loaded by the start-up hook into a program that gputui tries something on: GPUTUI_TRIAL says what,
as JSON (`Plan`). The program's own marks of steps (step_marks) count. After a warm-up, blocks of
steps follow one another, each ended by waiting for the GPU; a pair is a block with a cure on and
one with it off, in an order drawn from the seed, with half a block to settle after each switch.
Without cures to switch, or where none can be applied, all blocks are alike, which times a run as it
is.

Written to the run's private folder as lines of JSON, `trial-PID` (0600, at most MOST_BYTES), read
by gputui.trial.blocks:

    {"seen": marks of a site, "source": source}          at its first mark, the second, 4th, 8th ...
    {"site": name, "source": source, "steps": of a block, "first": losses before it,
     "is_fork": bool}                                                   first
    {"switch": cure}                                                    when one goes on
    {"pair": n, "cure": name, "on": bool, "ns": time, "steps": n, "first": ordinal,
     "settled_ns": time, "settled_steps": n, "waited_ns": time, "beside": [name, ...]}
                    a block, what went before it from a switch on, and waiting for loaders in both;
                    beside: what else was on, in the pair's other block too
    {"losses": [ordinal of the first, values]}                          what backward was called of
    {"outputs": [[given, gave, elements], ...], "is_held": bool}
                    the norm and a weighted sum, of modules that are called in the warm-up, and
                    where nothing is switched of the first calls after it, with what is held
    {"over": why}                                                       last

gputui may write `trial-active` there: the cures that get pairs from now on, several that are
switched as one as "A + B", and those that are on in both blocks of each pair, as JSON.

Ranks of a job on one host decide together: rank 0 says in `trial-start` from which step on, and of
how many steps blocks are, and from there all is counted alike.

If anything fails here, the program goes on without. Python 3.8 and later; nothing of gputui is
imported, because the program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import Any, Callable, Iterator, Sequence  # noqa: UP035

RANK_OF_SOURCE = (
    "trainer", "lightning", "accelerate", "keras", "optimizer", "token", "module", "tqdm",
    "function", "loop",
)  # fmt: skip
"""Of several that mark steps, which of them counts: what trains before what is only called."""

MOST_BYTES = 8 << 20
MOST_SITES = 256
MOST_STEPS = 2000
"""Of a block."""
MOST_ENDS = 2000
LONG, PAUSED = 4.0, 0.2
"""How many times as long as most a step is that counts as a pause, and their part of the time."""
OVER_PAUSES, MOST_BLOCK_S = 4.0, 6.0
"""A block of whole stretches from pause to pause is about so many times as long as others, and so
long at most: blocks of one stretch of eight steps had ratios within 2 %, those of two steps 30, 1
and 1/30."""
AS_IT_IS = 12
"""Blocks of the program as it is before ablations, where no cure had any."""
ALONE_PAIRS = 20
"""Pairs of each that is not for later at most, before all are switched in turn."""
WAITED = 0.01
"""Part of the time from which waits for other threads may be those for a program's own loader."""
MOST_SWITCH_NS = 250_000_000
"""A switch that takes longer is not waited for where nothing is switched."""
WANTED_S = 15.0
"""How long what a run under capture went by may mark nothing while something else does: a cure may
have put a class of its own in its place; and what trains, after its first step, or a program whose
modules touch no GPU."""
ANOTHER_S = 60.0
"""The same until something of another kind counts: data sets are prepared for long under a progress
bar."""
JOINED = " + "
"""Between the names of cures that are switched as one."""
LOOP_END = 16
"""The unit of a mark that is the end of a loop, and of no turn (loop_marks)."""
FEW_STEPS, SURE_BLOCKS, MUCH_SHORTER = 8, 3, 2.0
"""Steps of a block up to which it may get more, and how many times as short how many blocks with a
cure are then."""
WARM_ENDS = 4
FEW_HELD, ENOUGH_HELD, HELD_S = 3, 12, 0.5
"""Steps that are timed at least with what is held before blocks begin, where that takes so long,
and else."""
COMPARED = 14
"""Steps of the warm-up of a run in which cures are switched, if it becomes no more than twice as
long by them: with these a run is compared that has such a cure from its fifth on."""
MOST_LOSSES = 20_000
MOST_OUTPUTS, HELD_OUTPUTS = 256, 64
"""Outputs that are kept of the warm-up, and after it."""
MOST_PROJECTED = 4096
"""Elements of one that are looked at, some more where they are no multiple."""
AHEAD = 4
"""Steps between a decision of rank 0 and its begin: ranks are in one step, or in the next."""


class Plan:
    """What is tried, from JSON: cures that are switched (none: blocks are only timed), those that
    are on from the end of the warm-up, those that are on all the time `beside` which they are
    measured, the seed of the order, and how long the warm-up and a block last at least. Of those
    `asked` it is said whether they would change anything here; those that are tried `later` are
    switched once the others need no more pairs, and ablations, `bounds`, last of all: from the
    first of them on `held_then` are on to the end, and no cure is. `step` is what marks the steps,
    by source and name, where an earlier run has shown it, as "optimizer AdamW", "loop FILE:LINE",
    or "function FILE:FUNCTION" for what was come to again and again where nothing marked any: small
    modules that prepare batches were taken for steps."""

    def __init__(self, text: str) -> None:
        words = json.loads(text)
        self.cures = [str(name) for name in words.get("cures", ())]
        self.held = [str(name) for name in words.get("held", ())]
        self.beside = [str(name) for name in words.get("beside", ())]
        self.asked = [str(name) for name in words.get("asked", ())]
        self.later = frozenset(map(str, words.get("later", ())))
        self.bounds = frozenset(map(str, words.get("bounds", ())))
        self.held_then = [str(name) for name in words.get("held_then", ())]
        self.seed = int(words.get("seed", 0))
        self.step = str(words.get("step", ""))
        self.block_s = float(words.get("block_s", 0.25))
        self.warm_s = float(words.get("warm_s", 2.0))
        self.warm_steps = int(words.get("warm_steps", 4))
        self.most_pairs = int(words.get("most_pairs", 400))


class StepSite:
    """A place that marks steps."""

    __slots__ = ("count", "ends_ns", "first_ns", "last_ns", "name", "order", "source", "stays",
                 "uses_gpu")  # fmt: skip

    def __init__(self, source: str, name: str, order: int) -> None:
        self.source, self.name, self.order = source, name, order
        self.count = self.first_ns = self.last_ns = 0
        self.uses_gpu = source != "module"
        """Of a module whether it has, was given, or gave anything on a GPU: those that prepare
        batches do not."""
        self.stays = RANK_OF_SOURCE.index(source) <= RANK_OF_SOURCE.index("optimizer")
        """Whether it comes back after a pause, as what trains does after an evaluation."""
        self.ends_ns: list[int] = []
        """In the warm-up, at most MOST_ENDS."""

    @property
    def steps_a_pause(self) -> int:
        """After how many steps one takes much longer than most do, where that is a good part of
        the time: a loader's batches come in bursts, or the program saves. 0 where it is not."""
        ends = self.ends_ns[WARM_ENDS:]
        took_ns = [ends[n + 1] - ends[n] for n in range(len(ends) - 1)]
        usual_ns = sorted(took_ns)[len(took_ns) // 2] if took_ns else 0
        pauses = [ns for ns in took_ns if ns > LONG * usual_ns]
        if len(pauses) < 2 or sum(pauses) < PAUSED * sum(took_ns):
            return 0
        return math.ceil(len(took_ns) / len(pauses))

    @property
    def rank(self) -> tuple[int, int]:
        return RANK_OF_SOURCE.index(self.source), self.order

    def goes_on(self, now_ns: int) -> bool:
        """Whether it marks still: a module that was captured in a CUDA graph is called no more."""
        if not self.count:
            return False
        least_s = WANTED_S if self.stays else LAST_S
        return comes_still(self.count, self.first_ns, self.last_ns, now_ns, least_s * 1e9)


LAST_S, LATE = 3.0, 8.0
"""What comes again and again was there so long ago at most, or as many times as long as usual:
programs compile for seconds between steps."""


def comes_still(count: int, first: float, last: float, now: float, least: float) -> bool:
    """Whether what came so often from `first` to `last` was there not long before `now`, in any
    unit of time."""
    return now - last < max(least, LATE * (last - first) / max(1, count - 1))


def uses_gpu() -> bool:
    """Whether the program has begun to use a GPU, as far as its libraries say."""
    torch = sys.modules.get("torch")
    others = any(name in sys.modules for name in ("cupy", "jax", "numba.cuda", "warp", "taichi"))
    # While it is imported, another thread's look finds half of it.
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return others or bool(is_initialized is not None and is_initialized())


class _Block:
    """What is counted next: `steps` steps, with a cure on or off; `pair` None settles only."""

    __slots__ = ("cure", "on", "pair", "steps")

    def __init__(self, pair: int | None, cure: str, on: bool, steps: int) -> None:
        self.pair, self.cure, self.on, self.steps = pair, cure, on, steps


class TrialInProgram:
    """The trial of one process."""

    def __init__(self, plan: Plan, folder: str, cures: Any, sources: Any) -> None:
        """`cures` is the Application whose cures are switched, None where none are; `sources` are
        the names of what marks steps, by number from 1."""
        self._plan, self._folder, self._cures, self._sources = plan, folder, cures, sources
        self.wanted = plan.step
        self._pid = os.getpid()
        self._is_fork = False
        self._random = random.Random(plan.seed)
        self._sites: list[StepSite] = []
        self._site: StepSite | None = None
        self._synchronize: Callable[[], Any] | None = None
        self._torch: Any = None
        self._losses: list[Any] = []
        self._losses_before = 0
        self._outputs: list[tuple[Any, Any, int]] = []
        self._more_outputs = 0
        """How many more of them are kept now that it has begun."""
        self._over = False
        self._room = MOST_BYTES
        self._file: int | None = None
        self._blocks: Iterator[_Block] = iter(())
        self._block: _Block | None = None
        self._settles_from = (0, 0)
        """The step and the time from which it settled before this block, with the switch."""
        self._waited_ns = 0
        """Since then, for what loaders' workers and other threads make."""
        self._has_loader = self._is_waiting = False
        self._step_ns: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(
            lambda: ([], [])
        )
        """Of each cure's blocks, without it and with it."""
        self._switch_ns: dict[str, int] = {}
        """What switching a cure takes, and looking at what it did,"""
        self._switch_since_ns = 0
        """from the end of the block before on."""
        self._until = 0
        self._began_ns = 0
        self._first = 0
        rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
        self._follows = rank not in (None, "0") and ranks != "1"
        self._leads = rank == "0" and ranks != "1"
        self._start: dict[str, Any] | None = None

    def forked(self) -> None:
        """In a fork of the program: it is timed by itself where its steps are all in it, and left
        alone where the program had some before."""
        self._over = self._over or self.has_begun or any(site.count for site in self._sites)
        self._pid, self._file, self._is_fork = os.getpid(), None, True

    # --- what step_marks.Marks takes

    def define(self, source: int, name: bytes, _begins: int) -> StepSite | None:
        """A place where steps are marked; None where there are too many, or for a loop that is not
        what the plan calls its step."""
        kind, text = self._sources[source - 1], name.decode("utf-8", "replace")
        is_other = kind == "loop" and not self._is_wanted(kind, text)
        if is_other or len(self._sites) >= MOST_SITES:
            return None
        return self.site(kind, text)

    def site(self, source: str, name: str) -> StepSite:
        """A place where steps are marked from now on."""
        site = StepSite(source, name, len(self._sites))
        site.stays = site.stays or self._is_wanted(source, name)
        self._sites.append(site)
        return site

    def remove(self, site: StepSite) -> None:
        """What was taken for a step has ended."""
        self._sites = [each for each in self._sites if each is not site]

    @property
    def has_begun(self) -> bool:
        """Whether it is chosen what counts as a step."""
        return self._site is not None or self._over

    def _is_wanted(self, source: str, name: str) -> bool:
        return f"{source} {name}" == self.wanted

    @property
    def wants_loops(self) -> bool:
        """Whether a loop of the program marks its steps, by its line."""
        return bool(re.search(r"^loop .*:\d+$", self.wanted))

    @property
    def wants_functions(self) -> bool:
        """Whether functions are looked at for what comes again and again (loop_marks): what is
        marked elsewhere is waited for, however often a function of the set-up is called."""
        is_named = self.wanted.startswith(("function ", "loop ")) and not self.wants_loops
        return not self.wanted or is_named

    @property
    def has_marks(self) -> bool:
        """Whether anything marks steps that may count."""
        now_ns, is_in_use = time.perf_counter_ns(), uses_gpu()
        return any(
            (site.uses_gpu or not is_in_use) and site.goes_on(now_ns) for site in self._sites
        )

    @property
    def unmarked_s(self) -> float:
        """How long ago the last one of such was; 0 where there was none."""
        last_ns = max((site.last_ns for site in self._sites if site.uses_gpu), default=0)
        return (time.perf_counter_ns() - last_ns) / 1e9 if last_ns else 0.0

    def step(self, site: StepSite | None, _items: int, unit: int) -> None:
        """A step ended at a site."""
        if site is None or self._over or unit == LOOP_END:
            return
        site.count += 1
        if not site.count & (site.count - 1) and self._site is None:
            with self._guarded():
                self._say({"seen": site.count, "source": site.source})
        if site is self._site:
            if site.count < self._until:
                return
            with self._guarded():
                self._end_block()
        elif self._site is None:
            with self._guarded():
                self._warm_up(site)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    # --- torch

    def imported_torch(self, torch: Any) -> None:
        """Takes what waits for the GPU before a cure makes it idle, and notes what `backward` is
        called of."""
        self._torch = torch
        self._synchronize = getattr(torch._C, "_cuda_synchronize", None)
        backward = torch.autograd.backward  # Tensor.backward calls it by this name
        losses = self._losses

        @functools.wraps(backward)
        def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # whatever it is, it is the program's
                if tensors.numel() == 1 and not self._over and len(losses) < MOST_LOSSES:
                    losses.append(tensors.detach())
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = noted

    def _time_loaders(self) -> None:
        """Times the main thread's waits for batches of torch's loaders, and for other threads:
        queues, futures and events wait for a condition."""
        loading = sys.modules.get("torch.utils.data.dataloader")
        for name, has_workers in (
            ("_MultiProcessingDataLoaderIter", True), ("_SingleProcessDataLoaderIter", False)
        ):  # fmt: skip
            iterator = getattr(loading, name, None)
            if iterator is not None:
                iterator.__next__ = self._following(iterator, has_workers)
        threading.Condition.wait = self._timed(threading.Condition.wait)  # type: ignore[method-assign]

    def _following(self, iterator: Any, has_workers: bool) -> Any:
        """The `__next__` of a loader, of which is known from then on how long it is waited for:
        without workers not at all, because nothing gets ahead."""
        own, base = vars(iterator).get("__next__"), iterator.__mro__[1]

        @functools.wraps(own or base.__next__)
        def following(loader: Any) -> Any:
            self._has_loader = True
            # That of the base as it is then: a cure may have put another in its place.
            return own(loader) if own is not None else base.__next__(loader)

        return self._timed(following) if has_workers else following

    def _timed(self, function: Any) -> Any:
        main = threading.main_thread().ident

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_waiting or self._over or threading.get_ident() != main:
                return function(*args, **kwargs)
            self._is_waiting, began_ns = True, time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._waited_ns += time.perf_counter_ns() - began_ns
                self._is_waiting = False

        return timed

    def _wait_for_gpu(self) -> None:
        torch = self._torch
        if self._synchronize is not None and torch is not None and torch.cuda.is_initialized():
            self._synchronize()
        elif "cupy" in sys.modules:
            sys.modules["cupy"].cuda.runtime.deviceSynchronize()
        elif hasattr(sys.modules.get("jax"), "live_arrays"):
            jax = sys.modules["jax"]
            jax.block_until_ready(jax.live_arrays())

    def returned(self, site: StepSite | None, module: Any, given: Any, made: Any) -> None:
        """What a module was given and gave: whether that is on a GPU, and in a program that has
        called no backward so far, its norm."""
        if self._torch is None or (self.has_begun and not self._more_outputs):
            return
        own = None if self.has_begun else site
        if own is not None and not own.uses_gpu and not own.count & (own.count - 1):
            with contextlib.suppress(Exception):
                own.uses_gpu = any(each.is_cuda for each in module.parameters()) or _is_on_gpu(
                    (given, made)
                )
        if self._losses_before or self._losses:
            return
        with contextlib.suppress(Exception):  # whatever it is, it is the program's
            cuda = self._torch.cuda
            is_recorded = cuda.is_initialized() and cuda.is_current_stream_capturing()
            if len(self._outputs) < MOST_OUTPUTS and not is_recorded:
                self._more_outputs = max(0, self._more_outputs - 1)
                first = _first_tensor(made)
                norm, projected = self._norm(_first_tensor(given)), self._projected(first)
                self._outputs.append((norm, projected, first.numel()))

    def _projected(self, values: Any) -> Any:
        """A weighted sum of elements from all over a tensor, and twice their norm: alone this is
        the same whatever a last layer has normalized, and the sum may be next to 0."""
        torch = self._torch
        # What a cure gives in a tensor's place is made when it is read.
        if type(values) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError
        flat = values.detach().flatten()
        some = flat[:: max(1, flat.numel() // MOST_PROJECTED)].double()
        weights = torch.arange(some.numel(), device=some.device, dtype=torch.float64).cos()
        return (some * weights).sum() + 2.0 * some.norm()

    def _norm(self, values: Any) -> Any:
        """On its device."""
        torch = self._torch
        values = values.detach()
        if not values.is_floating_point():
            values = values.double()
        return torch.linalg.vector_norm(values, dtype=torch.float64)

    # --- warm-up

    def _warm_up(self, site: StepSite) -> None:
        """Chooses what counts, once there was enough of it."""
        now_ns = time.perf_counter_ns()
        site.first_ns, site.last_ns = site.first_ns or now_ns, now_ns
        if len(site.ends_ns) < MOST_ENDS:
            site.ends_ns.append(now_ns)
        if self._start is None and self._follows:
            self._start = self._read("trial-start")
            if self._start is None:
                return
        if self._start is not None:
            # Said by rank 0: the same site, from the same step on.
            if site.name == self._start["site"] and site.count >= self._start["from"]:
                self._begin(site, int(self._start["steps"]), int(self._start["apart"]))
            return
        if not self._is_step(site, now_ns):
            return
        step_ns = (now_ns - site.first_ns) / (site.count - 1)
        reaches_s = COMPARED * step_ns / 1e9
        if self._plan.cures and site.count < COMPARED and reaches_s <= 2.0 * self._plan.warm_s:
            return
        if self._plan.held and self._cures is not None and not self._leads:
            # Blocks are of as many steps as there are with them.
            if self._held_site is not site:
                self._hold(site, now_ns)
            count, since_ns = site.count - self._held_count, now_ns - self._held_ns
            if count < (FEW_HELD if since_ns > HELD_S * 1e9 else ENOUGH_HELD):
                return
            step_ns = since_ns / count
        apart = site.steps_a_pause
        steps = max(1, min(MOST_STEPS, round(self._plan.block_s * 1e9 / step_ns)))
        stretch_s = apart * step_ns / 1e9
        if 0.0 < stretch_s < MOST_BLOCK_S:
            steps = (
                max(steps // apart, 1, round(OVER_PAUSES * self._plan.block_s / stretch_s)) * apart
            )
        if self._leads:
            self._start = {
                "site": site.name, "from": site.count + AHEAD, "steps": steps, "apart": apart
            }  # fmt: skip
            self._write_whole("trial-start", self._start)
            return
        self._begin(site, steps, apart)

    def _hold(self, site: StepSite, now_ns: int) -> None:
        """Switches on what is held."""
        self._read_losses()
        self._read_outputs(is_held=False)
        if self._held_site is None:
            self._losses_held = self._losses_before
        self._held_site, self._held_count, self._held_ns = site, site.count, now_ns
        for name in self._plan.held:
            self._cures.switch(name, True)

    _held_site: StepSite | None = None
    """What marked the step at which what is held was switched on, and which that was, and when."""
    _held_count = _held_ns = 0
    _losses_held: int | None = None
    """How many losses there were then."""

    def _is_step(self, site: StepSite, now_ns: int) -> bool:
        """Whether it is clear by now that a site marks the steps: it is what a run under capture
        went by, or the best of those that go on; what is better may have begun, and have had too
        few steps as yet."""
        begun = [each for each in self._sites if each.goes_on(now_ns)]
        wanted = [each for each in begun if self._is_wanted(each.source, each.name)]
        is_in_use = uses_gpu()

        def rank(each: StepSite) -> tuple[bool, tuple[int, int]]:
            return is_in_use and not each.uses_gpu, each.rank

        best = min(wanted or begun, key=rank)
        enough = [each for each in wanted or begun if each.count > self._plan.warm_steps]
        if not enough or site is not min(enough, key=rank):
            return False
        warm_s = (now_ns - min(each.first_ns for each in enough)) / 1e9
        # Where no GPU is in use yet, a progress bar may be that of a data set that is prepared.
        is_at_work = site.uses_gpu if is_in_use else site.source != "tqdm"
        is_sure = bool(wanted) or (site is best and is_at_work and not self.wanted)
        is_another = bool(self.wanted) and site.source != self.wanted.partition(" ")[0]
        least_s = 0.0 if is_sure else ANOTHER_S if is_another and not wanted else WANTED_S
        return warm_s >= max(self._plan.warm_s, least_s)

    def _begin(self, site: StepSite, steps: int, apart: int) -> None:
        self._site = site
        self._blocks = self._schedule(steps, apart)
        self._time_loaders()
        self._read_losses()
        self._read_outputs(is_held=self._held_site is not None)
        first = self._losses_before if self._losses_held is None else self._losses_held
        self._more_outputs = 0 if self._plan.cures or self._losses_before else HELD_OUTPUTS
        moment = self._cures.one_moment() if self._cures is not None else contextlib.nullcontext()
        with moment:
            if self._cures is not None:
                self._cures.look()  # how it was before any is switched
                self._cures.ask(self._plan.asked)
            self._say(
                {"site": site.name, "source": site.source, "steps": steps,
                 "first": first, "is_fork": self._is_fork}
            )  # fmt: skip
            if self._cures is not None:
                # Those that change nothing here take no block from the others.
                names = self._plan.cures
                self._failed = frozenset(name for name in names if not self._switches(name))
        for name in self._plan.held if self._cures is not None else ():
            self._cures.switch(name, True)
        self._switch_since_ns = time.perf_counter_ns()
        self._next_block()

    # --- blocks

    def _schedule(self, steps: int, apart: int) -> Iterator[_Block]:
        """Blocks of so many steps. Those with a cure and those without have all settled alike; and
        where there are pauses, each pair begins anywhere between two of them: or blocks without it
        might have the pauses that those with it have not."""
        settles = max(1, steps // 2)
        every = self._active(0)
        if not every:
            yield _Block(None, "", False, settles)
            number = 0
            while True:
                yield _Block(number, "", False, steps)
                number += 1
        plan, usual = self._plan, steps
        first = [cure for cure in every if cure not in plan.later and cure not in plan.bounds]
        pair = 0
        if plan.held_then and all(cure in plan.bounds for cure in every):
            # No cure leaves blocks of the program as it is, for those that need runs of their own.
            yield _Block(None, "", False, settles)
            while pair < AS_IT_IS:
                yield _Block(pair, "", False, steps)
                pair += 1
        turn: list[str] = []
        while every and pair < plan.most_pairs:
            # What was said meanwhile: one that gains may get all pairs until that is proven.
            turn = [cure for cure in turn if cure in every]
            if not turn:
                are_alone = pair < len(first) * ALONE_PAIRS
                turn = (
                    [cure for cure in every if are_alone and cure in first]
                    or [cure for cure in every if cure not in plan.bounds]
                    or every[:]
                )
                self._random.shuffle(turn)
            cure = turn.pop()
            order = [False, True]
            self._random.shuffle(order)
            if not apart:
                steps = self._steps_beside(usual)
                settles = max(1, steps // 2)
            if apart:
                yield _Block(None, cure, order[0], 1 + self._random.randrange(apart))
            for wanted in order:
                many = self._steps_with(cure, steps) if wanted and not apart else steps
                yield _Block(None, cure, wanted, max(settles, many // 2))
                yield _Block(pair, cure, wanted, many)
            pair += 1
            every = self._active(pair)
        yield _Block(None, "", False, 1)

    def _steps_beside(self, usual: int) -> int:
        """Of how many steps blocks are while other cures are on: they last half as long as usual,
        if these make steps so much shorter, which takes half as long to prove."""
        if self._leads or self._follows:
            return usual  # ranks measure different times
        times = 1.0
        for name in self._beside:
            off_ns, on_ns = self._step_ns[name]
            times *= min(off_ns) / max(on_ns) if off_ns and on_ns else 1.0
        return max(usual, min(MOST_STEPS, round(usual * times / 2.0)))

    def _steps_with(self, cure: str, steps: int) -> int:
        """Of how many steps a block with a cure is: more where blocks are of few, and those with it
        were much shorter, each time. A block of one step of 72 ms waits for what steps next to one
        another do at once, so that 11 was measured as 7.7."""
        off_ns, on_ns = self._step_ns[cure]
        if steps >= FEW_STEPS or min(len(off_ns), len(on_ns)) < SURE_BLOCKS:
            return steps
        if self._leads or self._follows:
            return steps  # ranks measure different times
        times = min(off_ns) / max(on_ns)
        return min(FEW_STEPS, int(steps * times)) if times >= MUCH_SHORTER else steps

    def _switches(self, name: str) -> bool:
        """Whether a cure can be switched on and off; and how long that takes at most, the second
        time: the first time may look for what it changes."""
        took_ns = []
        for on in (True, False, True, False):
            began_ns = time.perf_counter_ns()
            if not self._cures.switch(name, on):
                return False
            took_ns.append(time.perf_counter_ns() - began_ns)
        self._switch_ns[name] = min(max(took_ns[2:]), MOST_SWITCH_NS)
        return True

    def _active(self, pair: int) -> list[str]:
        """The cures that get pairs from this one on."""
        said = self._read("trial-active")
        # Ranks read it at different moments: it says itself from which pair on it holds.
        if said and pair >= int(said.get("from", 0)):
            self._said_active = [str(name) for name in said["cures"]]
            beside = [str(name) for name in said.get("beside", ())]
            if beside != self._beside:
                self._beside = beside
                for name in self._step_ns.keys() - set(beside):
                    del self._step_ns[name]
        every = self._plan.cures
        if self._said_active is not None:
            joined = [name for name in self._said_active if JOINED in name]
            every = [name for name in every if name in self._said_active] + joined
        return [name for name in every if self._may_be_on(name)]

    def _may_be_on(self, name: str) -> bool:
        return all(
            each in self._plan.cures and each not in self._failed
            and (not self._is_spoilt or each in self._plan.bounds)
            for each in name.split(JOINED)
        )  # fmt: skip

    _said_active: list[str] | None = None
    _beside: Sequence[str] = ()
    """Those that are on in both blocks of a pair."""
    _is_spoilt = False
    """Whether an ablation has been on: what the program computes since then is wrong."""
    _failed: frozenset[str] = frozenset()

    def _end_block(self) -> None:
        block = self._block
        self._wait_for_gpu()
        now_ns = self._switch_since_ns = time.perf_counter_ns()
        beside = self._on_beside(block.cure) if block is not None else []
        if block is not None and block.pair is not None:
            if self._cures is not None:
                self._cures.look()  # before the block is written, which may be the last
            step, since_ns = self._settles_from
            is_known = self._has_loader or self._waited_ns > WAITED * (now_ns - since_ns)
            waited_ns = self._waited_ns if is_known else None
            self._say(
                {"pair": block.pair, "cure": block.cure, "on": block.on, "steps": block.steps,
                 "ns": now_ns - self._began_ns, "first": self._first,
                 "settled_steps": self._until - block.steps - step,
                 "settled_ns": self._began_ns - since_ns, "waited_ns": waited_ns,
                 "beside": beside}
            )  # fmt: skip
            self._settles_from = self._until, now_ns
            step_ns = (now_ns - self._began_ns) / block.steps
            self._step_ns[block.cure][block.on].append(step_ns)
        self._read_losses()
        self._read_outputs(is_held=True)
        self._next_block()

    def _next_block(self) -> None:
        site = self._site
        assert site is not None
        while True:
            block = next(self._blocks, None)
            if block is None:
                self._end("all pairs were measured")
                return
            if block.cure and not self._may_be_on(block.cure):
                continue
            if block.pair is None:
                self._settles_from = site.count, time.perf_counter_ns()
                self._waited_ns = 0
            if self._switched(block):
                break
        self._block = block
        self._until = site.count + block.steps
        self._first = self._losses_before
        self._began_ns = time.perf_counter_ns()

    def _switched(self, block: _Block) -> bool:
        """Has the block's cure on or off, and no other on but those beside it; False where it
        cannot be. Either way it takes as long since the block before: in what a loader does
        meanwhile a block with it would gain else."""
        if self._cures is None:
            return True
        if block.cure in self._plan.bounds and not self._is_spoilt:
            self._is_spoilt = True
            for name in self._plan.held_then:
                self._cures.switch(name, True)
        wanted = [name for name in self._beside if self._may_be_on(name)]
        wanted += block.cure.split(JOINED) if block.on else ()
        for name in self._switched_off_to(wanted):
            self._say({"switch": name})
            if not self._cures.switch(name, True):
                self._failed = self._failed | {name}
                return False
        if block.pair is None and block.cure:
            took_ns = time.perf_counter_ns() - self._switch_since_ns
            longest_ns = max(took_ns, self._switch_ns.get(block.cure, 0))
            self._switch_ns[block.cure] = min(longest_ns, MOST_SWITCH_NS)
            time.sleep(max(0, self._switch_ns[block.cure] - took_ns) / 1e9)
        return True

    def _on_beside(self, cure: str) -> list[str]:
        """What is on but for this cure, of those beside which others are measured all the time, and
        of those that are switched."""
        on = self._cures.undo if self._cures is not None else ()
        always = [name for name in self._plan.beside if name in on]
        return [*always, *(name for name in self._switched_on() if name not in cure.split(JOINED))]

    def _switched_on(self) -> list[str]:
        """Those of the cures that are switched which are on, in their order."""
        on = self._cures.undo if self._cures is not None else ()
        return [name for name in on if name in self._plan.cures]

    def _switched_off_to(self, wanted: Sequence[str]) -> Sequence[str]:
        """Switches off all but the first of `wanted`, as many as are on, in their order, before any
        other: what one has put in the place of a function may be what the next one found there, so
        that they go in the reverse order. The rest of `wanted`."""
        on = self._switched_on()
        same = len(os.path.commonprefix([on, list(wanted)]))
        for name in reversed(on[same:]):
            self._cures.switch(name, False)
        return wanted[same:]

    def _read_losses(self) -> None:
        """What `backward` was called of since the last block, read while the GPU is waited for."""
        if not self._losses:
            return
        losses, count = self._losses[:], len(self._losses)
        self._losses.clear()
        try:
            # One copy for all of them: each takes some 10 µs.
            read = self._torch.stack([loss.reshape(()) for loss in losses]).tolist()
        except Exception:  # of several types, or devices
            read = [float(loss) for loss in losses]
        values = [float(f"{value:.9g}") for value in read]
        self._say({"losses": [self._losses_before, *map(_finite, values)]})
        self._losses_before += count

    def _read_outputs(self, is_held: bool) -> None:
        if self._outputs and not self._losses_before:
            norms = [norm for given, made, _ in self._outputs for norm in (given, made)]
            read = self._torch.stack([norm.to(norms[0].device) for norm in norms]).tolist()
            values = [float(f"{value:.9g}") for value in read]
            rows = [
                [*values[2 * n : 2 * n + 2], size]
                for n, (_, _, size) in enumerate(self._outputs)
                if math.isfinite(values[2 * n]) and math.isfinite(values[2 * n + 1])
            ]
            self._say({"outputs": rows, "is_held": is_held})
        self._outputs.clear()

    # --- files

    def _end(self, why: str) -> None:
        if self._cures is not None:
            # Those that are held stay: what an ablation has spoilt is not saved at the end either.
            self._switched_off_to(())
        with contextlib.suppress(Exception):
            self._say({"over": why[:500]})
        self._over = True
        self._losses.clear()

    def _say(self, row: dict[str, Any]) -> None:
        if self._file is None:
            path = os.path.join(self._folder, f"trial-{self._pid}")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        data = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._room -= len(data)
        if self._room < 0 and "over" not in row:
            self._room = 1000
            self._end("its file is full")
            return
        os.write(self._file, data)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self._folder, name)) as file:
                said = json.loads(file.read(1 << 16))
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def _write_whole(self, name: str, row: dict[str, Any]) -> None:
        path = os.path.join(self._folder, name)
        descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(row, file)
        os.replace(f"{path}.new", path)


def _first_tensor(values: Any) -> Any:
    """The first thing in tuples, lists and dictionaries; what gives its own one by one is left."""
    while isinstance(values, (tuple, list, dict)):
        values = next(iter(values.values() if isinstance(values, dict) else values))
    return values


def _is_on_gpu(values: Any, deep: int = 4) -> bool:
    """Whether any of the first tensors in lists, dictionaries and the like is on a GPU."""
    if hasattr(values, "is_cuda"):
        return bool(values.is_cuda)
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return False
    return deep > 0 and any(_is_on_gpu(each, deep - 1) for each in islice(values, MOST_VALUES))


MOST_VALUES = 16


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def begin(text: str, cures: Any, sources: Any) -> TrialInProgram | None:
    """The trial that the environment asks for; None where it cannot be."""
    folder = os.environ.get("GPUTUI_CAPTURE_DIR")
    if not folder or sys.version_info < (3, 8):
        return None
    plan = Plan(text)
    trial = TrialInProgram(plan, folder, cures, sources)
    os.register_at_fork(after_in_child=trial.forked)
    return trial
