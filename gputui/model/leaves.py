"""The leaves of the time tree: what every nanosecond of a device is counted under.

The tree is fixed, and its leaves sum to the wall time of the device. A leaf is written by its
number in recordings, by its key everywhere else, and by a letter in the rows of a kept step;
numbers are never used again for another meaning, new leaves go at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from itertools import groupby

import msgspec

from gputui.model.kernel_categories import category


class Leaf(IntEnum):
    """A leaf's number. Busy leaves are what ran, idle leaves why nothing did."""

    MATMUL = 0
    MATMUL_SIMT = 1
    MATMUL_UNALIGNED = 2
    ATTENTION = 3
    NORMALIZATION = 4
    SOFTMAX = 5
    ELEMENTWISE = 6
    OPTIMIZER = 7
    OTHER = 8
    COMMUNICATION = 9
    COPY_PAGEABLE = 10
    COPY_PINNED = 11
    COPY_DEVICE = 12
    LAUNCH = 13
    SYNC = 14
    ALLOCATION = 15
    CUDA = 16
    HOST = 17
    INPUT = 18
    WAIT = 19
    SCHEDULER = 20
    COMPILE = 21
    RANK = 22
    DEPENDENCY = 23
    UNKNOWN = 24
    ELEMENTWISE_CHAIN = 25
    ATTENTION_UNFUSED = 26
    SHARED = 27
    PEER = 28


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf as a finding of the verdict, where it takes much of the time."""

    word: str
    """The verdict in a word or two, as screens print it."""
    sentence: str
    """What was seen: {share} of {scope}, and {time}, which is empty or the time a step."""
    advice: str
    """What to try, as a clause; `explain.advice` has better ones where the run tells more."""
    recoverable: float = 1.0
    """The share of the leaf's time that a cure saves: 1 for idle time; for busy time, by how much
    the better way is faster."""
    source: str = ""
    """Where `recoverable` comes from, if it is not 1."""
    usual: float = 0.0
    """Share of the wall time up to which the leaf is no fault."""


class LeafMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf: its names, how it looks, and its meaning as a fault."""

    key: str
    """The leaf's name in JSON and in conditions: busy.NAME or idle.NAME."""
    label: str
    meaning: str
    color: str
    """A color of PALETTE. Busy leaves are cool, idle ones warm; each idle one has its own."""
    texture: str = "█"
    """The character that bars are drawn with. Busy leaves are solid, idle ones are not: nobody
    needs colors to distinguish them."""
    letter: str = ""
    """The letter of the leaf in the rows of a step's threads (see `pack`). A leaf needs one if it
    says what a thread did. No other leaf may have it, now or later."""
    categories: tuple[str, ...] = ()
    """Categories of kernels (model.kernel_categories) that are counted here."""
    cause: Cause | None = None
    """The leaf as a fault; None for leaves that are work, and never a finding."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing ran on the device."""
        return self.key.startswith("idle.")


PALETTE: dict[str, tuple[str, str, str]] = {
    "matmul":        ("#5b9cff", "#1f6fd0", "#0072b2"),
    "attention":     ("#3ecfe0", "#0d7c90", "#56b4e9"),
    "normalization": ("#2fb8a0", "#0f7a6a", "#009e73"),
    "elementwise":   ("#7fc97f", "#1f7a34", "#7fd0b4"),
    "copy":          ("#8fa3bf", "#56688a", "#8fb3d9"),
    "communication": ("#b48cff", "#7447c4", "#cc79a7"),
    "other":         ("#6f86a8", "#5a6b88", "#6f86a8"),
    "launch":        ("#f0b03a", "#a86500", "#e69f00"),
    "sync":          ("#f2803c", "#b84a10", "#d55e00"),
    "alloc":         ("#d9705a", "#a03c28", "#e07850"),
    "calls":         ("#c08a7a", "#84503f", "#c08a7a"),
    "host":          ("#e8d75a", "#857000", "#f0e442"),
    "wait":          ("#f7b79b", "#a85b3a", "#e8b0a0"),
    "core":          ("#c9a45c", "#76591a", "#d0b060"),
    "compile":       ("#c4cc62", "#646c0a", "#c8d070"),
    "rank":          ("#e06fae", "#a83278", "#e8a0c8"),
    "input":         ("#b08860", "#7a5230", "#b08860"),
    "queued":        ("#a89888", "#706050", "#c4ccd8"),
    "unknown":       ("#8c8c8c", "#6a6a6a", "#a0a0a0"),
}  # fmt: skip
"""The colors by name, each in three shades: on dark ground, on light ground, and one that differs
from the others with every common color blindness (Okabe and Ito, 2008; where its eight do not
suffice textures do)."""

