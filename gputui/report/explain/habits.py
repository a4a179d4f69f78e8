"""What a program does in each step that no leaf of the time tree names, by its kernels, its calls
and the CPU that its processes take: checks of gradients for NaN, kernels that add one row after
another, CUDA graphs that are captured anew, threads that compute while the launching one sleeps.

For `advice` and `verdict`, where a leaf has such a reason, and as findings of its own where it is
one. Nothing here depends on what the verdict is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gputui.model import units
from gputui.model.leaves import LEAVES, Leaf, idle_sum
from gputui.model.naming import MEMSET, short_name
from gputui.report.explain.analysis import Analysis, RunRule, computed_once
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.leaves import synchronizations
from gputui.report.explain.lines import beside, called_lines, printed_line

# Autograd's anomaly mode.

_IS_ANY = re.compile(r"reduce_kernel<.*(or_kernel|ReduceOp<bool)")
_COMPARES = re.compile(r"CompareFunctor|ne_kernel|BinaryFunctor<[^<>]*, [^<>]*, bool")
_BACKWARD = re.compile(r"backward|bwd|_grad|bprop|GammaBeta", re.I)

CHECKS = 20
"""Results of `any` that are read in a step, from which each gradient is checked: a check of the
loss or of the norm of all gradients reads one or two."""

ANOMALY = (
    "torch.autograd.set_detect_anomaly(False): in anomaly mode each gradient is compared with NaN, "
    "and the result is read back; the same holds for such checks of the program's own"
)


@computed_once
def checks_gradients(analysis: Analysis) -> bool:
    """Whether each gradient is compared with NaN and the result read, as in autograd's anomaly
    mode: one reduction to a bool and one comparison for each, in the backward pass."""
    steps, names = analysis.all_steps, analysis.kernel_names
    counts = Counter[str]()
    for number, (count, _) in analysis.kernel_sums.items():
        name = names[number].name if number in names else ""
        counts["any"] += count if _IS_ANY.search(name) else 0
        counts["compare"] += count if _COMPARES.search(name) else 0
        counts["backward"] += count if _BACKWARD.search(name) else 0
    read = min(counts["any"], counts["compare"])
    # Of a loop that reads each value of a mask they are few: 1,920 of 495,919 in `ppo_carts`.
    is_most = 2 * read >= synchronizations(analysis.run) >= CHECKS * steps
    return bool(steps and counts["backward"]) and read >= CHECKS * steps and is_most


# Kernels that add one row after another.

_SERIAL = re.compile(
    r"indexing_backward_kernel|embedding_backward_feature_kernel|EmbeddingBag_\w*accGradParameters"
    r"|compute_grad_weight|krn_partial|scatter\w*(serial|deterministic)|deterministic\w*scatter"
    r"|index_put_with_sort",
    re.I,
)

SERIAL_SHARE = 0.15
"""Share of the kernels' time from which they are worth a finding, as for idle time."""

IN_TURN = (
    "torch.use_deterministic_algorithms(False) if nothing needs the same bits each time; else add "
    "up equal indices first, or replace x[i] += y and its gradient by a matrix product with one-hot"
)


def serial_scatter(analysis: Analysis) -> Iterator[Finding]:
    """Kernels that write what several threads would add to at once in order, of which each row
    waits for the one before: many times slower than memory allows."""
    names, tree = analysis.kernel_names, analysis.tree
    times: dict[str, int] = {}
    whole_ns = 0
    for number, (_, ns) in analysis.kernel_sums.items():
        whole_ns += ns
        name = names[number].name if number in names else ""
        if _SERIAL.search(name):
            times[name] = times.get(name, 0) + ns
    ns = sum(times.values())
    if tree is None or not whole_ns or ns < SERIAL_SHARE * whole_ns:
        return
    largest = max(times, key=lambda name: times[name])
    share = ns / whole_ns
    yield Finding(
        cause="serial_scatter",
        view="kernels",
        word=f"serial scatter {100 * share:.0f} % of kernels",
        sentence=(
            f"Kernels that add to indexed rows one after another take {100 * share:.0f} % of the "
            f"kernels' time, most of it {short_name(largest)}."
        ),
        advice=IN_TURN,
        kernel=largest,
        value=100 * share,
        threshold=100 * SERIAL_SHARE,
        source="names of PyTorch's kernels for index_put, embedding and scatter backward",
        recoverable=share * tree.kernels_share,
        gain_unknown="it depends on how often an index repeats",
        leads=True,
        explains=("few_blocks",),
    )


FILLS = 0.2
"""Part of the launches that fill memory from which PyTorch does so with each new tensor, as its
deterministic algorithms do: 0.26 and 0.32 with them, up to 0.07 in five trainings without."""

