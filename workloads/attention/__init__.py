"""`attention`: attention in isolation, over shapes, implementations and precisions.

This file declares it and imports nothing heavy; `grids` are common benchmark shapes;
`implementations` the ways to compute it; `run` measures them, one row each. A row is a range named
after it, with `forward` and `backward` in it, and a `step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, choice, repeats, warmup
from .grids import GRIDS, IMPLEMENTATIONS

_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def _list_of(names: tuple[str, ...]) -> str:
    any_of = "|".join(names)
    return rf"({any_of})(,({any_of}))*"


ATTENTION = Workload(
    name="attention",
    summary="attention by itself: naive, flash and others, shape by shape",
    description=(
        "Causal or full self-attention over a grid of widths and lengths, forward and backward, "
        "each implementation in each precision. A shape that does not fit is a row that says so "
        "and keeps what was measured before. Times are per pass; totals over all passes, "
        "which some reports print instead, have their own columns. Random inputs."
    ),
    parameters=(
        choice("grid", "llm", GRIDS,
               "shapes; " + "; ".join(f"{name}: {grid.help}" for name, grid in GRIDS.items()),
               cpu_default="tiny"),
        Parameter("implementations", "text", ",".join(IMPLEMENTATIONS),
                  "; ".join(f"{name}: {text}" for name, text in IMPLEMENTATIONS.items()),
                  cpu_default="naive,math,flash", pattern=_list_of(tuple(IMPLEMENTATIONS)),
                  pattern_help="a comma-separated list of " + ", ".join(IMPLEMENTATIONS)),
        Parameter("precision", "text", "bf16",
                  "of inputs and products, one row each; tf32 stores fp32", cpu_default="fp32",
                  pattern=_list_of(_PRECISIONS),
                  pattern_help="a list of " + ", ".join(_PRECISIONS) + " with commas between"),
        Parameter("backward", "bool", True, "measure the backward pass too"),
        Parameter("dropout", "float", 0.0, "share of the probabilities that is dropped", minimum=0,
                  maximum=0.9),
        warmup(5, "passes", cpu_default=1),
        repeats("passes", 50, "passes", cpu_default=3),
        Parameter("budget", "float", 0.5,
                  "stop repeating a pass after this total time; each runs at least once",
                  minimum=0.01, maximum=3600, unit="s"),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("seed-004", "the CS336 solution's grid: batch 8, one head, fp32, 200 passes",
               {"grid": "seed-004", "implementations": "naive", "precision": "fp32", "warmup": 50,
                "passes": 200, "budget": 60.0}),
        Preset("seed-004-tf32", "compiled, with TF32 and without",
               {"grid": "seed-004", "implementations": "compiled", "precision": "fp32,tf32"}),
        Preset("seed-003", "GPT-2 medium at batch 64: memory traffic and time, naive against flash",
               {"grid": "seed-003", "implementations": "naive,flash,cudnn", "precision": "fp16"}),
        Preset("fusion", "matmul, mask, softmax, dropout and matmul against one kernel, GPT-2",
               {"grid": "gpt2", "implementations": "naive,flash", "precision": "fp16",
                "dropout": 0.1}),
        Preset("handout", "the assignment's grid, naive against compiled",
               {"grid": "handout", "implementations": "naive,compiled", "precision": "fp32",
                "passes": 100}),
        Preset("flash-handout",
               "the assignment's grid for FlashAttention: batch 1, to 65,536 tokens",
               {"grid": "flash-handout", "implementations": "naive,flash,cudnn",
                "precision": "bf16,fp32"}),
        Preset("flash-paper",
               "FlashAttention-2's benchmark: 16 k tokens a batch, width 2,048, fp16",
               {"grid": "flash-paper", "implementations": "naive,flash,cudnn", "precision": "fp16",
                "passes": 30}),
        Preset("quick", "a few small shapes",
               {"grid": "tiny", "implementations": "naive,math", "passes": 3, "warmup": 1}),
    ),
    phases=("forward", "backward", "step", "matmul QK^T", "scale", "mask", "softmax", "dropout",
            "matmul PV"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("rows_measured", "rows that completed"),
        Figure("out_of_memory_rows", "rows that did not fit"),
        Figure("best_fwd_flops_per_s", "fastest forward pass"),
        Figure("best_implementation", "implementation of the fastest forward pass"),
        Figure("largest_speedup", "of any implementation over naive, forward"),
    ),
    tables=(
        Table(
            "attention",
            "Attention",
            (
                Figure("implementation", "how it is computed"),
                Figure("precision", "the type the products actually compute in"),
                Figure("causal", "whether tokens see only earlier ones"),
                Figure("batch", "sequences"),
                Figure("heads", "heads of each"),
                Figure("d_model", "width of one head"),
                Figure("seq_len", "tokens of a sequence"),
                Figure("fwd_ms", "a forward pass"),
                Figure("bwd_ms", "a backward pass, without its forward"),
                Figure("fwd_gpu_ms", "GPU time of a forward pass: where the host may take longer "
                       "to launch it, by many in one CUDA graph"),
                Figure("bwd_gpu_ms", "the same of a backward pass: of both, less the forward's"),
                Figure("fwd_total_ms", "all timed forward passes"),
                Figure("bwd_total_ms", "all timed backward passes"),
                Figure("passes", "forward passes that were timed"),
                Figure("mem_before_bwd_bytes",
                       "allocated after a forward pass that keeps activations for backward"),
                Figure("peak_memory_allocated_bytes", "peak of the row"),
                Figure("fwd_flops_per_s", "half of it counted if causal"),
                Figure("bwd_flops_per_s", "2.5 × forward's if fused"),
                Figure("fwd_bwd_flops_per_s", "forward and backward combined"),
                Figure("peak_percent", "forward, of the dense peak"),
                Figure("ceiling_percent", "forward, of the best product that gemm measured"),
                Figure(
                    "hbm_bytes",
                    "forward's memory traffic, operation by operation; of fused kernels the least",
                ),
                Figure("bwd_hbm_bytes", "the same of backward"),
                Figure(
                    "measured_hbm_bytes",
                    "forward's by the GPU's counter (GPM, Hopper and later): share of the peak × "
                    "peak × time",
                ),
                Figure("measured_bwd_hbm_bytes", "backward's by the same counter"),
                Figure("host_ms", "host time to launch a forward pass"),
                Figure("fwd_speedup", "over naive of the same shape and precision"),
                Figure("bwd_speedup", "over naive, backward pass"),
                Figure("compile_ms", "the first call, including compilation"),
                STATUS,
            ),
        ),
        Table(
            "attention_tf32",
            "With and without TF32",
            (
                Figure("implementation", "how it is computed"),
                Figure("d_model", "width of one head"),
                Figure("seq_len", "tokens of a sequence"),
                Figure("fwd_fp32_ms", "a forward pass in fp32 (ieee), by its GPU time"),
                Figure("fwd_tf32_ms", "in fp32 (tf32)"),
                Figure("fwd_change_percent", "change of the time by TF32"),
                Figure("bwd_fp32_ms", "a backward pass in fp32 (ieee), likewise"),
                Figure("bwd_tf32_ms", "in fp32 (tf32)"),
                Figure("bwd_change_percent", "change of the time by TF32"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=3,
)  # fmt: skip
