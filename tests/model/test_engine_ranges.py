"""Names of ranges that engines make, each with its meaning, and names that mean nothing of theirs.

The names are those of the engines' sources and of the traces that public tools test with; their
numbers are changed.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.naming import (
    MOST_READ,
    NOT_A_STEP,
    RULES,
    read_engine_range,
    sibling_names,
    stage_of_name,
    step_rank,
    without_numbers,
)
from gputui.report.phases import is_step_name

_V = "vLLM"
_S = "SGLang"
_D = "SGLang diffusion"
_T = "TensorRT-LLM"
_L = "Lightning"
_DS = "DeepSpeed"

# Name, engine, stage, whether it is a step, requests, tokens.
NAMES = [
    ("execute_context_8(4096)_generation_64(64)", _V, "mixed", True, 72, 4160),
    ("execute_context_0(0)_generation_32(32)", _V, "decode", True, 32, 32),
    ("execute_context_0(0)_generation_32(128)", _V, "decode", True, 32, 128),
    ("execute_context_1(2048)_generation_0(0)", _V, "prefill", True, 1, 2048),
    ("execute_context_2(6144)_generation_3(3)", _V, "mixed", True, 5, 6147),
    ("execute_context_0(0)_generation_0(0)", _V, None, True, 0, 0),
    ("execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
     _V, "decode", True, 64, 64),
    ("execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)"
     "_generation_3(sq3sk900sqsq3sqsk900)", _V, "mixed", True, 5, 6147),
    ("execute_9_context_1(sq4sk10sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)",
     _V, "prefill", True, 1, 4),
    ("execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk8248sqsq1sqsk8248)",
     _V, "decode", True, 1, 1),
    ("gpu_model_runner: forward", _V, None, True, None, None),
    ("gpu_model_runner: preprocess", _V, "scheduler", False, None, None),
    ("gpu_model_runner: postprocess", _V, "scheduler", False, None, None),
    ("gpu_model_runner: bookkeep", _V, "scheduler", False, None, None),
    ("gpu_model_runner: eplb", _V, "scheduler", False, None, None),
    ("gpu_model_runner: ModelRunnerOutput", _V, "scheduler", False, None, None),
    ("gpu_model_runner: sample", _V, "sampling", False, None, None),
    ("gpu_model_runner: draft", _V, "sampling", False, None, None),
    ("schedule: allocate_slots", _V, "scheduler", False, None, None),
    ("schedule: get_num_common_prefix_blocks", _V, "scheduler", False, None, None),
    ("schedule: update_after_schedule", _V, "scheduler", False, None, None),
    ("schedule: make_cached_request_data", _V, "scheduler", False, None, None),
    ("llm_engine step: get_output", _V, "scheduler", False, None, None),
    ("llm_engine step: process_outputs", _V, "scheduler", False, None, None),
    ("step[DECODE bs=32]", _S, "decode", True, 32, None),
    ("step[DECODE bs=1]", _S, "decode", True, 1, None),
    ("step[EXTEND bs=2 toks=4096]", _S, "prefill", True, 2, 4096),
    ("step[EXTEND bs=1 toks=107]", _S, "prefill", True, 1, 107),
    ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", _S, "prefill", True, 2, 12),
    ("step[EXTEND bs=2 toks=10 c_sq=10 c_sqsq=68 c_sqsk=80 c_sk=16]", _S, "prefill", True, 2, 10),
    ("step[MIXED bs=2]", _S, "mixed", True, 2, None),
    ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
     _S, "mixed", True, 2, 6),
    ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", _S, "decode", True, 64,
     None),
    ("step[TARGET_VERIFY bs=23]", _S, "decode", True, 23, None),
    ("step[VERIFY bs=4]", _S, "decode", True, 4, None),
    ("step[DRAFT_EXTEND bs=4]", _S, "decode", True, 4, None),
    ("step[IDLE bs=0]", _S, None, False, None, None),
    ("scheduler.run_batch", _S, "scheduler", False, None, None),
    ("scheduler.get_next_batch_to_run", _S, "scheduler", False, None, None),
    ("scheduler.process_batch_result_decode", _S, "scheduler", False, None, None),
    ("scheduler.process_batch_result_prefill", _S, "scheduler", False, None, None),
    ("scheduler.process_input_requests", _S, "scheduler", False, None, None),
    ("continuous_batching [mixed]", "transformers", "mixed", True, None, None),
    ("continuous_batching: update", "transformers", "scheduler", False, None, None),
    ("prefill[bs=2 tok=16384]", "ATOM", "prefill", True, 2, 16384),
    ("decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",
     "ATOM", "decode", True, 32, 128),
    ("denoising_step_0", _D, "denoise", True, None, None),
    ("denoising_step_29", _D, "denoise", True, None, None),
    ("denoising_step_3_t981", _D, "denoise", True, None, None),
    ("denoising_loop", _D, "denoise", False, None, None),
    ("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
     _T, "decode", True, 32, None),
    ("[Executor] _forward_step 12: 3 ctx reqs, 5 gen reqs", _T, "mixed", True, 8, None),
    ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", _T, "prefill", True, 2, None),
    ("[Executor] _forward_step 1: 1 ctx reqs, 700 ctx tokens, 0 gen reqs",
     _T, "prefill", True, 1, None),
    ("_schedule", _T, "scheduler", False, None, None),
    ("_fetch_new_requests", _T, "scheduler", False, None, None),
    ("_broadcast_new_requests", _T, "scheduler", False, None, None),
    ("_forward_step_inter_pp", _T, "scheduler", False, None, None),
    ("_update_requests", _T, "scheduler", False, None, None),
    ("_handle_responses", _T, "scheduler", False, None, None),
    ("_sample_async", _T, "sampling", False, None, None),
    ("preprocess.tokenize", "Dynamo", "tokenizer", False, None, None),
    ("preprocess.template", "Dynamo", "tokenizer", False, None, None),
    ("detokenize", "Dynamo", "tokenizer", False, None, None),
    ("route.select_worker", "Dynamo", "scheduler", False, None, None),
    ("transport.tcp.send", "Dynamo", "scheduler", False, None, None),
    ("DeepSpeedEngine.forward", _DS, "forward", False, None, None),
    ("DeepSpeedEngine.backward", _DS, "backward", False, None, None),
    ("DeepSpeedEngine.allreduce_gradients", _DS, "backward", False, None, None),
    ("DeepSpeedEngine.step", _DS, "optimizer", False, None, None),
    ("DeepSpeedZeroOptimizer_Stage3.step", _DS, "optimizer", False, None, None),
    ("PipelineEngine.train_batch", _DS, None, True, None, None),
    ("training_step_123", "Megatron Bridge", None, True, None, None),
    ("[pl][profile]run_training_batch", _L, None, True, None, None),
    ("[pl][profile][Strategy]DDPStrategy.training_step", _L, "forward", False, None, None),
    ("[pl][profile][Strategy]SingleDeviceStrategy.backward", _L, "backward", False, None, None),
    ("[pl][profile][LightningModule]Net.optimizer_step", _L, "optimizer", False, None, None),
]  # fmt: skip

_WORDS = [
    "forward",
    "backward",
    "loss",
    "optimizer",
    "data",
    "load",
    "batch",
    "epoch",
    "train",
    "eval",
    "test",
    "main",
    "embedding",
    "attention",
    "mlp",
    "norm",
    "softmax",
    "linear",
    "conv",
    "relu",
    "gelu",
    "dropout",
    "pool",
    "encoder",
    "decoder",
    "head",
    "tail",
    "image",
    "video",
    "audio",
    "text",
    "token",
    "mask",
    "logits",
    "sample",
    "decode",
    "encode",
    "prefill",
    "schedule",
    "scheduler",
    "execute",
    "context",
    "generation",
    "step",
    "generate",
    "inference",
    "engine",
    "denoise",
    "noise",
    "latent",
    "vae",
    "unet",
    "clip",
    "rollout",
    "reward",
    "critic",
    "actor",
    "policy",
    "value",
    "checkpoint",
    "save",
    "restore",
    "sync",
    "reduce",
    "gather",
    "scatter",
    "broadcast",
    "send",
    "recv",
    "copy",
    "upload",
    "download",
    "preprocess",
    "postprocess",
    "tokenize",
    "augment",
    "collate",
    "prefetch",
    "warmup",
    "capture",
    "replay",
    "graph",
    "compile",
    "autotune",
]

ORDINARY = [
    *(word for word in _WORDS),
    *(f"{word}_{number}" for number, word in enumerate(_WORDS[:40])),
    *(f"my_{word}" for word in _WORDS[:20]),
    "scheduler.step", "lr_scheduler.step", "optimizer.step", "schedule: cosine", "scheduler_step",
    "aten::addmm", "aten::_to_copy", "autograd::engine::evaluate_function: AddmmBackward0",
    "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad", "ProfilerStep#12",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Torch-Compiled Region: 0/1",
    "## Call CompiledFxGraph fxabc ##", "nn.Module: Linear_0", "layers.0.mlp", "model.layers[31]",
    "h.11.attn", "blocks.3", "transformer.h.0", "execute_query", "execute_context_menu",
    "execute_plan_3", "context_generation_2", "step 12", "step_12", "train_step", "iteration 7",
    "decode step 3", "decode_step", "decode_image_44", "image decode", "jpeg_decode(4096)",
    "prefill_cache", "kv_cache.update", "sample_paths_100", "denoising", "denoise_image",
    "denoising score matching", "denoising_steps", "stage_1", "stage 2 of 3", "mixed_precision",
    "mixed", "extend(64)", "step[7]", "steps[DECODE]", "Executor.submit", "[Executor] run",
    "[Executor] idle", "_forward", "_forward_step", "_step", "_run", "_prepare", "_call_impl",
    "forward_step", "backward_step", "forward_backward_func", "p2p_comm", "grad_sync",
    "param_gather", "engine.step", "Engine.forward", "PipelineEngine", "DeepSpeedEngine",
    "DeepSpeedCheckpoint.save", "training_step", "training step", "train_batch", "[pl]",
    "[pl][profile]", "[pl][profile]fetch_next", "[pl][module]Linear: 0", "run_training_epoch",
    "gpu_model_runner", "gpu_model_runner.py(120): forward", "preprocess.images", "tokenizer",
    "route", "transport", "tcp.send", "llm_engine", "request 4", "batch=32", "bs=32",
    "decode bs=32",
]  # fmt: skip


@pytest.mark.parametrize(("name", "engine", "stage", "is_step", "requests", "tokens"), NAMES)
def test_a_real_name_has_its_meaning(name, engine, stage, is_step, requests, tokens):
    """Engine, stage, step and figures."""
    read = read_engine_range(name)

    assert (read.engine, read.stage) == (engine, stage)
    assert (read.step_rank is not None) == is_step
    assert is_step_name(name) == is_step
    assert (read.figures.get("requests"), read.figures.get("tokens")) == (requests, tokens)


def test_enough_names():
    """What this file claims: at least 60 real names, 200 ordinary ones, and each rule is used."""
    assert len({name for name, *_ in NAMES}) >= 60
    assert len(set(ORDINARY)) >= 200
    folded = {read_engine_range(name).name for name, *_ in NAMES}
    unused = [
        rule.pattern
        for rule in RULES
        if not any(
            re.fullmatch(rule.pattern, name) for name in {*folded, *(row[0] for row in NAMES)}
        )
    ]
    assert unused == []


def test_ordinary_names_mean_nothing_of_an_engine():
    """Not one of them, neither as it is nor folded."""
    assert [name for name in ORDINARY if read_engine_range(name)] == []


def test_plain_words_count_only_beside_prefill():
    """ "decode" may be of pictures."""
    assert stage_of_name("decode", beside_prefill=False) is None
    assert stage_of_name("decode", beside_prefill=True) == "decode"
    assert stage_of_name("layers.0", beside_prefill=True) is None


def test_numbers_are_figures_and_not_phases():
    """Steps of one stage are one phase, those of another stage another one."""
    batches = [(n, n * 7) for n in range(1, 20)]
    names = [
        *(f"execute_context_0(0)_generation_{n}({n})" for n, _ in batches),
        *(f"execute_context_{n}({tokens})_generation_{n}({n})" for n, tokens in batches),
        *(f"denoising_step_{n}" for n, _ in batches),
        *(f"step[DECODE bs={n}]" for n, _ in batches),
    ]

    folded = sibling_names((0, name) for name in names)

    assert set(folded.values()) == {
        "execute [decode]", "execute [mixed]", "denoising_step_#", "step[DECODE]",
    }  # fmt: skip
    assert {without_numbers(name) for name in names} == set(folded.values())
    assert {step_rank(name, None) for name in names} == {0}
    assert step_rank("gpu_model_runner: forward", None) > 0
    assert step_rank("scheduler.run_batch", None) == NOT_A_STEP


@given(st.sampled_from([name for name, *_ in NAMES]), st.data())
def test_other_numbers_change_figures_alone(name, data):
    """A name with other positive numbers means the same, unless a count became or was 0."""
    changed = re.sub(
        r"(?<![\d\w])\d+|(?<=[_(=#kq])\d+",
        lambda digits: digits[0] if int(digits[0]) == 0 else str(data.draw(st.integers(1, 10**9))),
        name,
    )
    before, after = read_engine_range(name), read_engine_range(changed)

    assert after is not None
    assert (after.engine, after.stage, after.name) == (before.engine, before.stage, before.name)


@given(st.text(max_size=60) | st.from_regex(r"[a-z_\[\]():= ]{0,20}\d{0,5}[a-z\]) ]{0,9}"))
def test_any_text_is_read_and_a_folded_name_is_read_as_itself(text):
    """Nothing raises; what is recognised keeps its meaning when it is folded."""
    read = read_engine_range(text)

    if read is not None:
        again = read_engine_range(read.name)
        assert (again.engine, again.stage, again.name) == (read.engine, read.stage, read.name)


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row[0][:40])
def test_a_folded_name_keeps_its_meaning(row):
    """Tables show folded names, and rules read them again."""
    read = read_engine_range(row[0])
    again = read_engine_range(read.name)

    assert again._replace(figures={}) == read._replace(figures={})


def test_long_names_are_nobody_s():
    """They are not even tried."""
    assert read_engine_range("step[DECODE bs=" + "1" * MOST_READ + "]") is None
