"""The category of a kernel by its name, ignoring case: by the user's rules first, then by those for
engines, then by those for the words of common operators. Also the kinds of collectives, by the
names of ranges and kernels, and what a kernel is called in little room."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from os.path import commonprefix

from gputui.base.sanitize import cell_width, cut_middle
from gputui.model.naming import short_name

# Rules on names of kernels that no engine's rules match: by the words of common operators.

OF_OPERATORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "rotary embedding",
        (
            r"rotary", r"rope(kernel)?(?![a-z])", r"kv_rot", r"apply_?rot",
        ),
    ),
    (
        "random",
        (
            r"philox", r"distribution_", r"curand", r"(?<![a-z])random", r"bernoulli", r"dropout",
            r"rng_", r"threefry",
            # But `input_exponential_reduce_fusion` of XLA.
            r"(?<![a-z_])(log_?normal|normal|uniform|exponential|cauchy|geometric)_",
            r"(?<![a-z])rand(n|int|perm)?_",
        ),
    ),
    (
        "copy",
        (
            r"catarraybatched", r"direct_copy", r"copy_kernel", r"convertfp", r"transpose",
            r"permute", r"(?<![a-z])cast_", r"copy_device_to_device", r"(?<![a-z])cpy_",
            r"copy_(contiguous|optimized|shared|async)", r"tonhwc", r"tonchw", r"concat", r"nchw",
            r"split_?(qkv|mod)", r"repeat", r"(un)?pad_", r"packunpack", r"unpack", r"memcpy",
            r"shift_partition", r"window_(partition|reverse)", r"to_(lowp|half|bf16|fp16|float)",
            r"rearrange", r"batched_transpose", r"bias_add_transform",
            r"(pixel|channel)_(un)?shuffle", r"mat_?trans", r"transform(_\d{3,}|\dd)",
            r"batch_?copy", r"copy\w*kernel",
            r"convert_(unary|from|to)", r"(?<![a-z])cat_",
            r"[hvd]?stack_", r"(?<![a-z])(slice|narrow|roll|flip|rot90|unfold|squeeze)_",
            r"^_?tile_", r"broadcast_to", r"as_strided", r"(replication|reflection|constant)_?pad",
        ),
    ),
    (
        "sort",
        (
            r"radix_?sort", r"(?<![a-z])sort", r"arg_?sort", r"top_?[k1](?!.*(indices|args))",
            r"mergesort", r"bitonic",
        ),
    ),
    (
        "scan",
        (
            r"(?<![a-z])scan", r"devicescan", r"cumsum", r"cumprod", r"prefix_?sum",
        ),
    ),
    (
        "index",
        (
            r"index", r"indices", r"gather", r"scatter", r"embed", r"(?<![a-z])tril?_", r"triu",
            r"arange", r"range_kernel", r"get_rows", r"set_rows", r"lookup", r"bucketize",
            r"seqidx", r"(?<![a-z])w[tp]e_", r"padd(ed|ing)_?offsets",
            r"encoder_(forward|backward)",
            r"nonzero", r"compactinit", r"(lru|lfu|ssd)_cache", r"diag_kernel", r"one_?hot",
            r"unique", r"k_set_", r"jagged",
            # The backward pass of an embedding.
            r"compute_grad_weight", r"krn_partial",
            # What cub compacts, and what tells the other kernels where to look.
            r"device(select|rle|partition)", r"slot_mapping", r"metadata",
            r"prepare_(meta|params?)", r"(?<![a-z])emb(?![a-z])", r"block_?(map|table)",
            r"searchsorted", r"(?<![a-z])(isin|take)_", r"(seq|cu)_?lens",
        ),
    ),
    (
        "reduction",
        (
            r"reduce", r"reduction", r"(?<![a-z])argm(ax|in)", r"(?<![a-z])sum_?", r"_sum(?![a-z])",
            r"mean_kernel", r"pool", r"(?<![a-z])dbias", r"median", r"count_inf",
        ),
    ),
    (
        "elementwise",
        (
            r"elementwise", r"vectorized", r"pointwise", r"fill", r"activation", r"gelu", r"silu",
            r"relu", r"unrolled", r"foreach", r"loop_.*fusion",
            r"^(input_.*|wrapped_.*)?fusion(_\d+)?$", r"bias", r"residual",
 
                      r"(?<![a-z])(add|mul|sub|div|scale|acc|clamp|scal|unary|binary|sigmoid|tanh|exp|neg|set|clear|act)_(?!.*gemm)",
            r"_(add|mul|scale|glu|sub)(_|$|<)", r"bin_bcast", r"softcap", r"packedtensor", r"axpy",
            r"vector_(add|set)", r"diag_mask", r"snake", r"upscale", r"upsample", r"bilinear",
            r"divide_by",
        ),
    ),
    (
        "normalization",
        (
            r"(?<![a-z])bn_", r"renorm", r"_norm(?![a-z])", r"(?<![a-z])normalize",
        ),
    ),
    (
        "copy",
        (
            r"copy", r"cast(?![a-z])", r"castkernel", r"(?<![a-z])pack_",
        ),
    ),
    (
        "reduction",
        (
            r"(?<![a-z])(max|min|amin|aminmax|minmax|prod|mean|var|std|nansum|trace|all|any)_",
            r"histogram", r"(?<![a-z])hist(c)?_", r"bincount", r"quantile", r"welford",
            r"distance", r"(?<![a-z])p?dist_", r"segmentfixup", r"l[12]_global",
            r"(?<![a-z])count_",
        ),
    ),
    (
        "elementwise",
        (
            # The operators of array libraries, by their names.
            r"(?<![a-z])(pow|r?sqrt|sqr|square[dr]?|abs(olute)?|reciprocal)_",
            r"(?<![a-z])(exp2|expm1|log1p|log2|log10)_",
            r"(?<![a-z])(arc|a)?(sin|cos|tan)h?2?_", r"(?<![a-z])(erf|erfc|erfinv|lgamma|digamma)_",
 
                      r"(?<![a-z])(floor|ceil|round|trunc|frac|sign|sgn|remainder|fmod|fmax|fmin|hypot|lerp)_",
            r"(?<![a-z])(maximum|minimum|xlogy|gcd|lcm|nextafter|multiply|addcmul|addcdiv|where)_",
            r"(?<![a-z])(eq|ne|lt|gt|le|ge|equal|greater|less|logical|bitwise|invert|not)_",
            r"cupy_(subtract|true_divide|floor_divide|power)_",
            r"(?<![a-z])[lr]?shift_", r"(?<![a-z])(celu|elu|selu|mish|prelu|softplus|threshold)_",
            r"(hard|soft|tanh|log)(swish|sigmoid|tanh|shrink)", r"softplus", r"igamma", r"bessel",
            r"polynomial", r"(?<![a-z])(zero|zeros|ones|full|empty|conj|polar|real|imag|logit)_",
            r"mask(ed)?_update", r"(apply|add)_?mask", r"mask_(fill|apply)", r"blend",
            r"(?<![a-z])(fast|quick)_add",
            r"interpolat", r"gate(d)?_?scale",
        ),
    ),
)  # fmt: skip
"""As those of `gputui.model.kernel_categories`, after which they come."""


# Which kernel names stand for which kind of work: the rules, as data.
#
# Each rule is a category and patterns, regular expressions on the demangled name in lower case.
# The first rule with a pattern that matches decides, so that special names stand before general
# ones: flash kernels contain "cutlass", FBGEMM's contain "gemm", Inductor's are named after the
# operators they fuse. `tests/data/kernel_names.csv` has names of public engines, with their
# categories.

_OF_ENGINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "communication",
        (
            r"nccl", r"nvshmem", r"deep_ep", r"(?<!block_)(?<!warp_)all_?reduce",
            r"all_?gather", r"reduce_?scatter",
            r"all_?to_?all", r"alltoall", r"all2all", r"cross_device_reduce", r"(one|two)_?shot",
            r"nvls", r"multimem", r"userbuffers", r"hybrid_?ep", r"symm_mem", r"lamport",
            r"::comm::", r"send_?recv", r"quick_?reduce", r"oneccl", r"(?<![a-z])barrier",
            r"reshardkernel", r"ubx_kernel", r"low_latency", r"combine_(intra|inter)node",
            r"_ll(128)?_", r"onerank",
            r"ggml_cuda_ar_",
        ),
    ),
    (
        "memory copy",
        (
            r"^\[?(cuda )?mem(cpy|set)",
        ),
    ),
    (
        "triton fused",
        (
            r"^triton_(poi|red|per|for)_",
        ),
    ),
    (
        "index",
        (
            r"split_embedding", r"embedding_codegen",
        ),
    ),
    (
        "loss",
        (
            r"cross_?entropy", r"xentropy", r"nll_loss", r"nllloss", r"kl_?div", r"_jsd_",
            r"(?<![a-z])loss", r"tv_distance", r"fused_classifier",
            r"_ce_(fwd|bwd|forward|backward)",
        ),
    ),
    (
        "KV cache",
        (
            r"reshape_and_cache", r"concat_and_cache", r"append_?paged", r"(swap|copy)_blocks",
            r"copy_kv", r"copy_page_indices", r"flatten_?kv",
            r"(gather|update|append|store|write|copy)_(kv_?)?cache",
            r"kv_?cache_(copy|write|store|append|update|scatter)", r"transfer_kv", r"kv_trans_",
            r"uncompact_caches", r"set_kv_buffer", r"(write|store|process|move)_?kv",
            r"kv_?cache_?manager", r"destindex_copy", r"quantize_kv", r"to_q_kv", r"q_to_fp16_kv",
            # FlashInfer's prefill names the cache, too, and is attention.
            r"^(?!.*(att|mha|mla|flash|rope|rot|gemm|norm|with_?(paged|ragged)?_?kv)).*kv_?cache",
            r"to_kv?cache",
            r"insert_kv?(?![a-z])", r"(append|update|refresh|rewind|evict)_(kv_?)?cache",
            r"kv_(update|append|insert)", r"ring_append", r"paged_cache",
            r"(?<![a-z])cache_select", r"cache_rotate", r"copykvcache",
            r"kvcachecopy",
            r"updatekvcache", r"appendkv",
        ),
    ),
    (
        "state space",
        (
            r"selective_(scan|state)", r"mamba", r"rwkv", r"wkv", r"linear_?att", r"lightning_att",
            r"delta_?rule", r"gated_delta", r"fused_recurrent", r"chunk_(bwd|fwd|gla|kda)",
            r"chunk_(scan|state|dplr|delta|local)", r"chunk_(o_|h_|mesa|simple)",
            r"chunk_(comba|transform|precond|retention|linear)", r"(?<![a-z])kda(?![a-z])",
            r"(?<![a-z])gd[nr](?![a-z])", r"segsum", r"state_passing", r"wy_(repr|fast)",
            r"ssm_(scan|conv)", r"causal_conv1d", r"bmm_chunk", r"chunk_cumsum",
            r"(?<![a-z])(dadt|ddt|dtrap)(?![a-z])", r"state_select", r"(?<![a-z])wu_(fwd|bwd)",
            r"_inverse_kernel", r"parallel_based", r"(?<![a-z])gla(?![a-z])", r"hgrn", r"angle_dt",
            r"kkt", r"solve_tri", r"sm90gdr", r"fusedgdr", r"recompute_w_u", r"delta_net",
            r"(?<![a-z])ssm(?![a-z])",
        ),
    ),
    (
        "attention",
        (
            r"flash_?(fwd|bwd|attn|att|decode|mla)", r"fmha", r"sdpa", r"mha_(fwd|bwd|varlen)",
            r"(?<!neighborhood_)attention", r"preatt", r"compute_att", r"paged_?att",
            r"(prefill|decode)_?with_?(paged|ragged)?_?kv", r"singleprefill",
            r"merge_?(attn_)?states?", r"(?<![a-z])attn_(fwd|bwd|score|kernel|inner|res)",
            r"(?<![a-z])mla(?![a-z])", r"xqa", r"kernel_mha", r"masked_?multi_?head", r"split_?kv",
            r"flash_decode", r"_(fwd|bwd)_(grouped_)?kernel_(stage|alibi|batch|one_col|with_v)",
            r"bwd_preprocess", r"parallel_nsa", r"dk_?dv", r"attn_?score", r"int8kv",
            r"sage_(fwd|bwd|att)", r"(?<![a-z])att(?![a-z])", r"prepare_varlen", r"kv2q",
            r"neighborhood",
            # What cuDNN's attention runs before and after its backward pass.
            r"^(?!.*(soft_?max|transpose|rope|norm)).*(?<![a-z])attn(?![a-z])",
            r"(?<![a-z])fna\dd", r"flash_?decod", r"^(?!.*rope).*(?<![a-z])[mg]qa(?![a-z])",
            r"bwd_(kernel_)?(dq|dkv|dk)(?![a-z])",
            r"compute_dot_do_o", r"convert_dq_", r"convert_dkv", r"computelsefrom", r"cunn_?attn",
        ),
    ),
    (
        "mixture of experts",
        (
            r"(?<![a-z])moe", r"[a-z]moe(?![a-z])", r"top_?k_?gating", r"expert", r"grouped_topk",
            r"routing", r"router", r"routes", r"(un)?permute_tokens?", r"ep_(gather|scatter)",
            r"row_id_map", r"noaux_tc", r"(pre|post)_?reorder", r"src2dst", r"top_?k_?ids",
            r"expandinputrows", r"sinkhorn", r"sparse_?mixer", r"moe(align|permute|softmax)",
            r"(?<!online_)softmax\d*_topk",
        ),
    ),
    (
        "sampling",
        (
            r"sampling", r"penal", r"repetition", r"multinomial", r"(bad|stop)_?words", r"beam_",
            r"top_?p(?![a-z])", r"topp", r"min_?p_", r"speculative", r"rejection", r"bitmask",
            r"gumbel", r"min_length", r"logits_?proc", r"(?<!grid)_sample_",
            r"top_?[kp]_?renorm", r"mask_?logits", r"beam_?stage", r"spec_?decode", r"draft_?\d?t",
            r"(?<![a-z])mtp", r"cum_?log_?probs", r"populate.*token", r"log_?probs?_kernel",
            r"verify_tree", r"token_id_counter",
        ),
    ),
    (
        "optimizer",
        (
            r"multi_tensor_(?!(un)?swizzle|transpose)", r"fused_?(adam|sgd|lamb|adagrad)",
            r"(?<![a-z])adamw?_", r"amp_foreach", r"amp_update_scale", r"optimizer", r"_adam_",
            r"adafactor", r"reset_weight_momentum", r"(?<![a-z])lamb_", r"adagrad",
            r"update_scale_hysteresis",
        ),
    ),
    (
        "normalization",
        (
            r"layer_?norm", r"rms_?norm", r"gammabeta", r"rowwisemoments", r"batch_?norm",
            r"group_?norm", r"instance_?norm", r"l2_?norm",
            r"(?<![a-z])ln_(fwd|bwd|parallel|i32|i8)",
            r"(?<![a-z])bn_(fw|bw)", r"head_norm", r"qk_?norm",
            r"(?<![a-z])norm_(fwd|bwd|kernel|f32)", r"computeinternalgradients",
            r"computefusedparams", r"poly_norm", r"cucomputegradinput", r"_dyt_",
        ),
    ),
    (
        "softmax",
        (
            r"soft_?max", r"sparsemax",
        ),
    ),
    (
        "matmul",
        (
            r"(?<![a-z])bmm_", r"dse::\w*fft", r"mult_and_sum_complex",
        ),
    ),
    (
        "reduction",
        (
            r"(?<![a-z])[a-z]*pool(\d?d)?_", r"average_pool", r"backward_bias", r"global_norm",
        ),
    ),
    (
        "elementwise",
        (
            r"subtensorop", r"(sigmoid|tanh|relu)_[fb]prop", r"_fg_kernel", r"_dwf_dw_dfg_",
            r"_(approx|exact)_(forward|backward)_kernel", r"(act|silu|gelu|relu)_and_mul",
            r"swiglu", r"geglu", r"(act|silu|gelu|relu)_mul(?!.*quant)", r"grid_?sample",
        ),
    ),
    (
        "quantization",
        (
            r"silu_mul.*quant", r"dequant(?!.*(mul_mat|gemv|matmul))", r"dequatize",
            r"(?<![a-z])quant(?![a-z])(?!.*(gemm|matmul))",
            r"(?<!de)quantiz(e(?!d_(mat|gemm|lin))|ation)", r"(?<![a-z])quant(int|fp)",
            r"(?<![a-z])had_",
            r"act_quant", r"_quant_kernel", r"vectorquant", r"repack", r"reconstruct", r"hadamard",
            r"fwht", r"cast_(transpose|fp8|mxfp8|nvfp4|gated)", r"cast_transpose", r"amax",
            r"scale_inv", r"qparam", r"(convert|to)_(fp8|hfp8|nvfp4|mxfp8)", r"mx_blocked",
            r"fp8rowwise", r"fp8_to_fp16", r"make_sequential",
            r"(?<!pixel_)(?<!channel_)(?<!un)shuffle_(kernel|\dbit)",
            r"pack_(rows|window)", r"to_marlin", r"marlin.*preprocess", r"permute_cols",
            r"scaling_kernel", r"fp8_rowwise", r"column_remap", r"msfp", r"colwise_scales",
        ),
    ),
    (
        "index",
        (
            r"fbgemm_gpu::.*(permute|bucketize|index|lookup|offsets|jagged|zch|indices)",
            r"get_(g|group_)?gemm_starts", r"bounds_check",
        ),
    ),
    (
        "matmul",
        (
            r"(?<!fb)gemm", r"nvjet", r"cublas", r"cutlass", r"xmma", r"gemv", r"split_?k",
            r"mat_?mul", r"mul_mat", r"(?<![a-z])bmm_", r"_tensorop_", r"wgmma", r"(?<![a-z])umma",
            r"(?<![a-z0-9])[hs](884|1688|16816|16832)", r"triton_(tem|mm)", r"cijk_", r"dot_kernel",
            r"reduce_1block", r"conv(olution)?[0-9_]*(d|_kernel|fprop|dgrad|wgrad)", r"winograd",
            r"^kernel2?$", r"marlin", r"machete", r"scaled_mm", r"(?<![a-z])mm_kernel", r"wvsplitk",
            r"[bs]gmv_(shrink|expand)", r"lora_(shrink|expand)", r"linear_kernel", r"scudnn",
            r"(dgrad|wgrad|fprop)", r"im2?d?2?col", r"epilogue::impl", r"fft2d_",
            r"mul_mat_(q|vec|f)", r"compute(b|wgradb|wgradsplitk)?offsets", r"nuq\d?matmul",
            r"aqlm", r"_xdl_", r"sparse24_apply_dense", r"ldkmultiplication", r"trimul",
        ),
    ),
    (
        "matmul",
        (
            r"(?<![a-z])(mm|mv|smm|addmm|addmv|baddbmm|i8mm|spmm|syrk)_", r"spmv", r"_mm$",
            r"w\da\d+",
        ),
    ),
    (
        "triton",
        (
            r"^triton_",
        ),
    ),
    (
        "quantization",
        (
            r"abs_?max", r"mxfp\d", r"nvfp4", r"ue8m0", r"(?<![a-z])fp[48](?![0-9])",
            r"scale_activations", r"pack_.*weight", r"pack_(4bit|int4)", r"e2m1",
        ),
    ),
)  # fmt: skip

RULES = _OF_ENGINES + OF_OPERATORS


OTHER = "other"

_GROUP = re.compile(r"\([^()]*\)[*?]?")
_OPTIONAL = re.compile(r"\[[^]]*\][*?]?|\\.[*?]?|.[*?]|[\^$|]")


def _needing(pattern: str) -> tuple[str, str | None]:
    """A pattern, after a text that must be there for it to match; None where the text is all.

    Looking for a plain text is a hundred times faster than for a pattern, and names may be long.
    """
    plain, groups = pattern, 1
    while groups:  # the innermost first
        plain, groups = _GROUP.subn("\0", plain)
    literals = [] if "|" in plain else _OPTIONAL.sub("\0", plain).split("\0")
    text = max(literals, key=len, default="")
    return text, None if text == pattern else pattern


@functools.cache
def _rules() -> tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...]:
    return tuple((category, tuple(map(_needing, patterns))) for category, patterns in RULES)


# Patterns are compiled when a name may match: all of them would take as long as a first frame.
_compiled = functools.cache(re.compile)


# Characters of a name: what follows are further arguments of templates, thousands of them.
_LOOKED_AT = 600

_own: list[tuple[re.Pattern[str], str]] = []


def configure(rules: Sequence[tuple[re.Pattern[str], str]]) -> None:
    """Makes these rules, pairs of a pattern and its category, come before gputui's own from here
    on."""
    _own[:] = rules
    category.cache_clear()


@functools.lru_cache(maxsize=65536)
def category(name: str) -> str:
    """The category of a kernel by its demangled name; "other" if no rule matches."""
    for pattern, label in _own:
        if pattern.search(name):
            return label
    # Templates make names of thousands of letters; what tells them apart comes first.
    low = name[:_LOOKED_AT].lower()
    for label, alternatives in _rules():
        for needed, rest in alternatives:
            # A pattern is compiled once a name has the letters that it needs: compiling all of them
            # took a good part of a start.
            if needed in low and (rest is None or _compiled(rest).search(low)):
                return label
    return OTHER


# --- Collectives: what they are called, which of them make ranks wait, how much a link carries.

SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have come. From a broadcast, a reduce or a send a rank may
leave early, or wait for one peer only."""

