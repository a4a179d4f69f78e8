"""What to try for a leaf, where the run's lines, calls and kernels say more than what is true of
any program: where a GPU waits for launches it depends on what launches, where the CPU computes on
the line that it is at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal

from gputui.model.cards import product_rates
from gputui.model.leaves import (
    CAUSES,
    IS_DOUBLE,
    MULTIPLIES_VECTOR,
    Leaf,
    is_kernel,
    leaf_of_kernel,
)
from gputui.model.naming import DEVICE_TO_HOST
from gputui.model.units import size
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.habits import (
    ANOMALY,
    KEEP_BLOCKS,
    allocations,
    checks_gradients,
    threads_compute,
)
from gputui.report.explain.leaves import (
    shares_with_itself,
    waits_a_step,
    waits_among_launches,
)
from gputui.report.explain.lines import (
    MOSTLY,
    LikeliestLine,
    beside,
    called_lines,
    is_set,
    kernels_at,
)
from gputui.report.explain.time_tree import TimeTree
from gputui.state import Run

IN_USE = 0.5
"""Launches of a CUDA graph a step from which its program uses graphs."""

OPTIMIZER = 0.1
"""Share of all kernels from which an optimizer that updates tensor by tensor leads the advice: of
the seven or more kernels that Adam launches for a tensor, three can be recognised by name."""

GRAPHS_IN_USE = (
    "CUDA graphs are in use: replay several steps in one graph, take larger batches; node tracing "
    "makes their launches slower, --graph-trace graph does not"
)
BETWEEN_NODES = "fewer, larger kernels in the graph (torch.compile), larger batches"
"""Where the nodes of CUDA graphs wait for one another."""
NODE_TRACING = "; node tracing lengthens the gaps between them, --graph-trace graph does not"
"""Of a run that gputui recorded itself."""
BETWEEN_NODES_NS = 20_000
"""Idle time for each operation up to which it lies between the nodes of a graph: 0.5 to 1.5 µs on
an H100, some 3 with node tracing. A trace whose GPU idled 64 % had it in 11 gaps of 64 ms each."""

COPY_LESS = (
    "keep on the GPU what is copied again and again, copy smaller types (uint8, bf16): kernels run "
    "too little for copies to hide behind them"
)
SEND_LESS = (
    "send less: other ways to divide the work, bf16 in place of FP32; there is too little other "
    "work for collectives to hide behind"
)
HIDES = 0.10
"""Share of the time that kernels take from which copies or collectives can hide behind them."""
ONE_BY_ONE = (
    "fused=True or foreach=True for the optimizer, which launches its kernels tensor by tensor; "
    'then CUDA graphs, torch.compile(mode="reduce-overhead")'
)
LOOP = (
    "torch._foreach functions (or fused=True, foreach=True of torch's own) for what {where} does "
    'tensor by tensor; then CUDA graphs, torch.compile(mode="reduce-overhead")'
)
"""Where a line of the program launches for one parameter after another."""
CLIPS = (
    "torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True), which takes the norm of all "
    "gradients at once, in place of a loop over the parameters; then CUDA graphs"
)
"""Where each gradient's norm is a kernel of its own."""
NORMS = 0.04
"""Share of all kernels from which norms are taken tensor by tensor: one for each parameter beside
the 25 or so kernels that a parameter has in a step, forward, backward and its update."""
WITHOUT_BATCHES = 'CUDA graphs, torch.compile(mode="reduce-overhead")'
WITHOUT_OPTIMIZER = f"{WITHOUT_BATCHES}, larger batches"
"""Where the optimizer is fused, or nothing is trained."""
COMPILE_WHOLE = (
    "jax.jit around the whole step; several steps in one call (jax.lax.scan, fori_loop), larger "
    "batches"
)
"""Where XLA made the kernels: of single operators, or of short functions."""
LOOP_INSIDE = (
    "larger batches; of loops in the jitted function fewer, larger iterations: jax.vmap in place "
    "of lax.map or scan where one does not need the one before, unroll= for scan"
)
"""Where all is jitted already: a step is one call, or a few."""
OF_ONE_CALL = 100
"""Operations for each call of a jitted function from which that is so: 193 to 1,010 in seven such
programs, 14 to 78 in others, 1.9 where single operators are called (an H200)."""
UNBLOCK = (
    "unset CUDA_LAUNCH_BLOCKING, by which each launch waits for its kernel; in PyTorch look for a "
    "line that sets it in os.environ"
)
FEWER_WAITS = "fewer waits (.item(), .cpu(), nonzero), which no CUDA graph can have; then "
"""What comes first where waits are among the launches: CUDA forbids them in a capture."""

_OF_XLA = re.compile(r"^(wrapped_|((gemm|input|loop)_\w*)?fusion(_|$))")
_BACKWARD = re.compile(r"backward|bwd|_grad", re.I)
_OF_A_NORM = re.compile(r"reduce_kernel<.*NormTwoOps|reduce_kernel<.*NormOps")
_OF_A_TENSOR = re.compile(r"lerp_scalar_kernel|addcdiv_cuda_kernel|addcmul_cuda_kernel")


