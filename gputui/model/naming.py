"""Names of calls, kernels, copies, NVTX domains and ranges: how they are made readable, and what
they reveal.

Attribution names with these functions what it captured, and importers use the same to arrive at the
same names. The first frame of the screen waits for this module, so it imports nothing heavy.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from gputui.base.sanitize import sanitize

# Readable names: demangled kernels; calls and memory operations as nsys names them.

MAX_NAME = 4096
"""Longer names are cut and marked: Eigen and CUTLASS come near this."""

MAX_MANGLED = 16_384
"""Longer mangled names are not demangled."""

DEVICE_TO_HOST = "Device-to-Host"

COPY_KINDS = {
    1: "Host-to-Device", 2: DEVICE_TO_HOST, 3: "Host-to-Array", 4: "Array-to-Host",
    5: "Array-to-Array", 6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device",
    9: "Host-to-Host", 10: "Peer-to-Peer", 11: "Unified Host-to-Device",
    12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind; from 11 on nsys's ENUM_CUDA_MEMCPY_OPER, for what unified memory moved
by itself.
"""

UNIFIED_COPIES = 11
"""Copies of this kind and above are no call's."""

MEMORY_KINDS = {
    1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static",
    7: "managed static",
}  # fmt: skip
"""CUpti_ActivityMemoryKind."""

MEMSET = "[CUDA memset]"

# Compiled when a name is read: the start pays for none of it. These, those below and the rules of
# engines took 5 of the 12 ms that importing names took.
_compiled = functools.cache(re.compile)

STEP_PATTERNS = tuple(
    rf"(?i){pattern}[\s#_:=]*\d*"
    for pattern in (
        r"(train|training|optimization|decode|generate|inference|engine)[\s_]?step",
        r"step",
        r"ProfilerStep\*?",
        r"(train|training)?[\s_]?iter(ation)?",
        r"(train|training)?[\s_]?batch",
    )
)
"""Common names of the range that is one step, the likeliest first."""

# Larger than any rank, so that the least of several is the likeliest step.
NOT_A_STEP = 1 << 30

_FOUR_DIGIT_VERSION = re.compile(r"_v\d{4}$")
_LAUNCH_SHIM = re.compile(r"^__(cuda\w+?)(_ptsz)?_v\d+$")
_LAUNCHES = re.compile(r"launch(?!HostFunc)|memcpy|memset", re.IGNORECASE)


def api_name(name: str) -> str:
    """A CUDA call as nsys prints it: `_v` and four digits dropped, five digits kept.

    Since CUDA 13 `cudaLaunchKernel` reaches CUPTI as `__cudaLaunchKernel_v13000`.
    """
    name = sanitize(name, MAX_NAME)
    if shim := _LAUNCH_SHIM.match(name):
        return shim[1] + (shim[2] or "")
    return _FOUR_DIGIT_VERSION.sub("", name)


def is_launch(name: str) -> bool:
    """Whether a call of this name puts work on a GPU, so that an operation should follow."""
    return _LAUNCHES.search(name) is not None


def is_synchronization(name: str) -> bool:
    """Whether a CUDA call of this name does nothing but wait for a GPU."""
    return "Synchronize" in name


def copy_name(kind: int) -> str:
    """A copy as nsys prints it."""
    return f"[CUDA memcpy {COPY_KINDS.get(kind, 'Unknown')}]"


def step_rank(name: str, step_range: str | None) -> int:
    """How likely a range of this name is the step: 0 is likeliest, NOT_A_STEP is none."""
    if step_range is not None:
        return 0 if name == step_range else NOT_A_STEP
    for rank, pattern in enumerate(STEP_PATTERNS):
        if _compiled(pattern).fullmatch(name):
            return rank
    of_engine = read_engine_range(name)
    if of_engine is not None and of_engine.step_rank is not None:
        return of_engine.step_rank
    return NOT_A_STEP


