"""What a step takes once its cause is cured: for each cause a model of the cured step, from what
was measured of this one.

A model gives the least and the most of the time that goes, in parts of a step; what follows is an
interval, narrow where the rest of the step is known and wide where it is not. Where that depends on
what the program computes, it says that it is not known. How well each does is in `docs/gains.md`;
the constants are of the H100 that its fitted pairs were recorded on, and of the rates measured
there that stand beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from gputui.model.cards import link_bytes_per_s, product_rates
from gputui.model.leaves import IS_DOUBLE, LEAVES, Leaf, leaf_of_kernel
from gputui.report.explain.advice import (
    HIDES,
    STRIDED,
    copied_again,
    copies_only_back,
    library,
    product_share,
    strided_share,
    works_on_results,
)
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.finding import BESIDE, MERGED_BATCHES, Gain, gain_of
from gputui.report.explain.habits import checks_gradients
from gputui.report.explain.launches import (
    COMPILE_WHOLE,
    GRAPHS_IN_USE,
    ONE_BY_ONE,
    UNBLOCK,
    ReadLoop,
    accumulated,
    embeddings,
    factorized_one_by_one,
    has_waits,
    launch_advice,
    micro_batches_of,
    optimizer_launches,
    read_loop,
    replays_graphs,
    share_of_loop,
)
from gputui.report.explain.leaves import waits_a_step
from gputui.report.explain.lines import MOSTLY
from gputui.report.explain.time_tree import TimeTree, in_few_steps


class GainForecast(NamedTuple):
    """What cures gain, or why that is not known."""

    gains: tuple[Gain, ...] = ()
    unknown: str = ""
    model: str = ""
    """Which of several models of a cause this is; empty where it has one."""


def forecast(analysis: Analysis, tree: TimeTree, leaf: Leaf, share: float) -> GainForecast:
    """What curing a leaf gains, of which `share` of the time, 0 to 1, is to blame."""
    gain = _forecast(analysis, tree, leaf, share)
    return gain._replace(gains=with_one_more(tree, gain.gains)) if tree.with_pauses else gain


def with_one_more(tree: TimeTree, gains: tuple[Gain, ...]) -> tuple[Gain, ...]:
    """Gains of what the pauses of a loop take, where a recording that begins and ends anywhere may
    have seen one too few: of a checkpoint every 10 updates it had one in 24."""
    each = tree.pauses / max(1, tree.devices)
    if not each:
        return gains
    paused_ns = sum(ns for leaf, ns in tree.paused.items() if leaf is not Leaf.WAIT)
    paused = paused_ns / (tree.wall_ns + (0 if tree.with_pauses else paused_ns))
    return tuple(
        Gain(gain.low, gain.high * (1.0 + min(1.0 - 1.0 / gain.high, paused) / each), gain.cure)
        for gain in gains
    )


def _forecast(analysis: Analysis, tree: TimeTree, leaf: Leaf, share: float) -> GainForecast:
    step = _Step(analysis, tree)
    model = _MODELS.get(leaf)
    if leaf in _OF_CHECKS and checks_gradients(analysis):
        return _checks(step)
    is_away = LEAVES[leaf].is_idle and leaf is not Leaf.LAUNCH
    if is_away and (usual := _usual_step(tree, leaf, share)):
        return GainForecast(usual, model=USUAL)
    if model is not None:
        return model(step, share)
    if leaf is Leaf.WAIT:
        return GainForecast(step.freed(share, Leaf.HOST))
    if LEAVES[leaf].is_idle:
        others = max(0.0, step.idle - share)
        return GainForecast(gain_of((1.0 - STAYS) * share, share + FOLLOWS * others))
    return GainForecast(gain_of(share))


USUAL = "usual step"
"""The model of what lies in the pauses of a loop, or in some of its steps only: the usual step is
one without it."""

OF_USUAL_STEP = (0.95, 1.12)
"""Of the usual step, and of that with the kernels and launches of the pauses, what a step takes at
least and at most without the cause: of ten programs whose loaders stopped, that compiled again or
saved, the latter was 8 % off in the median."""

IN_PAUSES, OF_PAUSES = 0.5, 0.5
"""Part of a cause's time from which it lies in the pauses of the loop, and part of what these and
slow steps take beyond usual ones from which they go with it: another's may stay."""


def _usual_step(tree: TimeTree, leaf: Leaf, share: float) -> tuple[Gain, ...]:
    """What goes where the usual step has nothing of a cause; none where it may have."""
    awake: dict[Leaf, int] = {
        other: ns for other, ns in tree.paused.items() if other is not Leaf.WAIT
    }
    is_paused = tree.with_pauses and awake.get(leaf, 0) > IN_PAUSES * tree.leaves.get(leaf, 0)
    if not is_paused and in_few_steps(tree, [leaf]) is None:
        return ()
    whole_ns = tree.wall_ns + (0 if tree.with_pauses else sum(awake.values()))
    usual_ns = (tree.step_ns.median or 0.0) * tree.steps * tree.of_processes
    stays_ns = sum(
        ns for other, ns in awake.items() if other is Leaf.LAUNCH or not LEAVES[other].is_idle
    )
    if share < OF_PAUSES * (1.0 - usual_ns / whole_ns):
        return ()
    fast, slow = OF_USUAL_STEP
    return gain_of(1.0 - slow * (usual_ns + stays_ns) / whole_ns, 1.0 - fast * usual_ns / whole_ns)