IN_ORDER = re.compile(r"indexing_backward_kernel|embedding_backward_feature_kernel")
_SORTS = re.compile(r"FillFunctor|RadixSort|DeviceScan|indexing_backward|embedding_backward", re.I)


def deterministic(analysis: Analysis) -> Iterator[Finding]:
    """PyTorch's deterministic algorithms where no kernel of theirs is most of it: indices are
    sorted, and memory that nobody has written is filled."""
    names, tree = analysis.kernel_names, analysis.tree
    if tree is None or any(serial_scatter(analysis)):
        return
    fills = count = sorting = sorting_ns = whole_ns = 0
    is_in_order = False
    for number, (times, ns) in analysis.kernel_sums.items():
        name = names[number].name if number in names else ""
        count, whole_ns = count + times, whole_ns + ns
        fills += times if "FillFunctor" in name else 0
        is_in_order = is_in_order or IN_ORDER.search(name) is not None
        if _SORTS.search(name):
            sorting, sorting_ns = sorting + times, sorting_ns + ns
    if not is_in_order or fills < FILLS * count:
        return
    kernels = tree.kernels_share * sorting_ns / whole_ns
    launches = tree.share(tree.leaves.get(Leaf.LAUNCH, 0)) * sorting / count
    share = kernels + launches
    yield Finding(
        cause="serial_scatter",
        view="kernels",
        word="deterministic algorithms",
        sentence=(
            f"PyTorch's deterministic algorithms sort indices and fill new memory: {sorting:,} of "
            f"{count:,} kernels, with what launches them {100 * share:.0f} % of the time."
        ),
        advice=IN_TURN,
        value=100 * fills / count,
        threshold=100 * FILLS,
        source="names of the kernels that fill memory, in a run that adds to rows in order",
        recoverable=share,
        # What the CPU does for each of these operations goes, too.
        gains=gain_of(share, share + tree.share(tree.idle_ns) / 2),
        leads=True,
        explains=(LEAVES[Leaf.LAUNCH].key,) if 4 * launches >= share else (),
    )


# Memory that each step takes from the driver, and gives back.

KEEP_BLOCKS = (
    "no torch.cuda.empty_cache() in the loop; "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where sizes vary"
)


@computed_once
def allocations(analysis: Analysis) -> tuple[int, float]:
    """How often the run allocated or freed memory of a GPU, and which share of the steps' time the
    CPU was in these calls, 0 to 1, if the steps have as many as the run has on average."""
    tree, steps = analysis.tree, analysis.all_steps
    calls = [
        call
        for call in analysis.run.api.values()
        if call.name.startswith(("cudaMalloc", "cudaFree", "cuMemAlloc", "cuMemFree"))
        and not call.name.startswith(("cudaMallocHost", "cudaFreeHost", "cudaFreeAsync"))
        and "Async" not in call.name
    ]
    count = sum(call.time.count for call in calls)
    total_ns = sum(call.time.total for call in calls)
    # One of them sets up the driver: seconds, which no step takes.
    total_ns -= max((call.time.maximum or 0 for call in calls), default=0)
    if tree is None or not tree.steps or not steps or count < steps:
        return count, 0.0
    return count, min(1.0, tree.share(max(0, total_ns) * tree.steps / steps))


# CUDA graphs that are captured in the steps.

CAPTURES = 0.5
"""Captures of a CUDA graph a step from which steps record them anew."""

REPLAYS = 3
"""Replays of each captured graph up to which steps count as capturing them anew: what is captured
once is replayed hundreds of times."""

REPLAY = (
    "capture once and replay it: the same buffers (copy_() into them), fixed shapes; with "
    'torch.compile(mode="reduce-overhead") mark sizes as dynamic, or pad them to a few'
)


