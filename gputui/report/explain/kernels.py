"""Findings that kernels give beside the leaves: causes that only their names show (attention in
FP32, copies, sorting, another layout, an optimizer in many passes), and kernels that fill the
multiprocessors (SMs) and use little of what these can do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gputui.model.leaves import CHANGES_LAYOUT, LEAVES, Leaf, is_kernel, leaf_of_kernel
from gputui.model.naming import short_name
from gputui.model.units import count, percent, size
from gputui.report.explain.advice import HIDES, doubles_come_from, library
from gputui.report.explain.analysis import Analysis, RunRule, computed_once
from gputui.report.explain.finding import MOST_NAMED, Finding, Gain, gain_of
from gputui.report.explain.gains import ATTENTION_IN_HALF, as_launched
from gputui.report.explain.lines import called_lines, is_set, launched_at
from gputui.report.explain.time_tree import TimeTree, in_words, of_scope
from gputui.report.explain.verdict import SPEAKS, verdict
from gputui.report.roofline import STEADY_STEPS, Roof, steady_roofs


@dataclass(frozen=True, slots=True)
class _Named:
    """Kernels, what they are together, and how much of their time a better way saves."""

    key: str
    kernels: re.Pattern[str]
    word: str
    sentence: str
    advice: str
    recoverable: float
    source: str
    usual: float = 0.0
    """Share of the time up to which it is no fault."""
    told_by: Leaf | None = None
    """The leaf that says it already where it is larger."""
    leaf: Leaf | None = None
    """One without kernels that is the same where kernels run beside it."""
    without_kernels: str = ""
    """The sentence where most of it is of that leaf."""
    halves: Leaf | None = None
    """The leaf that follows from it where these kernels are as much."""


TO_FP32 = (
    "FP32: what NumPy makes is FP64 (windows, linspace, random numbers), and torch.from_numpy(), "
    "torch.tensor() and cupy.asarray() keep that, as any operation with it does; "
    ".astype(np.float32) or dtype=torch.float32 does not"
)

_CAUSES = (
    _Named(
        "layout",
        CHANGES_LAYOUT,
        "other layout",
        "Kernels that only change the layout of tensors for convolutions take {share}.",
        "memory_format=torch.channels_last, for the model and its input",
        1.0,
        "tensor cores take NHWC (cuDNN's developer guide): cuDNN transposes what comes as NCHW",
    ),
    _Named(
        "unfused_optimizer",
        re.compile(r"multi_tensor_apply_kernel(?!.*Fused)", re.S),
        "foreach optimizer",
        # With foreach it is called that, and not unfused.
        "The optimizer's foreach kernels go over all parameters several times, {share}.",
        "fused=True for the optimizer, which goes over them once",
        0.65,
        "AdamW with foreach reads or writes a tensor 20 times a parameter, the fused one 7 times",
    ),
    _Named(
        "optimizer",
        re.compile(r"multi_tensor_apply_kernel.*Fused|\bfused_adam|multi_tensor_adam", re.S | re.I),
        "optimizer",
        "The optimizer's update of all parameters takes {share}.",
        "larger batches or gradient accumulation, so that more is computed for each update; frozen "
        "parameters left out",
        0.8,
        "a dense update goes over all rows of an embedding, of which a batch touches few; 4 to "
        "15 % of the steps of trainings without a fault",
        1 / 3,
    ),
    _Named(
        "attention_fp32",
        re.compile(r"fmha_cutlass[FB]_f32", re.I),
        "FP32 attention",
        "Attention in FP32 takes {share}.",
        "give it bf16: autocast, or q, k and v cast back after what made them FP32 (a rotary "
        "embedding whose tables are FP32)",
        0.85,
        "14.8 ms in FP32 (memory-efficient) against 2.1 in bf16 (flash): forward and backward of "
        "4 × 16 causal heads of 4,096 × 64 on an H200",
        told_by=Leaf.MATMUL_SIMT,
    ),
    _Named(
        "copies",
        re.compile(r"(direct|float\d+\w*|half)_copy_kernel|CatArrayBatchedCopy"),
        "copies on GPU",
        "Kernels that only copy tensors, or cast them, take {share}.",
        "keep the layout and the type that the next kernel takes: no .contiguous(), .repeat() or "
        "expand() with reshape() in the loop; enable_gqa=True for shared KV heads; torch.compile, "
        "which puts casts into the kernels beside them",
        0.9,
        "casts and copies are 1 to 13 % of the steps of programs without a fault",
        1 / 4,
        told_by=Leaf.ATTENTION_UNFUSED,
        leaf=Leaf.COPY_DEVICE,
        without_kernels="Copies within the GPU's memory take {share}.",
    ),
    _Named(
        "sorting",
        re.compile(r"RadixSort|SegmentedSort|bitonicSort|MergeSort", re.I),
        "sorting",
        "Sorting takes {share}.",
        "torch.topk where only the first are needed; sort less often, or once before the loop",
        0.48,
        "8.2 ms for argsort against 4.3 for topk of 20: 65,536 rows of 4,096 on an H200",
    ),
    _Named(
        "prime_fft",
        re.compile("bluestein"),
        "FFT lengths",
        "FFTs of lengths that have a large prime factor take {share}.",
        "pad to lengths of small prime factors (scipy.fft.next_fast_len): of a large prime cuFFT "
        "makes a convolution (Bluestein's algorithm)",
        0.75,
        "28.0 ms became 16.0 and 24.2 became 11.8 in two programs on an H200, of which it is 0.63",
    ),
    _Named(
        "float64",
        # CuPy names the types of its arguments, of which the last one is what it makes, Numba's
        # compiler each array's.
        re.compile(
            r"^(cupy_\w+?__(\w*_)?(float64|complex128)$"
            r"|(?!.*(\bfloat[24]?\b|Half|half|BFloat16|bfloat16|float32|float16|ArrayIfL))"
            r".*(\bdouble[24]?\b|d884|dgemm|f64f64|ArrayI[dz]L))",
            re.S,
        ),
        "FP64",
        "Kernels that compute in FP64 take {share}.",
        TO_FP32,
        0.5,
        "an operand of 8 bytes in place of 4, and half of the peak of FP32 (H100, A100) or less",
        told_by=Leaf.MATMUL_SIMT,
        halves=Leaf.ELEMENTWISE_CHAIN,
    ),
    _Named(
        "without_cudnn",
        re.compile(r"\bim2col|\bcol2im|vol2col|col2vol|slow_conv", re.I),
        "unfolded convolutions",
        "Kernels that only unfold what convolutions read take {share}.",
        "nn.Conv2d with cuDNN in place of unfold() and a product "
        "(torch.backends.cudnn.enabled=True)",
        0.9,
        "PyTorch's own convolution writes each patch out and multiplies, as F.unfold() does",
    ),
    _Named(
        "depthwise",
        re.compile(r"conv_depthwise[23]d_\w+_kernel_generic"),
        "depthwise convolutions",
        "Depthwise convolutions that add up each value in a loop over the whole filter take "
        "{share}.",
        "for a long filter a product of Fourier transforms (torch.fft.rfft, "
        "torchaudio.functional.fftconvolve); for a short one half precision and channels_last, "
        "which cuDNN takes",
        0.85,
        "PyTorch has other kernels for filters of 1, 3 and 5; 29 % of the kernels' time in one "
        "program with 16,000 taps, whose steps take 0.76 of the time by FFT (an H200)",
        1 / 5,
    ),
    _Named(
        "dequantization",
        re.compile(r"dequantiz", re.I),
        "dequantization",
        "Kernels that only turn quantized weights back into floating-point ones take {share}.",
        "kernels that multiply quantized weights (Marlin, torchao), larger batches, or bf16 "
        "weights where they fit",
        1.0,
        "a weight that is dequantized for each step is read, written and read again",
        0.15,
    ),
)


@computed_once
def named(analysis: Analysis) -> tuple[Finding, ...]:
    """Those whose cure would gain as much as a leaf needs to be a finding."""
    return tuple(_named(analysis))


def _named(analysis: Analysis) -> Iterator[Finding]:
    tree = analysis.tree
    if tree is None:
        return
    of_kernels = tree.kernels_share
    sums = analysis.kernel_sums
    whole_ns = sum(ns for _, ns in sums.values())
    for cause in _CAUSES:
        if cause.leaf is not None and library(analysis) == "jax":
            continue  # XLA copies what a loop carries, and no torch.cat is there to leave out
        names = analysis.kernel_names
        numbers = [n for n in sums if n in names and cause.kernels.search(names[n].name)]
        numbers.sort(key=lambda number: -sums[number][1])
        share = (
            of_kernels * sum(sums[number][1] for number in numbers) / whole_ns if whole_ns else 0.0
        )
        share += _copied(tree, cause)
        gain = share * cause.recoverable
        said = cause.told_by is not None and tree.share(tree.leaves.get(cause.told_by, 0)) > share
        # What launches them goes with them.
        counts = [counted for counted, _ in sums.values()]
        their_count = sum(sums[number][0] for number in numbers)
        launches = tree.share(tree.leaves.get(Leaf.LAUNCH, 0)) * their_count / max(1, sum(counts))
        least, most = 0.75 * gain, min(1.2 * gain, share)
        if cause.kernels is CHANGES_LAYOUT:
            # All of them go, and batch norms over NHWC are faster.
            slow, fast = _of_batch_norms(analysis, tree)
            least, most = 0.95 * gain + slow, gain + fast
        # Of a GPU that idles half of the time, casts of a fifth are most of its work.
        if gain >= SPEAKS and share >= cause.usual * (1.0 - tree.share(tree.idle_ns)) and not said:
            times = Counter[Leaf]()
            for number in numbers:
                times[leaf_of_kernel(names[number].name)] += sums[number][1]
            if not numbers and cause.leaf is not None:
                times[cause.leaf] = 1
            [(leaf, its_ns)] = times.most_common(1)
            counted_under = _counted(cause, leaf) if its_ns >= UNDER_ONE * times.total() else ()
            yield Finding(
                cause=cause.key,
                word=cause.word,
                sentence=(
                    cause.sentence if 2 * _copied(tree, cause) < share else cause.without_kernels
                ).format(share=of_scope(tree, share)),
                advice=_advice(analysis, cause),
                value=100 * gain,
                threshold=100 * SPEAKS,
                source=cause.source,
                share_percent=100 * share,
                step_ns=tree.a_step(share * tree.wall_ns),
                recoverable=gain,
                gains=as_launched(
                    analysis,
                    _of_attention(analysis, tree)
                    if cause.key == "attention_fp32"
                    else gain_of(least + 0.5 * launches, most + launches),
                ),
                place=_place(analysis, cause),
                view="kernels",
                evidence=(
                    *_called(analysis, cause),
                    *counted_under,
                    *(
                        f"{name} {count(counted)} ×, {percent(100 * of_kernels * ns / whole_ns)}"
                        for name, counted, ns in by_name(
                            (short_name(names[number].name), *sums[number]) for number in numbers
                        )
                        if ns >= LEAST_SHOWN * whole_ns
                    ),
                ),
                kernel=names[numbers[0]].name if numbers else "",
                leads=True,
                explains=(LEAVES[cause.halves].key,)
                if cause.halves is not None
                and share >= tree.share(tree.leaves.get(cause.halves, 0))
                else (),
            )


def _of_attention(analysis: Analysis, tree: TimeTree) -> tuple[Gain, ...]:
    """Of attention in FP32 alone, and with the products beside it, where these are in TF32."""
    products, attention, half = _by_precision(analysis, tree)
    least, most = (part * attention for part in ATTENTION_IN_HALF)
    alone = gain_of(least, most, "q, k and v in bf16")
    if products < half:
        return alone
    return gain_of(*_in_half(tree, products, attention, half), "all under autocast") + alone


def _place(analysis: Analysis, cause: _Named) -> str:
    """The line of the optimizer that updates most, for what is of optimizers, or that copies what
    is in FP64; empty elsewhere."""
    if cause.key == "float64":
        return doubles_come_from(analysis.run)
    if not cause.key.endswith("optimizer"):
        return ""
    lines = called_lines(analysis.run, ("optimizer.step",))
    return lines[0].where if lines else ""


def _grows(analysis: Analysis, cause: _Named) -> bool:
    """Whether half of what is copied is put behind one another (torch.cat), or moved within the
    GPU's memory as it is."""
    names, sums = analysis.kernel_names, analysis.kernel_sums
    whole_ns = joined_ns = 0
    for number, (_, ns) in sums.items():
        name = names[number].name if number in names else ""
        whole_ns += ns if cause.kernels.search(name) else 0
        joined_ns += ns if _JOINS.search(name) else 0
    tree = analysis.tree
    if tree is None:
        return False
    every_ns = sum(ns for _, ns in sums.values())
    kernels, joined = (tree.kernels_share * ns / max(1, every_ns) for ns in (whole_ns, joined_ns))
    moved = _copied(tree, cause)
    return 2 * (joined + moved) >= kernels + moved