LAUNCHED_NS = (4_000.0, 48_000.0)
"""What the CPU takes for an operation of an eager program, at least and usually at most: 3 to 10 µs
of bare launches, 20 to 60 in the launch-bound ones of 13 trainings (H100, torch 2.11)."""


OF_MEDIAN = (0.6, 1.8)
"""The same in times of the median that lay between two launches of a thread in the program itself:
0.5 to 1.75 in seven programs whose steps were then as long as their launches took (an H200), the
least where the CPU had to wait for room in the queue."""


def _usual_launch_ns(analysis: Analysis) -> float | None:
    """The median time between two launches of a thread, the mean of threads by their launches;
    None where none was recorded."""
    medians = [
        (thread.launches, median)
        for thread in analysis.run.timing.launching_threads.values()
        if thread.interval is not None and (median := thread.interval.median)
    ]
    launches = sum(count for count, _ in medians)
    return sum(count * median for count, median in medians) / launches if launches else None


def _launched_ns(analysis: Analysis) -> tuple[float, float]:
    """What the CPU takes for an operation of this program, at least and at most."""
    if (usual := _usual_launch_ns(analysis)) is None:
        return LAUNCHED_NS
    return OF_MEDIAN[0] * usual, OF_MEDIAN[1] * usual


THEN_LAUNCHING = (0.9, 1.5)
"""The same of a step from which only what the CPU did besides is gone: 0.92 to 1.47 in 17 programs
of PyTorch's that waited for input, for the CPU's own code or for memory."""

ALWAYS_BUSY = 0.15
"""Idle share from which the tree itself says what the CPU takes."""


def as_launched(
    analysis: Analysis, gains: tuple[Gain, ...], always: bool = False
) -> tuple[Gain, ...]:
    """What is left of gains of the GPU's work where its operations stay as many: a step takes no
    less than the CPU needs to launch them, of which a GPU that is always busy shows nothing; with
    `always`, of one that idles, too."""
    tree = analysis.tree
    mean_ns = tree.a_step(tree.wall_ns) if tree is not None else None
    if tree is None or not mean_ns or replays_graphs(analysis):
        return gains
    if tree.share(tree.idle_ns) > ALWAYS_BUSY and not always:
        return gains
    operations = tree.operations / max(1, tree.steps)
    # Where the GPU is what is waited for, so are launches: 30 µs each where they took 10.
    launched_ns = _launched_ns(analysis) if always else LAUNCHED_NS
    slow, fast = (mean_ns / max(1.0, operations * ns) for ns in reversed(launched_ns))
    return tuple(
        Gain(min(gain.low, max(1.0, slow)), min(gain.high, max(1.0, fast)), gain.cure)
        for gain in gains
    )


def freed_at_one_line(analysis: Analysis, tree: TimeTree, share: float) -> tuple[Gain, ...]:
    """What goes with all that is at one line of the program, of several leaves."""
    gains = _Step(analysis, tree).freed(share)
    return with_one_more(tree, gains) if tree.with_pauses else gains


SLOWER = 0.10
"""How much longer tensor-core kernels take at the power limit, to which a GPU that no longer waits
comes: 97.6 against 89.5 µs and 110.5 against 97 µs for one product (H100, two pairs of faults)."""

STAYS = 0.03
"""Part of the time that goes that comes back in other places, such as other calls on the CPU."""

FOLLOWS = 0.5
"""Part of the other idle time that may go along where launches or kernels become fewer."""

BEHIND_SURELY = 0.5
"""Part of the idle time behind a cause that goes with it at least: waits and gaps, all of which may
go. Of 45 programs, whose cures took away what the CPU waited for or did, the middle is off by 16 %
of the cured step in the median; where half of all other idle time went, as was said before, 30."""

LAUNCHES_GO, AHEAD_AGAIN = 0.4, 0.8
"""Part of the waits for launches that goes at most: an eager program's CPU launches as long as it
did. It runs ahead of the GPU again once no call of its holds it up, as those do that allocate or
read a value: nearly all went in `patent_graph_sage`."""

STAYING_GOES = 0.7
"""The same of what the CPU does elsewhere, some of which may be for what goes."""

COPIES_GO = 0.5
"""The same of copies, as of values that are no longer read."""

GRAPH_GAP_NS = (300.0, 1200.0)
"""Between two kernels of a CUDA graph: 0.1 to 0.3 µs of small kernels alone, 0.6 to 0.9 µs in a
decoder (H100, torch 2.11)."""


SHORT_NS = 10_000
"""Mean length of a kernel up to which what it computes takes the smaller part: an empty one takes 2
to 3 µs, one that fills an H100 once some 5."""

FUSED_AWAY = 0.6
"""Part of such kernels' time that goes at most where few larger ones do their work."""


OFTEN = 0.9
"""Part of the steps that have a kernel for each of many."""