def demangle(mangled: str) -> str:
    """A C++ symbol demangled and sanitized; anything else only sanitized.

    Beyond MAX_NAME it ends in its length and a checksum of the symbol.
    """
    demangler = _demangler()
    text = mangled
    if demangler is not None and mangled.startswith("_Z") and len(mangled) <= MAX_MANGLED:
        text = demangler(mangled) or mangled
    if len(text) <= MAX_NAME:
        return sanitize(text, MAX_NAME)
    # Kernels that differ only further on stay distinct.
    mark = f"… [{len(text)} characters, {zlib.crc32(mangled.encode('utf-8', 'replace')):08x}]"
    return sanitize(text[: MAX_NAME - len(mark)]) + mark


@functools.cache
def _demangler() -> Callable[[str], str | None] | None:
    try:
        library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
        function = library.__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.restype = None
    free.argtypes = [ctypes.c_void_p]

    def demangle_with_libstdcxx(mangled: str) -> str | None:
        status = ctypes.c_int(-1)
        encoded = mangled.encode("utf-8", "replace")
        address = function(encoded, None, None, ctypes.byref(status))
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            free(address)

    return demangle_with_libstdcxx


LIBRARY_DOMAINS = (
    "nccl", "cccl", "cub", "thrust", "cublas", "cudnn", "cusparse", "cusolver", "cufft",
    "curand", "cutensor", "nvshmem", "ucx", "tensorrt", "nvjpeg", "cudf",
)  # fmt: skip
"""Prefixes of the domains in which NVIDIA's libraries annotate their own work."""

NO_NAME = "(no name)"
"""Replaces the empty string, and the missing message of a range or mark."""

OF_ONE_NAME = "of that name)"
"""Ends the name of several kernels in a table for people."""

PROFILER_STEP = "ProfilerStep"
"""torch.profiler's name of a step, which it follows with # and a number."""

OPERATOR_CATEGORY = "operator"
"""The category of ranges that a framework's profiler put around its operators."""

_KERNEL_LAUNCHES = re.compile(
    r"^(cudaLaunch(?!HostFunc)|cuLaunch(?!HostFunc)|cudaGraphLaunch|cuGraphLaunch)"
)

_MANY_KERNELS = re.compile("GraphLaunch|MultiDevice")


def is_library_domain(domain: str) -> bool:
    """Whether a domain belongs to a library rather than to the program."""
    return domain.lower().startswith(LIBRARY_DOMAINS)


def is_kernel_launch(call: str) -> bool:
    """Whether a CUDA call of this name puts kernels on a GPU.

    A graph launch is one call, however many nodes it has.
    """
    return _KERNEL_LAUNCHES.match(call) is not None


def launches_one_kernel(call: str) -> bool:
    """Whether a CUDA call of this name puts exactly one kernel on a GPU."""
    return is_kernel_launch(call) and not _MANY_KERNELS.search(call)


# One pass over the brackets: 20,000 names of 3,000 letters took minutes when each pattern ran over
# each letter.
_BRACKET = re.compile("[<>(]")


@functools.lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template or call arguments.

    Like nsys's `:base` names: `void at::native::elementwise_kernel<128, …>(int, …)` becomes
    `elementwise_kernel`. A name that is not C++ is unchanged.
    """
    depth = 0
    end = len(name)
    anonymous = "(anonymous namespace)"
    text = name.replace(anonymous, "@" * len(anonymous))
    for bracket in _BRACKET.finditer(text):
        i, character = bracket.start(), bracket[0]
        if character == "<":
            if depth == 0:
                end = min(end, i)
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
            if depth == 0 and text[i + 1 : i + 3] == "::":
                end = len(name)
        elif character == "(" and depth == 0:
            end = min(end, i)
            break
    head = text[:end].rstrip()
    base = head.rsplit("::", 1)[-1] if depth == 0 or "<" not in head else head
    base = base.rsplit(" ", 1)[-1] if not name.startswith("[") else name
    return base.replace("@" * len(anonymous), anonymous) or name


def command_key(kind: str | None, name: str | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """What the runs of one command have in common: a workload's name, or a program with its script,
    and with the scripts behind that: a wrapper runs programs that otherwise have nothing in
    common."""
    if kind == "command":
        return (
            "command",
            *arguments[:2],
            *(argument for argument in arguments[2:] if argument.endswith(".py")),
        )
    return (kind or "", name or "")


def operands(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that are neither options, nor what follows one, nor numbers: with
    others a program may do other work."""
    before = ("", *arguments)
    return tuple(
        word
        for word, last in zip(arguments, before, strict=False)
        # Options, their values and numbers do not make another step: what a compiler makes of a
        # program has other kernels, too.
        if not word.startswith("-") and not last.startswith("-") and not _NUMBER.fullmatch(word)
    )