LEAVES: dict[Leaf, LeafMeaning] = {
    Leaf.MATMUL: LeafMeaning(
        key="busy.matmul",
        label="matmul",
        meaning="matrix products",
        color="matmul",
        categories=("matmul",),
    ),
    Leaf.MATMUL_SIMT: LeafMeaning(
        key="busy.matmul_simt",
        label="matmul without tensor cores",
        meaning="matrix products in FP32 or FP64",
        color="matmul",
        cause=Cause(
            word="NO TENSOR CORES",
            sentence=(
                "Matrix products in full precision (FP32 or FP64) take {share} of {scope}{time}."
            ),
            advice=(
                'torch.set_float32_matmul_precision("high"), or bf16 autocast; FP64 comes from '
                "NumPy"
            ),
            recoverable=0.86,
            source="67 against 495 TFLOP/s, FP32 and TF32 of an H100 (data sheet)",
        ),
    ),
    Leaf.MATMUL_UNALIGNED: LeafMeaning(
        key="busy.matmul_unaligned",
        label="misaligned matmul",
        meaning="matrix products whose dimensions are not multiples of 8",
        color="matmul",
        cause=Cause(
            word="MISALIGNED SHAPES",
            sentence=(
                "Matrix products with a dimension that is not a multiple of 8 take {share} of "
                "{scope}{time}."
            ),
            advice=(
                "pad the dimension: a multiple of 64 is best (a vocabulary of 50,304 for 50,257)"
            ),
            recoverable=0.6,
            source="cuBLAS falls back to Turing kernels that load one element at a time",
        ),
    ),
    Leaf.ATTENTION: LeafMeaning(
        key="busy.attention",
        label="attention",
        meaning="fused attention",
        color="attention",
        categories=(
            "attention",
            "KV cache",
        ),
    ),
    Leaf.NORMALIZATION: LeafMeaning(
        key="busy.normalization",
        label="normalization",
        meaning="layer and RMS norm",
        color="normalization",
        categories=("normalization",),
    ),
    Leaf.SOFTMAX: LeafMeaning(
        key="busy.softmax",
        label="softmax",
        meaning="softmax outside fused attention",
        color="normalization",
        categories=("softmax",),
    ),
    Leaf.ELEMENTWISE: LeafMeaning(
        key="busy.elementwise",
        label="elementwise",
        meaning="elementwise kernels, casts, copies on the GPU",
        color="elementwise",
        categories=(
            "triton fused",
            "copy",
            "quantization",
            "rotary embedding",
            "random",
            "elementwise",
        ),
    ),
    Leaf.ELEMENTWISE_CHAIN: LeafMeaning(
        key="busy.elementwise_chain",
        label="elementwise chains",
        meaning="three or more elementwise kernels in a row over the same elements",
        color="elementwise",
        cause=Cause(
            word="MEMORY-BOUND",
            sentence=(
                "Elementwise kernels in a row, over the same memory, take {share} of {scope}{time}."
            ),
            advice="torch.compile makes one kernel of the chain, fused=True one of an optimizer's",
            recoverable=0.6,
            source=(
                "a chain of n two-operand kernels moves 3n tensors, the fused one 3; eager Llamas, "
                "trained and prefilled on an H200, spend 24 to 27 % in such chains"
            ),
            usual=1 / 3,
        ),
    ),
    Leaf.ATTENTION_UNFUSED: LeafMeaning(
        key="busy.attention_unfused",
        label="unfused attention",
        meaning="softmax, masks and casts between two matrix products, scores in memory",
        color="attention",
        cause=Cause(
            word="UNFUSED ATTENTION",
            sentence=(
                "Unfused attention, with its scores in memory, takes {share} of {scope}{time}."
            ),
            advice="torch.nn.functional.scaled_dot_product_attention",
            recoverable=0.8,
            source="6 to 8 T² of memory traffic that a fused kernel does not have",
        ),
    ),
    Leaf.SHARED: LeafMeaning(
        key="busy.shared",
        label="another process",
        meaning="kernels stretched while another process held the GPU",
        color="other",
        cause=Cause(
            word="SHARED GPU",
            sentence=(
                "Another process runs on this GPU: kernels lose {share} of {scope} to it{time}."
            ),
            advice="give this program a GPU of its own: the list of processes shows the other one",
            source=(
                "the driver's use by process, and kernels at least 1.3 times as long as their "
                "shortest"
            ),
        ),
    ),
    Leaf.PEER: LeafMeaning(
        key="busy.peer",
        label="the run's other processes",
        meaning="another traced process ran something while this one had nothing on the GPU",
        color="other",
    ),
    Leaf.OPTIMIZER: LeafMeaning(
        key="busy.optimizer",
        label="optimizer",
        meaning="fused or foreach optimizers",
        color="other",
        categories=("optimizer",),
    ),
    Leaf.OTHER: LeafMeaning(
        key="busy.other",
        label="other kernels",
        meaning="kernels of no other cause: reductions, indexing, sorting, random numbers",
        color="other",
    ),
    Leaf.COMMUNICATION: LeafMeaning(
        key="busy.comm",
        label="communication",
        meaning="collectives while nothing else ran",
        color="communication",
        categories=("communication",),
        cause=Cause(
            word="COMMUNICATION-BOUND",
            sentence="Collectives that overlap nothing take {share} of {scope}{time}.",
            advice="overlap them with the backward pass: larger buckets, gradient accumulation",
        ),
    ),
    Leaf.COPY_PAGEABLE: LeafMeaning(
        key="busy.copy_pageable",
        label="pageable copies",
        meaning="copies from or to pageable host memory while nothing else ran",
        color="copy",
        cause=Cause(
            word="COPY-BOUND",
            sentence=(
                "Copies from or to pageable memory that overlap nothing take {share} of "
                "{scope}{time}."
            ),
            advice="pin the host memory (pin_memory=True), copy with non_blocking=True, copy less",
            recoverable=0.87,
            source="7.5 GB/s pageable against 55 pinned on one PCIe 5 link",
        ),
    ),
    Leaf.COPY_PINNED: LeafMeaning(
        key="busy.copy_pinned",
        label="pinned copies",
        meaning="copies from or to pinned memory, nothing else ran",
        color="copy",
        cause=Cause(
            word="COPY-BOUND",
            sentence="Copies that overlap no kernel take {share} of {scope}{time}.",
            advice="copy the next batch on a stream of its own while this one computes",
        ),
    ),
    Leaf.COPY_DEVICE: LeafMeaning(
        key="busy.copy_device",
        label="copies on the GPU",
        meaning="copies between GPUs or on one, and memsets",
        color="copy",
        categories=("memory copy",),
    ),
    Leaf.LAUNCH: LeafMeaning(
        key="idle.launch",
        label="launch-bound",
        meaning="the queue was empty while the CPU was between two launches",
        color="launch",
        texture="░",
        letter="l",
        cause=Cause(
            word="LAUNCH-BOUND",
            sentence="The GPU waits for the next kernel launch {share} of {scope}{time}.",
            advice=(
                'CUDA graphs, torch.compile(mode="reduce-overhead"), a fused optimizer, larger '
                "batches"
            ),
        ),
    ),
    Leaf.SYNC: LeafMeaning(
        key="idle.sync",
        label="sync",
        meaning="the CPU waited in a synchronizing call, or had not launched again yet",
        color="sync",
        texture="▒",
        letter="s",
        cause=Cause(
            word="SYNC-BOUND",
            sentence=(
                "The CPU synchronizes with the GPU, which then idles {share} of {scope} until it "
                "gets work again{time}."
            ),
            advice=(
                "keep values on the GPU: no .item(), .cpu() or print of a tensor in the loop; "
                "read them every N steps"
            ),
        ),
    ),
    Leaf.ALLOCATION: LeafMeaning(
        key="idle.alloc",
        label="allocation",
        meaning="the CPU was in cudaMalloc or cudaFree",
        color="alloc",
        texture="╳",
        letter="a",
        cause=Cause(
            word="ALLOCATION-BOUND",
            sentence=(
                "The GPU idles {share} of {scope} while the CPU is in cudaMalloc and "
                "cudaFree{time}."
            ),
            advice=(
                "no torch.cuda.empty_cache() in the loop; leave the allocator room to keep its "
                "blocks"
            ),
        ),
    ),
    Leaf.CUDA: LeafMeaning(
        key="idle.cuda",
        label="other CUDA calls",
        meaning="the CPU was in another CUDA call",
        color="calls",
        texture="╌",
        letter="c",
        cause=Cause(
            word="CUDA CALLS",
            sentence="The GPU idles {share} of {scope} while the CPU is in other CUDA calls{time}.",
            advice="load modules, capture graphs and register memory before the loop",
        ),
    ),
    Leaf.HOST: LeafMeaning(
        key="idle.host",
        label="CPU code",
        meaning="the CPU ran the program's own code",
        color="host",
        texture="▓",
        letter="h",
        cause=Cause(
            word="CPU-BOUND",
            sentence=(
                "The GPU idles {share} of {scope} while the CPU runs the program's own code{time}."
            ),
            advice=(
                "do it less often, on the GPU (random numbers, metrics), or off this thread: "
                "DataLoader workers (num_workers > 0) for input, a thread for saving and logging"
            ),
        ),
    ),
    Leaf.INPUT: LeafMeaning(
        key="idle.input",
        label="input",
        meaning="the CPU waited for the next batch",
        color="input",
        texture="∙",
        letter="i",
        cause=Cause(
            word="INPUT-BOUND",
            sentence="The GPU waits for the next batch {share} of {scope}{time}.",
            advice=(
                "more DataLoader workers (num_workers), kept between epochs "
                "(persistent_workers=True); if that is little, less work for each sample: what is "
                "read, unpacked or computed anew each time"
            ),
        ),
    ),
    Leaf.WAIT: LeafMeaning(
        key="idle.wait",
        label="CPU waiting",
        meaning="the CPU waited: a lock, I/O, a sleep",
        color="wait",
        texture="▚",
        letter="w",
        cause=Cause(
            word="CPU WAITS",
            sentence="The GPU idles {share} of {scope} while the launching thread sleeps{time}.",
            advice=(
                "find what it waits for: a lock (Python's own, where other threads compute), a "
                "queue, a sleep, another process"
            ),
        ),
    ),
    Leaf.SCHEDULER: LeafMeaning(
        key="idle.scheduler",
        label="no CPU core",
        meaning="the launching thread wanted a core and had none",
        color="core",
        texture="┼",
        letter="d",
        cause=Cause(
            word="NO CPU CORE",
            sentence="The launching thread is ready and gets no CPU core {share} of {scope}{time}.",
            advice="give it a core of its own: taskset, fewer busy workers, a larger CPU quota",
        ),
    ),
    Leaf.COMPILE: LeafMeaning(
        key="idle.compile",
        label="compile",
        meaning="compiling or autotuning",
        color="compile",
        texture="╬",
        cause=Cause(
            word="COMPILING",
            sentence="The GPU idles {share} of {scope} while the program compiles{time}.",
            advice="keep shapes fixed or mark them dynamic; TORCH_LOGS=recompiles names the reason",
        ),
    ),
    Leaf.RANK: LeafMeaning(
        key="idle.rank",
        label="other rank",
        meaning="only a collective waited for another rank",
        color="rank",
        texture="╱",
        cause=Cause(
            word="RANKS WAIT",
            sentence="The GPU waits for other ranks {share} of {scope}{time}; no one rank is late.",
            advice="the waits are spread: balance the work of each step, synchronize less often",
        ),
    ),
    Leaf.DEPENDENCY: LeafMeaning(
        key="idle.dependency",
        label="queued",
        meaning=(
            "work was launched in time but not started: launch latency, a stream or event to wait "
            "for"
        ),
        color="queued",
        texture="╲",
        cause=Cause(
            word="QUEUED WORK WAITS",
            sentence="Work launched in time waits for something else {share} of {scope}{time}.",
            advice=(
                "look for event and stream waits, for other processes on this GPU, and for layers "
                "on several GPUs that work one after the other"
            ),
        ),
    ),
    Leaf.UNKNOWN: LeafMeaning(
        key="idle.unknown",
        label="unknown",
        meaning="the launch was not recorded",
        color="unknown",
        texture="┄",
    ),
}

