"""What a workload reports, in words: the end of a metric's name is its unit."""

from __future__ import annotations

from gputui.model import units

Value = float | int | str | bool | None

_TIMES = (("_ns", 1.0), ("_us", 1e3), ("_ms", 1e6), ("_seconds", 1e9), ("_s", 1e9))
_UNITS = (("_watts", "W"), ("_celsius", "°C"))
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "kv": "KV", "sm": "SM", "cpu": "CPU"}


def metric_text(name: str, value: Value) -> tuple[str, str]:
    """A reported metric as (label, figure): "peak_memory_bytes" is ("peak memory", "1.2 GiB")."""
    label, text = name, str(value)
    if value is None:
        text = units.MISSING
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int | float):
        label, text = _with_unit(name, float(value))
    words = [_SHORT.get(word, word) for word in label.split("_") if word]
    return " ".join(words), text


def is_memory_metric(name: str) -> bool:
    """Whether a metric is memory held: in bytes, and neither a rate nor traffic."""
    is_rate = name.endswith("_per_s") or "bandwidth" in name
    return not is_rate and (name.endswith("_bytes") or "memory" in name)


def _with_unit(name: str, value: float) -> tuple[str, str]:
    if name.endswith("_bytes_per_s"):
        return name.removesuffix("_bytes_per_s"), units.rate(value)
    if name.endswith("_per_s"):
        return f"{name.removesuffix('_per_s')}/s", units.quantity(value)
    for suffix, factor in _TIMES:
        if name.endswith(suffix):
            return name.removesuffix(suffix), units.duration(value * factor)
    if name.endswith("_joules"):
        return name.removesuffix("_joules"), units.joules(value)
    for suffix, unit in _UNITS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), units.quantity(value, unit)
    if name.endswith("_mhz"):
        return name.removesuffix("_mhz"), f"{value:.0f} MHz"
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), units.size(value)
    if "_bytes_per_" in name:
        return name, units.size(value)
    if name.endswith("_percent"):
        return name.removesuffix("_percent"), units.percent(value)
    return name, units.quantity(value)