def launch_advice(analysis: Analysis) -> str | None:
    """Better than what is true of any program; None where nothing is known."""
    run = analysis.run
    if run.launches_block:
        return UNBLOCK
    counts = _counts(analysis)
    if counts and counts["xla"] >= counts.total() / 2:
        return LOOP_INSIDE if _is_one_call(analysis) else COMPILE_WHOLE
    loop = _at_a_loop(analysis)
    if is_set(run, "profiler"):
        return NO_PROFILER
    if replays_graphs(analysis):
        return loop or GRAPHS_IN_USE  # of a compiled model, whose optimizer is not
    if (breaks := graph_breaks(run)) and _is_compiled(analysis):
        return WHOLE_GRAPH.format(breaks=breaks)
    advice = _of_kernels(counts)
    if advice not in (ONE_BY_ONE, CLIPS):
        advice = loop or advice
        batches = micro_batches_of(run, analysis.tree) if analysis.tree is not None else None
        if loop is None and batches is not None and batches >= MANY_MICRO_BATCHES:
            how = OF_TRAINER if _is_trainers(analysis) else ""
            advice = LARGER_MICRO_BATCHES.format(number=batches, how=how) + WITHOUT_BATCHES
        elif loop is None and (tables := embeddings(analysis)) is not None:
            advice = ONE_TABLE.format(number=tables) + WITHOUT_BATCHES
        elif loop is None and (matrices := factorized_one_by_one(analysis)) is not None:
            advice = ONE_BATCH.format(number=matrices) + WITHOUT_BATCHES
        graded = called_lines(run, ("forward.graded",))
        trains = counts["backward"] or any(
            m.source == "optimizer" for m in run.marked_steps.values()
        )
        if graded and not trains:
            advice = WITHOUT_GRAPH.format(where=graded[0].where) + (advice or WITHOUT_OPTIMIZER)
    if waits_among_launches(run, analysis.all_steps) is None:
        return advice
    return FEWER_WAITS + (advice or CAUSES[Leaf.LAUNCH].advice)


WITHOUT_GRAPH = (
    "torch.inference_mode() around {where}: it keeps a graph for a backward pass that never comes; "
    "then "
)
NO_PROFILER = (
    "end torch.profiler's profile(), which is on most of the time: it notes each operation before "
    "it is launched; schedule(...) has it look at a few steps"
)
WHOLE_GRAPH = (
    "one graph of what torch.compile compiles, which was left in the middle {breaks} times as it "
    "was compiled: TORCH_LOGS=graph_breaks names each place (.item(), print(), calls of C), "
    'fullgraph=True refuses them; then mode="reduce-overhead"'
)
MANY_BREAKS = 3
"""Graph breaks from which they lead the advice."""
_OF_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem)_")


def graph_breaks(run: Run) -> int:
    """How often torch's compiler left a function in the middle; 0 where that is seldom."""
    breaks = sum(row.calls for row in run.line_calls.values() if row.call == "compiler.breaks")
    return breaks if breaks >= MANY_BREAKS else 0


def _is_compiled(analysis: Analysis) -> bool:
    names, sums = analysis.kernel_names, analysis.kernel_sums
    return any(n in names and _OF_INDUCTOR.search(names[n].name) for n in sums)


ONE_TABLE = (
    "one nn.Embedding for all columns, with an offset for each: the backward pass sorts the rows "
    "of some {number:.0f} tables one by one; then "
)
MANY_TABLES, OF_TABLES = 20, 0.2
"""Embeddings a step, and part of the kernels that their gradients take, from which one table leads
the advice: 112 and 0.5 in the one program with such a fault."""
_SORTS_ROWS = re.compile(r"DeviceRadixSort|DeviceUniqueByKey|DeviceScan|compute_grad_weight")
_EACH_TABLE = re.compile(r"compute_grad_weight|embedding_backward_feature_kernel")


def embeddings(analysis: Analysis) -> float | None:
    """How many embeddings a step has, where sorting the rows of their gradients is much of what is
    launched; None elsewhere."""
    names, counts = analysis.kernel_names, Counter[str]()
    for number, (count, _) in analysis.kernel_sums.items():
        name = names[number].name if number in names else ""
        counts["all"] += count
        counts["sorts"] += count if _SORTS_ROWS.search(name) else 0
        counts["tables"] += count if _EACH_TABLE.search(name) else 0
    tables = counts["tables"] / max(1, analysis.all_steps)
    is_much = counts["sorts"] >= OF_TABLES * counts["all"]
    return tables if is_much and tables >= MANY_TABLES else None


ONE_BATCH = (
    "one batched call for the {number:.0f} matrices that a step factorizes one by one, where none "
    "needs the one before: torch.linalg takes [batch, n, n], torch.vmap makes it of a function; "
    "then "
)
MANY_MATRICES = 8
"""Factorizations a step from which one batched call leads the advice: 40 in `gp_stations`, the one
program with such a fault."""
_FACTORIZES = re.compile(r"getrf|potrf|geqrf|syev|gesvd", re.I)


def factorized_one_by_one(analysis: Analysis) -> float | None:
    """How many matrices a step factorizes in calls of their own; None where few."""
    names, sums = analysis.kernel_names, analysis.kernel_sums
    counts = (
        sums[number][0]
        for number in sums
        if number in names and _FACTORIZES.search(names[number].name)
    )
    matrices = max(counts, default=0) / max(1, analysis.all_steps)
    return matrices if matrices >= MANY_MATRICES else None


LARGER_MICRO_BATCHES = "larger micro-batches{how}: a step accumulates {number} of them; then "
OF_TRAINER = " (per_device_train_batch_size up, gradient_accumulation_steps down as much)"
"""Where Transformers' Trainer is what the program calls."""
MANY_MICRO_BATCHES = 4
"""Micro-batches of a step from which larger ones lead the advice: a GAN's step has two losses."""


def steady_loops(tree: TimeTree) -> set[tuple[int, int]]:
    """The loops that steady steps are of, by device and number."""
    return {(block.device, block.loop) for blocks in tree.blocks for block in blocks}