_OF_NUMBER = {int(leaf): leaf for leaf in Leaf}


def leaf_of_number(number: int) -> Leaf:
    """The leaf of a number in a recording; OTHER for one that a newer version may know."""
    return _OF_NUMBER.get(number, Leaf.OTHER)


LEAF_OF_KEY = {meaning.key: leaf for leaf, meaning in LEAVES.items()}

CAUSES = {leaf: meaning.cause for leaf, meaning in LEAVES.items() if meaning.cause is not None}
"""The leaves that can be a finding, with the verdict's words for them."""

COPIES = (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE)


def is_kernel(leaf: Leaf) -> bool:
    """Whether kernels of the process ran."""
    return not LEAVES[leaf].is_idle and leaf not in (*COPIES, Leaf.SHARED, Leaf.PEER)


_OF_CATEGORY = {name: leaf for leaf, meaning in LEAVES.items() for name in meaning.categories}

# Names of cuBLAS and CUTLASS kernels: `simt` and `ffma` run on the plain FP32 units, `f64f64` and
# `d884` on those for FP64, which have tensor cores of their own on some cards: no faster than FP32;
# `align1` and `align2` load 2 or 4 bytes at a time because a dimension is not a multiple of 8
# (CUTLASS's naming: kernels' operand alignment in elements). Convolutions by FFT and Winograd's way
# have kernels for FP32 beside their products.
_SIMT = re.compile(r"simt|ffma|scudnn|(?<![a-z])sgemm|f32f32_f32f32|magma_sgemm|gemmSN", re.I)
_TENSOR = re.compile(r"tensorop|tf32|wgmma|hmma|s1688|s16816|nvjet", re.I)
_FP32_CONVOLUTION = re.compile(
    r"(fft2d_\w+|winograd\w*)<float|(DSE::\w*fft\w*|mult_and_sum_complex)<.*float2"
)
IS_DOUBLE = re.compile(r"f64f64|d884|(?<![a-z])dgemm", re.I)
# PyTorch's softmax over up to 1,024 elements says by a template argument whether it is the
# logarithm: log2_elements, is_log_softmax, is_masked.
_LOSS = re.compile(r"log_?soft_?max|softmax_warp_\w+<[^<>]*, \d+, true", re.I)
# No fused attention takes doubles: these are statistics, or a loss.
_SOFTMAX_OF_DOUBLES = re.compile(r"soft_?max\w*<double", re.I)
_EXPERTS = re.compile(
    r"gemm|fused_moe|mul_mat|moe_mm|marlin|matmul|(^|_)moe_kernel$|expert\w*(mlp|ffn|linear)", re.I
)
_UNALIGNED = re.compile(r"align[12](?![0-9])")