_EMBEDS = re.compile(r"embedding|compute_grad_weight", re.I)
SPARSE = (
    "sparse=True for large nn.Embedding tables{where}, with SparseAdam for them: the update then "
    "goes over the rows of a batch only; else "
)


GROWN = (
    "no torch.cat of what grows, or is shifted, in the loop: a buffer of the full length, made "
    "once, and slices of it, or a ring buffer; else "
)
_JOINS = re.compile("CatArrayBatchedCopy")

COPIES_OF_JAX = (
    "less jnp.roll, concatenate, pad and transpose in the jitted function: one expression that "
    "reads its neighbours by index; buffers that are given away (donate_argnums)"
)


def _advice(analysis: Analysis, cause: _Named) -> str:
    """What to try; of an optimizer that updates embeddings these first."""
    if cause.key == "without_cudnn" and is_set(analysis.run, "cudnn.off"):
        return "torch.backends.cudnn.enabled = True, which the program sets to False"
    if cause.key == "copies" and library(analysis) == "jax":
        return COPIES_OF_JAX
    names = analysis.kernel_names
    if cause.key == "copies":
        return (GROWN if _grows(analysis, cause) else "") + cause.advice
    embeds = any(_EMBEDS.search(names[n].name) for n in analysis.kernel_sums if n in names)
    if not embeds or cause.key != "optimizer":
        return cause.advice
    made = called_lines(analysis.run, ("torch.nn.Embedding", "torch.nn.EmbeddingBag"))[:1]
    where = "".join(f", made at {line.where}" for line in made)
    return SPARSE.format(where=where) + cause.advice


