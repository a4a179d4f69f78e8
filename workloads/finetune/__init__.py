"""`finetune`: all weights or LoRA's, documents padded or packed.

A row is a range named after it, with a `step` for every timed update: in each `FORWARD`,
`BACKWARD` and `OPTIMIZER` 1.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    PEAK_ALLOCATED,
    SEED,
    STATUS,
    STEP_MS,
    choice,
    repeats,
    warmup,
    whole,
)
from ..train.shapes import SHAPES

SIZES = [name for name, shape in SHAPES.items() if shape.family == "llama"]

FINETUNE = Workload(
    name="finetune",
    summary="training on documents: all weights or LoRA, padded or packed",
    description=(
        "Updates of a model on documents of random lengths and words. Each document in a row of "
        "its own, padded to ctx, or several in a row, where each sees only itself: the loss is the "
        "same, the work is not. All weights with AdamW, or low-rank additions to every matrix of "
        "the layers (Hu et al., 2021) with the weights themselves frozen. Parameters are fp32, "
        "attention writes its scores out, which needs a mask of documents."
    ),
    parameters=(
        choice("size", "cs336-small", SIZES, "shape of the model", cpu_default="llama-tiny"),
        whole("documents", 16, 1, 65536, "of an update", cpu_default=6),
        whole("ctx", 512, 8, 8192, "length of a row, and of the longest document", cpu_default=32,
              unit="tokens"),
        whole("rank", 16, 1, 4096, "of LoRA's additions", cpu_default=4),
        choice("precision", "bf16", ("fp32", "tf32", "bf16"),
               "of the matrix products; bf16 under autocast", cpu_default="fp32"),
        warmup(3, "updates", cpu_default=1),
        repeats("steps", 10, "updates", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a tiny model", {"size": "llama-tiny", "ctx": 64, "steps": 3}),
        Preset("1b", "Llama 3.2 1B: what LoRA saves of the optimizer's state",
               {"size": "llama-3.2-1b", "documents": 8}),
    ),
    phases=("step", "FORWARD", "BACKWARD", "OPTIMIZER"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("padding_percent", "of the tokens of padded rows"),
        Figure("packing_speedup", "tokens a second of packed over padded rows, all weights"),
        Figure("lora_speedup", "tokens a second of LoRA over all weights, packed"),
        Figure("lora_state_percent", "weights, gradients and optimizer of LoRA, of those of all"),
    ),
    tables=(
        Table(
            "finetune",
            "Updates by what is trained and how rows are filled",
            (
                Figure("trained", "all or lora"),
                Figure("rows", "padded or packed"),
                Figure("sequences", "rows of an update"),
                Figure("padding_percent", "of their tokens"),
                Figure("trained_parameters", "that get a gradient"),
                Figure("state_bytes", "weights, gradients and AdamW's two moments, by formula"),
                Figure("wall_ms", "an update"),
                Figure("tokens_per_s", "of documents, padding apart"),
                Figure("first_loss", "before any update: the same in every row"),
                Figure("final_loss", "of the last update"),
                PEAK_ALLOCATED,
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=3,
)  # fmt: skip
