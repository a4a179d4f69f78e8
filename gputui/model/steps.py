"""A program's steps: when they count as steady, blocks of many steps, a bounded history of what
they took, and the names of ranges by which engines and frameworks say what a step does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from gputui.model.events import CaptureDelta, LoopDelta, Scope, StepBlock, StepSource

# How long it takes until steps are known, and how long a step is that is not as the others.

HELD_NS = 10_000_000_000
"""How long launches wait until it is clear where steps begin."""

PAUSE = 10.0
PAUSE_NS = 100_000_000
"""A step this many times as long as the usual one, and this long, holds a pause."""

SLOW = 1.5
"""A step this many times as long as the usual one is slow."""


# Which source of marks is believed first.

BELIEVED: tuple[tuple[StepSource, ...], ...] = (
    ("optimizer",), ("accelerate",), ("keras",), ("lightning",), ("trainer",), ("token",),
    ("request",), ("loop",), ("jax", "module", "tqdm"),
)  # fmt: skip
"""Sources of a program's marks, those first that say best what a step is: what ends a training step
before what is called in it. A loop of the program is believed before what it calls. A module is
called once for each micro-batch too, and a progress bar may count steps, or epochs, or files: of
the last ones what each spans decides."""

SOURCES_FIRST: tuple[StepSource, ...] = tuple(source for equals in BELIEVED for source in equals)


# Steady steps in blocks: a bounded history of what a loop's steps took.
#
# Steps in a row are alike, so the deviation of single ones does not give the error of their mean;
# blocks of many steps are nearly independent (batch means: Schmeiser 1982, Operations Research
# 30(3)).

# The two neighbours with the fewest steps become one: a run of any length keeps as many blocks.
MOST_BLOCKS = 64
MOST_PARTS = 8
"""Parts of a block whose longest step is kept."""

FEW = 8
"""Blocks of a loop below which its newest steps say more."""

MOST_LOOPS = 64
"""Loops of a process whose blocks are kept, the first ones."""


class StepBlocks(msgspec.Struct):
    """The blocks of one process's loops, by device and loop."""

    loops: dict[tuple[int, int], list[StepBlock]] = {}

    def add(self, delta: CaptureDelta) -> None:
        """Append the steady steps of a delta."""
        for block in blocks_of(delta):
            self.append(block)

    def append(self, block: StepBlock) -> None:
        """Append the newest block; the two smallest neighbours become one if there are too many."""
        key = block.device, block.loop
        if key not in self.loops and len(self.loops) >= MOST_LOOPS:
            return
        blocks = self.loops.setdefault(key, [])
        if not block.steps:  # pauses only: those of the steps before
            blocks[-1:] = [_joined(last, block) for last in blocks[-1:]]
            return
        blocks.append(block)
        if len(blocks) > MOST_BLOCKS:
            least = min(
                range(MOST_BLOCKS), key=lambda index: blocks[index].steps + blocks[index + 1].steps
            )
            blocks[least : least + 2] = [_joined(*blocks[least : least + 2])]

    def freeze(self) -> tuple[StepBlock, ...]:
        """All of them, loop by loop."""
        return tuple(block for blocks in self.loops.values() for block in blocks)


def blocks_of(delta: CaptureDelta) -> Iterator[StepBlock]:
    """The steady steps of a delta: its blocks, and one for each device and loop without any."""
    yield from delta.step_blocks
    divided = {(block.device, block.loop) for block in delta.step_blocks}
    whole: dict[tuple[int, int], StepBlock] = {}
    for loop in delta.loops:
        # A delta may bring a loop's steps in two parts: they are one block.
        key = loop.device, loop.loop
        if key in divided:
            continue
        if loop.scope == Scope.STEADY and loop.step_ns is not None and loop.steps:
            block = StepBlock(*key, loop.steps, loop.step_ns.total, (), longest_of(loop))
        elif loop.scope == Scope.PAUSE and loop.steps:
            block = StepBlock(*key, 0, 0, pauses=loop.steps)
        else:
            continue
        whole[key] = _joined(whole[key], block) if key in whole else block
    for (device, number), block in whole.items():
        leaves: dict[Scope, list[tuple[int, int]]] = {Scope.STEADY: [], Scope.PAUSE: []}
        for time in delta.leaf_times:
            if (time.device, time.loop) == (device, number) and time.scope in leaves:
                leaves[time.scope].append((time.leaf, time.ns))
        yield msgspec.structs.replace(
            block,
            leaves=_added(leaves[Scope.STEADY]) if block.steps else (),
            paused=_added(leaves[Scope.PAUSE]) if block.pauses else (),
        )