def micro_batches_of(run: Run, tree: TimeTree) -> int | None:
    """How many micro-batches a step accumulates; None where it has one."""
    main = steady_loops(tree)
    counts = (sums.micro_batches for sums in run.loops.values() if (sums.device, sums.loop) in main)
    return max((number for number in counts if number), default=None)


def accumulated(analysis: Analysis) -> int | None:
    """How many micro-batches a step of transformers' Trainer accumulates, which could be one; None
    where they are few, or a model that is called several times may be something else."""
    tree = analysis.tree
    batches = micro_batches_of(analysis.run, tree) if tree is not None else None
    is_many = batches is not None and batches >= MANY_MICRO_BATCHES
    return batches if is_many and _is_trainers(analysis) else None


def _is_trainers(analysis: Analysis) -> bool:
    return any("transformers/trainer" in line.inside for line in analysis.lines()) or any(
        marks.source == "trainer" for marks in analysis.run.marked_steps.values()
    )


def _is_one_call(analysis: Analysis) -> bool:
    """Whether calls of jitted functions launch many operations each."""
    calls = sum(m.marks for m in analysis.run.marked_steps.values() if m.source == "jax")
    operations = sum(sums.operations for sums in analysis.run.loops.values())
    return 0 < OF_ONE_CALL * calls <= operations


def has_waits(advice: str | None) -> bool:
    """Whether launch_advice says that waits come first."""
    return advice is not None and advice.startswith(FEWER_WAITS)


# Names of functions that go through all parameters.
_UPDATES = re.compile(r"(^|_)(step|update|optimi[sz]er?|ema|clip|norms?)(_|$)", re.I)

_OF_MODELS = (Leaf.MATMUL, Leaf.MATMUL_UNALIGNED, Leaf.ATTENTION, Leaf.NORMALIZATION)

OF_LOOP = 1 / 3
"""Share of the readings of launching threads at one line from which its loop leads the advice."""


def share_of_loop(analysis: Analysis) -> float | None:
    """Part of the launches, 0 to 1, that are made in the function whose loop over the parameters
    leads the advice; None where none does."""
    if _at_a_loop(analysis) is None or launch_advice(analysis) is None:
        return None
    lines = analysis.lines(Leaf.LAUNCH)
    its = [line for line in lines if (line.file, line.caller) == (lines[0].file, lines[0].caller)]
    return sum(line.seen for line in its) / lines[0].samples


def is_of_passes(name: str) -> bool:
    """Whether a kernel is of the layers of a model, or of its backward pass."""
    return leaf_of_kernel(name) in _OF_MODELS or _BACKWARD.search(name) is not None


def _at_a_loop(analysis: Analysis) -> str | None:
    """Where most launches come from a line that computes with tensors itself, in a function that
    updates or clips: a loop over the parameters. None elsewhere."""
    names, sums = analysis.kernel_names, analysis.kernel_sums
    counts = Counter[bool]()
    for number, (count, _) in sums.items():
        if number in names:
            counts[leaf_of_kernel(names[number].name) is Leaf.ELEMENTWISE] += count
    if counts[True] < MOSTLY * counts.total() or not _counts(analysis)["backward"]:
        return None
    of_libraries = {line.where for line in analysis.lines() if line.inside}
    for line in analysis.lines(Leaf.LAUNCH)[:1]:
        is_loop = _UPDATES.search(line.caller) is not None and line.where not in of_libraries
        # train_step is no optimizer's step: forward and backward passes have products.
        at_it = [names[number].name for number in kernels_at(analysis.run, line) if number in names]
        if any(map(is_of_passes, at_it)):
            continue
        is_loop = is_loop and (bool(at_it) or "train" not in line.caller)
        if is_loop and line.seen >= OF_LOOP * line.samples:
            return LOOP.format(where=line.where)
    return None


def _counts(analysis: Analysis) -> Counter[_Kind]:
    """How many kernels of each kind ran."""
    counts = Counter[_Kind]()
    names = analysis.kernel_names
    for number, (count, _) in analysis.kernel_sums.items():
        if number in names:
            counts[_kind(names[number].name)] += count
    return counts


def optimizer_launches(analysis: Analysis) -> tuple[float, float]:
    """Share of all launches, 0 to 1, that an optimizer makes that updates tensor by tensor, at
    least and at most: Adam launches 7 to 12 kernels for a tensor, by its options (51 ms for 400 of
    10.3 µs a launch, torch 2.11), of which `_OF_A_TENSOR` knows three."""
    counts = _counts(analysis)
    whole = max(1, counts.total())
    return counts["of a tensor"] * 7 / 3 / whole, counts["of a tensor"] * 12 / 3 / whole


def _of_kernels(counts: Counter[_Kind]) -> str | None:
    if not counts:
        return None
    if counts["of a tensor"] >= OPTIMIZER * counts.total():
        return ONE_BY_ONE
    if counts["norm"] >= NORMS * counts.total() and counts["backward"]:
        return CLIPS
    # Decoding trains nothing, and a fused optimizer is fused.
    return WITHOUT_OPTIMIZER if counts["optimizer"] or not counts["backward"] else None


def replays_graphs(analysis: Analysis) -> bool:
    """Whether the steps replay CUDA graphs: each of all, or those that are steady, with what most
    of all kernels are of."""
    steps, tree = analysis.all_steps, analysis.tree
    replays = sum(c.time.count for c in analysis.run.api.values() if "GraphLaunch" in c.name)
    if steps > 0 and replays >= IN_USE * steps:
        return True
    if tree is None or not tree.steps or replays < IN_USE * tree.steps:
        return False
    nodes = [node.launched for node in analysis.run.ranges.values()]
    return sum(node.replayed for node in nodes) >= IN_USE * sum(node.kernels for node in nodes)