def graphs_captured_anew(analysis: Analysis) -> Iterator[Finding]:
    """Steps that capture a CUDA graph each, which takes longer than launching what is in it."""
    run, tree = analysis.run, analysis.tree
    steps = analysis.all_steps
    if tree is None or not tree.has_steps or not steps:
        return
    counts = Counter[str]()
    total_ns = 0
    for call in run.api.values():
        if "GraphLaunch" in call.name:
            counts["launch"] += call.time.count
        elif "BeginCapture" in call.name or "GraphInstantiate" in call.name:
            counts["begin" if "Begin" in call.name else "instantiate"] += call.time.count
            total_ns += call.time.total
    captures = max(counts["begin"], counts["instantiate"])
    if captures < CAPTURES * steps or counts["launch"] > REPLAYS * captures:
        return
    share = tree.share(total_ns * tree.steps / steps)
    # The calls are those of the whole run. In steps that make them a GPU waits for them, as a rule:
    # a graph for each token may be captured before all steps.
    waits = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in (Leaf.CUDA, Leaf.LAUNCH)))
    if share > 1.0 or waits < share / 2:
        return
    yield Finding(
        cause="graphs_captured_anew",
        view="kernels",
        word=f"{captures / steps:.1f} CUDA graphs captured a step",
        sentence=(
            f"Steps capture CUDA graphs anew, {captures / steps:.1f} a step: instantiating them "
            f"takes {100 * share:.0f} % of the time."
        ),
        advice=REPLAY,
        value=captures / steps,
        threshold=CAPTURES,
        source="calls of cudaStreamBeginCapture and cudaGraphInstantiate, a step",
        recoverable=share,
        gain_unknown="it depends on what a replay saves beside",
        leads=True,
    )


# Pages that unified memory moves.

MOVED_SHARE = 0.10
"""Part of the time from which what unified memory moves is a finding, as for copies."""

PREFETCH = (
    "cudaMemPrefetchAsync before the kernels that need it, or cudaMalloc and copies of your own; "
    "cudaMemAdvise for what is only read"
)


def unified_memory(analysis: Analysis) -> Iterator[Finding]:
    """Pages that move between host and GPU when they are touched: kernels wait for them."""
    tree = analysis.tree
    rows = [
        row
        for row in analysis.run.memory_operations.values()
        if "Unified" in row.operation and row.time.total
    ]
    if tree is None or not rows or not tree.wall_ns:
        return
    ns, moved_bytes = sum(row.time.total for row in rows), sum(row.size.total for row in rows)
    share = min(1.0, ns / (tree.wall_ns + sum(tree.beside_ns.values())))
    if share < MOVED_SHARE:
        return
    count = sum(row.time.count for row in rows)
    yield Finding(
        cause="unified_memory",
        view="kernels",
        word=f"unified memory moves {100 * share:.0f} % of the time",
        sentence=(
            f"Unified memory moves {units.size(moved_bytes)} between host and GPU in {count:,} "
            f"parts, {100 * share:.0f} % of the time: a kernel that touches a page waits for it."
        ),
        advice=PREFETCH,
        value=100 * share,
        threshold=100 * MOVED_SHARE,
        source="copies of unified memory in the report, over the time since the first operation",
        recoverable=share,
        gain_unknown="what of it overlaps with kernels is not known",
        leads=True,
    )


# Threads that compute while the launching one sleeps.

COMPUTES_PERCENT = 50.0
"""CPU, of one core, that a process takes beside its launching thread, from which some other thread
of it computes most of the time that the launching one sleeps."""

LEAST_READINGS = 3


@computed_once
def cpu_percent(analysis: Analysis) -> float | None:
    """The CPU that the run's processes on a GPU take on average, in percent of one core, the most
    of any of them; None where it was not read often enough."""
    own = {process.attached.pid for process in analysis.run.processes.values()}
    means = [
        occupant.cpu.average
        for occupant in analysis.readings.occupants.values()
        if occupant.newest.pid in own and occupant.cpu.count >= LEAST_READINGS
    ]
    return max((mean for mean in means if mean is not None), default=None)


@computed_once
def others_percent(analysis: Analysis) -> float | None:
    """The CPU that other threads than the launching one take at least, in percent of one core: what
    the process takes beyond the time that the launching thread is awake; None where unknown."""
    tree, percent = analysis.tree, cpu_percent(analysis)
    if tree is None or percent is None:
        return None
    whole_ns = tree.wall_ns + sum(tree.paused.values())
    asleep_ns = tree.leaves.get(Leaf.WAIT, 0) + tree.paused.get(Leaf.WAIT, 0)
    return percent - 100.0 * (1.0 - asleep_ns / whole_ns) if whole_ns else None


def threads_compute(analysis: Analysis) -> bool:
    """Whether another thread computes while the launching one sleeps: in Python it then holds the
    interpreter's lock. XLA's threads do not."""
    if any(marks.source == "jax" for marks in analysis.run.marked_steps.values()):
        return False
    percent = others_percent(analysis)
    return percent is not None and percent >= COMPUTES_PERCENT


