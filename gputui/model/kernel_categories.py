"""Kernel names → categories, by ordered rules on the demangled name.

The order matters: "mma" alone would match GammaBeta, flash kernels contain "cutlass", Inductor's
fused kernels are named after the operators they fuse. Rules ignore case.
"""

from __future__ import annotations

import functools
import re

OTHER = "other"

_RULES: tuple[tuple[str, str], ...] = (
    (
        "communication",
        r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|(one|two)_shot|nvshmem",
    ),
    ("memory copy", r"^\[?(cuda )?mem(cpy|set)"),
    ("triton fused", r"^triton_(poi|red|per|for)_"),
    (
        "attention",
        r"flash_(fwd|bwd|attn)|flash_?attention|fmha|sdpa|mha_(fwd|bwd|varlen)|attention"
        r"|flex_attention|preatt|compute_att|paged_att|reshape_and_cache"
        # What cuDNN's attention runs before and after its backward pass.
        r"|compute_dot_do_o|convert_dq_",
    ),
    (
        "optimizer",
        r"multi_tensor|fused_?(adam|sgd)|(?<![a-z])adamw?_|amp_foreach|amp_update_scale",
    ),
    (
        "normalization",
        r"layer_?norm|rms_?norm|gammabeta|rowwisemoments|batch_?norm|group_?norm"
        r"|computeinternalgradients|computefusedparams",
    ),
    ("softmax", r"soft_?max"),
    ("mixture of experts", r"(?<![a-z])moe|topk_?gating|expert"),
    ("loss", r"nll_loss|cross_entropy"),
    ("elementwise", r"subtensorop"),
    (
        "matmul",
        r"gemm|nvjet|cublas|cutlass|xmma|gemv|split_?k|matmul|(?<![a-z])bmm_|_tensorop_|wgmma"
        r"|umma|[hs](884|1688|16816|16832)|triton_(tem|mm)|cijk_|dot_kernel|reduce_1block"
        r"|conv(olution)?[0-9_]*(d|_kernel|fprop|dgrad|wgrad)|winograd|implicit_gemm|^kernel2?$",
    ),
    ("triton", r"^triton_"),
    (
        "copy",
        r"catarraybatched|direct_copy|copy_kernel|convertfp|transpose|permute|quantize"
        r"|(?<![a-z])cast_|copy_device_to_device",
    ),
    ("rotary embedding", r"rotary|rope"),
    ("random", r"philox|distribution_|curand|(?<![a-z])random|bernoulli|dropout"),
    ("sort", r"radix_?sort|(?<![a-z])sort|topk|mergesort"),
    ("scan", r"(?<![a-z])scan|cumsum|cumprod"),
    (
        "index",
        r"index|gather|scatter|embedding|(?<![a-z])tril|triu|arange|range_kernel"
        # The backward pass of an embedding.
        r"|compute_grad_weight|krn_partial",
    ),
    ("reduction", r"reduce|reduction|(?<![a-z])argm(ax|in)"),
    (
        "elementwise",
        r"elementwise|vectorized|pointwise|fill|activation|gelu|silu|relu|unrolled|foreach",
    ),
)
_PARENTHESIS = re.compile(r"[(|)]")
_OPTIONAL = re.compile(r"\(\?<!.*?\)|\([^()]*\)[*?]?|\[[^]]*\][*?]?|\\.[*?]?|.[*?]|[\^$]")


def _alternatives(pattern: str) -> list[tuple[str, re.Pattern[str] | None]]:
    """The alternatives of a pattern, each after a text that must be there for it to match.

    Looking for a plain text is a hundred times faster than for a pattern, and names may be long.
    None where the text is all.
    """
    parts, start, depth = [], 0, 0
    for found in _PARENTHESIS.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == "|" and not depth:
            parts.append(pattern[start : found.start()])
            start = found.end()
    parts.append(pattern[start:])
    needed = [max(_OPTIONAL.sub("\0", part).split("\0"), key=len) for part in parts]
    return [
        (text, None if text == part else re.compile(part))
        for text, part in zip(needed, parts, strict=True)
    ]


_COMPILED = tuple((category, _alternatives(pattern)) for category, pattern in _RULES)

CATEGORIES: tuple[str, ...] = (*dict.fromkeys(category for category, _ in _RULES), OTHER)
"""Every category, in the order of the rules; `other` is last."""


@functools.lru_cache(maxsize=65536)
def category(name: str) -> str:
    """The category of a kernel by its demangled name; "other" if no rule matches."""
    low = name.lower()
    for label, alternatives in _COMPILED:
        for needed, pattern in alternatives:
            if needed in low and (pattern is None or pattern.search(low)):
                return label
    return OTHER