_PRODUCTS = (Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED)


class _Step:
    """A mean step of a run, in parts of its time from 0 to 1."""

    def __init__(self, analysis: Analysis, tree: TimeTree) -> None:
        self.analysis, self.tree = analysis, tree

    def share(self, *leaves: Leaf) -> float:
        """The share of the wall time, 0 to 1, that these leaves have together."""
        return self.tree.share(sum(self.tree.leaves.get(leaf, 0) for leaf in leaves))

    @property
    def idle(self) -> float:
        """The share of the wall time, 0 to 1, in which nothing ran on the GPU."""
        return self.tree.share(self.tree.idle_ns)

    @property
    def slower(self) -> float:
        """What tensor-core kernels may take longer once the GPU works all the time."""
        return SLOWER * self.share(Leaf.MATMUL, Leaf.ATTENTION)

    def kernels(self, names: re.Pattern[str]) -> float:
        """The time of kernels with such names."""
        part = self.analysis.part_of_kernels(lambda name: names.search(name) is not None)[1]
        return self.tree.kernels_share * part

    def launches(self, wanted: Callable[[str], bool]) -> float:
        """Launches a step of kernels with such names; 0 without steps."""
        steps = max(1.0, self.tree.steps / max(1, self.tree.devices))
        launches, _ = self.analysis.part_of_kernels(wanted)
        return launches / steps if self.tree.has_steps else 0.0

    def repeated(self, times: float) -> tuple[float, float]:
        """Part of all launches, 0 to 1, of kernels that a step launches as many times or more, and
        the time that they take."""
        steps, sums = max(1, self.analysis.all_steps), self.analysis.kernel_sums
        often = [sums[number] for number in sums if sums[number][0] >= OFTEN * times * steps]
        count, ns = (sum(column) for column in zip(*often, strict=True)) if often else (0, 0)
        whole, whole_ns = (sum(column) for column in zip(*sums.values(), strict=True))
        return count / max(1, whole), self.tree.kernels_share * ns / max(1, whole_ns)

    @property
    def _passes(self) -> float:
        """How often a step calls its model, as in a loop over tokens; 1 where that is not known."""
        step_ns = self.tree.turn_mean_ns
        sites = self.analysis.run.marked_steps.values()
        calls = (site for site in sites if site.source in ("module", "token"))
        most = max(calls, key=lambda site: site.marks, default=None)
        mean_ns = most.mean_ns if most is not None else None
        return max(1.0, step_ns / mean_ns) if mean_ns else 1.0

    @property
    def small_products(self) -> float:
        """Launches a step of the kernel for matrix products, of those whose mean is up to SHORT_NS,
        that is launched most."""
        names, sums = self.analysis.kernel_names, self.analysis.kernel_sums
        most = max(
            (
                count
                for number, (count, ns) in sums.items()
                if number in names
                and ns <= SHORT_NS * count
                and leaf_of_kernel(names[number].name) in _PRODUCTS
            ),
            default=0,
        )
        each = micro_batches_of(self.analysis.run, self.tree) or self._passes
        return most / each / max(1.0, self.tree.steps / max(1, self.tree.devices))

    @property
    def short_kernels(self) -> float:
        """The time of kernels whose mean is up to SHORT_NS: most of it starts and ends them."""
        sums = self.analysis.kernel_sums
        whole_ns = sum(ns for _, ns in sums.values())
        short_ns = sum(ns for count, ns in sums.values() if ns <= SHORT_NS * count)
        return self.tree.kernels_share * short_ns / whole_ns if whole_ns else 0.0

    @property
    def stays_in_cache(self) -> bool:
        """Whether kernels move much less memory than they could, by the GPU's counters."""
        # Not above: the roofline imports this package.
        from gputui.report.roofline import steady_roofs

        uses = [
            roof.memory_peak_percent / roof.sm_active_percent
            for roof in steady_roofs(self.analysis)
            if roof.memory_peak_percent is not None and roof.sm_active_percent
        ]
        return bool(uses) and max(uses) < 0.5

    @property
    def gaps(self) -> tuple[float, float]:
        """What gaps between the operations take in a CUDA graph, at least and at most."""
        operations = self.tree.operations / max(1, self.tree.steps)
        mean_ns = self.tree.a_step(self.tree.wall_ns)
        least, most = (operations * ns / mean_ns if mean_ns else 0.0 for ns in GRAPH_GAP_NS)
        return least, most

    def then_launching(self, gains: tuple[Gain, ...]) -> tuple[Gain, ...]:
        """Gains of what only takes the CPU's time, where launching is what a step then takes, by
        how many operations it has and how long a launch of PyTorch's takes in this program."""
        usual_ns, step_ns = _usual_launch_ns(self.analysis), self.tree.a_step(self.tree.wall_ns)
        operations = self.tree.operations / max(1, self.tree.steps)
        if not (usual_ns and step_ns and operations) or library(self.analysis) != "torch":
            return gains
        fast, slow = (step_ns / (operations * part * usual_ns) for part in THEN_LAUNCHING)
        if fast * (1.0 - self.idle) > 1.0 or replays_graphs(self.analysis):
            return gains  # the GPU's work takes longer
        lows = [max(gain.low, min(slow, gain.high)) for gain in gains]
        return tuple(
            Gain(low, max(low, min(gain.high, fast)), gain.cure)
            for low, gain in zip(lows, gains, strict=True)
        )

    def without(self, loop: ReadLoop) -> tuple[Gain, ...]:
        """Gains of a function that reads values one by one, and is one operation for all: what
        other lines launch stays, and the GPU's work, as far as it is not of short kernels of it."""
        usual_ns, step_ns = _usual_launch_ns(self.analysis), self.tree.a_step(self.tree.wall_ns)
        if not usual_ns or not step_ns:
            return ()
        operations = self.tree.operations / max(1, self.tree.steps) * (1.0 - loop.launches)
        fast, slow = (operations * part * usual_ns / step_ns for part in THEN_LAUNCHING)
        busy, own = 1.0 - self.idle, loop.launches * self.short_kernels
        stays = self.idle - self.share(Leaf.LAUNCH, Leaf.SYNC, Leaf.DEPENDENCY)
        return gain_of(1.0 - max(slow, busy) - stays, 1.0 - max(fast, busy - own))

    def freed(
        self,
        share: float,
        *stays: Leaf,
        least: float = 1.0 - STAYS,
        surely: float = BEHIND_SURELY,
        launches: float = LAUNCHES_GO,
        copies: float = COPIES_GO,
        kernels: float = 0.0,
    ) -> tuple[Gain, ...]:
        """Idle time that goes with its cause, and what goes along: waits and gaps behind it do, of
        which a part `surely`, but launches and what the CPU does under leaves that stay hardly."""
        launching, staying = self.share(Leaf.LAUNCH), self.share(*stays)
        behind = max(0.0, self.idle - share - launching - staying)
        copying = self.share(Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE)
        also = launches * launching + STAYING_GOES * staying + copies * copying + kernels
        return gain_of(least * share + surely * behind, share + behind + also)