def _counted(cause: _Named, leaf: Leaf) -> tuple[str, ...]:
    """Where the times of a step have these kernels, if that is another word."""
    label = LEAVES[leaf].label
    return () if label in cause.word else (f"Among the times of a step they are under {label}",)


def _called(analysis: Analysis, cause: _Named) -> tuple[str, ...]:
    place, is_double = _place(analysis, cause), cause.key == "float64"
    if place and not is_double:
        return (f"It is called at {place}",)
    names = analysis.kernel_names
    at_lines = launched(analysis, {n for n in names if cause.kernels.search(names[n].name)})
    if not at_lines and cause.key.endswith("optimizer"):
        return ("At optimizer.step(), whose line was not recorded",)
    return (f"FP64 is copied to the GPU at {place}", *at_lines) if place else at_lines


_OF_BATCH_NORM = re.compile(r"batch_norm_(?!.*channels_last)")
_TRANSFORMS, _TRAINS = "batch_norm_transform_input_kernel", "batch_norm_collect_statistics_kernel"
IN_NHWC = (0.54, 0.93)
TRAINED_IN_NHWC = (2.9, 4.8)
"""What batch norms take over NHWC, in times of the kernel that normalizes over NCHW: this one
alone, and all of a training, whose sums over channels read in order then: 28.4 and 59.6 ms became
12.0 and 18.3 in two trainings (an H200), on which this is fitted."""