_Kind = Literal["xla", "of a tensor", "norm", "optimizer", "backward", "other"]


@lru_cache(maxsize=4096)
def _kind(name: str) -> _Kind:
    """That XLA made a kernel, or what it says of the optimizer: an update of Adam's moments, of one
    tensor (PyTorch's `addcmul`, `addcdiv`, `lerp`), of many; that there is one; nothing."""
    if _OF_XLA.search(name):
        return "xla"
    if leaf_of_kernel(name) is Leaf.OPTIMIZER:
        return "optimizer"
    if _OF_A_TENSOR.search(name):
        return "of a tensor"
    if _OF_A_NORM.search(name):
        return "norm"
    return "backward" if _BACKWARD.search(name) else "other"


def _between_nodes(analysis: Analysis, leaves: Mapping[Leaf, int]) -> str | None:
    """Where the nodes of graphs wait for one another; None where gaps are far longer."""
    tree = analysis.tree
    operations = tree.operations if tree is not None else 0
    if leaves.get(Leaf.DEPENDENCY, 0) > BETWEEN_NODES_NS * operations:
        return None
    is_recorded_here = analysis.run.started.pid is not None
    return BETWEEN_NODES + (NODE_TRACING if is_recorded_here else "")


_OF_CUDNN = re.compile(r"cudnn.*sdpa", re.I)

_NO_CUDNN = "torch.backends.cuda.enable_cudnn_sdp(False)"
# cuDNN plans its attention anew for each new length.
PLANS = f"{_NO_CUDNN} if attention's length changes: cuDNN plans each new one; else "
IN_ATTENTION = (
    f"{_NO_CUDNN}, or pad to a few lengths: cuDNN's attention makes a plan for each new one; in a "
    "decoder a KV cache (use_cache=True) of a fixed size"
)
"""Tens of milliseconds for each new length (48 ms a token on an H100, torch 2.11, a cache that
grows)."""

IN_A_PROCESS = (
    "move what {where} computes to a process: Python's lock (the GIL) lets one thread run at a "
    "time; a lock of the program's, hold for less"
)
LET_GO = "if the thread in {where} holds a lock, let it go before it sleeps or waits"
"""Screens show what to try without the evidence: it names the other thread's function itself."""

OF_OTHER_THREADS = (
    "move what the program's other threads compute to processes: Python's lock (the GIL) lets one "
    "thread run at a time"
)
"""Where a process computes as much as one thread can while its launching thread sleeps."""

LESS = "do it less often, or off this thread"
COMPUTE = "compute it on the GPU, or once before the loop"
# By the line that the CPU is at: a decode loop was advised DataLoader workers.
LOAD = f"{LESS}: DataLoader workers (num_workers > 0)"
SAVE = f"{LESS}: a thread that saves and logs"

# What to try, by words in the names of the functions and files of most lines, or of the library's
# function that they are in.
_SAYS = {
    LOAD: re.compile(
        r"(?<![a-z])(augment\w*|collate|data(set|loader)?s?|fetch|(get|next|make)_?batch|getitem|"
        r"images?|load(er)?|prepare(?!_)|preprocess\w*|token(ize\w*|izer)|transforms?)(?![a-z])",
        re.I,
    ),
    SAVE: re.compile(
        r"(?<![a-z])(checkpoint\w*|dump|log(ger|ging)|log_\w+|report|save)(?![a-z])", re.I
    ),
    COMPUTE: re.compile(r"(?<![a-z])(attention|backward|forward|model)(?![a-z])", re.I),
}

# Parts of PyTorch whose time on the CPU is that of preparing launches, where a line is in them.
_LAUNCHES = re.compile(r"\(torch/(autograd|optim)/")

# Names of functions and files that attention may be called in.
_MAY_ATTEND = re.compile(
    r"(?<![a-z])(att(entio)?n|backward|blocks?|decode\w*|forward|generate|layers?|model|sdpa|"
    r"transformer)(?![a-z])",
    re.I,
)

# One that takes long only where cuDNN has to choose an algorithm.
CONVOLVES = re.compile(r"\(torch/nn/modules/conv")

FEW_SIZES = (
    "pad or crop to few different sizes: cuDNN chooses how to convolve anew for each new one; else "
)
"""31 of 50 ms a step of random crops on an H200 (torch 2.11)."""

# One whose functions take long only where their tensors are the CPU's.
_COMPUTES = re.compile(r"\(torch/nn/functional")


def host_advice(analysis: Analysis) -> str:
    """Better than what is true of any program, where the line or the kernels say more."""
    lines = analysis.lines(Leaf.HOST)
    advice = next((advice for advice, says in _SAYS.items() if _mostly(says, lines)), None)
    if advice is None and lines:
        advice = next(
            (kind for kind in (LOAD, SAVE) if _SAYS[kind].search(lines[0].function)), None
        )
    if advice is None and lines and _LAUNCHES.search(lines[0].inside):
        advice = launch_advice(analysis) or CAUSES[Leaf.LAUNCH].advice
    may = not lines or _MAY_ATTEND.search(f"{lines[0].where} {lines[0].inside}") is not None
    if advice not in (LOAD, SAVE) and may and _plans(analysis):
        in_attention = any("attention" in line.inside for line in lines[:1])
        # Where a library's attention is what takes the CPU, cuDNN's plans are to blame at once.
        return IN_ATTENTION if in_attention else PLANS + (advice or LESS)
    # cuDNN chooses how to convolve anew for each new size.
    if any(CONVOLVES.search(line.inside) for line in lines[:2]):
        return FEW_SIZES + (advice or LESS)
    if advice is None and lines and _COMPUTES.search(lines[0].inside):
        return COMPUTE
    if advice is None and not lines and _is_native(analysis):
        return NATIVE
    return advice or CAUSES[Leaf.HOST].advice