INPUT_LEAST = 0.9
"""Part of the waiting for input that goes at least, for workers share the CPU's cores: 0.95 with 12
of them on 16 cores for 2 (`plant_disease_training`), 0.97 in `workers`."""


def _input(step: _Step, share: float) -> GainForecast:
    """Other processes prepare batches, and pin them; the program's other code stays."""
    gains = step.freed(share, Leaf.HOST, least=INPUT_LEAST, surely=0.0)
    return GainForecast(step.then_launching(gains))


HOST_BEHIND = 0.7
"""Part of the waits behind the CPU's own code that goes with it at least."""


BESIDE_GOES = (0.6, 1.0)
"""Part of the shorter of both, the CPU's work and the GPU's, that goes where they run beside each
other: 0.7 in `video_blobs`, the one program that it rests on."""


def _host(step: _Step, share: float) -> GainForecast:
    """What the CPU computed goes, with the copies that it worked on; or it computes on what the GPU
    gave while that goes on, and one of both stays."""
    gains = step.then_launching(step.freed(share, surely=HOST_BEHIND, copies=1.0))
    if works_on_results(step.analysis):
        least, most = (part * min(share, 1.0 - step.idle) for part in BESIDE_GOES)
        gains += gain_of(least, most, BESIDE)
    return GainForecast(gains)


OF_COMPILING = 0.8
"""Part of the code and the waiting beside compiling that is of it at least: the backward pass is
compiled where it is first called, kernels in processes that are waited for."""


def _compile(step: _Step, share: float) -> GainForecast:
    """What compiles has much of its time read as other code and as waiting for it."""
    return GainForecast(step.freed(share, surely=OF_COMPILING, launches=1.0))


def _allocation(step: _Step, share: float) -> GainForecast:
    """A call that allocates waits for the GPU, too, so that launches come late after it."""
    return GainForecast(step.then_launching(step.freed(share, launches=AHEAD_AGAIN)))


WAKING_NS = (5_000.0, 20_000.0)
"""What a thread takes to wait for a kernel and to go on, beside the kernel itself."""

OPTIMIZER_FUSED = (0.3, 0.7)
"""Part of the elementwise kernels' time that a fused optimizer saves: Adam of 134 million
parameters takes 3.8 ms tensor by tensor, 4.2 with foreach, 1.7 fused."""


def fused_elementwise(step: _Step) -> float:
    """What of elementwise kernels goes where many tensors are updated at once."""
    elementwise = step.share(Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN)
    return max(0.6 * elementwise, FUSED_AWAY * step.short_kernels)


SMALL_PRODUCTS = 250
"""Launches a step, or a call of its model, of one kernel for matrix products, of up to SHORT_NS,
from which one call may do what a loop does, such as a recurrent net's cell or experts one by one:
360 to 840 in three such programs; up to 150 in trainings of a GPT, of whose 300 to 650 small
products many kernels are, and in decoders that call a model 8 to 46 times a step."""

GRAPH = "CUDA graphs"

OF_TABLES = (0.5, 0.95)
"""Part of the time of kernels that each table has that goes with one table: they are short."""

