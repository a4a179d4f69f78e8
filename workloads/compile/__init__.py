"""`compile`: functions run eagerly and through torch.compile, and what the compiler generated.

A row is a range named after it: inside, `compile` once and a `step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, repeats, warmup
from ..train.shapes import SHAPES

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
        Parameter(
            name="work",
            kind="choice",
            choices=("all", *WORK),
            default="all",
            cpu_default="pointwise",
            help="; ".join(f"{name}: {text}" for name, text in WORK.items()),
        ),
        Parameter(
            name="model",
            kind="choice",
            choices=tuple(SHAPES),
            default="small",
            cpu_default="tiny",
            help="shape of the model",
        ),
        Parameter(
            name="elements",
            kind="int",
            default=2**24,
            cpu_default=2**16,
            minimum=1,
            maximum=2**30,
            help="elements of the pointwise function's tensors",
        ),
        warmup(3, "passes", cpu_default=1),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(name="quick", help="only the pointwise function", values={"work": "pointwise"}),
        Preset(
            name="seed-003",
            help="the lecture's foo on 25 numbers",
            values={"work": "pointwise", "elements": 25},
        ),
    ),
    phases=("compile", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        *(
            Figure(name=f"{work}_speedup", help=f"of the compiled {work} over the eager one")
            for work in WORK
        ),
        Figure(name="compile_s", unit="s", help="total compile time"),
    ),
    tables=(
        Table(
            name="compile",
            title="Eager against compiled",
            columns=(
                Figure(name="work", help="what was run"),
                Figure(name="eager_ms", unit="ms", help="an eager pass"),
                Figure(name="compiled_ms", unit="ms", help="a compiled pass"),
                Figure(name="speedup", help="of compiled over eager"),
                Figure(name="compile_s", unit="s", help="the first compiled pass"),
                Figure(name="break_even_passes", help="passes after which compiling pays off"),
                Figure(
                    name="eager_operations",
                    help="operations dispatched by an eager pass, without views",
                ),
                Figure(
                    name="compiled_kernels",
                    help="generated kernels and remaining library calls of a pass",
                ),
                Figure(
                    name="compiled_peak_bytes", unit="bytes", help="peak held by tensors, compiled"
                ),
                Figure(name="eager_peak_bytes", unit="bytes", help="peak held by tensors, eager"),
                STATUS,
            ),
        ),
        Table(
            name="fused_kernels",
            title="Kernels the compiler generated",
            columns=(
                Figure(name="work", help="what it was generated for"),
                Figure(name="kernel", help="its name, which lists what it fuses"),
                Figure(name="calls", help="calls in the generated code"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=8,
)
