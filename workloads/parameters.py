"""Parameters that many workloads share: the same words mean the same everywhere."""

from __future__ import annotations

from workloads.declaration import Figure, Parameter

DEVICE = Parameter(
    name="device",
    kind="text",
    default="auto",
    pattern=r"auto|cpu|cuda(:[0-9]{1,3})?",
    pattern_help="auto, cpu, cuda or cuda:N",
    help="where to run; auto takes the first GPU, else the CPU",
)

SEED = Parameter(
    name="seed",
    kind="int",
    default=0,
    minimum=0,
    maximum=2**63 - 1,
    help="of every random number; the same seed gives the same ones",
)

SNAPSHOT = Parameter(
    name="snapshot",
    kind="bool",
    default=False,
    help="write down every GPU allocation, for PyTorch's memory viewer; slows allocations",
)

DEVICE_NAME = Figure(name="device_name", help="what computed")
EFFECTIVE_PRECISION = Figure(
    name="effective_precision", help="what the matrix products really compute in"
)
PEAK_ALLOCATED = Figure(
    name="peak_memory_allocated_bytes", unit="bytes", help="most that tensors held at once"
)
PEAK_RESERVED = Figure(
    name="peak_memory_reserved_bytes", unit="bytes", help="most that torch held of the GPU"
)
STATUS = Figure(name="status", help="ok, or why the row has no more figures")


def precision(help: str) -> Parameter:
    """What a model computes in. `help` says what of it, and what the shorter types mean there."""
    return Parameter(
        name="precision",
        kind="choice",
        choices=("fp32", "tf32", "bf16", "fp16"),
        default="bf16",
        cpu_default="fp32",
        help=help,
    )


def warmup(default: int, unit: str, *, cpu_default: int | None = None) -> Parameter:
    """How many `unit` run before anything is timed."""
    return Parameter(
        name="warmup",
        kind="int",
        default=default,
        cpu_default=cpu_default,
        minimum=0,
        maximum=100_000,
        unit=unit,
        help=f"{unit} before anything is timed",
    )


def repeats(name: str, default: int, unit: str, *, cpu_default: int | None = None) -> Parameter:
    """How many `unit` are timed."""
    return Parameter(
        name=name,
        kind="int",
        default=default,
        cpu_default=cpu_default,
        minimum=1,
        maximum=1_000_000,
        unit=unit,
        help=f"{unit} that are timed",
    )