ONE_CALL = "one call for the loop (cuDNN's RNN, torch.bmm)"
ONE_BATCHED = "one batched call"
ONE_CALL_BUSY = (0.2, 0.9)
"""Part of the kernels' time that one call saves at least and at most: 0.7 in `char_gru`."""


def _launch(step: _Step, share: float) -> GainForecast:
    """CUDA graphs, or fewer launches."""
    read = read_loop(step.analysis)
    if read is not None and (gains := step.without(read)):
        return GainForecast(gains, model=READ_LOOP)
    advice = launch_advice(step.analysis)
    if advice == UNBLOCK:
        # Each launch waited for its kernel and woke up: kernels run beside launching then.
        mean_ns = step.tree.a_step(step.tree.wall_ns) or 1.0
        operations = step.tree.operations / max(1, step.tree.steps)
        kernels = step.tree.kernels_share
        woken = [min(share, operations * ns / mean_ns) for ns in WAKING_NS]
        gains = gain_of(0.8 * min(kernels, share) + woken[0], kernels + woken[1])
        return GainForecast(gains, model="blocked")
    if advice == GRAPHS_IN_USE:
        return GainForecast(gain_of(0.3 * share, share), model="replays")
    elementwise = step.share(Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN)
    if advice == ONE_BY_ONE:
        least, most = (min(part, 1.0) for part in optimizer_launches(step.analysis))
        of_least, of_most = (part * elementwise for part in OPTIMIZER_FUSED)
        others = step.share(Leaf.DEPENDENCY, Leaf.HOST)
        gains = gain_of(0.9 * least * share + of_least, most * share + of_most + FOLLOWS * others)
        return GainForecast(gains, model="by tensor")
    batches = accumulated(step.analysis)
    if batches is not None and advice is not None and "micro-batches" in advice:
        # One pass in place of several: as many fewer launches, and no fewer kernels' time at least.
        spared = 1.0 - 1.0 / batches
        return GainForecast(gain_of(spared * share, spared), model=MERGED_BATCHES)
    least_gap, most_gap = step.gaps
    # A replay is one call: whatever the CPU did between launches goes, but for waits.
    calls = step.share(Leaf.HOST, Leaf.ALLOCATION, Leaf.CUDA, Leaf.DEPENDENCY)
    if advice == COMPILE_WHOLE:
        # One program in place of single operators: most of what they write goes, too.
        fused = max(elementwise, FUSED_AWAY * step.short_kernels)
        gains = gain_of(0.95 * step.idle - most_gap, 0.98 * step.idle + 0.9 * fused)
        return GainForecast(gains, model="operators")
    if (tables := embeddings(step.analysis)) is not None and advice is not None:
        launches, kernels = step.repeated(tables)
        few, many = (part * kernels for part in OF_TABLES)
        gains = gain_of(launches * (share + calls) + few, step.idle - least_gap + many)
        return GainForecast(gains, model="tables")
    loop = share_of_loop(step.analysis)
    idle = share + calls + FOLLOWS * step.share(Leaf.SYNC)
    gains = ()
    if loop is None and step.small_products >= SMALL_PRODUCTS:
        few, many = (part * step.tree.kernels_share for part in ONE_CALL_BUSY)
        gains = gain_of(share + 0.5 * calls + few, idle + many, ONE_CALL)
    elif loop is None and (matrices := factorized_one_by_one(step.analysis)) is not None:
        many = ONE_CALL_BUSY[1] * step.tree.kernels_share
        spared = (1.0 - 1.0 / matrices) * (share + 0.5 * calls)
        gains = gain_of(spared, idle + many, ONE_BATCHED)
    if has_waits(advice):
        why = "it depends on what takes the place of the waits, or of the loop that they are in"
        return GainForecast(gains, "" if gains else why, "waits")
    if loop is not None:
        # What other lines launch stays.
        also = FOLLOWS * step.share(Leaf.DEPENDENCY) + loop * (calls + fused_elementwise(step))
        gains = gain_of(0.7 * loop * share, loop * share + also)
        return GainForecast(gains, model="by tensor")
    of_graph = gain_of(share + 0.5 * calls - most_gap - step.slower, step.idle - least_gap, GRAPH)
    why = "" if gains else "more with larger kernels"
    is_first = bool(gains) and gains[0].cure == ONE_BATCHED  # as in the advice
    return GainForecast(gains + of_graph if is_first else of_graph + gains, why, "graph")


_OF_CHECKS = (Leaf.SYNC, Leaf.LAUNCH, Leaf.HOST)

KEEPS_CHECKING = 0.5
"""Part of what the CPU is at that goes at least without autograd's anomaly mode, which keeps a
stack of Python for each operation, launches two kernels for each gradient and reads their
result."""


def _checks(step: _Step) -> GainForecast:
    """All of it is of the checks, whatever leaf it lies under, but launching what is computed."""
    share = step.share(*_OF_CHECKS)
    return GainForecast(gain_of(KEEPS_CHECKING * share, share + 0.5 * step.short_kernels))


OF_A_READ = 3.0
"""Operations that go at most with a value that is read back: its copy, and what made it."""


READ_LOOP = "values one by one"
"""The model of a function that reads them."""


