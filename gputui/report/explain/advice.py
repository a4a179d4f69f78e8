"""What to try for a leaf, where the run's lines, calls and kernels say more than what is true of
any program: where the CPU computes it depends on the line that it is at, where it waits on what is
read or copied. Where a GPU waits for launches, see `launches`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from gputui.model.cards import product_rates
from gputui.model.events import MemoryOperationDelta
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
from gputui.report.explain.launches import (
    MANY_READS,
    OF_XLA,
    between_nodes,
    launch_advice,
    replays_graphs,
)
from gputui.report.explain.leaves import shares_with_itself, waits_a_step
from gputui.report.explain.lines import MOSTLY, LikeliestLine, beside, called_lines, is_set
from gputui.report.explain.time_tree import TimeTree
from gputui.state import Run

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
    ("jax", OF_XLA),
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


def _copied_back(run: Run) -> list[MemoryOperationDelta]:
    return [row for row in run.memory_operations.values() if DEVICE_TO_HOST in row.operation]


def copies_back(run: Run, tree: TimeTree) -> bool:
    """Whether pageable copies are from the GPU: as long, over the run, as all are in its steps."""
    back_ns = sum(
        copies.time.total for copies in _copied_back(run) if copies.destination_kind == "pageable"
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
        return between_nodes(analysis, leaves, is_jax=library(analysis) == "jax")
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
    steps, back = analysis.all_steps, _copied_back(analysis.run)
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