def lock_held(analysis: Analysis, share: float) -> Finding:
    """The launching thread sleeps for so much of the time, 0 to 1, while others compute."""
    tree, percent = analysis.tree, others_percent(analysis) or 0.0
    assert tree is not None
    lines = analysis.lines()[:1]
    leaves = Counter(tree.leaves) + Counter(tree.paused)
    holder = beside(analysis.run, leaves)
    advice = "move what the other threads compute to processes"
    if holder is not None and holder.ran:
        advice = f"move what {holder.where} computes to a process"
    return Finding(
        cause="lock_held",
        view="timeline",
        word="ANOTHER THREAD RUNS",
        sentence=(
            f"The launching thread sleeps {100 * share:.0f} % of the time while other threads of "
            f"its process take {percent:.0f} % of a core: Python's lock (the GIL) lets one run at "
            "a time."
        ),
        advice=advice,
        value=percent,
        threshold=COMPUTES_PERCENT,
        source="psutil.Process.cpu_times and sleep between the steps",
        share_percent=100 * share,
        with_pauses=True,
        recoverable=share,
        gain_unknown="it depends on what the launching thread has to do meanwhile",
        evidence=tuple(f"It sleeps at {line.where}" for line in lines),
    )


# Garbage that Python collects.

COLLECTS = 0.05
"""Share of the time that the collections of one process take from which they are a finding."""

EACH_STEP = 0.5
"""Collections of all objects a step from which the program asks for them: Python does it by itself
once a quarter more objects live than after the last one."""

NO_COLLECT = "no gc.collect() in the loop"
FREEZE = (
    "gc.collect() and gc.freeze() after set-up, so that what lives then is not gone through again; "
    "gc.disable() in the loop and gc.collect() every thousand steps"
)


def garbage(analysis: Analysis) -> Iterator[Finding]:
    """Python's garbage collections, which hold up the thread that launches."""
    tree, run = analysis.tree, analysis.run
    rows = [row for row in run.garbage_collections.values() if row.total_ns]
    if tree is None or tree.benchmark_rows or not rows:
        return
    of_process = Counter[int]()
    for row in rows:
        of_process[row.process] += row.total_ns
    whole_ns = (tree.wall_ns + sum(tree.beside_ns.values())) / max(1, tree.devices)
    share = min(1.0, max(of_process.values()) / whole_ns) if whole_ns else 0.0
    loop_ns = tree.wall_ns + sum(tree.paused.values())
    idle = (tree.idle_ns + idle_sum(tree.paused)) / loop_ns if loop_ns else 0.0
    # Those that begin before the loop cost no step, and a GPU that works meanwhile loses nothing:
    # what the GPU waits for is CPU code.
    host = sum(leaves.get(Leaf.HOST, 0) for leaves in (tree.leaves, tree.paused))
    gained = min(share, host / loop_ns if loop_ns else 0.0)
    if gained < COLLECTS:
        return
    every = [row for row in rows if row.generation == OLDEST]
    count, steps = sum(row.collections for row in every), analysis.all_steps
    asked = called_lines(run, ("gc.collect",))
    most = max(every, key=lambda row: row.total_ns, default=None)
    line = run.lines.get((most.process, most.line)) if most is not None else None
    where = asked[0].where if asked else ""
    if line is not None and not where:
        where = printed_line(line.path, line.number, line.function)
    of_host = tree.share(tree.leaves.get(Leaf.HOST, 0))
    longest = max(row.longest_ns for row in rows)
    yield Finding(
        cause="garbage_collection",
        view="timeline",
        word=f"garbage collection {100 * share:.0f} % of the time",
        sentence=(
            f"Python's garbage collections take {100 * share:.0f} % of the time: {count:,} of all "
            f"objects, the longest {units.duration(longest)}."
        ),
        advice=NO_COLLECT if asked or count >= EACH_STEP * steps > 0 else FREEZE,
        value=100 * share,
        threshold=100 * COLLECTS,
        source="gc.callbacks of the program",
        recoverable=gained,
        # What waited behind a collection goes with it, all of it in `reranker_training`.
        gains=gain_of(0.95 * gained, gained + 0.98 * (idle - gained)),
        evidence=(f"Most of them begin at {where}",) if where else (),
        place=where,
        leads=True,
        is_timed=True,
        explains=(LEAVES[Leaf.HOST].key,) if 2 * gained >= of_host else (),
    )


OLDEST = 2
"""The generation of all objects."""


# Triton's autotuner.

FLUSHED_BYTES, FLUSHED = 100_000_000, 0.1
"""Mean size of memsets from which they empty the L2 cache between two kernels that are timed
(Triton's `do_bench` sets 256 MiB each time), and the share of the time that they then have."""

TUNE_ONCE = (
    "a key of @triton.autotune that stays the same: lengths rounded up to a few, or left out of "
    "key=[...]; or one configuration"
)


