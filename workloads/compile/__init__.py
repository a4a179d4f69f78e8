"""`compile`: functions run eagerly and through torch.compile, and what the compiler generated.

A row is a range named after it: inside, `compile` once and a `step` for every timed pass.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, choice, repeats, warmup, whole
from ..train.shapes import OLD_NAMES, SHAPES

WORK = {
    "pointwise": "the lecture's foo: two random tensors, x·y + x",
    "attention": "naive causal attention, forward",
    "model": "a model's training step without its optimizer, one of the workload train",
}

COMPILE = Workload(
    name="compile",
    summary="eager against torch.compile: time, kernels, break-even",
    description=(
        "Runs a pointwise function, naive attention and a model's forward and backward pass "
        "eagerly and compiled. Shows the times, how long compiling took, after how many "
        "passes it pays off, how many operations the eager way launches and which fused "
        "kernels the compiler generated instead, by name."
    ),
    parameters=(
        choice("work", "all", ("all", *WORK),
               "; ".join(f"{name}: {text}" for name, text in WORK.items()),
               cpu_default="pointwise"),
        choice("model", "cs336-small", SHAPES, "shape of the model", cpu_default="cs336-tiny",
               aliases=OLD_NAMES),
        whole("elements", 2**24, 1, 2**30, "elements of the pointwise function's tensors",
              cpu_default=2**16),
        warmup(3, "passes", cpu_default=1),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "only the pointwise function", {"work": "pointwise"}),
        Preset("seed-003", "the lecture's foo on 25 numbers",
               {"work": "pointwise", "elements": 25}),
    ),
    phases=("compile", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        *(Figure(f"{case}_speedup", f"of the compiled {case} over the eager one, by GPU time")
          for case in WORK),
        Figure("compile_s", "total compile time"),
    ),
    tables=(
        Table(
            "compile",
            "Eager against compiled",
            (
                Figure("work", "what was run"),
                Figure("eager_ms", "an eager pass"),
                Figure("compiled_ms", "a compiled pass"),
                Figure("speedup", "of compiled over eager, launches included"),
                Figure("eager_gpu_ms", "GPU time of an eager pass: where the host may take longer "
                       "to launch it, by many in one CUDA graph"),
                Figure("compiled_gpu_ms", "the same of a compiled one"),
                Figure("gpu_speedup", "of compiled over eager, by these"),
                Figure("compile_s", "the first compiled pass"),
                Figure("break_even_passes", "passes after which compiling pays off"),
                Figure("eager_operations", "operations dispatched by an eager pass, without views"),
                Figure("compiled_kernels",
                       "generated kernels and remaining library calls of a pass"),
                Figure("compiled_peak_bytes", "peak held by tensors, compiled"),
                Figure("eager_peak_bytes", "peak held by tensors, eager"),
                STATUS,
            ),
        ),
        Table(
            "fused_kernels",
            "Kernels the compiler generated",
            (
                Figure("work", "what it was generated for"),
                Figure("kernel", "its name, which lists what it fuses"),
                Figure("calls", "calls in the generated code"),
                Figure("source", "the file that Inductor wrote it into"),
                Figure("ptx", "the file with a Triton kernel's PTX"),
            ),
        ),
        Table(
            "generated_code",
            "What the compiler generated, line by line",
            (
                Figure("kernel", "the kernel that the line is of"),
                Figure("line", "of its source, from 1 on"),
                Figure("text", "as Inductor wrote it: Triton, or C++ for the CPU"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=8,
)  # fmt: skip
