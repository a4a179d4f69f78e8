"""Rules on names of kernels that no engine's rules match: by the words of common operators."""

from __future__ import annotations

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
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
            r"(?<![a-z])(log_?normal|normal|uniform|exponential|cauchy|geometric)_",
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
"""As those of `gputui.model.kernel_rules`, after which they come."""