def _of_batch_norms(analysis: Analysis, tree: TimeTree) -> tuple[float, float]:
    """Share of the time, 0 to 1, that PyTorch's batch norms over NCHW lose in NHWC, at least and at
    most."""
    sums, names = analysis.kernel_sums, analysis.kernel_names
    times = Counter[str]()
    for number, (_, ns) in sums.items():
        name = names[number].name if number in names else ""
        if _OF_BATCH_NORM.search(name):
            kind = next((kind for kind in (_TRANSFORMS, _TRAINS) if kind in name), "")
            times[kind] += ns
    whole_ns = sum(ns for _, ns in sums.values())
    if not times[_TRANSFORMS]:
        return 0.0, 0.0
    fast, slow = TRAINED_IN_NHWC if times[_TRAINS] else IN_NHWC
    freed = [
        max(0.0, times.total() - part * times[_TRANSFORMS]) / whole_ns for part in (slow, fast)
    ]
    return tree.kernels_share * freed[0], tree.kernels_share * freed[1]


def _copied(tree: TimeTree, cause: _Named) -> float:
    """Share of the time of the leaf that is the same as some kernels; 0 where next to nothing else
    runs, so that copying is what the program is for."""
    if cause.leaf is None or tree.kernels_share < HIDES:
        return 0.0
    return tree.share(tree.leaves.get(cause.leaf, 0))


