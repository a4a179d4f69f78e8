"""`attention`: attention in isolation, over shapes, implementations and precisions.

This file declares it and imports nothing heavy; `grids` are common benchmark shapes;
`implementations` the ways to compute it; `run` measures them, one row each. A row is a range named
after it, with `forward` and `backward` in it, and a `step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, repeats, warmup
from .grids import GRIDS, IMPLEMENTATIONS

_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def _list_of(names: tuple[str, ...]) -> str:
    any_of = "|".join(names)
    return rf"({any_of})(,({any_of}))*"


ATTENTION = Workload(
    name="attention",
    summary="attention in isolation: naive, flash and others over a grid of shapes",
    description=(
        "Causal or full self-attention over a grid of widths and lengths, forward and backward, "
        "each implementation in each precision. A shape that does not fit is a row that says so "
        "and keeps what was measured before. Times are per pass; totals over all passes, "
        "which some reports print instead, have their own columns. Random inputs."
    ),
    parameters=(
        Parameter(
            name="grid",
            kind="choice",
            choices=tuple(GRIDS),
            default="llm",
            cpu_default="tiny",
            help="shapes; " + "; ".join(f"{name}: {grid.help}" for name, grid in GRIDS.items()),
        ),
        Parameter(
            name="implementations",
            kind="text",
            default=",".join(IMPLEMENTATIONS),
            cpu_default="naive,math,flash",
            pattern=_list_of(tuple(IMPLEMENTATIONS)),
            pattern_help="a comma-separated list of " + ", ".join(IMPLEMENTATIONS),
            help="; ".join(f"{name}: {text}" for name, text in IMPLEMENTATIONS.items()),
        ),
        Parameter(
            name="precision",
            kind="text",
            default="bf16",
            cpu_default="fp32",
            pattern=_list_of(_PRECISIONS),
            pattern_help="a list of " + ", ".join(_PRECISIONS) + " with commas between",
            help="of inputs and products, one row each; tf32 stores fp32",
        ),
        Parameter(name="backward", kind="bool", default=True, help="measure the backward pass too"),
        warmup(5, "passes", cpu_default=1),
        repeats("passes", 50, "passes", cpu_default=3),
        Parameter(
            name="budget",
            kind="float",
            default=0.5,
            minimum=0.01,
            maximum=3600,
            unit="s",
            help="stop repeating a pass after this total time; each runs at least once",
        ),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(
            name="seed-004",
            help="the CS336 solution's grid: batch 8, one head, fp32, 200 passes",
            values={
                "grid": "seed-004",
                "implementations": "naive",
                "precision": "fp32",
                "warmup": 50,
                "passes": 200,
                "budget": 60.0,
            },
        ),
        Preset(
            name="seed-004-tf32",
            help="compiled, with TF32 and without",
            values={"grid": "seed-004", "implementations": "compiled", "precision": "fp32,tf32"},
        ),
        Preset(
            name="seed-003",
            help="GPT-2 medium at batch 64: memory traffic and time, naive against flash",
            values={
                "grid": "seed-003",
                "implementations": "naive,flash,cudnn",
                "precision": "fp16",
            },
        ),
        Preset(
            name="handout",
            help="the assignment's grid, naive against compiled",
            values={
                "grid": "handout",
                "implementations": "naive,compiled",
                "precision": "fp32",
                "passes": 100,
            },
        ),
        Preset(
            name="flash-handout",
            help="the assignment's grid for FlashAttention: batch 1, to 65,536 tokens",
            values={
                "grid": "flash-handout",
                "implementations": "naive,flash,cudnn",
                "precision": "bf16,fp32",
            },
        ),
        Preset(
            name="flash-paper",
            help="FlashAttention-2's benchmark: 16 k tokens a batch, width 2,048, fp16",
            values={
                "grid": "flash-paper",
                "implementations": "naive,flash,cudnn",
                "precision": "fp16",
                "passes": 30,
            },
        ),
        Preset(
            name="quick",
            help="a few small shapes",
            values={"grid": "tiny", "implementations": "naive,math", "passes": 3, "warmup": 1},
        ),
    ),
    phases=("forward", "backward", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="rows_measured", help="rows that completed"),
        Figure(name="out_of_memory_rows", help="rows that did not fit"),
        Figure(name="best_fwd_flops_per_s", unit="flops/s", help="fastest forward pass"),
        Figure(name="best_implementation", help="implementation of the fastest forward pass"),
        Figure(name="largest_speedup", help="of any implementation over naive, forward"),
    ),
    tables=(
        Table(
            name="attention",
            title="Attention",
            columns=(
                Figure(name="implementation", help="how it is computed"),
                Figure(name="precision", help="the type the products actually compute in"),
                Figure(name="causal", help="whether tokens see only earlier ones"),
                Figure(name="batch", help="sequences"),
                Figure(name="heads", help="heads of each"),
                Figure(name="d_model", help="width of one head"),
                Figure(name="seq_len", help="tokens of a sequence"),
                Figure(name="fwd_ms", unit="ms", help="a forward pass"),
                Figure(name="bwd_ms", unit="ms", help="a backward pass, without its forward"),
                Figure(name="fwd_total_ms", unit="ms", help="all timed forward passes"),
                Figure(name="bwd_total_ms", unit="ms", help="all timed backward passes"),
                Figure(name="passes", help="forward passes that were timed"),
                Figure(
                    name="mem_before_bwd_bytes",
                    unit="bytes",
                    help="allocated after a forward pass that keeps activations for backward",
                ),
                Figure(name="peak_memory_allocated_bytes", unit="bytes", help="peak of the row"),
                Figure(name="fwd_flops_per_s", unit="flops/s", help="half of it counted if causal"),
                Figure(name="bwd_flops_per_s", unit="flops/s", help="2.5 × forward's if fused"),
                Figure(
                    name="fwd_bwd_flops_per_s", unit="flops/s", help="forward and backward combined"
                ),
                Figure(name="peak_percent", unit="percent", help="forward, of the dense peak"),
                Figure(
                    name="hbm_bytes", unit="bytes", help="forward's memory traffic, an estimate"
                ),
                Figure(name="host_ms", unit="ms", help="host time to launch a forward pass"),
                Figure(name="fwd_speedup", help="over naive of the same shape and precision"),
                Figure(name="bwd_speedup", help="over naive, backward pass"),
                Figure(name="compile_ms", unit="ms", help="the first call, including compilation"),
                STATUS,
            ),
        ),
        Table(
            name="attention_tf32",
            title="With and without TF32",
            columns=(
                Figure(name="implementation", help="how it is computed"),
                Figure(name="d_model", help="width of one head"),
                Figure(name="seq_len", help="tokens of a sequence"),
                Figure(name="fwd_fp32_ms", unit="ms", help="a forward pass in fp32 (ieee)"),
                Figure(name="fwd_tf32_ms", unit="ms", help="in fp32 (tf32)"),
                Figure(
                    name="fwd_change_percent", unit="percent", help="change of the time by TF32"
                ),
                Figure(name="bwd_fp32_ms", unit="ms", help="a backward pass in fp32 (ieee)"),
                Figure(name="bwd_tf32_ms", unit="ms", help="in fp32 (tf32)"),
                Figure(
                    name="bwd_change_percent", unit="percent", help="change of the time by TF32"
                ),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=3,
)