MULTIPLIES_VECTOR = re.compile(r"gemv", re.I)
"""A matrix times a vector reads each element for two operations: memory bounds it in any format,
and tensor cores do not help (8,192² doubles at 216 of a T4's 320 GB/s)."""

CHANGES_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw", re.I)
"""cuDNN's kernels that transpose what convolutions take and give."""


def leaf_of_kernel(name: str) -> Leaf:
    """The leaf of a kernel by its demangled name."""
    kernel_category = category(name)
    leaf = _OF_CATEGORY.get(kernel_category, Leaf.OTHER)
    if kernel_category == "mixture of experts" and _EXPERTS.search(name):
        leaf = Leaf.MATMUL
    if leaf is Leaf.SOFTMAX and (_LOSS.search(name) or _SOFTMAX_OF_DOUBLES.search(name)):
        return Leaf.OTHER
    if leaf is Leaf.MATMUL and not MULTIPLIES_VECTOR.search(name):
        if IS_DOUBLE.search(name) or (_SIMT.search(name) and not _TENSOR.search(name)):
            return Leaf.MATMUL_SIMT
        if _FP32_CONVOLUTION.search(name):
            return Leaf.MATMUL_SIMT
        if _UNALIGNED.search(name):
            return Leaf.MATMUL_UNALIGNED
    return leaf


