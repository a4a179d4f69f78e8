"""Peak rates of GPUs: from the vendors' data sheets, the settings, or computed.

Matrix rates are dense: data sheets of Ampere and later print twice as much, with 2:4 sparsity,
which no workload here has. Consumer cards are listed with fp32 accumulation, which torch uses. A
card is known by its exact name: a variant has other peaks, however alike the names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import CannotRun
from .peak_table import CARDS

UNKNOWN_GPU = (
    "this GPU's peak is neither in the table of dense peaks nor computable: set it in config.toml"
)
NO_GPU_PEAK = "the CPU's peak is unknown"

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_T = 1e12
_G = 1e9


@dataclass(frozen=True)
class Peak:
    """Of one GPU: operations per second in each type (None if it has no such units, or the rate is
    unknown), bytes per second of its memory, and where the figures are from.
    """

    name: str
    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    bytes_per_s: float | None
    source: str

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak of `precision`: fp32, tf32, bf16, fp16, fp8, or int8, whose rate is fp8's
        on every listed card that has both (data sheets of Ada and Hopper)."""
        if precision == "int8":
            return self.fp8
        return getattr(self, precision) if precision in PRECISIONS else None


@dataclass(frozen=True)
class Chip:
    """What CUDA says of a device; clocks in Hz, None where this torch does not give them."""

    capability: tuple[int, int]
    sm_count: int
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    bus_bits: int | None = None


def _key(device_name: str) -> str:
    """A name without the brands that some drivers put before it."""
    words = device_name.casefold().split()
    return " ".join(word for word in words if word not in ("nvidia", "tesla", "geforce"))


def _tera(rate: float | None) -> float | None:
    return None if rate is None else rate * _T


_LISTED = {
    _key(alias): Peak(
        card.names[0],
        _tera(card.fp32),
        _tera(card.tf32),
        _tera(card.half) if card.has_bf16 else None,
        _tera(card.half),
        _tera(card.fp8),
        card.gigabytes_per_s * _G,
        card.source,
    )
    for card in CARDS
    for alias in card.names
}

# CUDA C++ Programming Guide, arithmetic instructions; the white papers of Volta (GV100), Turing
# (TU102), Ampere (GA100, GA102), Ada (AD102), Hopper (GH100) and Blackwell (GB100, GB202).
_FMA_PER_SM = {
    # Fused multiply-adds an SM does in a clock: (fp32; fp16 by tensor cores with fp32 accumulation;
    # the same of cards named GeForce, which do half of it).
    (7, 0): (64, 512, 512),
    (7, 5): (64, 512, 256),
    (8, 0): (64, 1024, 1024),
    (8, 6): (128, 512, 256),
    (8, 9): (128, 512, 256),
    (9, 0): (128, 2048, 2048),
    (10, 0): (128, 4096, 4096),
    (12, 0): (128, 512, 256),
}

_WITHOUT_BF16 = (8, 0)
_WITHOUT_FP8 = (8, 9)


def find_peak(
    device_name: str, chip: Chip | None = None, overrides: Mapping[str, Peak] | None = None
) -> Peak | None:
    """The peak of the GPU with the driver's `device_name`, None if unknown.

    `overrides` win, then the data sheets, then what `chip` gives. A slice of a GPU (MIG) has no
    peak here, and neither has a laptop variant, whose clocks depend on its power.
    """
    configured = (overrides or {}).get(_key(device_name))
    if configured is not None:
        return configured
    if re.search(r"\b(MIG|Laptop|vGPU)\b|Max-Q", device_name):
        return None
    return _LISTED.get(_key(device_name)) or computed_peak(device_name, chip)


def computed_peak(device_name: str, chip: Chip | None) -> Peak | None:
    """SMs × operations a clock × highest clock; the memory's clock × its bus, twice a clock.

    None for chips whose rates are not published, or where no clock is known. A data sheet may give
    less: it counts with the clock that a card keeps in matrix products.
    """
    if chip is None or chip.clock_hz is None or chip.capability not in _FMA_PER_SM:
        return None
    plain, tensor, geforce = _FMA_PER_SM[chip.capability]
    per_s = 2.0 * chip.sm_count * chip.clock_hz
    half = per_s * (geforce if "geforce" in device_name.casefold() else tensor)
    has_tf32 = chip.capability >= _WITHOUT_BF16
    moved = None
    if chip.memory_clock_hz is not None and chip.bus_bits is not None:
        moved = 2.0 * chip.memory_clock_hz * chip.bus_bits / 8
    return Peak(
        name=device_name,
        fp32=per_s * plain,
        tf32=half / 2 if has_tf32 else None,
        bf16=half if has_tf32 else None,
        fp16=half,
        fp8=2 * half if chip.capability >= _WITHOUT_FP8 else None,
        bytes_per_s=moved,
        source=f"computed: {chip.sm_count} SMs of compute capability "
        f"{chip.capability[0]}.{chip.capability[1]} at {chip.clock_hz / 1e6:.0f} MHz",
    )


def configured_peaks(environment: Mapping[str, str] = os.environ) -> dict[str, Peak]:
    """The peaks of the settings' file, by name. Raises CannotRun for what cannot be understood.

    [peaks."NVIDIA Name"]
    bf16 = 312        # dense TFLOP/s: fp32, tf32, bf16, fp16, fp8
    gb_per_s = 2039   # of the memory
    """
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = Path(environment.get("GPUTUI_CONFIG") or Path(base, "gputui", "config.toml"))
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    if b"peaks" not in text:
        return {}
    import tomllib

    try:
        tables: dict[str, Any] = tomllib.loads(text.decode()).get("peaks", {})
        return {_key(name): _configured(name, given, path) for name, given in tables.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CannotRun(f"{path}: peaks: {error}") from None


def _configured(name: str, given: Mapping[str, float], path: Path) -> Peak:
    keys = (*PRECISIONS, "gb_per_s")
    for key, value in given.items():
        if key not in keys:
            raise ValueError(f"{name}: there is no {key!r}; there are {', '.join(keys)}")
        if isinstance(value, bool) or not 0 < value < 1e9:
            raise ValueError(f"{name}: {key} = {value!r}: give a number above 0")
    listed = _LISTED.get(_key(name)) or Peak(name, *(None,) * 6, source="")
    rates = {key: given[key] * _T for key in PRECISIONS if key in given}
    if "gb_per_s" in given:
        rates["bytes_per_s"] = given["gb_per_s"] * _G
    return replace(listed, name=name, source=f"set in {path}", **rates)


def share_percent(rate: float | None, peak: float | None) -> float | None:
    """`rate` in percent of `peak`, None if either is missing."""
    return None if rate is None or not peak else 100.0 * rate / peak


def why_no_peak(device_name: str) -> str:
    """Why no share of the peak of this device can be given."""
    return NO_GPU_PEAK if device_name == "CPU" else UNKNOWN_GPU
