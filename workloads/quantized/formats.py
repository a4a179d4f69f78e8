"""Types of weights that are shorter than bf16, as arithmetic: what they hold, and how large."""

from __future__ import annotations

GROUP = 128
"""Inputs that share a scale and a zero in int4."""

FORMATS = ("bf16", "fp8", "int8", "int4")


def weight_bytes(weights: str, outputs: int, inputs: int) -> int:
    """Of a matrix with its scales: an fp32 one for each output in fp8, a bf16 one in int8, a bf16
    scale and zero for each group in int4.
    """
    elements = outputs * inputs
    match weights:
        case "fp8":
            return elements + 4 * outputs
        case "int8":
            return elements + 2 * outputs
        case "int4":
            return elements // 2 + 4 * elements // GROUP
        case _:
            return 2 * elements
