"""Parameters shared by many workloads: the same name means the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .declaration import Figure, Parameter


def whole(
    name: str,
    default: int,
    minimum: int,
    maximum: int,
    help: str,
    *,
    unit: str | None = None,
    cpu_default: int | None = None,
) -> Parameter:
    """A whole number from `minimum` to `maximum`."""
    return Parameter(
        name,
        "int",
        default,
        help,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        cpu_default=cpu_default,
    )


def choice(
    name: str,
    default: str,
    choices: Iterable[str],
    help: str,
    *,
    cpu_default: str | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Parameter:
    """One of `choices`; `aliases` are older names of them, which the help tells."""
    if aliases:
        older = ", ".join(f"{old} = {name}" for old, name in aliases.items())
        help = f"{help}; older names: {older}"
    return Parameter(
        name,
        "choice",
        default,
        help,
        choices=tuple(choices),
        cpu_default=cpu_default,
        aliases=aliases or {},
    )


DEVICE = Parameter(
    "device",
    "text",
    "auto",
    "where to run; auto takes the first GPU, else the CPU",
    pattern=r"auto|cpu|cuda(:[0-9]{1,3})?",
    pattern_help="auto, cpu, cuda or cuda:N",
)

SEED = whole("seed", 0, 0, 2**63 - 1, "seed of every random number")

SNAPSHOT = Parameter(
    "snapshot",
    "bool",
    False,
    "record every GPU allocation, for PyTorch's memory viewer; slows allocations",
)

TIMEOUT = Parameter(
    "timeout_s",
    "float",
    60.0,
    "after which a rank that waits gives up",
    unit="s",
    minimum=1,
    maximum=3600,
)

DEVICE_NAME = Figure("device_name", "the device that computed")
EFFECTIVE_PRECISION = Figure(
    "effective_precision", "the type the matrix products actually compute in"
)
STEP_MS = Figure("step_ms", "mean wall time of the measured `step` ranges, of all rows")
PEAK_ALLOCATED = Figure("peak_memory_allocated_bytes", "peak held by tensors")
PEAK_RESERVED = Figure("peak_memory_reserved_bytes", "peak reserved by torch")
STATUS = Figure("status", "ok, or why the row has no more figures")


ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""What a value takes in each of the precisions below."""


def precision(help: str) -> Parameter:
    """The precision of a model. `help` says what it applies to, and what the shorter types mean
    there.
    """
    return choice("precision", "bf16", ELEMENT_BYTES, help, cpu_default="fp32")


def warmup(default: int, unit: str, *, cpu_default: int | None = None) -> Parameter:
    """How many untimed `unit` run first."""
    help = f"untimed {unit} at the start"
    return whole("warmup", default, 0, 100_000, help, cpu_default=cpu_default, unit=unit)


def repeats(name: str, default: int, unit: str, *, cpu_default: int | None = None) -> Parameter:
    """How many `unit` are timed."""
    help = f"timed {unit}"
    return whole(name, default, 1, 1_000_000, help, cpu_default=cpu_default, unit=unit)