def idle_sum(leaves: Mapping[Leaf, int]) -> int:
    """The part of these times in which nothing ran."""
    return sum(ns for leaf, ns in leaves.items() if LEAVES[leaf].is_idle)


# Rows of a step's parts as short text: a letter a part, repeated letters with their number.
#
# "l12s3h" are twelve parts of l, three of s, one of h: what a thread did seldom changes often,
# and a row of 48 parts takes 10 to 30 bytes of a recording.

ROW_PARTS = 48
"""Parts of a step in a row of a thread or a stream."""

DOING = {meaning.letter: leaf for leaf, meaning in LEAVES.items() if meaning.letter}
"""By letter, what a thread did for most of a part of a step, as the leaf under which the GPU would
idle for it."""

LETTER_OF = {leaf: letter for letter, leaf in DOING.items()}

EIGHTHS = "abcdefghi"
"""Letters for how much of a part of a step a stream was busy, from nothing to all of it."""

_RUN = re.compile(r"([a-z])(\d{0,3})")


def pack(letters: str) -> str:
    """`letters` with repetitions counted: "aaab" becomes "a3b"."""
    runs = ((letter, len(list(run))) for letter, run in groupby(letters))
    return "".join(f"{letter}{count}" if count > 1 else letter for letter, count in runs)


def unpack(text: str, most: int = ROW_PARTS) -> str:
    """Undoes `pack`, up to `most` letters; anything that is not in the short form is left out."""
    letters = ""
    for letter, count in _RUN.findall(text):
        letters += letter * min(most, int(count or 1))
        if len(letters) >= most:
            break
    return letters[:most]