def by_name(kernels: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Short name, count, ns of the longest: those that differ only in what a name leaves out
    are one, or a list would repeat it."""
    times, counts = Counter[str](), Counter[str]()
    for name, counted, ns in kernels:
        times[name] += ns
        counts[name] += counted
    # By short names: multi_tensor_apply_kernel stood in one finding four times.
    for name, ns in times.most_common(MOST_NAMED):
        yield name, counts[name], ns


UNDER_ONE = 0.8
"""Part of some kernels' time that is under one leaf from which that leaf is where they are."""

LEAST_SHOWN = 0.005
"""Share of the kernels' time below which a kernel is no evidence: five calls of a start-up."""

MOSTLY_KERNELS = 0.5
"""Share of the time in which kernels run from which counters speak of them."""

FILLED = 0.6
"""Share of the kernels' time in which SMs are active from which these are not merely too small."""

USED = 0.45
"""Tensor activity and memory use together, over SM activity, from which kernels are not slow: 0.73
to 1.24 in 44 programs without such a fault, 0.04 to 0.45 where kernels compute in FP32, scan or
scatter (H100 and H200). A search among vectors whose rows stay in the L2 cache lies between."""

USUAL = 0.73

LEAST_SAMPLES = 3

TOLD = 0.05
"""Least share of the time of a kernel that is named."""

# By the longest kernel's name.
_ADVICE = (
    (
        re.compile(
            r"scatter|index_?func|index_?(add|put|reduce)|indexing_backward|grad_weight", re.I
        ),
        "sorted indices and a sum by segment in place of atomics, fewer equal indices; sparse=True "
        "for an embedding's gradient",
    ),
    (
        re.compile(r"gather|index_?select|index_elementwise", re.I),
        "indices sorted or grouped, so that rows lie together; rows of 128 bytes and more",
    ),
    (re.compile(r"cdist"), 'compute_mode="use_mm_for_euclid_dist", which takes matrix products'),
    (
        re.compile(r"ndimage_(correlate|convolve)|conv\w*_direct", re.I),
        "a smaller filter, one made of two passes (correlate1d, where it is separable), or by FFT "
        "(cupyx.scipy.signal.fftconvolve): a window of n × n reads n² values for each",
    ),
    (
        re.compile("scan", re.I),
        "sums over chunks as matrix products, or torch.compile, which joins a scan with what is "
        "around it",
    ),
)

NEARER = 0.4
"""Least part of the way to usual kernels' use of the GPU that a better form goes: 0.76 for sums
into 16 bins as a product with one-hot rows (an H100)."""

ONE_KERNEL = 0.4
"""Part of the kernels' time that the longest has, from which a better form of it is one change:
0.65 and more in four programs with such a fault; 0.14 to 0.4 where many were slow and something
else was the fault."""

_OTHERWISE = (
    "find what launches the longest, and a form of it that uses tensor cores (bf16, matrix "
    "products) or reads and writes memory in order: torch.compile, a fused kernel"
)


def slow_kernels(analysis: Analysis) -> Iterator[Finding]:
    """Named where no leaf and no name says what the kernels are at."""
    tree = analysis.tree
    if tree is None or (kernels := tree.kernels_share) < MOSTLY_KERNELS:
        return
    uses = [use for roof in steady_roofs(analysis) if (use := _use(roof)) is not None]
    if not uses:
        return
    active, tensor, memory = (sum(column) / len(uses) for column in zip(*uses, strict=True))
    used = (tensor + memory) / active if active else 1.0
    gain = kernels * (1.0 - used / USUAL)
    if active < 100 * FILLED * kernels or used >= USED or gain < SPEAKS:
        return
    if _explained(analysis) >= kernels / 4:
        return
    sums = analysis.kernel_sums
    whole_ns = sum(ns for _, ns in sums.values())
    names = {n: analysis.kernel_names[n].name for n in sums if n in analysis.kernel_names}
    longest = names[max(names, key=lambda number: sums[number][1])] if names else ""
    by_names = by_name((short_name(names[n]), *sums[n]) for n in names)
    shares = [(name, kernels * ns / whole_ns) for name, _, ns in by_names]
    in_one = max((share for _, share in shares), default=0.0) / kernels
    listed = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= TOLD)
    scope, _ = in_words(tree, ())
    yield Finding(
        cause="slow_kernels",
        word="slow kernels",
        sentence=(
            f"Kernels run {100 * kernels:.0f} % of {scope} and use little of the GPU: "
            "its tensor cores "
            f"{tensor:.0f} % of the time, {memory:.0f} % of its memory bandwidth."
        ),
        advice=next((advice for name, advice in _ADVICE if name.search(longest)), _OTHERWISE),
        value=100 * gain,
        threshold=100 * SPEAKS,
        source=(
            "tensor activity and memory use over SM activity, by the GPU's counters: "
            "0.73 and more in "
            "programs without a fault"
        ),
        share_percent=100 * kernels,
        step_ns=tree.a_step(kernels * tree.wall_ns),
        # It leads where nothing else does.
        recoverable=max(SPEAKS, gain * min(1.0, in_one / ONE_KERNEL)),
        # No faster than kernels are that use the GPU as usual; how near depends on the program.
        gains=gain_of(NEARER * gain, gain),
        evidence=(
            *([f"The longest: {listed}"] if listed else ()),
            *launched(analysis, {n for n in names if names[n] == longest}),
        ),
        kernel=longest,
        leads=True,
    )


