"""`train`: steps of a language model's training, as the CS336 assignments and llm.c measure them.

This file declares it and imports nothing heavy; `shapes` and `memory` are arithmetic; `model` is
the networks; `step` runs and times steps; `tables` turns times into tables; `run` puts them
together, one row per configuration.

Ranges of a configuration with W warm-up and N measured steps:

    warmup        1 (none when W is 0)
      step        W
    measure_loop  1
      step        N
        FORWARD   1; inside it, unless compiled, the ranges of `model`: MHA(total) L and its
                  children, norm 2 L + 1, FFN L, embedding 1, lm_head 1
        LOSS      1
        BACKWARD  1 (modes fwd_bwd and full)
        OPTIMIZER 1 (mode full), with OPTIMIZER.step and OPTIMIZER.zero_grad

A sweep puts every configuration in a range named after it.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    SEED,
    SNAPSHOT,
    STATUS,
    precision,
    repeats,
    warmup,
)
from .shapes import SHAPES

SWEEPS = {
    "none": "one row, from the other parameters",
    "precision": "fp32, tf32, bf16, fp16",
    "ctx": "64, 128, 256, 512",
    "warmup": "0, 1, 2 and 5 warm-up steps; only the first row loads the libraries",
    "mode": "fwd, fwd_bwd, full",
    "seed-004": "the four rows of the CS336 solution's headline table",
}

_AVG_MS = Figure(name="avg_ms", unit="ms", help="mean wall time of a measured step")
_STD_MS = Figure(name="std_ms", unit="ms", help="sample standard deviation of the steps")
_FIRST = Figure(
    name="first_step_ms", unit="ms", help="the very first step, before or after any warm-up"
)
_P50 = Figure(name="step_p50_ms", unit="ms", help="median measured step")
_P99 = Figure(name="step_p99_ms", unit="ms", help="99th percentile of the measured steps")
_TOKENS_PER_S = Figure(name="tokens_per_s", unit="tokens/s", help="batch × ctx over the mean step")
_MFU = Figure(
    name="mfu_percent",
    unit="percent",
    help="PaLM's model operations over the time, of the dense peak of the effective precision",
)
_HFU = Figure(
    name="hfu_percent", unit="percent", help="the same with the operations the GPU actually does"
)

HEADLINE = Table(
    name="headline",
    title="Training steps",
    columns=(
        Figure(name="size", help="shape of the model"),
        Figure(name="parameters", help="how many the shape has"),
        Figure(name="ctx", unit="tokens", help="length of a sequence"),
        Figure(name="mode", help="fwd, fwd_bwd or full"),
        Figure(name="precision", help="the type the matrix products actually compute in"),
        Figure(name="warmup", unit="steps", help="untimed steps at the start"),
        _AVG_MS,
        _STD_MS,
        _P50,
        _P99,
        _FIRST,
        _TOKENS_PER_S,
        _MFU,
        _HFU,
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure(name="final_loss", help="loss of the last step"),
        STATUS,
    ),
)

PHASES = Table(
    name="train_phases",
    title="Where a step's time goes",
    columns=(
        Figure(name="section", help="the configuration and the part of it"),
        Figure(name="metric", help="the range"),
        Figure(name="count", help="times it was entered"),
        Figure(name="cpu_total_ms", unit="ms", help="host time in the range: submitting the work"),
        Figure(name="cpu_per_step_ms", unit="ms", help="the same per step"),
        Figure(
            name="gpu_span_per_step_ms",
            unit="ms",
            help="between CUDA events around the range: its kernels and the gaps between them",
        ),
        Figure(name="share_percent", unit="percent", help="of the parent's CPU time"),
        Figure(name="share_of", help="the parent"),
    ),
)

CLOCKS = Table(
    name="train_clocks",
    title="A step by each clock",
    columns=(
        Figure(name="configuration", help="the row of the headline"),
        Figure(name="wall_ms", unit="ms", help="mean step by the host's clock"),
        Figure(name="cpu_ms", unit="ms", help="host's time in the step's ranges"),
        Figure(name="gpu_span_ms", unit="ms", help="between CUDA events, including gaps"),
        Figure(
            name="host_wait_ms", unit="ms", help="wall minus CPU: the host waiting for the device"
        ),
        Figure(
            name="gpu_idle_outside_ms",
            unit="ms",
            help="wall minus GPU span; gaps inside the span are in the captured phases",
        ),
    ),
)

MEMORY = Table(
    name="train_memory",
    title="Memory of the first step, by purpose",
    columns=(
        Figure(name="configuration", help="the row of the headline"),
        Figure(name="what", help="what holds the memory"),
        Figure(name="expected_bytes", unit="bytes", help="by formula"),
        Figure(
            name="measured_bytes",
            unit="bytes",
            help="growth of torch's allocated memory, including libraries' workspaces",
        ),
    ),
)

TRAIN = Workload(
    name="train",
    summary="training steps: forward, loss, backward, optimizer",
    description=(
        "Steps of training on one batch of random tokens, which the model slowly memorizes. "
        "Parameters stay fp32; bf16 and fp16 compute under autocast, as PyTorch's "
        "training loops do, fp16 with a gradient scaler. Every step waits for the device. The "
        "first step is separate from the measured ones, and so are the two clocks, host and "
        "GPU."
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
            default=4,
            minimum=1,
            maximum=65536,
            unit="sequences",
            help="sequences of a step",
        ),
        Parameter(
            name="ctx",
            kind="int",
            default=256,
            cpu_default=64,
            minimum=2,
            maximum=65536,
            unit="tokens",
            help="length of a sequence; at most 1024 for gpt2 sizes",
        ),
        Parameter(
            name="mode",
            kind="choice",
            choices=("fwd", "fwd_bwd", "full"),
            default="full",
            help="forward and loss; with the backward pass; with the optimizer too",
        ),
        precision("of the matrix products; bf16 and fp16 under autocast"),
        Parameter(
            name="attention",
            kind="choice",
            choices=("naive", "sdpa"),
            default="naive",
            help="every matrix written out, or PyTorch's scaled_dot_product_attention",
        ),
        Parameter(
            name="checkpoint",
            kind="int",
            default=0,
            minimum=0,
            maximum=1000,
            unit="layers",
            help="layers per activation checkpoint, recomputed in the backward pass; 0 keeps all",
        ),
        Parameter(
            name="compile",
            kind="bool",
            default=False,
            help="torch.compile the model; no inner ranges",
        ),
        Parameter(
            name="optimizer",
            kind="choice",
            choices=("fused", "foreach", "loop"),
            default="fused",
            help="AdamW in one kernel, in a few over all tensors, or tensor by tensor",
        ),
        Parameter(
            name="lr",
            kind="float",
            default=1e-3,
            minimum=0,
            maximum=1,
            help="AdamW's learning rate",
        ),
        warmup(5, "steps", cpu_default=1),
        repeats("steps", 10, "steps", cpu_default=3),
        Parameter(
            name="sweep",
            kind="choice",
            choices=tuple(SWEEPS),
            default="none",
            help="one row each; " + "; ".join(f"{n}: {text}" for n, text in SWEEPS.items()),
        ),
        SNAPSHOT,
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(
            name="quick",
            help="a few seconds on any machine",
            values={"size": "tiny", "ctx": 32, "warmup": 1, "steps": 3},
        ),
        Preset(
            name="seed-004",
            help="headline rows of the CS336 solution: size, precision and warm-up",
            values={"sweep": "seed-004", "batch": 4, "steps": 30},
        ),
        Preset(
            name="seed-004-precision",
            help="medium at ctx 512 in every precision",
            values={"sweep": "precision", "size": "medium", "ctx": 512, "steps": 30},
        ),
        Preset(
            name="seed-004-memory",
            help="2.7B in fp32 at growing ctx: time and peak memory",
            values={"sweep": "ctx", "size": "2.7B", "precision": "fp32", "mode": "fwd"},
        ),
        Preset(
            name="seed-003",
            help="the lecture's loop: GPT-2, 4 × 512 tokens, three steps, no warm-up",
            values={"size": "gpt2", "ctx": 512, "steps": 3, "warmup": 0, "precision": "fp32"},
        ),
        Preset(
            name="handout-warmup",
            help="the effect of warm-up: 0, 1, 2 and 5 steps",
            values={"sweep": "warmup", "size": "small"},
        ),
    ),
    phases=(
        "warmup",
        "measure_loop",
        "step",
        "FORWARD",
        "embedding",
        "norm",
        "MHA(total)",
        "QKV projections",
        "RoPE(Q)",
        "RoPE(K)",
        "attn_logits (QK^T) + mask",
        "softmax",
        "attn*V (context)",
        "scaled_dot_product_attention",
        "output proj",
        "FFN",
        "lm_head",
        "LOSS",
        "BACKWARD",
        "OPTIMIZER",
        "OPTIMIZER.step",
        "OPTIMIZER.zero_grad",
    ),
    step_range="step",
    results=(
        DEVICE_NAME,
        EFFECTIVE_PRECISION,
        Figure(name="parameter_count", help="parameters of the model"),
        Figure(name="model_flops_per_step", help="PaLM's 6 N + 12 L H Q T a token"),
        Figure(name="matrix_products_per_step", help="matrix products the layers imply"),
        _FIRST,
        _AVG_MS,
        _STD_MS,
        _P50,
        _P99,
        _TOKENS_PER_S,
        _MFU,
        _HFU,
        Figure(name="first_loss", help="loss of the very first step"),
        Figure(name="final_loss", help="loss of the last step"),
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure(name="alloc_retries", help="times torch had to empty its cache to allocate"),
        Figure(name="out_of_memory_rows", help="configurations that did not fit"),
    ),
    tables=(HEADLINE, PHASES, CLOCKS, MEMORY),
    run=f"{__name__}.run:run",
    rank=2,
)