def _sync(step: _Step, share: float) -> GainForecast:
    """Waits that go, and with them the launches and small kernels that only made what was read."""
    loop = read_loop(step.analysis)
    if loop is not None and (gains := step.without(loop)):
        return GainForecast(gains, model=READ_LOOP)
    operations = step.tree.operations / max(1, step.tree.steps)
    reads = waits_a_step(step.analysis.run, step.analysis.all_steps)
    part = min(1.0, OF_A_READ * reads / max(1.0, operations))
    kernels = part * step.short_kernels
    return GainForecast(step.freed(share, surely=0.3, launches=part, kernels=kernels))


PINNED = (0.65, 0.87)
"""Of the link's rate, what copies from pinned memory come to: 42 GB/s of 63 in pieces of 1 MiB,
54.5 in pieces of 256 MiB (PCIe 5, 16 lanes)."""


def _pageable(step: _Step, share: float) -> GainForecast:
    """The same bytes at the link's rate, after the step's kernels or beside them; or, of what is
    copied back, only the result; or none of what is on the GPU already."""
    if again := copied_again(step.analysis):
        return _kept_there(step, again[1] * share)
    if copies_only_back(step.analysis.run, step.tree):
        # The CPU works on what came back: that goes, too, and what waits behind it.
        behind = step.share(Leaf.HOST, Leaf.SYNC, Leaf.WAIT)
        also = behind + LAUNCHES_GO * step.share(Leaf.LAUNCH)
        return GainForecast(gain_of((1.0 - STAYS) * share + HOST_BEHIND * behind, share + also))
    rate = link_bytes_per_s(step.analysis.facts)
    copies = [
        row
        for row in step.analysis.run.memory_operations.values()
        if "pageable" in (row.source_kind, row.destination_kind)
    ]
    whole_ns = sum(row.time.total for row in copies)
    if rate is None or not whole_ns:
        return GainForecast(unknown="the rate of the link to the host was not read")
    pageable_rate = 1e9 * sum(row.size.total for row in copies) / whole_ns
    slow, fast = (min(share, share * pageable_rate / (rate * part)) for part in PINNED)
    left = max(0.0, fast - step.tree.kernels_share)
    return GainForecast(gain_of(share - slow, share - left + 0.9 * step.idle))


def _kept_there(step: _Step, share: float) -> GainForecast:
    return GainForecast(gain_of((1.0 - STAYS) * share, share + FOLLOWS * step.idle))


HIDDEN = 0.6
"""Of what copies and kernels could hide, what they do at least: 0.65 in `overlap`, for kernels take
longer while memory is copied to."""


def _pinned(step: _Step, share: float) -> GainForecast:
    """Copies hide behind kernels, or kernels behind copies: whichever is shorter goes; of what is
    on the GPU already, all."""
    if again := copied_again(step.analysis):
        return _kept_there(step, again[1] * share)
    kernels = step.tree.kernels_share
    if kernels < HIDES:
        return GainForecast(unknown="it depends on how much need not be copied")
    others = step.share(Leaf.SYNC, Leaf.LAUNCH, Leaf.HOST)
    # What goes to the GPU and what comes back can go at the same time.
    sizes = Counter[str]()
    for row in step.analysis.run.memory_operations.values():
        sizes[row.operation] += (
            row.size.total if "pinned" in (row.source_kind, row.destination_kind) else 0
        )
    both_ways = sizes.total() - max(sizes.values(), default=0)
    hidden = min(share, kernels + (share * both_ways / sizes.total() if sizes.total() else 0.0))
    return GainForecast(gain_of(HIDDEN * hidden, hidden + others))


def _communication(step: _Step, share: float) -> GainForecast:
    """As with copies: no more is hidden than there is to hide behind."""
    others = step.tree.kernels_share - step.share(Leaf.COMMUNICATION)
    if others < HIDES:
        return GainForecast(unknown="it depends on how much need not be sent")
    hidden = min(share, others)
    return GainForecast(gain_of(0.4 * hidden, hidden))


TF32_OF_PEAK = (0.7, 1.09)
"""TF32 against FP32, of the ratio of their dense peaks: products of 150 µs and more in FP32 took
7.1 to 8.1 times as long as in TF32, those of a training 6.1 (`credit_mlp`); the peaks of an H100
are 7.4 apart."""

AUTOCAST_OF_PEAK = (0.42, 0.84)
"""The same of autocast, which casts what it multiplies: 6 to 12 of 14.8, the more the larger."""

LONG_PRODUCT_NS = 1_000_000
"""From products of this length in FP32 on casts are a small part: 10.7 to 12 of 14.8."""

LARGE_OF_PEAK = 0.68

FP32_ATTENTION = re.compile(r"fmha_cutlass[FB]_f32", re.I)
ATTENTION_IN_HALF = (0.8, 0.87)
"""What goes of attention in FP32 in half precision: 14.8 ms against 2.1, forward and backward of
4 × 16 causal heads of 4,096 × 64 on an H200."""

SHORTEST_NS = 5_000
"""What a product takes at least: launching and filling a GPU."""