NATIVE = "do it less often, on the GPU, or on another thread while the GPU works"
"""Of a program that has no DataLoader."""


def _is_native(analysis: Analysis) -> bool:
    """Whether what used GPUs are executables other than Python, which may be renamed, then
    without a path (`ray::Worker`)."""
    run = analysis.run
    used = {run.processes[time.process].attached for time in run.leaf_times.values()}
    programs = [process.command.split(" ", 1)[0] for process in used]
    return bool(programs) and all("/" in name and "python" not in name for name in programs)


def is_of_plans(advice: str) -> bool:
    """Whether it says that cuDNN's attention plans each new length."""
    return advice.startswith(_NO_CUDNN)


def wait_advice(analysis: Analysis, leaves: Mapping[Leaf, int]) -> str | None:
    """Where what it waits for is a report of the program's, another thread of it, or threads that
    compute all the time; None elsewhere."""
    if (other := beside(analysis.run, leaves)) is not None:
        return (IN_A_PROCESS if other.ran else LET_GO).format(where=other.where)
    lines = analysis.lines(Leaf.WAIT)[:1]
    says = _SAYS[SAVE]
    reports = any(says.search(line.where) or says.search(line.function) for line in lines)
    if reports:
        return SAVE
    return OF_OTHER_THREADS if threads_compute(analysis) else None


def _mostly(says: re.Pattern[str], lines: list[LikeliestLine]) -> bool:
    seen = sum(line.seen for line in lines if says.search(line.where))
    return bool(lines) and seen >= MOSTLY * lines[0].samples


def _plans(analysis: Analysis) -> bool:
    """Whether cuDNN's attention runs each step."""
    steps, names = analysis.all_steps, analysis.kernel_names
    calls = sum(
        count
        for number, (count, _) in analysis.kernel_sums.items()
        if number in names and _OF_CUDNN.search(names[number].name)
    )
    return calls > 0 and calls >= steps


# What a step idles in that compiles algorithms, finds them memory and waits for each.
_OF_TUNING = (Leaf.WAIT, Leaf.HOST, Leaf.SYNC, Leaf.ALLOCATION)

_CONVOLUTION = re.compile(r"cudnn|xmma_[a-z]*(fprop|dgrad|wgrad)|winograd|convolve", re.I)

TUNES = (
    "torch.backends.cudnn.benchmark = False, or few different shapes: it tries every algorithm for "
    "each new shape"
)
TRIES = 20
"""Waits a step, for events and for the device, from which each step tries algorithms: timing one
takes both, and a step has several convolutions."""

APART = "give each of the program's processes a GPU of its own, or run one after the other"


def _tuning_advice(analysis: Analysis) -> str | None:
    """Where steps time the algorithms of convolutions; None elsewhere."""
    steps, names = analysis.all_steps, analysis.kernel_names
    counts = Counter[str]()
    for calls in analysis.run.api.values():
        counts[calls.name] += calls.time.count
    tries = min(counts["cudaEventSynchronize"], counts["cudaDeviceSynchronize"])
    if not steps or tries < TRIES * steps:
        return None
    return (
        TUNES
        if any(_CONVOLUTION.search(kernel_name.name) for kernel_name in names.values())
        else None
    )


Library = Literal["torch", "jax", "cupy"]

_OF_LIBRARY: tuple[tuple[Library, re.Pattern[str]], ...] = (
    ("torch", re.compile(r"\bat(_cuda\w*)?::|\btriton_(poi|red|per|tem)_")),
    ("cupy", re.compile(r"^cupy_|\bcupy\b")),
    ("jax", _OF_XLA),
)


def library(analysis: Analysis) -> Library | None:
    """The library that makes the run's kernels, by their names, that of most of those that have
    one's; None where no name says it."""
    counts = Counter[Library]()
    names = analysis.kernel_names
    for number, (count, _) in analysis.kernel_sums.items():
        if number in names:
            name = names[number].name
            counts.update(
                {library: count for library, pattern in _OF_LIBRARY if pattern.search(name)}
            )
    return counts.most_common(1)[0][0] if counts else None


def product_share(analysis: Analysis, wanted: Callable[[str], bool]) -> float:
    """Of the time of matrix products outside tensor cores, that of kernels with such names, 0 to
    1."""
    whole_ns = wanted_ns = 0
    names = analysis.kernel_names
    for number, (_, ns) in analysis.kernel_sums.items():
        name = names[number].name if number in names else ""
        if leaf_of_kernel(name) is Leaf.MATMUL_SIMT or MULTIPLIES_VECTOR.search(name):
            whole_ns += ns
            wanted_ns += ns if wanted(name) else 0
    return wanted_ns / whole_ns if whole_ns else 0.0


def vector_share(analysis: Analysis) -> float:
    """Of the time of matrix products outside tensor cores, that of products with a vector."""
    return product_share(analysis, lambda name: MULTIPLIES_VECTOR.search(name) is not None)