_NUMBER = re.compile(r"[\d.,eE+-]+")


# Names of ranges that number themselves: which numbers say what a range is, and which only when.
#
# `Step 3` and `Step 4` are one phase at two moments; `h.0` and `h.1` are two modules. What stands
# before a number decides, and how many siblings differ in nothing else:
#
# 1. *Of an instance*, always folded: annotations (`aten::to, seq = 46013, op_id = 993413`,
#    `sizes = [[2, 3]]`), hexadecimal ids, UUIDs, numbers of seven digits, sizes in brackets, and
#    numbers after a word that counts (`Step 3`, `iter_7`, `ProfilerStep#12`, `request 4`).
# 2. *Free*, as in `Compute 260`: folded where more than MOST_FREE siblings differ only in such
#    numbers. Fewer may be different things: `test 1`, `test 2`.
# 3. *Of a part*, as in `h.0`, `layers[3]`, `expert 7`, `conv2`: an index into a structure, in
#    dotted or bracketed notation, after a word that names a part, or written onto a name. Folded
#    only where more than MOST_PARTS siblings differ in nothing else.
#
# Numbers that are folded become `#`; annotations are dropped. Names that an engine made are read by
# its rules instead (`engine_ranges`): there numbers say which stage a step is.


MOST_FREE = 8
MOST_PARTS = 256
"""No model has as many layers; the largest have 256 experts in one."""

# Words before a number that counts instances; longer ones may end in these: ProfilerStep.
_COUNTS = (
    "step", "iter", "iteration", "batch", "epoch", "token", "request", "sample", "prompt", "frame",
    "tick", "episode", "sequence",
)  # fmt: skip

_SHORT_COUNTS = {"req", "seq", "op", "id"}

# Words before a number that tells parts apart.
_PARTS = (
    "layer", "layers", "block", "blocks", "head", "heads", "expert", "experts", "stage", "rank",
    "gpu", "cuda", "device", "stream", "worker", "thread", "process", "pid", "node", "shard",
    "partition", "level", "bucket", "group", "module", "stack", "unit",
)  # fmt: skip

_ANNOTATION = (
    r",\s{0,4}[A-Za-z_][A-Za-z_ ]{0,30}(?:=[\d\s,.\[\]()x×-]*)?…$"  # of a name that was cut
    r"|,\s{0,4}[A-Za-z_][A-Za-z_ ]{0,30}=\s{0,4}(?:-?\d[\d.]*|[\[(][\d\s,.\[\]()x×-]*[\])])"
)
_ID = (
    r"0x[0-9a-fA-F]+"
    r"|(?<![0-9A-Za-z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z.])\d{7,}(?![0-9A-Za-z])"
)
_SIZES = r"\[[\s\[\](,]*\d+(?:[\s\[\]()]*[,x×][\s\[\]()]*\d+)+[\s\[\]),]*\]"
_NUMBER_IN_NAME = (
    r"(?P<word>[A-Za-z]*)(?P<between>[\s#:=_./(\[-]{0,4})"
    r"(?P<number>\d+(?:x\d+)*)(?P<after>[A-Za-z]?)"
)


class _Levels(NamedTuple):
    """A name without numbers of an instance; without free ones too; without any."""

    instance: str
    free: str
    part: str


@lru_cache(maxsize=1 << 15)
def _levels(name: str) -> _Levels:
    if not name.endswith("#") and not any(map(str.isdigit, name)):
        return _Levels(name, name, name)
    if (of_engine := read_engine_range(name)) is not None:
        return _Levels(of_engine.name, of_engine.name, of_engine.name)
    if (of_xla := xla_range(name)) is not None:
        return _Levels(of_xla, of_xla, of_xla)
    plain = _compiled(_ID).sub("#", _compiled(_ANNOTATION).sub("", name))
    plain = _compiled(_SIZES).sub("[#]", plain).rstrip() or "#"
    texts = ["", "", ""]
    end = 0
    for number in _compiled(_NUMBER_IN_NAME).finditer(plain):
        before, least = plain[end : number.start()], _level(number)
        short = f"{number['word']}{number['between'].rstrip('#')}#{number['after']}"
        for level in range(3):
            texts[level] += before + (number[0] if level < least else short)
        end = number.end()
    return _Levels(*(text + plain[end:] for text in texts))


