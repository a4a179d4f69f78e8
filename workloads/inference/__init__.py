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

With graphs a decode step is `replay` and `copy_back`; compiled, it has no ranges of the parts.
Everything the GPU is given lies inside one of `load` and the ranges inside a step. A step is
4 L + 1 matrix products (qkv_proj, out_proj, two in mlp, lm_head), attention's own apart, in both
families: keys and values are one product with the queries, and so are the SwiGLU's two inputs.
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
    precision,
)
from .back_ends import ATTENTION
from .shapes import CONTEXT, SHAPES

MOST_TOKENS = 131_071
"""One less than the longest context of the supported models."""

INFERENCE = Workload(
    name="inference",
    summary="GPT-2 or Llama: prefill, then decode with a KV cache",
    description=(
        "A decoder of GPT-2's or Llama's shape, with random weights or a checkpoint's, reads a "
        "prompt in one "
        "pass (prefill) and then writes one token a step (decode), each the likeliest one, from "
        "a KV cache allocated beforehand. Every token is copied back to the host before the "
        "next step, so each time is what a reader of the text would see."
    ),
    parameters=(
        Parameter(
            name="size",
            kind="choice",
            choices=tuple(SHAPES),
            default="small",
            cpu_default="tiny",
            help="shape of the model; " + "; ".join(f"{n}: {s}" for n, s in SHAPES.items()),
        ),
        Parameter(
            name="model",
            kind="text",
            default="",
            help="a folder in Hugging Face's layout (config.json, *.safetensors) with a GPT-2 or "
            "Llama model, in place of size",
        ),
        Parameter(
            name="text",
            kind="text",
            default="",
            help="a prompt as text, for a model whose folder has a tokenizer.json",
        ),
        Parameter(
            name="batch",
            kind="int",
            default=1,
            minimum=1,
            maximum=65536,
            unit="sequences",
            help="sequences answered together",
        ),
        Parameter(
            name="prompt",
            kind="int",
            default=128,
            cpu_default=32,
            minimum=1,
            maximum=MOST_TOKENS,
            unit="tokens",
            help=f"length of the prompt; with tokens, at most the context: {CONTEXT} of GPT-2",
        ),
        Parameter(
            name="tokens",
            kind="int",
            default=128,
            cpu_default=32,
            minimum=1,
            maximum=MOST_TOKENS,
            unit="tokens",
            help="tokens to write for each sequence",
        ),
        precision("of weights, KV cache and matrix products; tf32 stores fp32"),
        Parameter(
            name="attention",
            kind="choice",
            choices=tuple(ATTENTION),
            default="auto",
            help="; ".join(f"{name}: {text}" for name, text in ATTENTION.items()),
        ),
        Parameter(name="compile", kind="bool", default=False, help="torch.compile the network"),
        Parameter(
            name="graphs",
            kind="bool",
            default=False,
            help="replay each decode step as a CUDA graph, captured beforehand",
        ),
        SNAPSHOT,
        DEVICE,
        SEED,
        Parameter(
            name="warmup",
            kind="int",
            default=3,
            minimum=0,
            maximum=1000,
            unit="rounds",
            help="untimed rounds of one prompt pass and one decode step",
        ),
    ),
    presets=(
        Preset(
            name="quick",
            help="a few seconds on any machine",
            values={"size": "tiny", "prompt": 16, "tokens": 16},
        ),
        Preset(
            name="latency",
            help="batch 8, 32 in, 128 out: the defaults of vLLM's latency benchmark",
            values={"batch": 8, "prompt": 32, "tokens": 128},
        ),
        Preset(
            name="llama-8b",
            help="Llama 3's 8 billion parameters at batch 1: decode is memory-bound",
            values={"size": "llama-8b", "prompt": 512, "tokens": 128},
        ),
        Preset(
            name="graphs",
            help="GPT-2 with every decode step a CUDA graph: no launches between kernels",
            values={"graphs": True},
        ),
        Preset(
            name="throughput",
            help="64 sequences share every read of the weights",
            values={"batch": 64, "prompt": 128, "tokens": 128},
        ),
        Preset(
            name="long-prompt",
            help="most of the context is prompt: the time to the first token counts",
            values={"batch": 8, "prompt": 960, "tokens": 64},
        ),
    ),
    phases=(
        "load",
        "warmup",
        "prefill",
        "decode",
        "step",
        "embedding",
        "norm",
        "qkv_proj",
        "attention",
        "out_proj",
        "mlp",
        "lm_head",
        "sample",
        "capture",
        "replay",
        "copy_back",
    ),
    step_range="step",
    results=(
        DEVICE_NAME,
        EFFECTIVE_PRECISION,
        Figure(name="parameter_count", help="weights, including the padded vocabulary"),
        Figure(name="weight_bytes", unit="bytes", help="memory of the weights"),
        Figure(name="kv_cache_bytes", unit="bytes", help="memory of the whole KV cache"),
        Figure(name="output_tokens", unit="tokens", help="written for each sequence"),
        Figure(name="load_ms", unit="ms", help="creating weights, cache and prompt"),
        Figure(name="ttft_ms", unit="ms", help="time to first token: prefill and first sample"),
        Figure(name="tpot_ms", unit="ms", help="(latency - TTFT) / (output tokens - 1)"),
        Figure(name="itl_p50_ms", unit="ms", help="median gap between two tokens"),
        Figure(name="itl_p99_ms", unit="ms", help="99th percentile of the gaps"),
        Figure(name="latency_ms", unit="ms", help="from the prompt to the last token"),
        Figure(
            name="tokens_per_s",
            unit="tokens/s",
            help="output tokens of all sequences over the latency; live, since the last report",
        ),
        Figure(
            name="model_bytes_per_step",
            unit="bytes",
            help="weights and KV cache a decode step must read, on average",
        ),
        Figure(
            name="model_bandwidth_bytes_per_s",
            unit="bytes/s",
            help="model_bytes_per_step over the median gap: the bandwidth decode achieves",
        ),
        Figure(name="mbu_percent", unit="percent", help="that of the data sheet's bandwidth"),
        Figure(
            name="input_tokens_per_s",
            unit="tokens/s",
            help="prompt tokens of all sequences over the time to the first token",
        ),
        Figure(
            name="total_tokens_per_s", unit="tokens/s", help="prompt and output over the latency"
        ),
        Figure(
            name="prefill_mfu_percent",
            unit="percent",
            help="the prompt pass's operations over the time to first token, of the dense peak",
        ),
        Figure(name="prepare_ms", unit="ms", help="warming up, compiling and capturing"),
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure(name="output_text", help="the beginning of the answer as text"),
    ),
    run=f"{__name__}.run:run",
    rank=1,
)
