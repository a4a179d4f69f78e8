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
    {"switch": cure}                                                    when one goes on, or "A + B"
    {"pair": n, "cure": name, "on": bool, "ns": time, "steps": n, "first": ordinal,
     "settled_ns": time, "settled_steps": n, "waited_ns": time, "beside": [name, ...]}
                    a block, what went before it from a switch on, and waiting for loaders in both;
                    beside: what else was on, in the pair's other block too
    {"losses": [ordinal of the first, values]}                          what backward was called of
    {"outputs": [[given, gave, elements], ...], "is_held": bool}
                    the norm and a weighted sum, of modules that are called in the warm-up, and
                    where nothing is switched of the first calls after it, with what is held
    {"over": why, "has_failed": bool}                                   last

gputui may write `trial-active` there: the cures that get pairs from now on, several that are
switched as one as "A + B", and those that are on in both blocks of each pair, as JSON.

Ranks of a job on one host decide together: rank 0 says in `trial-start` from which step on, and of
how many steps blocks are, and from there all is counted alike, and drawn by the pairs' numbers.
What one of them refuses is on in the others until gputui has heard of it, for a pair or two.

If anything fails here, the program goes on without. Python 3.8 and later; nothing of gputui is
imported, because the program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from typing import Any, Callable, Iterable, Iterator, Sequence  # noqa: UP035

from .jax_compiled import compile_anew
from .step_sites import LOOP_END, MOST_ENDS, StepSite, StepSites
from .trial_results import HELD_OUTPUTS, ProgramResults