def longest_of(loop: LoopDelta) -> tuple[tuple[int, int], ...]:
    """The parts of steps that are not alike or whose lengths are known in order; of others the
    longest of all."""
    if loop.longest:
        return loop.longest
    if len(loop.newest) == loop.steps:
        return parts_of(loop.newest)
    maximum = loop.step_ns.maximum if loop.step_ns is not None else None
    return () if maximum is None else ((loop.steps, maximum),)


def parts_of(lengths: Sequence[int], most: int = MOST_PARTS) -> tuple[tuple[int, int], ...]:
    """Of steps in order the parts with the longest of each, alike in size."""
    count = min(most, len(lengths))
    bounds = [len(lengths) * index // count for index in range(count)] + [len(lengths)]
    return tuple((end - first, max(lengths[first:end])) for first, end in pairwise(bounds))


def _joined_parts(longest: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """At most MOST_PARTS: the smallest neighbours become one."""
    joined = list(longest)
    while len(joined) > MOST_PARTS:
        sizes = [steps + joined[index + 1][0] for index, (steps, _) in enumerate(joined[:-1])]
        least = sizes.index(min(sizes))
        joined[least : least + 2] = [(sizes[least], max(ns for _, ns in joined[least : least + 2]))]
    return tuple(joined)


def _added(leaf_times: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    sums: dict[int, int] = {}
    for leaf, ns in leaf_times:
        sums[leaf] = sums.get(leaf, 0) + ns
    return tuple(sums.items())


def _joined(first: StepBlock, second: StepBlock) -> StepBlock:
    is_known = all(block.longest or not block.steps for block in (first, second))
    return StepBlock(
        first.device,
        first.loop,
        first.steps + second.steps,
        first.ns + second.ns,
        _added((*first.leaves, *second.leaves)),
        _joined_parts((*first.longest, *second.longest)) if is_known else (),
        first.pauses + second.pauses,
        _added((*first.paused, *second.paused)),
    )


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
"""In the order in which tables show them: what computes before what the host does for it."""


class EngineRange(NamedTuple):
    """What a range's name says. `figures` are by `requests`, `tokens`, `context_requests`,
    `context_tokens`, `generation_requests`, `generation_tokens`, `step` and `timestep`, where the
    name has them."""

    engine: str
    stage: Stage | None
    """None where it is not known from the name: of an outer range, or of an empty batch."""
    name: str
    """Without its figures: ranges that share it are one phase."""
    step_rank: int | None
    """0 for the range that is one step of the engine, 1 for what stands for it where there is none
    of those; None for all others."""
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

MAX_NAME = 1024
"""Longer names are no engine's."""

_FIGURES = re.compile(r"\b(?P<key>bs|toks?|[cgd]|[cg]_sq)=(?P<value>\d{1,12})\b")
_FIGURE_NAMES = {
    "bs": "requests", "tok": "tokens", "toks": "tokens", "c": "context_requests",
    "g": "generation_requests", "d": "generation_requests", "c_sq": "context_tokens",
    "g_sq": "generation_tokens",
}  # fmt: skip


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Those of the rules; not while the module is imported, where they took 3 ms of each start."""
    return tuple(re.compile(rule.pattern) for rule in RULES)


@lru_cache(maxsize=1 << 14)
def read_engine_range(name: str) -> EngineRange | None:
    """What a range's name says if an engine made it; None for all other names."""
    if len(name) > MAX_NAME:
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