_IN_TF32 = {
    "torch": 'torch.set_float32_matmul_precision("high")',
    "jax": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
    "cupy": "CUPY_TF32=1",
}
_IN_HALF = {
    "torch": "{half} autocast",
    "jax": "{half} parameters and activations",
    "cupy": "float16 arrays",
}


_DOUBLES = re.compile(r":(float64|complex128):cpu$")


def doubles_come_from(run: Run) -> str:
    """The line that copies most in FP64 to the GPU, the one to change; empty where none does."""
    calls = ("to", "cuda", "cupy.asarray", "cupy.array", "jax.device_put")
    lines = [line for line in called_lines(run, calls) if _DOUBLES.search(line.shape)]
    return lines[0].where if lines else ""


def product_advice(analysis: Analysis) -> str | None:
    """How matrix products in full precision come to run on tensor cores: for what this program
    uses and this card has; None where nothing is known of the card."""
    rates = product_rates(analysis.facts)
    if rates is None:
        return None
    made_by = library(analysis) or "torch"
    half = "bf16" if rates.bf16 is not None else "fp16"
    in_half = _IN_HALF[made_by].format(half=half)
    if product_share(analysis, lambda name: IS_DOUBLE.search(name) is not None) >= MOSTLY:
        origin = doubles_come_from(analysis.run)
        where = f", at {origin}" if origin else ""
        return f"FP32 in place of FP64, which NumPy's arrays are{where}; then {in_half}"
    if rates.tf32 is None:
        return f"{in_half}: this card's tensor cores take neither TF32 nor bf16"
    if rates.tf32 <= 1.0:
        return f"{in_half}: on this card TF32 is no faster than FP32"
    return f"{_IN_TF32[made_by]} (TF32), or {in_half}"


# Advice for programs that have not PyTorch's ways.
_OF_OTHERS: dict[tuple[Leaf, Library], str] = {
    (Leaf.COMPILE, "jax"): (
        "keep shapes and static arguments fixed; JAX_LOG_COMPILES=1 names what is compiled, "
        "jax_compilation_cache_dir keeps it for the next run"
    ),
    (Leaf.COMPILE, "cupy"): "CuPy compiles each kernel once: warm up, and keep its cache folder",
    (Leaf.SYNC, "jax"): (
        "no float(), np.asarray or block_until_ready in the loop: fetch values every N steps"
    ),
    (Leaf.SYNC, "cupy"): (
        "keep values on the GPU: no float(), .get() or cupy.asnumpy in the loop; fetch them every "
        "N steps"
    ),
    (Leaf.ELEMENTWISE_CHAIN, "cupy"): "cupy.fuse or an ElementwiseKernel makes one of the chain",
    (Leaf.ELEMENTWISE_CHAIN, "jax"): "jax.jit around the chain makes one kernel of it",
    (Leaf.COPY_PAGEABLE, "cupy"): (
        "pinned memory (cupyx.empty_pinned) and a stream of its own, copy less"
    ),
    (Leaf.COPY_PAGEABLE, "jax"): "keep arrays on the GPU (jax.device_put once), copy less",
    (Leaf.ATTENTION_UNFUSED, "jax"): 'jax.nn.dot_product_attention(implementation="cudnn")',
    (Leaf.LAUNCH, "cupy"): (
        "fewer, larger kernels (cupy.fuse, ElementwiseKernel), or a captured graph "
        "(cupy.cuda.Stream.begin_capture)"
    ),
    (Leaf.ALLOCATION, "cupy"): (
        "keep CuPy's memory pool: no cupy.cuda.set_allocator(None), which turns it off, and no "
        "free_all_blocks() in the loop"
    ),
    (
        Leaf.ALLOCATION,
        "jax",
    ): "leave preallocation on; donate arguments (donate_argnums)",
}


AMONG_LAUNCHES = 1 / 3
"""Part of the time between launches from which allocating in it comes first: each call waits for
the GPU, too, so that more goes with it than the time in the calls."""

BACK = 0.8
"""Part of the pageable copies' time from which it is for what comes back."""

AGAIN = 0.5
"""Part of the bytes that are copied to the GPU from which it leads the advice that a line copies
the very same tensors again, unchanged."""

KEEP_THERE = (
    "keep on the GPU what {where} copies again and again: the very same tensors, unchanged, {each} "
    "a step"
)


def copied_again(analysis: Analysis) -> tuple[str, float] | None:
    """The line that copies most of the same tensors to the GPU again, and how much of all that is
    copied there all such lines copy, 0 to 1; None where it is little."""
    copied = sum(
        row.size.total
        for row in analysis.run.memory_operations.values()
        if "Host-to-Device" in row.operation
    )
    lines = called_lines(analysis.run, ("copied.again",))
    again = sum(line.tensor_bytes for line in lines)
    steps = analysis.all_steps
    if not lines or not steps or again < AGAIN * copied:
        return None
    advice = KEEP_THERE.format(where=lines[0].where, each=size(lines[0].tensor_bytes / steps))
    return advice, min(1.0, again / copied) if copied else 1.0


REDUCE_FIRST = (
    "keep it on the GPU, and do there what is done with it on the CPU (a running mean, argmax, "
    "metrics); copy back only the result, or less often"
)


def copies_back(run: Run, tree: TimeTree) -> bool:
    """Whether pageable copies are from the GPU: as long, over the run, as all are in its steps."""
    back_ns = sum(
        copies.time.total
        for copies in run.memory_operations.values()
        if DEVICE_TO_HOST in copies.operation and copies.destination_kind == "pageable"
    )
    # What is copied back and worked on at one line is one finding: of logits that the CPU chooses a
    # token from, 39 % were a second one.
    return 0 < BACK * tree.leaves.get(Leaf.COPY_PAGEABLE, 0) <= back_ns