def moved_by_doubles(analysis: Analysis, tree: TimeTree) -> float | None:
    """Share of the time, 0 to 1, that half of the bytes take which other kernels than products
    move: all goes that FP64 moves more than FP32 does. None where products are not of doubles."""
    if product_share(analysis, lambda name: IS_DOUBLE.search(name) is not None) < MOSTLY:
        return None
    moving = (Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN, Leaf.NORMALIZATION)
    return 0.5 * tree.share(sum(tree.leaves.get(leaf, 0) for leaf in moving))


def _products(step: _Step, share: float) -> GainForecast:
    """Matrix products in a format for tensor cores; casts and what else they touch stay."""
    rates = product_rates(step.analysis.facts)
    if rates is None:
        return GainForecast(unknown="what this card's tensor cores do is not known")
    sums, names = step.analysis.kernel_sums, step.analysis.kernel_names
    products = [
        sums[number]
        for number in sums
        if number in names and leaf_of_kernel(names[number].name) is Leaf.MATMUL_SIMT
    ]
    if not products:
        return GainForecast(unknown="the names of the products' kernels were not recorded")
    if (moved := moved_by_doubles(step.analysis, step.tree)) is not None:
        # FP32 moves half of the bytes, at twice the rate of products or, as TF32, more.
        return GainForecast(gain_of(0.3 * share + 0.8 * moved, 0.9 * share + moved, "FP32"))
    mean_ns = sum(ns for _, ns in products) / max(1, sum(count for count, _ in products))
    large = mean_ns >= LONG_PRODUCT_NS
    half = LARGE_OF_PEAK if large else AUTOCAST_OF_PEAK[0], AUTOCAST_OF_PEAK[1]
    formats = (
        ("TF32", rates.tf32, TF32_OF_PEAK),
        ("bf16", rates.bf16, half),
        ("fp16", rates.fp16 if rates.bf16 is None else None, half),
    )
    gains: list[Gain] = []
    for name, rate, (least, most) in formats:
        if rate is None or rate <= 1.0:
            continue
        slow = min(1.0, 1.0 / (rate * least) + SHORTEST_NS / mean_ns)
        fast = min(1.0, 1.0 / (rate * most))
        # In half precision what lies between products moves half of the bytes, too.
        beside = step.share(Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN, Leaf.NORMALIZATION)
        also = 0.0 if name == "TF32" else 0.4 * beside
        attention = 0.0 if name == "TF32" else step.kernels(FP32_ATTENTION)
        also_least, also_most = (part * attention for part in ATTENTION_IN_HALF)
        least, most = (1.0 - slow) * share + also_least, (1.0 - fast) * share + also + also_most
        gains += gain_of(least, most, name)
    return GainForecast(as_launched(step.analysis, tuple(gains)))


ALIGNED = {"align1": (4.5, 6.7), "align2": (2.6, 3.2)}
"""How many times faster a product is once its dimensions are multiples of 8: 4,095 against 4,096 of
each dimension, 4,094 and 4,092 against it, and five more sizes in bf16 and fp16 (H100)."""


def _unaligned(step: _Step, share: float) -> GainForecast:
    """By the kernels' names, which say how many elements they load at a time."""
    facts = step.analysis.facts
    if facts is None or facts.compute_capability != "9.0":
        return GainForecast(
            unknown="how much faster aligned products are was measured on Hopper only"
        )
    shares = {kind: step.kernels(re.compile(rf"{kind}(?![0-9])")) for kind in ALIGNED}
    whole = sum(shares.values())
    if not whole:
        return GainForecast(unknown="the kernels' names do not say how they load")
    slow, fast = (
        sum(share * shares[kind] / whole / factors[end] for kind, factors in ALIGNED.items())
        for end in (0, 1)
    )
    return GainForecast(as_launched(step.analysis, gain_of(share - slow, share - fast)))


_SOFTMAX = re.compile(r"softmax_?forward|softmax_warp_forward|cunn_SoftMaxForward", re.I)
_SOFTMAX_BACKWARD = re.compile(r"soft_?max_?(warp_)?backward|cunn_SoftMaxBackward", re.I)
_HALF_SCORES = re.compile(r"soft_?max\w*<[^<>]*(c10::(BFloat16|Half)|__half|__nv_bf)", re.I)
_MASKS = re.compile(r"masked_fill|where_kernel|triu_tril", re.I)

HEADS = (64.0, 128.0)
"""Usual widths of an attention head."""

FUSED_FLOPS = {False: (350e12, 500e12), True: (25e12, 40e12)}
"""What fused attention does a second, in half precision and in FP32 (H100): 293 µs for 2 × 16 heads
of 4,096 × 64 in bf16, 4,058 in FP32; 1,647 and 24,094 for 32 of 8,192 × 128."""

PRODUCTS_OF_SCORES = (2.8, 4.8)
"""Bytes that the two products of unfused attention move for each score, which bounds them."""


