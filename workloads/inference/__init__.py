"""`inference`: a decoder answers a prompt, token by token.

The example of how to write a workload. This file declares it and imports nothing heavy;
`shapes` and `memory` are arithmetic; `model` is GPT-2's network and `llama` Llama's, out of the
same `parts`; `network` makes either, `checkpoint` reads a user's; `generation` runs prefill and
decode; `results` turns times into figures; `run` puts them together.

Ranges, and how often each is met with L layers, T tokens asked for and W warm-up rounds:

    load                            1
    warmup                          1 (none when W is 0)
      step                          2 W: each round is a prompt pass and a decode step (W of
                                    them, only prompt passes, when T is 1)
      capture                       T - 1 with graphs: the making of each
    prefill                         1
      step                          1: the prompt pass, which makes the first token
    decode                          1 (none when T is 1)
      step                          T - 1

    inside each step: embedding 1, norm 2 L + 1, qkv_proj L, attention L, out_proj L, mlp L,
    lm_head 1, sample 1, copy_back 1

With graphs a decode step is `replay` and `copy_back`, and the parts are inside `replay`, as the
capture had them; compiled, it has no ranges of the parts. A GGUF file's step is `eval` and
`sample`.
Everything the GPU is given lies inside one of `load` and the ranges inside a step. A step is
4 L + 1 matrix products (qkv_proj, out_proj, two in mlp, lm_head), attention's own apart, in both
families: keys and values are one product with the queries, and so are the SwiGLU's two inputs. A
mixture of experts has `router` L times too, and two products for each expert that a token chose.
"""

from ..declaration import Figure, Parameter, Preset, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    SEED,
    SNAPSHOT,
    choice,
    precision,
    whole,
)
from .back_ends import ATTENTION
from .memory import parameter_count
from .shapes import CONTEXT, OLD_NAMES, PARTS, SHAPES

MOST_TOKENS = 131_071
"""One less than the longest context of the supported models."""


def _described(name: str) -> str:
    shape = SHAPES[name]
    count = parameter_count(shape)
    size = f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
    words = f"vocabulary {shape.vocabulary:,}"
    if shape.padded_vocabulary != shape.vocabulary:
        words += f" padded to {shape.padded_vocabulary:,}"
    return f"{name}: {size}, {shape}, {words}, context {shape.context:,}"


INFERENCE = Workload(
    name="inference",
    summary="GPT-2 and Llama models: prefill, then decode with a KV cache",
    description=(
        "A decoder of GPT-2's, Llama's or a later model's shape, with random weights or a "
        "checkpoint's, reads a prompt in one "
        "pass (prefill) and then writes one token a step (decode), each the likeliest one, from "
        "a KV cache allocated beforehand. Every token is copied back to the host before the "
        "next step, so each time is what a reader of the text would see."
    ),
    parameters=(
        choice("size", "gpt2", SHAPES, "shape of the model; " + "; ".join(map(_described, SHAPES)),
               cpu_default="gpt2-tiny", aliases=OLD_NAMES),
        Parameter(
            "model",
            "text",
            "",
            "a folder in Hugging Face's layout (config.json, *.safetensors) with a GPT-2, Llama, "
            "Mistral, Mixtral, Qwen2 or Qwen3 model, in place of size; or a GGUF file, which "
            "llama.cpp runs where llama-cpp-python is installed",
        ),
        Parameter("text", "text", "",
                  "a prompt as text, for a GGUF file or a model whose folder has a tokenizer.json"),
        whole("batch", 1, 1, 65536, "sequences answered together", unit="sequences"),
        whole("prompt", 128, 1, MOST_TOKENS,
              f"length of the prompt; with tokens, at most the context: {CONTEXT} of GPT-2",
              cpu_default=32, unit="tokens"),
        whole("tokens", 128, 1, MOST_TOKENS, "tokens to write for each sequence", cpu_default=32,
              unit="tokens"),
        precision("of weights, KV cache and matrix products; tf32 stores fp32"),
        choice("attention", "auto", tuple(ATTENTION),
               "; ".join(f"{name}: {text}" for name, text in ATTENTION.items())),
        Parameter("compile", "bool", False, "torch.compile the network"),
        Parameter("graphs", "bool", False,
                  "replay each decode step as a CUDA graph, captured beforehand"),
        SNAPSHOT,
        DEVICE,
        SEED,
        whole("warmup", 3, 0, 1000, "untimed rounds of one prompt pass and one decode step",
              unit="rounds"),
    ),
    presets=(
        Preset("quick", "a few seconds on any machine",
               {"size": "gpt2-tiny", "prompt": 16, "tokens": 16}),
        Preset("latency", "batch 8, 32 in, 128 out: the defaults of vLLM's latency benchmark",
               {"batch": 8, "prompt": 32, "tokens": 128}),
        Preset("llama-8b", "Llama 3's 8 billion parameters at batch 1: decode is memory-bound",
               {"size": "llama-3-8b", "prompt": 512, "tokens": 128}),
        Preset("graphs", "GPT-2 with every decode step a CUDA graph: no launches between kernels",
               {"graphs": True}),
        Preset("throughput", "64 sequences share every read of the weights",
               {"batch": 64, "prompt": 128, "tokens": 128}),
        Preset("long-prompt", "most of the context is prompt: the time to the first token counts",
               {"batch": 8, "prompt": 960, "tokens": 64}),
    ),
    phases=(*("load", "warmup", "prefill", "decode", "step"), *PARTS,
            *("sample", "capture", "replay", "copy_back", "eval")),
    step_range="step",
    results=(
        DEVICE_NAME,
        EFFECTIVE_PRECISION,
        Figure("parameter_count", "weights, including the padded vocabulary"),
        Figure("weight_bytes", "memory of the weights"),
        Figure("kv_cache_bytes", "memory of the whole KV cache"),
        Figure("output_tokens", "written for each sequence", unit="tokens"),
        Figure("load_ms", "creating weights, cache and prompt"),
        Figure("ttft_ms", "time to first token: prefill and first sample"),
        Figure("tpot_ms", "(latency - TTFT) / (output tokens - 1)"),
        Figure("itl_p50_ms", "median gap between two tokens"),
        Figure("itl_p99_ms", "99th percentile of the gaps"),
        Figure("latency_ms", "from the prompt to the last token"),
        Figure("tokens_per_s",
               "output tokens of all sequences over the latency; live, since the last report",
               unit="tokens/s"),
        Figure("model_bytes_per_step", "weights and KV cache a decode step must read, on average",
               unit="bytes"),
        Figure("model_bandwidth_bytes_per_s",
               "model_bytes_per_step over the median gap: the bandwidth decode achieves"),
        Figure("mbu_percent", "that of the data sheet's bandwidth"),
        Figure("mbu_ceiling_percent", "that of the best copy that bandwidth measured"),
        Figure("tokens_per_step", "tokens that a decode step makes"),
        Figure("input_tokens_per_s",
               "prompt tokens of all sequences over the time to the first token"),
        Figure("total_tokens_per_s", "prompt and output over the latency"),
        Figure("prefill_mfu_percent",
               "the prompt pass's operations over the time to first token, of the dense peak"),
        Figure("prefill_ceiling_percent", "the same, of the best product that gemm measured"),
        Figure("prepare_ms", "warming up, compiling and capturing"),
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure("output_text", "the beginning of the answer as text"),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=1,
)  # fmt: skip