def _level(number: re.Match[str]) -> int:
    word, between = number["word"].lower(), number["between"]
    counts = word.endswith(_COUNTS) or word in _SHORT_COUNTS
    if counts and not number["after"] and not between.endswith((".", "[")):
        return 0
    is_part = not between or between[-1] in ".[" or word.endswith(_PARTS) or number["after"]
    return 2 if is_part and word else 1


TOO_MANY = "(too many ranges)"
"""The name of what stands for ranges of which there is no room for names."""

XLA_DOMAIN = "TSL"
"""The NVTX domain of XLA's own ranges."""

XLA_COMPILES = re.compile(r"Xla(?!Module)")
"""Ranges of XLA's compiler, of which a step has none."""

_XLA = re.compile(
    r"(?P<what>Xla\w+|Thunk):#(?:[^#]*?,)??(?:name|hlo_module|hlo_op|module)=(?P<of>[^,#]*)"
)


def xla_range(name: str) -> str | None:
    """What one of XLA's own ranges is of, without the numbers of one compilation: `jit_step` for
    `XlaModule:#hlo_module=jit_step,program_id=7#`, `XlaPass algsimp` for one of its compiler's;
    None for another range (tsl/profiler/lib/traceme_encode.h has the format)."""
    if (its := _XLA.match(name)) is None:
        return None
    if its["what"] in ("XlaModule", "Thunk"):
        return its["of"]
    return f"{its['what']} {its['of'].rstrip('.0123456789')}"


def without_numbers(name: str) -> str:
    """The name without any number. It is used where there are too many names to keep them apart."""
    return _levels(name).part


def sibling_names(ranges: Iterable[tuple[Hashable, str]]) -> dict[tuple[Hashable, str], str]:
    """The name of each range inside one phase, by (kind, name). Only ranges of one kind are
    siblings."""
    distinct = dict.fromkeys(ranges)
    levels = {raw: _levels(raw) for _, raw in distinct}
    names = {key: levels[key[1]].instance for key in distinct}
    for level, most in ((1, MOST_FREE), (2, MOST_PARTS)):
        groups: dict[tuple[Hashable, str], set[str]] = defaultdict(set)
        for (kind, raw), name in names.items():
            groups[kind, levels[raw][level]].add(name)
        many = {group for group, members in groups.items() if len(members) > most}
        if many:
            names = {
                (kind, raw): levels[raw][level] if (kind, levels[raw][level]) in many else name
                for (kind, raw), name in names.items()
            }
    return names


# --- Names of the ranges that serving engines and training frameworks put around their work: which
# is a step, which is prefill, decode or both, and the figures in a name, which are no phases.
#
# Each rule says where its names are made: repository and file, read in 2026. The continuous
# batching of transformers and torchtitan make no ranges: gputui's own hook names the turns of the
# one, and what modules do in both.

Stage = Literal[
    "prefill", "decode", "mixed", "denoise", "forward", "backward", "optimizer", "scheduler",
    "sampling", "tokenizer",
]  # fmt: skip

STAGES: tuple[Stage, ...] = (
    "prefill", "decode", "mixed", "denoise", "forward", "backward", "optimizer", "scheduler",
    "sampling", "tokenizer",
)  # fmt: skip
"""The stages in the order in which tables show them: first those that compute, then those of the
host for them."""


class EngineRange(NamedTuple):
    """What a range's name says. `figures` are by `requests`, `tokens`, `context_requests`,
    `context_tokens`, `generation_requests`, `generation_tokens`, `step` and `timestep`, where the
    name has them."""

    engine: str
    stage: Stage | None
    """None if the name does not show it: for outer ranges, and for empty batches."""
    name: str
    """The name without its figures; ranges that share it are one phase."""
    step_rank: int | None
    """0 for the range that is one step of the engine, 1 for the one that stands for a step where
    there is no such range; None for all others."""
    figures: Mapping[str, int]