def tunes_anew(analysis: Analysis) -> Iterator[Finding]:
    """Triton times the configurations of a kernel again and again, for each new key."""
    tree, run = analysis.tree, analysis.run
    rows = [row for row in run.memory_operations.values() if row.operation == MEMSET]
    count = sum(row.time.count for row in rows)
    if tree is None or not count:
        return
    mean_bytes = sum(row.size.total for row in rows) / count
    whole_ns = tree.wall_ns + (0 if tree.with_pauses else sum(tree.paused.values()))
    flushed_ns = sum(leaves.get(Leaf.COPY_DEVICE, 0) for leaves in (tree.leaves, tree.paused))
    share = flushed_ns / whole_ns if whole_ns else 0.0
    if mean_bytes < FLUSHED_BYTES or share < FLUSHED:
        return
    lines = [line for line in analysis.lines() if "triton/" in line.inside]
    place = lines[0].where if lines else ""
    yield Finding(
        cause="tunes_anew",
        view="kernels",
        word="autotuning in the loop",
        sentence=(
            f"A kernel's configurations are timed in the loop: {count:,} memsets of "
            f"{units.size(mean_bytes)} that empty the L2 cache between two tries take "
            f"{100 * share:.0f} % of the time alone."
        ),
        advice=TUNE_ONCE,
        value=100 * share,
        threshold=100 * FLUSHED,
        source="memsets in the report, by their size, and their time in the loop",
        share_percent=100 * share,
        with_pauses=True,
        recoverable=0.5 + share / 2,
        gain_unknown="it depends on how often a new key comes",
        evidence=(f"The kernel is called at {place}",) if place else (),
        place=place,
        leads=True,
        explains=(LEAVES[Leaf.COPY_DEVICE].key, LEAVES[Leaf.SYNC].key, "copies"),
    )


# A function that torch.compile gave up.

_GAVE_UP = re.compile(r"torch\._dynamo hit config\.\w+ \((\d{1,6})\)")
_FUNCTION = re.compile(r"function: '([\w.<>]{1,80})' \((?:[^()\n]*/)?([\w.-]{1,80}):(\d{1,7})\)")
_REASON = re.compile(r"last reason: \d+/\d+: ([ -~]{1,80}?)(?:\s{2,}|\s*#|$)")

OF_CHAINS = (0.5, 0.75)
"""Part of the time in chains of elementwise kernels that goes at least and at most, as their own
finding has it."""

AS_TENSOR = (
    "what changes from call to call as a tensor, or before the compiled function; mark_dynamic() "
    "for sizes; torch._dynamo.config.allow_unspec_int_on_nn_module=True for numbers of a module"
)


def compiler_gave_up(analysis: Analysis) -> Iterator[Finding]:
    """A function that torch.compile runs uncompiled since it was compiled too often, as it says."""
    tree = analysis.tree
    lines = [line.text for line in analysis.run.log if "torch/_dynamo/" in line.text]
    first = next((n for n, text in enumerate(lines) if _GAVE_UP.search(text)), None)
    if tree is None or first is None:
        return
    times, function, reason = (
        next(filter(None, map(pattern.search, lines[first : first + 4])), None)
        for pattern in (_GAVE_UP, _FUNCTION, _REASON)
    )
    name = f"{function[1]} at {function[2]}:{function[3]}" if function else "a function"
    chains = tree.share(tree.leaves.get(Leaf.ELEMENTWISE_CHAIN, 0))
    launches = tree.share(tree.leaves.get(Leaf.LAUNCH, 0))
    yield Finding(
        cause="compiler_gave_up",
        view="kernels",
        word="the compiler gave up",
        sentence=f"torch.compile gave up {name} after {times[1] if times else 0} compilations: it "
        "has run uncompiled since.",
        advice=AS_TENSOR,
        value=float(times[1]) if times else 0.0,
        threshold=1.0,
        source="torch._dynamo's warning in the program's output",
        recoverable=OF_CHAINS[1] * chains + launches,
        gains=gain_of(OF_CHAINS[0] * chains, OF_CHAINS[1] * chains + launches),
        evidence=(f"Its last reason: {reason[1]}",) if reason else (),
        place=f"{function[2]}:{function[3]}" if function else "",
        leads=True,
        explains=(LEAVES[Leaf.LAUNCH].key, LEAVES[Leaf.ELEMENTWISE_CHAIN].key),
    )


RULES = (
    RunRule(15, compiler_gave_up),
    RunRule(15, tunes_anew),
    RunRule(16, serial_scatter),
    RunRule(16, deterministic),
    RunRule(16, garbage),
    RunRule(18, graphs_captured_anew),
    RunRule(19, unified_memory),
)