MOST_BYTES = 8 << 20
MOST_STEPS = 2000
"""Of a block."""
OVER_PAUSES, MOST_BLOCK_S = 4.0, 6.0
"""A block of whole stretches from pause to pause is about so many times as long as others, and so
long at most: blocks of one stretch of eight steps had ratios within 2 %, those of two steps 30, 1
and 1/30."""
AS_IT_IS = 12
"""Blocks of the program as it is before ablations, where no cure had any."""
ALONE_PAIRS = 20
"""Pairs that each cure that is not for later gets at most before the others have their turn."""
WAITED = 0.01
"""Part of the time from which waits for other threads may be those for a program's own loader."""
MOST_SWITCH_NS = 250_000_000
"""By how much a block before which nothing goes on begins later at most, to begin as one before
which a cure does."""
JOINED = " + "
"""Between the names of cures that are switched as one."""
FEW_STEPS, SURE_BLOCKS, MUCH_SHORTER = 8, 3, 2.0
"""A block of fewer steps gets more, up to so many, where each of so many blocks with a cure was so
many times as short as those without it."""
FEW_HELD, ENOUGH_HELD, HELD_S = 3, 12, 0.5
"""Steps that are timed with what is held before blocks begin: few where these take HELD_S, else
enough."""
COMPARED = 14
"""Steps that the warm-up of a run with switched cures has, where that makes it twice as long at
most: results of a run that has a cure from its fifth step on are compared with theirs."""
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
        self._plan, self._folder, self._cures = plan, folder, cures
        self.sites = StepSites(sources, plan.step, plan.warm_steps, plan.warm_s)
        self.results = ProgramResults(self._say)
        self._pid = os.getpid()
        self._is_fork = False
        self._site: StepSite | None = None
        self._synchronize: Callable[[], Any] | None = None
        self._torch: Any = None
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
        self._shorter: dict[str, float] = {}
        """How many times as short steps were with those that were measured beside others."""
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
        if self.has_begun or self.sites.have_marked:
            self._over = True
            self.results.end()
        self._pid, self._file, self._is_fork = os.getpid(), None, True

    @property
    def has_begun(self) -> bool:
        """Whether it is chosen what counts as a step."""
        return self._site is not None or self._over

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
            self._end(f"{type(error).__name__}: {error}", has_failed=True)

    # --- torch

    def imported_torch(self, torch: Any) -> None:
        """Takes what waits for the GPU before a cure makes it idle, and notes what `backward` is
        called of."""
        self._torch = torch
        self._synchronize = getattr(torch._C, "_cuda_synchronize", None)
        self.results.follow(torch)

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
        if not self.sites.is_step(site, now_ns):
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
        self.results.say_losses()
        self.results.say_outputs(is_held=False)
        if self._held_site is None:
            self._losses_held = self.results.losses_said
        self._held_site, self._held_count, self._held_ns = site, site.count, now_ns
        for name in self._plan.held:
            self._cures.switch(name, True)

    _held_site: StepSite | None = None
    """What marked the step at which what is held was switched on, and which that was, and when."""
    _held_count = _held_ns = 0
    _losses_held: int | None = None
    """How many losses there were then."""

    def _begin(self, site: StepSite, steps: int, apart: int) -> None:
        self._site = site
        compile_anew()
        self._blocks = self._schedule(steps, apart)
        self._time_loaders()
        self.results.say_losses()
        self.results.say_outputs(is_held=self._held_site is not None)
        first = self.results.losses_said if self._losses_held is None else self._losses_held
        self.results.begin(0 if self._plan.cures else HELD_OUTPUTS)
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
        while every and pair < plan.most_pairs:
            are_alone = pair < len(first) * ALONE_PAIRS
            turn = (
                [cure for cure in every if are_alone and cure in first]
                or [cure for cure in every if cure not in plan.bounds]
                or every[:]
            )
            # By the pair's number alone: ranks that differ for a while, because one has refused a
            # cure or heard later what is asked for, draw the same again after it.
            number, place = divmod(pair, len(turn))
            random.Random(f"{plan.seed} turn {number}").shuffle(turn)
            cure, order = turn[place], [False, True]
            drawn = random.Random(f"{plan.seed} pair {pair}")
            drawn.shuffle(order)
            if not apart:
                steps = self._steps_beside(usual)
                settles = max(1, steps // 2)
            if apart:
                yield _Block(None, cure, order[0], 1 + drawn.randrange(apart))
            for wanted in order:
                many = self._steps_with(cure, steps) if wanted and not apart else steps
                yield _Block(None, cure, wanted, max(settles, many // 2))
                yield _Block(pair, cure, wanted, many)
            pair += 1
            every = self._active(pair)
        yield _Block(None, "", False, 1)

    def _steps_beside(self, usual: int) -> int:
        """Of how many steps blocks are while other cures are on. These make steps shorter: blocks
        of more of them still last half as long, and a proof takes half the time."""
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
        if steps >= FEW_STEPS or self._leads or self._follows:
            return steps  # ranks measure different times
        times = self._times_shorter(cure)
        if not times:
            # Several that are switched as one were measured before.
            joined = cure.split(JOINED) if JOINED in cure else ()
            times = functools.reduce(lambda a, b: a * self._shorter.get(b, 1.0), joined, 1.0)
        return min(FEW_STEPS, int(steps * times)) if times >= MUCH_SHORTER else steps

    def _times_shorter(self, cure: str) -> float:
        """How many times as short steps were in each block with a cure; 0 for not known."""
        off_ns, on_ns = self._step_ns[cure]
        is_sure = min(len(off_ns), len(on_ns)) >= SURE_BLOCKS
        return min(off_ns) / max(on_ns) if is_sure else 0.0

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
                    self._shorter[name] = self._times_shorter(name) or 1.0
                    del self._step_ns[name]
        every = self._plan.cures
        if self._said_active is not None:
            joined = [name for name in self._said_active if JOINED in name]
            every = [name for name in every if name in self._said_active] + joined
        # What was asked for may have been refused meanwhile: the others go on until gputui says.
        return self._usable(every) or self._usable(
            name for name in self._plan.cures if name not in self._plan.bounds
        )

    def _usable(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._may_be_on(name)]

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
        self.results.say_losses()
        self.results.say_outputs(is_held=True)
        self._next_block()

    def _next_block(self) -> None:
        site = self._site
        assert site is not None
        while True:
            block = next(self._blocks, None)
            if block is None:
                self._end("all pairs were measured")
                return
            if block.pair is None:
                self._settles_from = site.count, time.perf_counter_ns()
                self._waited_ns = 0
            if (not block.cure or self._may_be_on(block.cure)) and self._switched(block):
                break
            if self._leads or self._follows:
                # Others may have it on meanwhile: this one counts as many steps without it.
                block = _Block(None, "", False, block.steps)
                self._switched(block)
                break
        self._block = block
        self._until = site.count + block.steps
        self._first = self.results.losses_said
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
        switched = block.cure.split(JOINED)
        for name in self._switched_off_to(wanted):
            self._say({"switch": block.cure if name in switched else name})
            if not self._cures.switch(name, True):
                self._failed = self._failed | {name}
                if name in switched:
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
        others = [name for name in self._switched_on() if name not in cure.split(JOINED)]
        return sorted({*always, *others})

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

    # --- files

    def _end(self, why: str, *, has_failed: bool = False) -> None:
        if self._cures is not None:
            # Those that are held stay: what an ablation has spoilt is not saved at the end either.
            self._switched_off_to(())
        with contextlib.suppress(Exception):
            self._say({"over": why[:500], "has_failed": has_failed})
        self._over = True
        self.results.end()

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


def begin(text: str, cures: Any, sources: Any) -> TrialInProgram | None:
    """The trial that the environment asks for; None where it cannot be."""
    folder = os.environ.get("GPUTUI_CAPTURE_DIR")
    if not folder or sys.version_info < (3, 8):
        return None
    plan = Plan(text)
    trial = TrialInProgram(plan, folder, cures, sources)
    os.register_at_fork(after_in_child=trial.forked)
    return trial