class _Rule(NamedTuple):
    engine: str
    pattern: str
    stage: Stage | None | Callable[[re.Match[str]], Stage | None]
    source: str
    name: str = ""
    """How it is called without figures; "{stage}" stands for the stage. "": as it is."""
    step_rank: int | None = None


def _by_requests(match: re.Match[str]) -> Stage | None:
    """The stage by how many requests are in their prompts, and how many beyond."""
    groups = match.groupdict()
    if stage := groups.get("folded"):
        return _of_word(stage)
    context, generation = (
        int(groups.get(f"{kind}_requests") or 0) for kind in ("context", "generation")
    )
    if context:
        return "mixed" if generation else "prefill"
    return "decode" if generation else None


# SGLang's ForwardMode; what verifies drafts is a decode step of several tokens.
_MODES: Mapping[str, Stage] = {
    "extend": "prefill", "split_prefill": "prefill", "prebuilt": "prefill", "prefill": "prefill",
    "decode": "decode", "verify": "decode", "target_verify": "decode", "draft_extend": "decode",
    "draft_extend_v2": "decode", "mixed": "mixed",
}  # fmt: skip


def _of_word(word: str) -> Stage | None:
    return _MODES.get(word.lower())


def _by_mode(match: re.Match[str]) -> Stage | None:
    return _of_word(match["mode"])


_FOLDED = r"\[(?P<folded>prefill|decode|mixed|empty)\]"
# Sums over requests: q new tokens, k tokens seen, and their products. The number before them counts
# the batch's tokens too.
_SUMS = r"sq(?P<{0}_tokens>\d+)sk\d+sqsq\d*sq?sk\d+"

_VLLM = "vLLM"
_SGLANG = "SGLang"
_DIFFUSION = "SGLang diffusion"
_TRTLLM = "TensorRT-LLM"
_DYNAMO = "Dynamo"
_DEEPSPEED = "DeepSpeed"
_LIGHTNING = "Lightning"

_WORKER = "vllm-project/vllm: vllm/v1/worker/gpu_worker.py"
_RUNNER = "vllm-project/vllm: vllm/v1/worker/gpu_model_runner.py"
_SCHEDULER = "vllm-project/vllm: vllm/v1/core/sched/scheduler.py"
_HOOK = "gputui/inject/hook/torch_ranges.py"
_PROFILE = "sgl-project/sglang: python/sglang/srt/utils/profile_utils.py"
_EXECUTOR = "NVIDIA/TensorRT-LLM: tensorrt_llm/_torch/pyexecutor/py_executor.py"
_PL = "Lightning-AI/pytorch-lightning: src/lightning/pytorch/profilers/pytorch.py"


