"""`train`: steps of a language model's training, as the CS336 assignments and llm.c measure them.

This file declares it and imports nothing heavy; `shapes` and `memory` are arithmetic; `model` is
the networks; `step` runs and times steps; `tables` turns times into tables; `run` puts them
together, one row per configuration.

Ranges of a configuration with W warm-up and N measured steps:

    load          1
    warmup        1 (none when W is 0), W steps without a range `step`
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
    choice,
    precision,
    repeats,
    warmup,
    whole,
)
from .shapes import OLD_NAMES, SHAPES

SWEEPS = {
    "none": "one row, from the other parameters",
    "precision": "fp32, tf32, bf16, fp16",
    "ctx": "64, 128, 256, 512",
    "warmup": "0, 1, 2 and 5 warm-up steps, of which the first row loads the libraries",
    "mode": "fwd, fwd_bwd, full",
    "checkpoint": "no activation checkpoints, then one for every 4, 2 and 1 layers",
    "optimizer": "sgd, momentum, fused AdamW",
    "seed-004": "the four rows of the CS336 solution's headline table, its fp32 being TF32",
}

_AVG_MS = Figure("avg_ms", "mean wall time of a measured step")
_STD_MS = Figure("std_ms", "sample standard deviation of the steps")
_FIRST = Figure("first_step_ms", "the very first step, before or after any warm-up")
GPU_BUSY = Figure(
    "gpu_busy_ms",
    "the GPU's time of a step: one step replayed as a CUDA graph, so that it waits for no launch, "
    "with about a microsecond between two kernels; n/a where it cannot be captured, as with "
    "checkpoints",
)
BOUND = Figure(
    "bound",
    "launch-bound where the GPU is busy for less than 80 % of the mean step, else GPU-bound",
)
_P50 = Figure("step_p50_ms", "median measured step")
_P99 = Figure("step_p99_ms", "99th percentile of the measured steps")
_TOKENS_PER_S = Figure("tokens_per_s", "global batch × ctx over the mean step", unit="tokens/s")
_MFU = Figure(
    "mfu_percent",
    "PaLM's model operations over the time, of the dense peak of the effective precision",
)
_HFU = Figure("hfu_percent", "the same with the operations the GPU actually does")
_CEILING = Figure("ceiling_percent", "those, of the best product that gemm measured on this card")

HEADLINE = Table(
    "headline",
    "Training steps",
    (
        Figure("size", "shape of the model"),
        Figure("parameters", "how many the shape has"),
        Figure("ctx", "length of a sequence", unit="tokens"),
        Figure("mode", "fwd, fwd_bwd or full"),
        Figure("precision", "the type the matrix products actually compute in"),
        Figure("warmup", "untimed steps at the start", unit="steps"),
        Figure("checkpoint", "layers per activation checkpoint; 0 keeps all", unit="layers"),
        Figure("optimizer", "what updates the weights"),
        _AVG_MS,
        _STD_MS,
        GPU_BUSY,
        BOUND,
        _P50,
        _P99,
        _FIRST,
        _TOKENS_PER_S,
        _MFU,
        _HFU,
        _CEILING,
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure("final_loss", "loss of the last step"),
        STATUS,
    ),
)

PHASES = Table(
    "train_phases",
    "Where a step's time goes",
    (
        Figure("section", "the configuration and the part of it"),
        Figure("metric", "the range"),
        Figure("count", "times it was entered"),
        Figure("cpu_total_ms", "host time in the range: submitting the work"),
        Figure("cpu_per_step_ms", "the same per step"),
        Figure(
            "gpu_span_per_step_ms",
            "between CUDA events around the range: its kernels and the gaps between them",
        ),
        Figure("parent_percent", "of the parent's CPU time"),
        Figure("parent", "the range around it"),
    ),
)

CLOCKS = Table(
    "train_clocks",
    "A step by each clock",
    (
        Figure("configuration", "the row of the headline"),
        Figure("wall_ms", "mean step by the host's clock"),
        Figure("cpu_ms", "host's time in the step's ranges"),
        Figure("gpu_span_ms", "between CUDA events, including gaps"),
        Figure("host_wait_ms", "wall minus CPU: the host waiting for the device"),
        Figure(
            "gpu_idle_outside_ms",
            "wall minus GPU span; gaps inside the span are in the captured phases",
        ),
    ),
)

MEMORY = Table(
    "train_memory",
    "Memory of the first step, by purpose",
    (
        Figure("configuration", "the row of the headline"),
        Figure("what", "what holds the memory"),
        Figure("expected_bytes", "by formula; of the peak the least there can be"),
        Figure(
            "measured_bytes",
            "of gradients and optimizer their tensors; of the rest the growth of torch's allocated "
            "memory",
        ),
    ),
)

TIMELINE = Table(
    "train_memory_timeline",
    "Memory during the first step",
    (
        Figure("time_ms", "since it began, by the host, which runs ahead of the GPU"),
        Figure("model_bytes", "weights"),
        Figure("optimizer_bytes", "AdamW's moments"),
        Figure("gradients_bytes", "of the weights, until the optimizer drops them"),
        Figure("workspaces_bytes", "what libraries work in, allocated before the step"),
        Figure("weight_copies_bytes", "autocast's, which the backward pass needs"),
        Figure("activations_bytes", "all else that is allocated: what the backward pass needs"),
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
        choice("size", "cs336-small", SHAPES,
               "shape of the model; " + "; ".join(f"{n}: {s}" for n, s in SHAPES.items()),
               cpu_default="cs336-tiny", aliases=OLD_NAMES),
        whole("batch", 4, 1, 65536, "sequences of a pass: the micro batch", unit="sequences"),
        whole("accumulate", 1, 1, 65536,
              "passes whose gradients add up before an update; times batch: the global batch",
              unit="passes"),
        whole("ctx", 256, 2, 65536, "length of a sequence; at most 1024 for gpt2 sizes",
              cpu_default=64, unit="tokens"),
        choice("mode", "full", ("fwd", "fwd_bwd", "full"),
               "forward and loss; with the backward pass; with the optimizer too"),
        precision("of the matrix products; bf16 and fp16 under autocast"),
        choice("attention", "naive", ("naive", "sdpa"),
               "every matrix written out, or PyTorch's scaled_dot_product_attention"),
        whole("checkpoint", 0, 0, 1000,
              "layers per activation checkpoint, recomputed in the backward pass; 0 keeps all",
              unit="layers"),
        Parameter("compile", "bool", False, "torch.compile the model; no inner ranges"),
        choice("optimizer", "fused", ("fused", "foreach", "loop", "momentum", "sgd"),
               "AdamW in one kernel, in a few over all tensors, or tensor by tensor; SGD with "
               "momentum 0.9 or without, in one kernel"),
        Parameter("lr", "float", 1e-3, "learning rate", minimum=0, maximum=1),
        warmup(5, "steps", cpu_default=1),
        repeats("steps", 10, "steps", cpu_default=3),
        choice("sweep", "none", SWEEPS,
               "one row each; " + "; ".join(f"{n}: {text}" for n, text in SWEEPS.items())),
        SNAPSHOT,
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a few seconds on any machine",
               {"size": "cs336-tiny", "ctx": 32, "warmup": 1, "steps": 3}),
        Preset("seed-004", "headline rows of the CS336 solution: size, precision and warm-up",
               {"sweep": "seed-004", "batch": 4, "steps": 30}),
        Preset("seed-004-precision", "medium at ctx 512 in every precision",
               {"sweep": "precision", "size": "cs336-medium", "ctx": 512, "steps": 30}),
        Preset("seed-004-memory", "2.7B in fp32 at growing ctx: time and peak memory",
               {"sweep": "ctx", "size": "cs336-2.7B", "precision": "fp32", "mode": "fwd"}),
        Preset("checkpointing",
               "memory and time of activation checkpoints: medium, 32 sequences of 512",
               {"sweep": "checkpoint", "size": "cs336-medium", "ctx": 512, "batch": 32,
                "warmup": 2, "steps": 4}),
        Preset("optimizers", "state and time of SGD, momentum and AdamW",
               {"sweep": "optimizer", "steps": 5}),
        Preset("gpt2-medium", "the lecture's memory figures: GPT-2 medium, AdamW, four sequences",
               {"size": "gpt2-medium", "ctx": 512, "precision": "fp32", "steps": 3}),
        Preset("accumulate",
               "a global batch of 32 in passes of 4: the same update with less memory",
               {"batch": 4, "accumulate": 8, "steps": 5}),
        Preset("seed-003", "the lecture's loop: GPT-2, 4 × 512 tokens, three steps, no warm-up",
               {"size": "gpt2", "ctx": 512, "steps": 3, "warmup": 0, "precision": "fp32"}),
        Preset("handout-warmup", "the effect of warm-up: 0, 1, 2 and 5 steps",
               {"sweep": "warmup", "size": "cs336-small"}),
    ),
    phases=("load", "warmup", "measure_loop", "step", "FORWARD", "embedding", "norm", "MHA(total)",
            "QKV projections", "RoPE(Q)", "RoPE(K)", "attn_logits (QK^T) + mask", "softmax",
            "attn*V (context)", "scaled_dot_product_attention", "output proj", "FFN", "lm_head",
            "LOSS", "BACKWARD", "OPTIMIZER", "OPTIMIZER.step", "OPTIMIZER.zero_grad"),
    step_range="step",
    results=(
        DEVICE_NAME,
        EFFECTIVE_PRECISION,
        Figure("parameter_count", "parameters of the model"),
        Figure("global_batch", "sequences of a step: batch × accumulate", unit="sequences"),
        Figure("tokens_per_step", "global batch × ctx"),
        Figure("model_flops_per_step", "PaLM's 6 N + 12 L H Q T a token"),
        Figure("matrix_products_per_step", "matrix products the layers imply"),
        _FIRST,
        _AVG_MS,
        _STD_MS,
        _P50,
        _P99,
        _TOKENS_PER_S,
        _MFU,
        _HFU,
        _CEILING,
        Figure("first_loss", "loss of the very first step"),
        Figure("final_loss", "loss of the last step"),
        PEAK_ALLOCATED,
        PEAK_RESERVED,
        Figure("alloc_retries", "times torch had to empty its cache to allocate"),
        Figure("out_of_memory_rows", "configurations that did not fit"),
    ),
    tables=(HEADLINE, PHASES, CLOCKS, MEMORY, TIMELINE),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=2,
)  # fmt: skip
