"""`parallel`: one model, trained by every way to divide it among GPUs.

Ranges of each rank: a row is a range named after its engine, with a `step` for every step and, in
it, `load`, `forward`, `backward`, `sync` and `optimizer`, or `schedule` of a pipeline. On the CPU,
where the library makes none, collectives are ranges of a domain `comm` with their bytes; there each
is waited for where it begins.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    SEED,
    STATUS,
    STEP_MS,
    TIMEOUT,
    choice,
    repeats,
    warmup,
    whole,
)
from .plans import ENGINES, FAMILIES

PARALLEL = Workload(
    name="parallel",
    summary="one model over several GPUs: data, tensor, pipeline, expert",
    description=(
        "Trains one GPT by every engine of torch that divides it: data parallel (an all-reduce a "
        "gradient, one for all, DDP's buckets), ZeRO-1 to 3, tensor parallel with and without "
        "sequence parallel, pipelines, context parallel by all-to-all (Ulysses), data and "
        "tensor parallel at once (mesh: two ranks to a matrix, from eight ranks on in two stages), "
        "and a mixture of experts. All train on the same batch from the same weights, so their "
        "losses are equal. torchrun starts the ranks. One of them can be made late."
    ),
    parameters=(
        choice(
            "engine",
            "all",
            ("all", *FAMILIES, *ENGINES),
            "which engines, one after another",
        ),
        whole("ranks", 0, 0, 1024, "processes, a GPU each; 0 takes all GPUs, 2 on the CPU"),
        whole("layers", 16, 1, 512, "transformer blocks", cpu_default=4),
        whole("hidden", 2048, 8, 65536, "width of the model", cpu_default=64),
        whole("heads", 16, 1, 1024, "attention heads", cpu_default=4),
        whole("vocab", 50304, 16, 1_000_000, "tokens of the vocabulary", cpu_default=256),
        whole("ctx", 1024, 2, 1_000_000, "tokens of a sequence", cpu_default=32),
        whole("batch", 8, 1, 65536, "sequences of each rank", cpu_default=4),
        whole("microbatches", 8, 1, 4096, "parts of the batch in a pipeline", cpu_default=4),
        whole("stage_ms", 0, 0, 10_000, "a pipeline whose stages sleep so long a part, forward; "
              "twice that backward: shows the bubble on any machine", unit="ms"),
        choice("precision", "tf32", ("fp32", "tf32"), "of matrix products", cpu_default="fp32"),
        choice("late", "none", ("none", "sleep", "longer"),
               "makes a rank late: it sleeps each step, or its sequences are longer"),
        whole("late_rank", 1, 0, 1023, "which one"),
        Parameter("late_ms", "float", 20.0, "how long it sleeps", unit="ms", minimum=0,
                  maximum=60_000),
        TIMEOUT,
        warmup(3, "steps", cpu_default=1),
        repeats("steps", 20, "steps", cpu_default=3),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a small model", {"layers": 8, "hidden": 512, "heads": 8, "steps": 5}),
        Preset("data", "data parallel and ZeRO", {"engine": "data"}),
        Preset("late", "a rank that sleeps 20 ms each step",
               {"engine": "ddp", "late": "sleep", "steps": 60}),
        Preset("bubble", "a pipeline whose stages sleep",
               {"engine": "pipeline", "stage_ms": 20, "steps": 3}),
    ),
    phases=("step", "load", "forward", "backward", "sync", "optimizer", "schedule"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("ranks_used", "processes that worked together"),
        Figure("parameters_total", "of the model"),
        Figure("one_rank_tokens_per_s", "one rank by itself"),
        Figure("best_tokens_per_s", "of the fastest engine, all ranks"),
        Figure("best_engine", "the fastest"),
        Figure("least_bubble_percent", "of the pipelines' steps, of the one with the least"),
    ),
    tables=(
        Table(
            "parallel",
            "One model over several ranks",
            (
                Figure("engine", "how the model is divided"),
                Figure("ranks", "processes"),
                Figure("step_ms", "a step, the slowest rank's"),
                Figure("tokens_per_s", "of all ranks", unit="tokens/s"),
                Figure("strong_percent", "speed a rank of one rank's at the same whole batch",
                       unit="percent"),
                Figure("weak_percent", "speed a rank of one rank's at the same batch a rank",
                       unit="percent"),
                Figure("bubble_percent", "share of a pipeline's step in which a rank computes "
                       "nothing for its stages, mean of the ranks", unit="percent"),
                Figure("bubble_formula_percent",
                       "(p − 1)/(v m + p − 1), if stages are equal and nothing else costs time",
                       unit="percent"),
                Figure("collectives", "begun in a step, on rank 0"),
                Figure("sent_bytes", "for them in a step by rank 0, by nccl-tests' factors",
                       unit="bytes"),
                Figure("formula_bytes", "the same by the papers' formula", unit="bytes"),
                Figure("state_bytes", "weights, gradients and optimizer of rank 0", unit="bytes"),
                Figure("state_formula_bytes", "by the papers' formula, in fp32", unit="bytes"),
                Figure("peak_bytes", "allocated on rank 0's GPU at most", unit="bytes"),
                Figure("loss", "after the last step"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=3,
)  # fmt: skip
