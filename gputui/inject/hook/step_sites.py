"""The places of a program that mark steps, and which of them a trial goes by (trial.py).

Python 3.8 and later; nothing of gputui is imported, because the program may use another
interpreter.
"""

from __future__ import annotations

import math
import re
import sys
import time
from typing import Any

LOOP_END = 16
"""The unit of a mark that is the end of a loop, and of no turn (loop_marks)."""

RANK_OF_SOURCE = (
    "trainer", "lightning", "accelerate", "keras", "optimizer", "token", "module", "tqdm",
    "function", "loop",
)  # fmt: skip
"""Of several that mark steps, which of them counts: what trains before what is only called."""

MOST_SITES = 256
MOST_ENDS = 2000
LONG, PAUSED = 4.0, 0.2
"""How many times as long as most a step is that counts as a pause, and their part of the time."""
WANTED_S = 15.0
"""How long what a run under capture went by may mark nothing while something else does: a cure may
have put a class of its own in its place; and what trains, after its first step, or a program whose
modules touch no GPU."""
ANOTHER_S = 60.0
"""The same until something of another kind counts: data sets are prepared for long under a progress
bar."""
WARM_ENDS = 4


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


class StepSites:
    """All of a program. `sources` are the names of what marks steps, by number from 1; `wanted` is
    what an earlier run has shown to mark them, by source and name; the one that counts has marked
    more than `warm_steps`, in `warm_s` or more."""

    def __init__(self, sources: Any, wanted: str, warm_steps: int, warm_s: float) -> None:
        self._sources, self.wanted = sources, wanted
        self._warm_steps, self._warm_s = warm_steps, warm_s
        self._sites: list[StepSite] = []

    def define(self, source: int, name: bytes, _begins: int) -> StepSite | None:
        """A place where steps are marked; None where there are too many, or for a loop that is not
        what the plan calls its step."""
        kind, text = self._sources[source - 1], name.decode("utf-8", "replace")
        is_other = kind == "loop" and not self._is_wanted(kind, text)
        if is_other or len(self._sites) >= MOST_SITES:
            return None
        return self.add(kind, text)

    def add(self, source: str, name: str) -> StepSite:
        """A place where steps are marked from now on."""
        site = StepSite(source, name, len(self._sites))
        site.stays = site.stays or self._is_wanted(source, name)
        self._sites.append(site)
        return site

    def remove(self, site: StepSite) -> None:
        """What was taken for a step has ended."""
        self._sites = [each for each in self._sites if each is not site]

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

    @property
    def have_marked(self) -> bool:
        """Whether any step was marked."""
        return any(site.count for site in self._sites)

    def is_step(self, site: StepSite, now_ns: int) -> bool:
        """Whether it is clear by now that a site marks the steps: it is what a run under capture
        went by, or the best of those that go on; what is better may have begun, and have had too
        few steps as yet."""
        begun = [each for each in self._sites if each.goes_on(now_ns)]
        wanted = [each for each in begun if self._is_wanted(each.source, each.name)]
        is_in_use = uses_gpu()

        def rank(each: StepSite) -> tuple[bool, tuple[int, int]]:
            return is_in_use and not each.uses_gpu, each.rank

        best = min(wanted or begun, key=rank)
        enough = [each for each in wanted or begun if each.count > self._warm_steps]
        if not enough or site is not min(enough, key=rank):
            return False
        warm_s = (now_ns - min(each.first_ns for each in enough)) / 1e9
        # Where no GPU is in use yet, a progress bar may be that of a data set that is prepared.
        is_at_work = site.uses_gpu if is_in_use else site.source != "tqdm"
        is_sure = bool(wanted) or (site is best and is_at_work and not self.wanted)
        is_another = bool(self.wanted) and site.source != self.wanted.partition(" ")[0]
        least_s = 0.0 if is_sure else ANOTHER_S if is_another and not wanted else WANTED_S
        return warm_s >= max(self._warm_s, least_s)