def launched(analysis: Analysis, numbers: set[int]) -> tuple[str, ...]:
    """Where these kernels were seen launched, as evidence."""
    place = launched_at(analysis.run, numbers)
    return (f"Its kernels were seen launched at {place}",) if place else ()


def _use(roof: Roof) -> tuple[float, float, float] | None:
    """How active SMs and tensor cores were and how much of its bandwidth memory moved, in percent;
    None where that was read too seldom or not at all."""
    read = roof.sm_active_percent, roof.tensor_active_percent, roof.memory_peak_percent
    active, tensor, memory = read
    if roof.samples < LEAST_SAMPLES or active is None or tensor is None or memory is None:
        return None
    return active, tensor, memory


def _explained(analysis: Analysis) -> float:
    """Share of the time in kernels that other findings are about."""
    concluded = verdict(analysis)
    kernels = {meaning.key for leaf, meaning in LEAVES.items() if is_kernel(leaf)}
    leaves = (
        [finding for finding in concluded.findings if finding.cause in kernels]
        if concluded is not None
        else []
    )
    return sum((finding.share_percent or 0.0) / 100 for finding in (*leaves, *named(analysis)))


SPREAD = 0.5
"""Part of the multiprocessors that are active, on average while kernels run, from which kernels are
not too small for the GPU: 0.69 and more in 40 programs without such a fault, 0.06 with 8 blocks on
132 of them, 0.25 to 0.41 with products of a few rows (H100)."""

LONG_NS = 100_000
"""Mean length of a kernel from which launching it and filling the GPU take nothing of it, so that
the same work on more multiprocessors takes less in proportion."""

MORE_BLOCKS = (
    "a larger grid: a block for each part of the data, or smaller blocks, at least as many as the "
    "GPU has multiprocessors (SMs)"
)
MORE_AT_ONCE = (
    "larger batches, or what does not depend on each other in one call (torch.bmm, torch.vmap) or "
    "in several streams"
)


@computed_once
def few_blocks(analysis: Analysis) -> tuple[Finding, ...]:
    """Kernels that leave most of the multiprocessors without work: busy is not the whole GPU."""
    tree = analysis.tree
    if tree is None or (kernels := tree.kernels_share) < MOSTLY_KERNELS:
        return ()
    # Where other things lie between the steps, counters read these, too.
    active = [
        roof.sm_active_percent
        for roof in steady_roofs(analysis)
        if roof.scope == STEADY_STEPS
        and roof.samples >= LEAST_SAMPLES
        and roof.sm_active_percent is not None
    ]
    sums = analysis.kernel_sums
    whole_ns = sum(ns for _, ns in sums.values())
    if not active or not whole_ns or tree.share(tree.leaves.get(Leaf.COMMUNICATION, 0)) > TOLD:
        return ()
    spread = min(1.0, sum(active) / len(active) / 100 / kernels)
    if spread >= SPREAD:
        return ()
    mean_ns = whole_ns / max(1, sum(times for times, _ in sums.values()))
    is_long = mean_ns >= LONG_NS
    freed = kernels * (1.0 - spread)
    longest = max(sums, key=lambda number: sums[number][1])
    name = analysis.kernel_names[longest].name if longest in analysis.kernel_names else ""
    return (
        Finding(
            cause="few_blocks",
            view="kernels",
            word="few blocks",
            sentence=(
                f"Kernels run {100 * kernels:.0f} % of {in_words(tree, ())[0]}, on "
                f"{100 * spread:.0f} % of the multiprocessors (SMs): the others have no blocks."
            ),
            advice=MORE_BLOCKS if is_long else MORE_AT_ONCE,
            value=100 * spread,
            threshold=100 * SPREAD,
            source="SM activity by the GPU's counters, over the time in which kernels run",
            share_percent=100 * kernels,
            step_ns=tree.a_step(kernels * tree.wall_ns),
            recoverable=freed / (1 if is_long else 2),
            gains=gain_of((0.5 + 0.5 * (1.0 - spread)) * freed, freed) if is_long else (),
            gain_unknown="" if is_long else "it depends on what can run at the same time",
            evidence=(f"The longest: {short_name(name)}",) if name else (),
            kernel=name,
            leads=True,
        ),
    )


