"""Types of weights that are shorter than bf16, as arithmetic: what they hold, and how large."""

from __future__ import annotations

GROUP = 128
"""Inputs that share a scale and a zero in int4."""

FORMATS = ("bf16", "fp8", "int8", "int4")
