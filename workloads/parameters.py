"""Parameters shared by many workloads: the same name means the same everywhere."""

from __future__ import annotations

from .declaration import Figure, Parameter

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
    help="seed of every random number",
)

SNAPSHOT = Parameter(
    name="snapshot",
    kind="bool",
    default=False,
    help="record every GPU allocation, for PyTorch's memory viewer; slows allocations",
)

DEVICE_NAME = Figure(name="device_name", help="the device that computed")
EFFECTIVE_PRECISION = Figure(
    name="effective_precision", help="the type the matrix products actually compute in"
)
PEAK_ALLOCATED = Figure(
    name="peak_memory_allocated_bytes", unit="bytes", help="peak held by tensors"
)
PEAK_RESERVED = Figure(
    name="peak_memory_reserved_bytes", unit="bytes", help="peak reserved by torch"
)
STATUS = Figure(name="status", help="ok, or why the row has no more figures")


def precision(help: str) -> Parameter:
    """The precision of a model. `help` says what it applies to, and what the shorter types mean
    there.
    """
    return Parameter(
        name="precision",
        kind="choice",
        choices=("fp32", "tf32", "bf16", "fp16"),
        default="bf16",
        cpu_default="fp32",
        help=help,
    )


def warmup(default: int, unit: str, *, cpu_default: int | None = None) -> Parameter:
    """How many untimed `unit` run first."""
    return Parameter(
        name="warmup",
        kind="int",
        default=default,
        cpu_default=cpu_default,
        minimum=0,
        maximum=100_000,
        unit=unit,
        help=f"untimed {unit} at the start",
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
        help=f"timed {unit}",
    )