GIVEN_BYTES = 10_000_000
"""Bytes that a step copies to the GPU from which waiting for XLA's threads is waiting for copies:
1.7 GB, a table that each of ten calls was given, took 172 of 184 ms."""

PUT_ONCE = (
    "jax.device_put once for what calls are given again and again; of what changes, put the next "
    "array while the GPU works: device_put returns at once"
)

OF_COPYING = (Leaf.WAIT, Leaf.HOST, Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED)


def given_to_each_call(analysis: Analysis) -> Iterator[Finding]:
    """NumPy arrays that a JAX program gives to its calls: XLA's threads copy them anew for each, to
    pinned memory and to the GPU, and the program waits for them."""
    tree, steps = analysis.tree, analysis.all_steps
    if tree is None or not steps or library(analysis) != "jax":
        return
    rows = analysis.run.memory_operations.values()
    copied = [row for row in rows if "Host-to-Device" in row.operation]
    given_bytes = sum(row.size.total for row in copied)
    largest_bytes = max((row.size.maximum or 0 for row in copied), default=0)
    share = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in OF_COPYING))
    waits = share - tree.share(tree.leaves.get(Leaf.HOST, 0))
    copies = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in OF_COPYING[2:]))
    # Where code of the program's own takes longer, that is the cause.
    if given_bytes < GIVEN_BYTES * steps or waits < max(SPEAKS, share / 2):
        return
    lines = analysis.lines(Leaf.WAIT)[:1]
    yield Finding(
        cause="given_to_each_call",
        view="timeline",
        word="arrays copied for each call",
        sentence=(
            f"{size(given_bytes / steps)} of NumPy arrays are copied to the GPU for each step's "
            f"calls: with what waits for them {100 * share:.0f} % of {in_words(tree, ())[0]}."
        ),
        advice=PUT_ONCE,
        value=100 * share,
        threshold=100 * SPEAKS,
        source="bytes that copies move to the GPU, and what the GPU waits for meanwhile",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=share,
        gains=gain_of(0.9 * share, tree.share(tree.idle_ns) + copies),
        evidence=(
            *(f"They are given to a call at {line.where}" for line in lines),
            f"The largest of them has {size(largest_bytes)}",
            ", ".join(
                f"{LEAVES[leaf].label} {100 * tree.share(tree.leaves.get(leaf, 0)):.0f} %"
                for leaf in OF_COPYING
                if tree.leaves.get(leaf)
            ).removeprefix("idle "),
        ),
        place=lines[0].where if lines else "",
        covers=tuple(LEAVES[leaf].key for leaf in OF_COPYING),
        leads=True,
    )


_FULL = re.compile(r"tf32|s1688gemm|fmha_cutlass[FB]_f32", re.I)
_HALF = re.compile(r"bf16|f16|nvjet\w*_h|half", re.I)
_OF_MODELS = (Leaf.MATMUL, Leaf.MATMUL_UNALIGNED, Leaf.ATTENTION)

LEAST_HALF = 0.04
"""Share of the time in products and attention of half precision from which a program uses autocast
on purpose: 0.06 in `fundus_distill_timm`, the only recording of 480 with as much in FP32 or TF32
beside it, but one of JAX."""

PRODUCTS_IN_HALF = (0.4, 0.5)
"""What goes, at least and at most, of products in TF32, whose peak is half of that of bf16."""

AUTOCAST = (
    "run all of it under autocast: a second model, too (a teacher, a frozen encoder), and nothing "
    "with .float() or autocast(enabled=False) around it that needs no FP32"
)


WITHOUT_HALF = 0.15
"""Share of a program's time that half precision must save at least to be a finding. Of 160
recordings two of PyTorch's would save as much, and have larger causes."""

ALL_IN_HALF = (
    'torch.autocast(device_type="cuda", dtype=torch.bfloat16) around the forward pass (bf16=True, '
    'precision="bf16-mixed", mixed_precision="bf16" of trainers), or the model in bf16'
)


