"""The leaves of the time tree: what every nanosecond of a device is counted under.

The tree is fixed, and its leaves sum to the wall time of the device. A leaf is written by its
number in recordings and by its key everywhere else; numbers are never used again for another
meaning, new leaves go at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

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


class LeafMeaning(msgspec.Struct, frozen=True):
    """How a leaf is named. `key` is its name in JSON and in conditions."""

    key: str
    label: str
    meaning: str

    @property
    def is_idle(self) -> bool:
        """Whether nothing ran on the device."""
        return self.key.startswith("idle.")


LEAVES: dict[Leaf, LeafMeaning] = {
    Leaf.MATMUL: LeafMeaning("busy.matmul", "matmul", "matrix products"),
    Leaf.MATMUL_SIMT: LeafMeaning(
        "busy.matmul_simt", "matmul without tensor cores", "matrix products in FP32 or FP64"
    ),
    Leaf.MATMUL_UNALIGNED: LeafMeaning(
        "busy.matmul_unaligned",
        "misaligned matmul",
        "matrix products whose dimensions are not multiples of 8",
    ),
    Leaf.ATTENTION: LeafMeaning("busy.attention", "attention", "fused attention"),
    Leaf.NORMALIZATION: LeafMeaning("busy.normalization", "normalization", "layer and RMS norm"),
    Leaf.SOFTMAX: LeafMeaning("busy.softmax", "softmax", "softmax outside fused attention"),
    Leaf.ELEMENTWISE: LeafMeaning(
        "busy.elementwise", "elementwise", "elementwise kernels, casts, copies on the GPU"
    ),
    Leaf.ELEMENTWISE_CHAIN: LeafMeaning(
        "busy.elementwise_chain",
        "elementwise chains",
        "three or more elementwise kernels in a row over the same elements",
    ),
    Leaf.ATTENTION_UNFUSED: LeafMeaning(
        "busy.attention_unfused",
        "unfused attention",
        "softmax, masks and casts between two matrix products, scores in memory",
    ),
    Leaf.SHARED: LeafMeaning(
        "busy.shared", "another process", "kernels stretched while another process held the GPU"
    ),
    Leaf.PEER: LeafMeaning(
        "busy.peer",
        "the run's other processes",
        "another traced process ran something while this one had nothing on the GPU",
    ),
    Leaf.OPTIMIZER: LeafMeaning("busy.optimizer", "optimizer", "fused or foreach optimizers"),
    Leaf.OTHER: LeafMeaning("busy.other", "other kernels", "every other kernel"),
    Leaf.COMMUNICATION: LeafMeaning(
        "busy.comm", "communication", "collectives while nothing else ran"
    ),
    Leaf.COPY_PAGEABLE: LeafMeaning(
        "busy.copy_pageable",
        "pageable copies",
        "copies from or to pageable host memory while nothing else ran",
    ),
    Leaf.COPY_PINNED: LeafMeaning(
        "busy.copy_pinned", "pinned copies", "copies from or to pinned memory, nothing else ran"
    ),
    Leaf.COPY_DEVICE: LeafMeaning(
        "busy.copy_device", "copies on the GPU", "copies between GPUs or on one, and memsets"
    ),
    Leaf.LAUNCH: LeafMeaning(
        "idle.launch", "launch-bound", "the queue was empty while the CPU was between two launches"
    ),
    Leaf.SYNC: LeafMeaning(
        "idle.sync", "sync", "the CPU waited in a synchronizing call, or had not launched again yet"
    ),
    Leaf.ALLOCATION: LeafMeaning(
        "idle.alloc", "allocation", "the CPU was in cudaMalloc or cudaFree"
    ),
    Leaf.CUDA: LeafMeaning("idle.cuda", "other CUDA calls", "the CPU was in another CUDA call"),
    Leaf.HOST: LeafMeaning("idle.host", "CPU code", "the CPU ran the program's own code"),
    Leaf.INPUT: LeafMeaning("idle.input", "input", "the CPU waited for the next batch"),
    Leaf.WAIT: LeafMeaning("idle.wait", "CPU waiting", "the CPU waited: a lock, I/O, a sleep"),
    Leaf.SCHEDULER: LeafMeaning(
        "idle.scheduler", "no CPU core", "the launching thread wanted a core and had none"
    ),
    Leaf.COMPILE: LeafMeaning("idle.compile", "compile", "compiling or autotuning"),
    Leaf.RANK: LeafMeaning("idle.rank", "other rank", "only a collective waited for another rank"),
    Leaf.DEPENDENCY: LeafMeaning(
        "idle.dependency",
        "queued",
        "work was launched in time but not started: launch latency, a stream or event to wait for",
    ),
    Leaf.UNKNOWN: LeafMeaning("idle.unknown", "unknown", "the launch was not recorded"),
}

_OF_NUMBER = {int(leaf): leaf for leaf in Leaf}


def leaf_of_number(number: int) -> Leaf:
    """The leaf of a number in a recording; OTHER for one that a newer version may know."""
    return _OF_NUMBER.get(number, Leaf.OTHER)


LEAF_OF_KEY = {meaning.key: leaf for leaf, meaning in LEAVES.items()}

COPIES = (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED, Leaf.COPY_DEVICE)


def is_kernel(leaf: Leaf) -> bool:
    """Whether kernels of the process ran."""
    return not LEAVES[leaf].is_idle and leaf not in (*COPIES, Leaf.SHARED, Leaf.PEER)


_OF_CATEGORY = {
    "communication": Leaf.COMMUNICATION,
    "memory copy": Leaf.COPY_DEVICE,
    "triton fused": Leaf.ELEMENTWISE,
    "attention": Leaf.ATTENTION,
    "KV cache": Leaf.ATTENTION,
    "optimizer": Leaf.OPTIMIZER,
    "normalization": Leaf.NORMALIZATION,
    "softmax": Leaf.SOFTMAX,
    "matmul": Leaf.MATMUL,
    "copy": Leaf.ELEMENTWISE,
    "quantization": Leaf.ELEMENTWISE,
    "rotary embedding": Leaf.ELEMENTWISE,
    "random": Leaf.ELEMENTWISE,
    "elementwise": Leaf.ELEMENTWISE,
}

# Names of cuBLAS and CUTLASS kernels: `simt` and `ffma` run on the plain FP32 units, `f64f64` and
# `d884` on those for FP64, which have tensor cores of their own on some cards: no faster than FP32;
# `align1` and `align2` load 2 or 4 bytes at a time because a dimension is not a multiple of 8
# (CUTLASS's naming: kernels' operand alignment in elements). Convolutions by FFT and Winograd's way
# have kernels for FP32 beside their products.
_SIMT = re.compile(r"simt|ffma|scudnn|(?<![a-z])sgemm|f32f32_f32f32|magma_sgemm|gemmSN|sgemv", re.I)
_TENSOR = re.compile(r"tensorop|tf32|wgmma|hmma|s1688|s16816|nvjet", re.I)
_FP32_CONVOLUTION = re.compile(
    r"(fft2d_\w+|winograd\w*)<float|(DSE::\w*fft\w*|mult_and_sum_complex)<.*float2"
)
_DOUBLE = re.compile(r"f64f64|d884|(?<![a-z])dgemm|dgemv", re.I)
# PyTorch's softmax over up to 1,024 elements says by a template argument whether it is the
# logarithm: log2_elements, is_log_softmax, is_masked.
_LOSS = re.compile(r"log_?soft_?max|softmax_warp_\w+<[^<>]*, \d+, true", re.I)
_EXPERTS = re.compile(r"gemm|fused_moe|mul_mat|moe_mm|marlin", re.I)
_UNALIGNED = re.compile(r"align[12](?![0-9])")

CHANGES_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw", re.I)
"""cuDNN's kernels that transpose what convolutions take and give."""


def leaf_of_kernel(name: str) -> Leaf:
    """The leaf of a kernel by its demangled name."""
    of = category(name)
    leaf = _OF_CATEGORY.get(of, Leaf.OTHER)
    if of == "mixture of experts" and _EXPERTS.search(name):
        leaf = Leaf.MATMUL
    if leaf is Leaf.SOFTMAX and _LOSS.search(name):
        return Leaf.OTHER
    if leaf is Leaf.MATMUL:
        if _DOUBLE.search(name) or (_SIMT.search(name) and not _TENSOR.search(name)):
            return Leaf.MATMUL_SIMT
        if _FP32_CONVOLUTION.search(name):
            return Leaf.MATMUL_SIMT
        if _UNALIGNED.search(name):
            return Leaf.MATMUL_UNALIGNED
    return leaf


def idle_sum(leaves: Mapping[Leaf, int]) -> int:
    """The part of these times in which nothing ran."""
    return sum(ns for leaf, ns in leaves.items() if LEAVES[leaf].is_idle)
