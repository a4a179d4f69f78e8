"""What every comparison here does: variants in turn, round after round, and one table of ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

BARE = "bare"


Figures = Mapping[str, float]
"""What one run came to, by name."""


def interleave(
    variants: Mapping[str, Callable[[], Figures]], rounds: int, unit: str
) -> dict[str, dict[str, list[float]]]:
    """Each variant once a round, one after the other, so that a drift meets all of them.

    Gives figure → variant → its value in each round.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name, run in variants.items():
            figures = run()
            for figure, value in figures.items():
                times.setdefault(figure, {}).setdefault(name, []).append(value)
            said = ", ".join(f"{figure} {value:,.1f}" for figure, value in figures.items())
            print(f"round {number + 1}  {name:<32}{said} {unit}", flush=True)
    return times


def print_ratios(times: Mapping[str, list[float]], unit: str) -> None:
    """Fastest, median, and the median and the spread of each round's ratio to the bare run."""
    print(f"\n{'variant':<32}{'fastest ' + unit:>16}{'median':>11}{'over bare':>11}  spread")
    for name, values in times.items():
        ratios = [value / bare for value, bare in zip(values, times[BARE], strict=True)]
        print(
            f"{name:<32}{min(values):>16,.1f}{statistics.median(values):>11,.1f}"
            f"{statistics.median(ratios):>11.3f}  {min(ratios):.3f} to {max(ratios):.3f}"
        )