def copies_only_back(run: Run, tree: TimeTree) -> bool:
    """The same, where little is copied to the GPU: layers that are kept on the CPU go both ways."""
    sizes = Counter[str]()
    for copies in run.memory_operations.values():
        if "pageable" in (copies.source_kind, copies.destination_kind):
            sizes["back" if copies.destination_kind == "pageable" else "forth"] += copies.size.total
    return copies_back(run, tree) and 2 * sizes["forth"] < sizes["back"]


_STRIDED = re.compile(r"(?<![a-z_])elementwise_kernel<")
"""PyTorch's kernel for operands of which one is not contiguous; else it is a vectorized one."""

STRIDED = 0.3
"""Share of the kernels' time from which such kernels lead the advice: 0.45 where nine populations
are the innermost axis (`cavity_lbm`), up to 0.21 for biases and masks that are broadcast."""

CONTIGUOUS = (
    "arrays in which what is read together lies together: the axis that x[..., i] picks from as "
    "the first one, or .contiguous() once; then torch.compile makes one kernel of the chain"
)


def strided_share(analysis: Analysis) -> float:
    """Of the kernels' time, that of elementwise kernels over operands with strides, 0 to 1."""
    return analysis.part_of_kernels(lambda name: _STRIDED.search(name) is not None)[1]


NOT_CACHED = 0.5
"""Calls of cudaMalloc for each kernel from which PyTorch caches no memory: 1.2 without its cache,
0.10 to 0.13 where each step empties it."""

CACHE = (
    "unset PYTORCH_NO_CUDA_MEMORY_CACHING, also where the program sets it itself: PyTorch's cache "
    "is off, and each tensor is a cudaMalloc, {each:.0f} a step"
)


KEEP_WORKERS = "persistent_workers=True: the loader's workers are started anew for each epoch"
_STARTS = re.compile(r"\w+ \(multiprocessing/(process|popen\w*|context|util)\.py")


def caches_nothing(analysis: Analysis) -> str | None:
    """What to try where PyTorch's caching allocator is off; None elsewhere."""
    kernels = sum(count for count, _ in analysis.kernel_sums.values())
    calls = sum(call.time.count for call in analysis.run.api.values() if call.name == "cudaMalloc")
    steps = analysis.all_steps
    if not steps or library(analysis) != "torch" or calls < NOT_CACHED * kernels:
        return None
    return CACHE.format(each=calls / steps)


NO_WEIGHTS = (
    "need_weights=False for torch.nn.MultiheadAttention at {where}: by default it also gives the "
    "weights, which fused attention never has"
)


FUSE = (
    "torch.backends.cuda.enable_flash_sdp(True): it and enable_mem_efficient_sdp are set to False, "
    "which leaves scaled_dot_product_attention the form that writes all weights"
)


def _attention_advice(analysis: Analysis) -> str | None:
    """Where attention is asked for its weights, or torch has none that is fused; None elsewhere."""
    lines = called_lines(analysis.run, ("attention.weights",))
    if not lines and is_set(analysis.run, "attention.written.out"):
        return FUSE
    return NO_WEIGHTS.format(where=lines[0].where) if lines else None


POOL_ON = (
    "no cupy.cuda.set_allocator(None): CuPy's memory pool is off, so that each array is allocated "
    "by the driver and given back"
)


_GOES_THROUGH = re.compile(r"(fetch|default_collate|collate\w*) \(torch/utils/data/")
BY_ONE_INDEX = (
    "a whole batch by one index: __getitems__ of the data set, or a sampler of batches with "
    "batch_size=None (going through the samples one by one takes longer than making them); else "
)