RULES: tuple[_Rule, ...] = (
    _Rule(_VLLM, r"execute_context_(?P<context_requests>\d+)\((?P<context_tokens>\d+)\)"
          r"_generation_(?P<generation_requests>\d+)\((?P<generation_tokens>\d+)\)",
          _by_requests, _WORKER, "execute [{stage}]", 0),
    _Rule(_VLLM, r"execute_\d+(?:_context_(?P<context_requests>\d+)"
          rf"\({_SUMS.format('context')}\))?(?:_generation_(?P<generation_requests>\d+)"
          rf"\({_SUMS.format('generation')}\))?",
          _by_requests, f"{_WORKER}; AMD-AGI/TraceLens: tests", "execute [{stage}]", 0),
    _Rule(_VLLM, rf"execute {_FOLDED}", _by_requests, "as those above are shown", "", 0),
    _Rule(_VLLM, r"gpu_model_runner: forward", None, _RUNNER, "", 1),
    _Rule(_VLLM, r"gpu_model_runner: (?:sample|draft)", "sampling", _RUNNER),
    _Rule(_VLLM, r"gpu_model_runner: (?:preprocess|postprocess|bookkeep|eplb|ModelRunnerOutput"
          r"|AsyncModelRunnerOutput|set_async_sampled_token_ids)", "scheduler", _RUNNER),
    _Rule(_VLLM, r"schedule: (?:allocate_slots|get_num_common_prefix_blocks|make_\w+"
          r"|update_after_schedule|build_\w+)", "scheduler", _SCHEDULER),
    _Rule(_VLLM, r"llm_engine step: \w+", "scheduler",
          "vllm-project/vllm: vllm/v1/engine/llm_engine.py"),
    _Rule(_SGLANG, r"step\[(?P<mode>EXTEND|DECODE|MIXED|VERIFY|TARGET_VERIFY|DRAFT_EXTEND"
          r"|DRAFT_EXTEND_V2|SPLIT_PREFILL|PREBUILT)(?: (?!\])[^\]]*)?\]",
          _by_mode, _PROFILE, "step[{mode}]", 0),
    _Rule(_SGLANG, r"step\[(?:IDLE|DUMMY_FIRST)[^\]]*\]", None, _PROFILE, "step[IDLE]"),
    _Rule(_SGLANG, r"scheduler\.(?:run_batch\w*|get_(?:next|new)_batch\w+|process_batch_result\w*"
          r"|process_input_requests|recv_requests|update_running_batch|handle_generate_request"
          r"|add_request_to_queue|prefetch_kvcache|event_loop_\w+)", "scheduler",
          "sgl-project/sglang: python/sglang/srt/managers/scheduler.py"),
    _Rule("ATOM", r"(?P<mode>prefill|decode|mixed)\[(?:bs|tok)=[^\]]*\]", _by_mode,
          "ROCm/ATOM: atom/model_engine", "{mode}[]", 0),
    _Rule("ATOM", r"(?P<mode>prefill|decode|mixed)\[\]", _by_mode, "as those above are shown", "",
          0),
    _Rule(_DIFFUSION, r"denoising_step_(?P<step>\d+)(?:_t(?P<timestep>\d+)(?:\.\d+)?)?", "denoise",
          "sgl-project/sglang: python/sglang/multimodal_gen/runtime/pipelines_core/stages/"
          "denoising.py", "denoising_step_#", 0),
    _Rule(_DIFFUSION, r"denoising_step_#", "denoise", "as those above are shown", "", 0),
    _Rule(_DIFFUSION, r"denoising_loop", "denoise", "as denoising_step"),
    _Rule(_TRTLLM, r"\[Executor\] _forward_step(?: (?P<step>\d+))?: "
          r"(?P<context_requests>\d+) ctx reqs, (?:(?P<context_tokens>\d+) ctx tokens, )?"
          r"(?P<generation_requests>\d+) gen reqs(?:, (?P<generation_tokens>\d+) gen tokens)?",
          _by_requests, _EXECUTOR, "[Executor] _forward_step [{stage}]", 0),
    _Rule(_TRTLLM, rf"\[Executor\] _forward_step {_FOLDED}", _by_requests,
          "as those above are shown", "", 0),
    _Rule(_TRTLLM, r"_sample_async|_update_requests_single_beam_single_step", "sampling",
          _EXECUTOR),
    _Rule(_TRTLLM, r"_schedule|_fetch_new_requests|_broadcast_new_requests|broadcast_requests"
          r"|_process_requests|_handle_responses|_update_requests|_forward_step_inter_pp"
          r"|_prepare_tp_inputs|_handle_canceled_requests|_merge_tp_requests", "scheduler",
          _EXECUTOR),
    _Rule(_DYNAMO, r"preprocess\.(?:template|tokenize)|detokenize", "tokenizer",
          "ai-dynamo/dynamo: lib/llm/src/{preprocessor,backend}.rs"),
    _Rule(_DYNAMO, r"route\.select_worker|transport\.tcp\.send", "scheduler",
          "ai-dynamo/dynamo: lib/runtime/src/pipeline/network/egress"),
    _Rule(_DEEPSPEED, r"(?:DeepSpeed|Pipeline)Engine\.(?:train_batch|eval_batch)", None,
          "deepspeedai/DeepSpeed: deepspeed/runtime/pipe/engine.py", "", 0),
    _Rule(_DEEPSPEED, r"DeepSpeedEngine\.forward", "forward",
          "deepspeedai/DeepSpeed: deepspeed/runtime/engine.py"),
    _Rule(_DEEPSPEED, r"DeepSpeedEngine\.(?:backward|_backward_prologue|_backward_epilogue"
          r"|allreduce_gradients)", "backward",
          "deepspeedai/DeepSpeed: deepspeed/runtime/engine.py"),
    _Rule(_DEEPSPEED, r"DeepSpeedEngine\.(?:step|_take_model_step)"
          r"|DeepSpeedZeroOptimizer(?:_Stage3)?\.step", "optimizer",
          "deepspeedai/DeepSpeed: deepspeed/runtime/engine.py"),
    _Rule("transformers", rf"continuous_batching {_FOLDED}", _by_requests, _HOOK, "", 0),
    _Rule("transformers", r"continuous_batching: (?:schedule|update)", "scheduler", _HOOK),
    _Rule("Megatron Bridge", r"training_step_(?:(?P<step>\d+)|#)", None,
          "NVIDIA-NeMo/Megatron-Bridge: src/megatron/bridge/training/train.py",
          "training_step_#", 0),
    _Rule(_LIGHTNING, r"\[pl\]\[profile\](?:\[_TrainingEpochLoop\]\.)?run_training_batch", None,
          _PL, "", 0),
    _Rule(_LIGHTNING, r"\[pl\]\[profile\]\[Strategy\]\w+\.(?:training_step|validation_step"
          r"|test_step|predict_step)", "forward", _PL),
    _Rule(_LIGHTNING, r"\[pl\]\[profile\]\[Strategy\]\w+\.backward", "backward", _PL),
    _Rule(_LIGHTNING, r"\[pl\]\[profile\]\[LightningModule\]\w+\.(?:optimizer_step"
          r"|optimizer_zero_grad|configure_gradient_clipping)", "optimizer", _PL),
)  # fmt: skip

