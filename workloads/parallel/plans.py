"""The engines: what each needs, and what the papers say that it moves and keeps. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

WORD = 4
"""Bytes of an fp32 element. Adam keeps two a parameter beside the weight and its gradient."""


@dataclass(frozen=True)
class Engine:
    """How a model is divided. `least` is the least version of torch on the CPU, with why."""

    family: str
    least: tuple[int, int] = (2, 6)
    why: str = ""
    rank_has_own_batch: bool = False
    chunks: int = 1
    """Model chunks of each stage."""


_HANGS = "hangs before torch 2.13 on Gloo"

ENGINES: dict[str, Engine] = {
    "single": Engine("single"),
    "naive": Engine("data", rank_has_own_batch=True),
    "flat": Engine("data", rank_has_own_batch=True),
    "ddp": Engine("data", rank_has_own_batch=True),
    "zero1": Engine("data", rank_has_own_batch=True),
    "zero2": Engine("data", (2, 7), "FSDP2 on the CPU needs torch 2.7", rank_has_own_batch=True),
    "zero3": Engine("data", (2, 7), "FSDP2 on the CPU needs torch 2.7", rank_has_own_batch=True),
    "tp": Engine("tensor"),
    "tp_sp": Engine("tensor", (2, 7), "hangs at its end before torch 2.7 (Gloo)"),
    "gpipe": Engine("pipeline"),
    "1f1b": Engine("pipeline", (2, 13), _HANGS),
    "interleaved": Engine("pipeline", (2, 13), _HANGS, chunks=2),
    "ulysses": Engine("context"),
    "mesh": Engine("mesh", (2, 7), "FSDP2 on the CPU needs torch 2.7", rank_has_own_batch=True),
    "ep": Engine(
        "expert", (2, 8), "hangs at its end before torch 2.8 (Gloo)", rank_has_own_batch=True
    ),
}

FAMILIES = ("data", "tensor", "pipeline", "context", "expert")


class Layout(NamedTuple):
    """How `mesh` divides its ranks."""

    pipeline: int
    data: int
    tensor: int


def layout(ranks: int) -> Layout:
    """Two ranks to a matrix, two stages from eight ranks on, the rest of it data parallel."""
    pipeline = 2 if ranks >= 8 else 1
    return Layout(pipeline, ranks // (2 * pipeline), 2)


def chosen(word: str) -> list[str]:
    """The engines that a word stands for; one rank by itself comes first."""
    if word in ENGINES:
        return list(dict.fromkeys(("single", word)))
    return ["single", *(
        name for name, engine in ENGINES.items() if word in ("all", engine.family)
        and name != "single"
    )]  # fmt: skip


def too_old(name: str, version: str) -> str | None:
    """Why this torch cannot run an engine on the CPU, None where it can."""
    engine = ENGINES[name]
    numbers = version.split("+")[0].split(".")
    if tuple(int(part) for part in numbers[:2] if part.isdigit()) >= engine.least:
        return None
    return f"{name} {engine.why}; this is torch {version}"


def why_not(name: str, ranks: int, sizes: Mapping[str, int]) -> str | None:
    """Why the sizes do not divide by the ranks; None where they do."""
    if ranks == 1 and name != "single":
        return "one rank divides nothing: -p device=cpu -p ranks=4 shows it on this machine"
    engine, batch = ENGINES[name], sizes["batch"] * ranks
    checks = {
        "tensor": ("heads", sizes["heads"], ranks),
        "context": ("heads", sizes["heads"], ranks),
        "pipeline": ("layers", sizes["layers"], ranks * engine.chunks),
    }
    if engine.family in checks:
        what, amount, by = checks[engine.family]
        if amount % by:
            return f"{what}={amount} is not a multiple of {by}"
    if name == "mesh":
        dimensions = layout(ranks)
        if ranks % 4 or ranks % (2 * dimensions.pipeline):
            return f"{ranks} ranks do not divide by data, tensor and pipeline: 4, 8, 12, …"
        if sizes["heads"] % dimensions.tensor or sizes["layers"] % dimensions.pipeline:
            return f"heads={sizes['heads']} or layers={sizes['layers']} is odd"
        if (batch // dimensions.data) % sizes["microbatches"] and dimensions.pipeline > 1:
            return f"{batch // dimensions.data} sequences are not a multiple of microbatches"
    needs_ctx = engine.family == "context" or name == "tp_sp"
    if needs_ctx and sizes["ctx"] % ranks:
        return f"ctx={sizes['ctx']} is not a multiple of {ranks} ranks"
    if engine.family == "pipeline":
        if batch % sizes["microbatches"]:
            return f"a batch of {batch} is not a multiple of microbatches={sizes['microbatches']}"
        if engine.chunks > 1 and sizes["microbatches"] % ranks:
            return f"microbatches={sizes['microbatches']} is not a multiple of {ranks} ranks"
    return None


def bubble(name: str, ranks: int, microbatches: int) -> float | None:
    """Share of a pipeline's step that is lost, if its stages are equal (arXiv 2104.04473, as a
    share of the step and not of the ideal time)."""
    engine = ENGINES[name]
    if engine.family != "pipeline":
        return None
    return (ranks - 1) / (engine.chunks * microbatches + ranks - 1)


def bytes_of(name: str, ranks: int, parameters: int) -> float | None:
    """Bytes that a rank sends in a step of data parallelism; ZeRO-3 gathers twice
    (arXiv 1910.02054)."""
    share = (ranks - 1) / ranks * WORD * parameters
    if ENGINES[name].family != "data":
        return None
    return 3 * share if name == "zero3" else 2 * share


def state_of(name: str, ranks: int, parameters: int) -> float | None:
    """Bytes of weights, gradients and Adam's state that a rank keeps, all in fp32
    (arXiv 1910.02054 for 16 bit)."""
    if ENGINES[name].family not in ("data", "single"):
        return None
    weights = gradients = WORD * parameters
    optimizer = 2 * WORD * parameters
    if name == "zero1":
        return weights + gradients + optimizer / ranks
    if name == "zero2":
        return weights + (gradients + optimizer) / ranks
    if name == "zero3":
        return (weights + gradients + optimizer) / ranks
    return weights + gradients + optimizer
