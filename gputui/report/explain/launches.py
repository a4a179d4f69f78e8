"""What a program launches, and what to try where its GPU waits for launches: by the kernels that
are most of them, by the line that launches, by graphs that are replayed or left in the middle; and
the function that goes through values one by one, whose reads and launches cost time together.

For `advice`, `gains` and `evidence`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from gputui.model.leaves import CAUSES, Leaf, leaf_of_kernel
from gputui.report.explain.analysis import Analysis, computed_once
from gputui.report.explain.leaves import waits_a_step, waits_among_launches
from gputui.report.explain.lines import MOSTLY, called_lines, is_set, kernels_at
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
IN_A_SCAN = (
    "fewer, larger kernels in the compiled step (of a jax.lax.scan its unroll=, or "
    "jax.lax.associative_scan where it is a linear recurrence), larger batches"
)
"""The same of JAX, whose graphs are its compiled functions: a recurrence of 1,024 steps took 7.25
times as long by scan as by associative_scan on an H200."""
NODE_TRACING = "; node tracing lengthens the gaps between them, --graph-trace graph does not"
"""Of a run that gputui recorded itself."""
BETWEEN_NODES_NS = 20_000
"""Idle time for each operation up to which it lies between the nodes of a graph: 0.5 to 1.5 µs on
an H100, some 3 with node tracing. A trace whose GPU idled 64 % had it in 11 gaps of 64 ms each."""


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

OF_XLA = re.compile(r"^(wrapped_|((gemm|input|loop)_\w*)?fusion(_|$))")
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
    if OF_XLA.search(name):
        return "xla"
    if leaf_of_kernel(name) is Leaf.OPTIMIZER:
        return "optimizer"
    if _OF_A_TENSOR.search(name):
        return "of a tensor"
    if _OF_A_NORM.search(name):
        return "norm"
    return "backward" if _BACKWARD.search(name) else "other"


def between_nodes(analysis: Analysis, leaves: Mapping[Leaf, int], *, is_jax: bool) -> str | None:
    """Where the nodes of graphs wait for one another; None where gaps are far longer."""
    tree = analysis.tree
    operations = tree.operations if tree is not None else 0
    if leaves.get(Leaf.DEPENDENCY, 0) > BETWEEN_NODES_NS * operations:
        return None
    is_recorded_here = analysis.run.started.pid is not None
    advice = IN_A_SCAN if is_jax else BETWEEN_NODES
    return advice + (NODE_TRACING if is_recorded_here else "")


# Functions that go through values one by one: each is read back, or decides what is launched for
# it, so that the CPU waits and launches in turn. What both cost goes together.

MANY_READS = 10
"""Values a step from which one copy of all of them leads the advice."""

LAUNCHES = 0.3
"""Part of the launches that such a function makes at least: 0.46 to 0.96 in four programs. A value
that is read once a step, of work that lies elsewhere, is none."""

LEAST_WAITS = 10
"""Samples within waits from which they say which function waits."""


class ReadLoop(NamedTuple):
    """A function that reads values one by one, which part of all launches it makes, and which part
    of the waits for the GPU, 0 to 1."""

    function: str
    file: str
    launches: float
    waits: float


@computed_once
def read_loop(analysis: Analysis) -> ReadLoop | None:
    """The function that waits most, where it launches much and no layers of a model or gradients;
    None where there is none."""
    waiting, launching = analysis.lines(Leaf.SYNC), analysis.lines(Leaf.LAUNCH)
    if not waiting or not launching or waiting[0].samples < LEAST_WAITS:
        return None
    if waits_a_step(analysis.run, analysis.all_steps) < MANY_READS:
        return None
    counts = Counter[tuple[str, str]]()
    for line in waiting:
        counts[line.file, line.caller] += line.seen
    [((file, function), seen)] = counts.most_common(1)
    own = [line for line in launching if (line.file, line.caller) == (file, function)]
    launches = sum(line.seen for line in own) / launching[0].samples
    waits = seen / waiting[0].samples
    names = analysis.kernel_names
    kernels = {names[n].name for line in own for n in kernels_at(analysis.run, line) if n in names}
    if launches < LAUNCHES or waits < MOSTLY or any(map(is_of_passes, kernels)):
        return None
    return ReadLoop(function, file, launches, waits)
