"""`inference`: a GPT-2-shaped model answers a prompt, token by token.

The example of how to write a workload. This file declares it and imports nothing heavy;
`shapes` and `memory` are arithmetic; `model` is the network; `generation` runs prefill and
decode; `results` turns times into figures; `run` puts them together.

Ranges, and how often each is met with L layers, T tokens asked for and W warm-up rounds:

    load                            1
    warmup                          1 (none when W is 0)
      step                          2 W: each round is a prompt pass and a decode step (W of
                                    them, prompt passes alone, when T is 1)
    prefill                         1
      step                          1: the prompt pass, which makes the first token
    decode                          1 (none when T is 1)
      step                          T - 1

    inside each step: embedding 1, norm 2 L + 1, qkv_proj L, attention L, out_proj L, mlp L,
    lm_head 1, sample 1, copy_back 1

Everything the GPU is given lies inside one of `load` and the ranges inside a step. A step is
4 L + 1 matrix products (qkv_proj, out_proj, two in mlp, lm_head), attention's own apart.
"""

from workloads.declaration import Figure, Parameter, Preset, Workload
from workloads.inference.shapes import CONTEXT, SHAPES

INFERENCE = Workload(
    name="inference",
    summary="GPT-2-shaped model: prefill, then decode with a KV cache",
    description=(
        "A decoder-only transformer of GPT-2's shape with random weights reads a prompt in one "
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
            maximum=CONTEXT - 1,
            unit="tokens",
            help=f"length of the prompt; with tokens, at most the context of {CONTEXT}",
        ),
        Parameter(
            name="tokens",
            kind="int",
            default=128,
            cpu_default=32,
            minimum=1,
            maximum=CONTEXT - 1,
            unit="tokens",
            help="tokens to write for each sequence",
        ),
        Parameter(
            name="precision",
            kind="choice",
            choices=("fp32", "tf32", "bf16", "fp16"),
            default="bf16",
            cpu_default="fp32",
            help="of weights, KV cache and matrix products; tf32 stores fp32",
        ),
        Parameter(
            name="device",
            kind="text",
            default="auto",
            pattern=r"auto|cpu|cuda(:[0-9]{1,3})?",
            pattern_help="auto, cpu, cuda or cuda:N",
            help="where to run; auto takes the first GPU, else the CPU",
        ),
        Parameter(
            name="seed",
            kind="int",
            default=0,
            minimum=0,
            maximum=2**63 - 1,
            help="of weights and prompt; the same seed gives the same tokens",
        ),
        Parameter(
            name="warmup",
            kind="int",
            default=3,
            minimum=0,
            maximum=1000,
            unit="rounds",
            help="rounds of one prompt pass and one decode step before anything is timed",
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
        "copy_back",
    ),
    step_range="step",
    results=(
        Figure(name="device_name", help="what computed"),
        Figure(name="effective_precision", help="what the matrix products really compute in"),
        Figure(name="parameter_count", help="weights, the padded vocabulary's included"),
        Figure(name="weight_bytes", unit="bytes", help="memory of the weights"),
        Figure(name="kv_cache_bytes", unit="bytes", help="memory of the whole KV cache"),
        Figure(name="output_tokens", unit="tokens", help="written for each sequence"),
        Figure(name="load_ms", unit="ms", help="making weights, cache and prompt"),
        Figure(name="ttft_ms", unit="ms", help="time to first token: prefill and first sample"),
        Figure(name="tpot_ms", unit="ms", help="(latency - TTFT) / (output tokens - 1)"),
        Figure(name="itl_p50_ms", unit="ms", help="median gap between two tokens"),
        Figure(name="itl_p99_ms", unit="ms", help="99th percentile of the gaps"),
        Figure(name="latency_ms", unit="ms", help="from the prompt to the last token"),
        Figure(
            name="tokens_per_s",
            unit="tokens/s",
            help="output tokens of all sequences over the latency; live, over the last reading",
        ),
        Figure(
            name="model_bytes_per_step",
            unit="bytes",
            help="weights and KV cache a decode step must read, on average",
        ),
        Figure(
            name="model_bandwidth_bytes_per_s",
            unit="bytes/s",
            help="model_bytes_per_step over the median gap: what decode achieves of the memory",
        ),
        Figure(
            name="peak_memory_allocated_bytes", unit="bytes", help="most that tensors held at once"
        ),
        Figure(
            name="peak_memory_reserved_bytes", unit="bytes", help="most that torch held of the GPU"
        ),
    ),
    run="workloads.inference.run:run",
)