BESIDE_PREFILL: Mapping[str, Stage] = {
    "prefill": "prefill", "decode": "decode", "mixed": "mixed", "schedule": "scheduler",
    "sample": "sampling", "tokenize": "tokenizer", "detokenize": "tokenizer",
}  # fmt: skip
"""Plain words. "decode" alone may be of a picture: these count only in a program that has a range
called `prefill`, as gputui's workload `serve` has, or `decode` beside other words of an engine."""

MOST_READ = 1024
"""Longer names are no engine's."""

_FIGURES = re.compile(r"\b(?P<key>bs|toks?|[cgd]|[cg]_sq)=(?P<value>\d{1,12})\b")
_FIGURE_NAMES = {
    "bs": "requests", "tok": "tokens", "toks": "tokens", "c": "context_requests",
    "g": "generation_requests", "d": "generation_requests", "c_sq": "context_tokens",
    "g_sq": "generation_tokens",
}  # fmt: skip


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """The compiled patterns of the rules. They are not compiled when the module is imported, where
    they took 3 ms of each start."""
    return tuple(re.compile(rule.pattern) for rule in RULES)


@lru_cache(maxsize=1 << 14)
def read_engine_range(name: str) -> EngineRange | None:
    """What a range's name says if an engine made it; None for all other names."""
    if len(name) > MOST_READ:
        return None
    for rule, pattern in zip(RULES, _patterns(), strict=True):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        stage = rule.stage(match) if callable(rule.stage) else rule.stage
        groups = match.groupdict()
        figures = {
            key: int(value)
            for key, value in groups.items()
            if value is not None and value.isdecimal() and len(value) <= 12
        }
        if "mode" in groups:
            figures |= {
                _FIGURE_NAMES[figure["key"]]: int(figure["value"])
                for figure in _FIGURES.finditer(name)
            }
        for total in ("requests", "tokens"):
            counts = [figures.get(f"{kind}_{total}") for kind in ("context", "generation")]
            if total not in figures and None not in counts:
                figures[total] = sum(filter(None, counts))
        shown = rule.name.format(stage=stage or "empty", mode=groups.get("mode")) or name
        return EngineRange(rule.engine, stage, shown, rule.step_rank, figures)
    return None


def stage_of_name(name: str, beside_prefill: bool) -> Stage | None:
    """The stage that a range's name says; with `beside_prefill`, plain words count too."""
    read = read_engine_range(name)
    if read is not None:
        return read.stage
    return BESIDE_PREFILL.get(name) if beside_prefill else None