def _attention(step: _Step, share: float) -> GainForecast:
    """Scores are no longer written, and their products go into the fused kernel. How many scores
    there are follows from the softmax, which reads and writes each once."""
    facts = step.analysis.facts
    bandwidth = facts.peak_memory_bandwidth_bytes_per_s if facts is not None else None
    softmax = step.kernels(_SOFTMAX)
    if facts is None or facts.compute_capability != "9.0" or not bandwidth or not softmax:
        return GainForecast(
            unknown="what fused attention does a second was measured on Hopper only"
        )
    has_backward = step.kernels(_SOFTMAX_BACKWARD) > 0
    in_fp32 = step.share(Leaf.MATMUL_SIMT) > step.share(Leaf.MATMUL)
    element_bytes = 2 if step.kernels(_HALF_SCORES) > softmax / 2 else 4
    scores_a_share = 0.85 * bandwidth / (2 * element_bytes)
    causal = 0.5 if step.kernels(_MASKS) > 0 else 1.0
    # Backward has two and a half times the operations, at a lower rate, and four products.
    passes, products = (4.5, 3.0) if has_backward else (1.0, 1.0)
    rate_least, rate_most = FUSED_FLOPS[in_fp32]
    fast = passes * softmax * scores_a_share * 4 * HEADS[0] * causal / rate_most
    slow = passes * softmax * scores_a_share * 4 * HEADS[1] / rate_least
    limit = step.share(Leaf.MATMUL, Leaf.MATMUL_SIMT)
    removed = [
        min(0.8 * limit, products * softmax * moved / (2 * element_bytes))
        for moved in PRODUCTS_OF_SCORES
    ]
    if in_fp32:
        removed[1] = 0.8 * limit
    least = share + removed[0] - min(slow, 0.5 * share)
    # Transposed copies of queries, keys and values are no longer needed either.
    most = share + removed[1] + 0.5 * step.share(Leaf.ELEMENTWISE) - min(fast, 0.5 * share)
    return GainForecast(gain_of(0.95 * max(0.4 * share, least), most))


LEAST_CHAIN = 3
"""Kernels of a chain (attribute.accounting)."""

FUSED_KERNEL = (0.7, 1.5)
"""What the kernel of a fused chain takes, of a mean one of the chain: it has the operands of a
larger one."""


IN_CACHE = 4.0
"""The same at most where the arrays stay in the L2 cache: there is little memory traffic to save
(3.2 × faster for 18 kernels over 32 MB, `heston_pricer`)."""


def _chain(step: _Step, share: float) -> GainForecast:
    """Of each chain one kernel is left. There are no more chains than kernels of another kind
    between them, and no more than three kernels each would make."""
    kinds = (Leaf.ELEMENTWISE, Leaf.NORMALIZATION, Leaf.SOFTMAX)
    launched = step.launches(lambda name: leaf_of_kernel(name) is Leaf.ELEMENTWISE)
    others = step.launches(lambda name: leaf_of_kernel(name) not in kinds)
    if others < 1.0:
        # Nothing lies between its kernels: one kernel of a compiler's does it all.
        share += step.share(Leaf.ELEMENTWISE)
    beside = step.share(Leaf.ELEMENTWISE) if others >= 1.0 else 0.0
    in_chains = launched * share / (share + beside)
    if in_chains < LEAST_CHAIN:
        return GainForecast(gain_of(0.5 * share, 0.75 * share))
    chains_most = min(in_chains / LEAST_CHAIN, others + 1.0)
    chains_least = max(1.0, min(chains_most, in_chains / (12.0 if others >= 1.0 else 60.0)))
    longest = IN_CACHE if step.stays_in_cache else FUSED_KERNEL[1]
    slow = share * chains_most / in_chains * longest
    fast = share * chains_least / in_chains * FUSED_KERNEL[0]
    # Gaps between the kernels go with them.
    gaps = 0.9 * step.share(Leaf.DEPENDENCY)
    least = share - slow
    if (strided := strided_share(step.analysis)) >= STRIDED:
        # Another layout alone: of 0.45 of the time 0.41 went (`cavity_lbm`).
        least = min(least, 0.5 * strided * step.tree.kernels_share)
    return GainForecast(gain_of(least, share - fast + 0.3 * beside + gaps))


def _shared(step: _Step, share: float) -> GainForecast:
    """Kernels are as long as alone, and the other process no longer holds clocks and memory down:
    1.81 times faster where kernels lost 28 % to it."""
    others = step.share(Leaf.DEPENDENCY)
    return GainForecast(gain_of(share, 1.6 * share + FOLLOWS * others))


_MODELS: dict[Leaf, Callable[[_Step, float], GainForecast]] = {
    Leaf.ALLOCATION: _allocation,
    Leaf.COMPILE: _compile,
    Leaf.HOST: _host,
    Leaf.INPUT: _input,
    Leaf.LAUNCH: _launch,
    Leaf.SYNC: _sync,
    Leaf.COPY_PAGEABLE: _pageable,
    Leaf.COPY_PINNED: _pinned,
    Leaf.COMMUNICATION: _communication,
    Leaf.MATMUL_SIMT: _products,
    Leaf.MATMUL_UNALIGNED: _unaligned,
    Leaf.ATTENTION_UNFUSED: _attention,
    Leaf.ELEMENTWISE_CHAIN: _chain,
    Leaf.SHARED: _shared,
}