def _by_precision(analysis: Analysis, tree: TimeTree) -> tuple[float, float, float]:
    """Shares of the time, 0 to 1, that products and attention take in FP32 or TF32, and both in
    half precision."""
    names, times = analysis.kernel_names, Counter[str]()
    whole_ns = 0
    for number, (_, ns) in analysis.kernel_sums.items():
        whole_ns += ns
        name = names[number].name if number in names else ""
        leaf = leaf_of_kernel(name)
        if leaf not in _OF_MODELS:
            continue
        if _HALF.search(name):  # of bf16 `ampere_bf16_s1688gemm`, too
            times["half"] += ns
        elif _FULL.search(name):
            times["attention" if leaf is Leaf.ATTENTION else "products"] += ns
    products, attention, half = (
        tree.kernels_share * times[kind] / whole_ns if whole_ns else 0.0
        for kind in ("products", "attention", "half")
    )
    return products, attention, half


def _in_half(tree: TimeTree, products: float, attention: float, half: float) -> tuple[float, float]:
    """What goes of the time with these in half precision, at least and at most."""
    moving = (Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN, Leaf.NORMALIZATION)
    # What lies between the products moves half of the bytes, as far as it is of that part.
    beside = 0.5 * tree.share(sum(tree.leaves.get(leaf, 0) for leaf in moving))
    share = products + attention
    least, most = (
        of_products * products + of_attention * attention
        for of_products, of_attention in zip(PRODUCTS_IN_HALF, ATTENTION_IN_HALF, strict=True)
    )
    return least, most + (beside * share / (share + half) if share else 0.0)


def outside_autocast(analysis: Analysis) -> Iterator[Finding]:
    """A model, or a part of it, that computes in FP32 or TF32 where half precision would do."""
    tree = analysis.tree
    if tree is None or library(analysis) != "torch":
        return
    products, attention, half = _by_precision(analysis, tree)
    share = products + attention
    least, most = _in_half(tree, products, attention, half)
    is_part = half >= LEAST_HALF
    # Of products outside tensor cores their own finding says it.
    is_told = not is_part and tree.share(tree.leaves.get(Leaf.MATMUL_SIMT, 0)) >= SPEAKS
    if least < (SPEAKS if is_part else WITHOUT_HALF) or is_told:
        return
    rest = "while other parts of the model compute" if is_part else "and next to nothing computes"
    yield Finding(
        cause="outside_autocast",
        view="kernels",
        word="part in full precision" if is_part else "no half precision",
        sentence=(
            "Matrix products and attention in FP32 or TF32 take "
            f"{of_scope(tree, share)}, {rest} in half precision."
        ),
        advice=AUTOCAST if is_part else ALL_IN_HALF,
        value=100 * least,
        threshold=100 * SPEAKS,
        source="names of the kernels of matrix products and attention",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=(least + most) / 2,
        gains=as_launched(analysis, gain_of(least, most)),
        covers=("attention_fp32",),
        leads=True,
    )


MASKED = (0.5, 0.75)
"""Part of the time of attention that goes at least and at most without a causal mask in memory: the
half that it bars, and what reading it costs the rest. 0.68 in `longdoc_gpt`, the one program."""

IS_CAUSAL = "scaled_dot_product_attention(q, k, v, is_causal=True), without attn_mask"


def causal_mask(analysis: Analysis) -> Iterator[Finding]:
    """Attention that is given its causal mask as a tensor, so that it computes what that bars."""
    tree = analysis.tree
    lines = called_lines(analysis.run, ("attention.causal",))
    attention = tree.share(tree.leaves.get(Leaf.ATTENTION, 0)) if tree is not None else 0.0
    least, most = (part * attention for part in MASKED)
    if tree is None or not lines or least < SPEAKS:
        return
    mask = size(lines[0].tensor_bytes / max(1, lines[0].calls))
    yield Finding(
        cause="causal_mask",
        view="kernels",
        word="causal mask as a tensor",
        sentence=(
            f"Attention is given its causal mask as a tensor of {mask}, and computes the half that "
            f"it bars, too: {of_scope(tree, attention)}."
        ),
        advice=IS_CAUSAL,
        value=100 * least,
        threshold=100 * SPEAKS,
        source="arguments of scaled_dot_product_attention, now and then",
        share_percent=100 * attention,
        step_ns=tree.a_step(attention * tree.wall_ns),
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=tuple(f"It is called at {line.where}" for line in lines[:2]),
        place=lines[0].where,
        leads=True,
    )


RULES = (
    RunRule(12, causal_mask),
    RunRule(12, outside_autocast),
    RunRule(12, named),
    RunRule(12, given_to_each_call),
    RunRule(13, few_blocks),
    RunRule(14, slow_kernels),
)