OF_SHARES = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
"""NCCL's message size is one rank's share of these."""

_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast",
    "barrier": "barrier", "reduce": "reduce", "send": "send", "recv": "recv", "scatter": "scatter",
    "gather": "gather",
}  # fmt: skip
_NCCL_KERNEL = re.compile(r"^(?:void )?nccl[A-Za-z]*Kernel_([A-Za-z]+)")


def kind_of(name: str) -> str:
    """What a range does that bears a collective's name, as NCCL's "ncclAllReduce" or torch's
    "all_reduce"; "other" if it is none."""
    word = re.sub(r"^nccl|^gloo:|[^a-z]", "", name.lower())
    return _COLLECTIVES.get(word, OTHER)


def kind_of_kernel(name: str) -> str | None:
    """What a kernel of NCCL does by its demangled name; None if it is none of NCCL's."""
    match = _NCCL_KERNEL.match(name)
    return kind_of(match[1]) if match else None


def size_class(size_bytes: int) -> int:
    """Powers of two: messages of 2ⁿ up to 2ⁿ⁺¹ bytes are of class n + 1, without a size 0."""
    return max(0, size_bytes).bit_length()


def total_bytes(kind: str, message_bytes: int, ranks: int) -> int:
    """The size that bandwidths refer to (nccl-tests, PERFORMANCE.md), of NCCL's message size."""
    return message_bytes * ranks if kind in OF_SHARES else message_bytes


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes that each rank sends a byte of the total size, with an algorithm of point-to-point
    steps (nccl-tests, PERFORMANCE.md)."""
    if ranks < 2:
        return 0.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in OF_SHARES:
        return (ranks - 1) / ranks
    return 1.0


# Names of kernels in little room: cut in the middle, and no two alike.

_PARTS = re.compile(r"[A-Za-z_]\w*|\d+")
_PLAIN = frozenset(
    ("void", "at", "native", "anonymous", "namespace", "const", "int", "unsigned", "long", "char",
     "bool", "std", "detail", "c10", "cub", "thrust", "cutlass", "Params", "operator", "array")
)  # fmt: skip
_MOST_PARTS = 3
_WRAPPERS = re.compile(
    r"^CUDAFunctor_|_(kernel|impl|cuda|nocast)\b|(_kernel)?(_impl|_cuda)*$|Functor$"
)
"""What PyTorch puts around the name of an operation: the middle of `direct_copy_kernel_cuda`
remains where the whole would be cut."""

_SAYS_NOTHING = re.compile(
    r"TensorIterator|lambda|gpu_kernel_impl|[AB]?UnaryFunctor|BinaryFunctor|LoadWithCast"
    r"|StoreWithCast|TrivialOffsetCalculator|ScalarType|func_wrapper_t"
)
"""Words that tell two kernels apart without saying what either does: where there are others they
are not shown."""


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """Texts cut in the middle to `width` cells; those that would then read alike keep the part in
    which they differ."""
    cut = [cut_middle(text, width) for text in texts]
    alike: dict[str, set[str]] = {}
    for text, shown in zip(texts, cut, strict=True):
        alike.setdefault(shown, set()).add(text)
    for number, (text, shown) in enumerate(zip(texts, cut, strict=True)):
        if len(alike[shown]) > 1 and width >= _LEAST_APART:
            same, head = len(commonprefix([*alike[shown]])), width // 3
            rest = text[max(head, same - 2) :]
            cut[number] = f"{text[:head]}…{cut_middle(rest.lstrip('…'), width - head - 1)}"
    return cut


_LEAST_APART = 12


# What names of NVIDIA's products say of no use, in which their formats were cut away.
_XMMA = re.compile(
    r"^sm\d+_xmma_|_nhwckrsc|_g1|_warpgroupsize[\dx]+|_execute|_segment_k_off|_strided_kernel$|_kernel(?:__\w+)?$"
)
_OF_CUTLASS = re.compile(r"\b[Kk]ernel2?<(\w+)|6KernelI.*?\d(Implicit[A-Z]\w+?)I")


def _told_short(name: str) -> str:
    """A kernel's own name, with as little around its operation, format and size as can be."""
    short = short_name(name)
    if "_xmma_" in short:
        return _XMMA.sub("", short).replace("tilesize", "")
    its = (
        _OF_CUTLASS.search(name)
        if short in ("Kernel", "Kernel2", "kernel") or short[:2] == "_Z"
        else None
    )
    return next(filter(None, its.groups()), short) if its else short


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Kernels' own names; those that share one get the words of their full names that tell them
    apart, and what still reads alike gets a number."""
    shorts = [_told_short(name) for name in names]
    groups: dict[str, list[str]] = {}
    for name, short in zip(names, shorts, strict=True):
        groups.setdefault(short, []).append(name)
    occurs = {
        short: Counter(part for name in group for part in dict.fromkeys(_PARTS.findall(name)))
        for short, group in groups.items()
        if len(group) > 1
    }
    named: list[str] = []
    for name, short in zip(names, shorts, strict=True):
        if short not in occurs:
            named.append(cut_middle(short, width))
            continue
        many, seen_in = len(groups[short]), occurs[short]
        own = [part for part in dict.fromkeys(_PARTS.findall(name)) if part not in _PLAIN]
        apart = sorted(
            (part for part in own if seen_in[part] < many),
            key=lambda part: (part.isdecimal(), seen_in[part]),
        )
        apart = [part for part in apart if not _SAYS_NOTHING.match(part)] or apart
        words = [*dict.fromkeys(_WRAPPERS.sub("", part) or part for part in apart)][:_MOST_PARTS]
        room = max(10, width * 2 // 3)
        while len(words) > 1 and cell_width(" ".join(words)) + 3 > room:
            words.pop()
        label = cut_middle(f" ‹{' '.join(words)}›" if words else "", room)
        named.append(cut_middle(short, max(8, width - cell_width(label))) + label)
    seen: Counter[str] = Counter()
    repeated = Counter(named)
    result = []
    for text in named:
        if repeated[text] > 1:  # numbered as cut: what is cut further may read like others
            text = cut_middle(text, width - len(" #99"))
            seen[text] += 1
            text += f" #{seen[text]}"
        result.append(text)
    return result