def better_advice(analysis: Analysis, leaves: Mapping[Leaf, int], leaf: Leaf) -> str | None:
    """What the kernels, calls and lines of a run say of a leaf of its tree; None where nothing."""
    if leaf in _OF_TUNING and (tunes := _tuning_advice(analysis)) is not None:
        return tunes
    if leaf is Leaf.MATMUL_SIMT:
        return product_advice(analysis)
    made_by = library(analysis)
    if leaf is Leaf.ALLOCATION and is_set(analysis.run, "cupy.no.pool"):
        return POOL_ON
    if made_by is not None and (leaf, made_by) in _OF_OTHERS:
        return _OF_OTHERS[leaf, made_by]
    if leaf in (Leaf.SYNC, Leaf.LAUNCH, Leaf.HOST) and checks_gradients(analysis):
        return ANOMALY
    if leaf is Leaf.ALLOCATION:
        return caches_nothing(analysis)
    if leaf is Leaf.ATTENTION_UNFUSED:
        return _attention_advice(analysis)
    if leaf is Leaf.LAUNCH:
        advice = launch_advice(analysis)
        whole_ns = sum(leaves.values())
        _, allocating = allocations(analysis)
        if whole_ns and allocating >= AMONG_LAUNCHES * leaves.get(leaf, 0) / whole_ns:
            return f"{KEEP_BLOCKS}; then {advice or CAUSES[leaf].advice}"
        return advice
    if leaf is Leaf.INPUT:
        made = called_lines(analysis.run, ("loader.samples",))
        number = f", {max(line.tensor_bytes for line in made)} now" if made else ""
        loaders = called_lines(analysis.run, ("torch.utils.data.DataLoader",))
        if len({line.where for line in loaders}) == 1:
            number += f", at {loaders[0].where}"
        advice = CAUSES[leaf].advice.replace("(num_workers", f"(num_workers{number}")
        lines = analysis.lines(leaf)[:1]
        if lines and _GOES_THROUGH.match(lines[0].inside):
            return BY_ONE_INDEX + advice
        starts = [line for line in lines if _STARTS.match(line.inside)]
        rest = advice.replace(", kept between epochs (persistent_workers=True)", "")
        return f"{KEEP_WORKERS}; then {rest}" if starts else advice
    if leaf is Leaf.ELEMENTWISE_CHAIN:
        return CONTIGUOUS if strided_share(analysis) >= STRIDED else None
    if leaf in (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED) and (again := copied_again(analysis)):
        return again[0]
    if leaf is Leaf.SHARED:
        return APART if shares_with_itself(analysis.run) else None
    if leaf is Leaf.DEPENDENCY and replays_graphs(analysis):
        return _between_nodes(analysis, leaves)
    if leaf is Leaf.COPY_PAGEABLE and analysis.tree is not None:
        return REDUCE_FIRST if copies_only_back(analysis.run, analysis.tree) else None
    kernels_ns = sum(ns for each, ns in leaves.items() if is_kernel(each))
    if leaf is Leaf.COPY_PINNED and kernels_ns < HIDES * sum(leaves.values()):
        return COPY_LESS
    if leaf is Leaf.COMMUNICATION:
        others_ns = kernels_ns - leaves.get(leaf, 0)
        return SEND_LESS if others_ns < HIDES * sum(leaves.values()) else None
    if leaf is Leaf.WAIT:
        return wait_advice(analysis, leaves)
    if leaf is Leaf.SYNC:
        return reading_advice(analysis)
    if leaf is not Leaf.HOST:
        return None
    advice = host_advice(analysis)
    is_default = advice == CAUSES[leaf].advice
    if (is_default or advice in (LOAD, LESS)) and makes_floats(analysis):
        return AS_IT_IS
    if is_default and works_on_results(analysis):
        return WORK_BESIDE
    return WITHOUT_LOADER if is_default and made_by in ("jax", "cupy") else advice


WORK_BESIDE = (
    "do it on the GPU, or for one step while the GPU works on the next: copy results into pinned "
    "memory with non_blocking=True and an event, launch the next step, then work on them (in "
    "processes, where it is more than one core's work)"
)
AS_IT_IS = (
    "copy what the floats are made of as it is (pictures as bytes, indices) and cast, scale and "
    "gather on the GPU, or keep all of it there; else make them for the next step meanwhile, off "
    "this thread"
)
MADE_BYTES = 1 << 22
"""Bytes of floats a step that are copied to the GPU from which making them may be what the CPU is
at: 113 MB in `offline_cql`, whose steps take a fourth of the time with bytes that are copied."""
_FLOATS = re.compile(r":float(32|64):cpu$")


def makes_floats(analysis: Analysis) -> bool:
    """Whether the file in which the CPU's own code takes most copies floats to the GPU that it may
    have made: much of them in each step, and not by a function of Python's that lies elsewhere."""
    steps, lines = analysis.all_steps, analysis.lines(Leaf.HOST)[:1]
    if not steps or not lines or lines[0].inside:
        return False
    copied = [
        line
        for line in called_lines(analysis.run, ("to", "cuda", "cupy.asarray", "jax.device_put"))
        if _FLOATS.search(line.shape) and line.where.startswith(f"{lines[0].file}:")
    ]
    return sum(line.tensor_bytes for line in copied) >= MADE_BYTES * steps


RESULT_BYTES = 1 << 16
"""Bytes of a step's results that are copied back from which the CPU's code may be about these."""


def works_on_results(analysis: Analysis) -> bool:
    """Whether each step copies back as much as the CPU may then work on."""
    steps = analysis.all_steps
    back = [
        copies
        for copies in analysis.run.memory_operations.values()
        if DEVICE_TO_HOST in copies.operation
    ]
    count, size_bytes = sum(c.size.count for c in back), sum(c.size.total for c in back)
    return bool(steps) and count >= steps and size_bytes >= RESULT_BYTES * steps


def reading_advice(analysis: Analysis) -> str | None:
    """By whether one line reads many values a step, or more is waited for than calls read."""
    run, steps = analysis.run, analysis.all_steps
    lines = called_lines(run, ("item", "float", "int", "bool"))
    if not steps:
        return None
    if max((line.calls / steps for line in lines), default=0.0) >= MANY_READS:
        return AT_ONCE
    waiting = called_lines(run, ("cpu", "numpy", "tolist", "to", "torch.cuda.synchronize"))
    unseen = waits_a_step(run, steps) - sum(line.calls for line in (*lines, *waiting)) / steps
    watched = bool(run.line_calls) and library(analysis) == "torch"
    return BY_MASK if watched and unseen >= MANY_READS else None


MANY_READS = 10
"""Values a step from which one copy of all of them leads the advice."""
AT_ONCE = (
    "one copy for all values: .tolist() of the whole tensor once, in place of .item() for each; "
    "numbers that only Python uses (random ones, bounds), make on the CPU"
)
BY_MASK = (
    "no Python condition on values of the GPU (if done[i]:) and no index whose size depends on "
    "them (x[mask], nonzero): torch.where or masked_fill_ for all at once; or one .tolist() of all "
    "before the loop, in place of a condition or .item() for each"
)
"""Where waits are many and calls that read values few: a condition is no call, and an index of
bools none that the hook counts."""
WITHOUT_LOADER = (
    "do it on the GPU, in the compiled step; or for the next step on another thread, while the GPU "
    "works on this one"
)
