"""What the demo shows: scenes of recorded runs, and what is turned to in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gputui

FOLDER = Path(gputui.__file__).with_name("demo")
"""The recordings of the demo."""


SLOWED = 0.25
"""Of the time in the recordings whose programs decode for 3.5 s and less: too short to look at."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An action, named as a key names it, this long after its scene began."""

    after_s: float
    action: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A recording, played from `start_s` on, or two, compared."""

    caption: str
    recordings: tuple[str, ...]
    length_s: float
    start_s: float = 0.0
    speed: float = 1.0
    turns: tuple[Turn, ...] = ()

    @property
    def paths(self) -> list[Path]:
        return [FOLDER / f"{name}.gputui.gz" for name in self.recordings]


SCENES = (
    Scene("healthy: GPT-2 medium trains", ("healthy",), 9.0, start_s=15.0),
    Scene(
        "slow: GPT-2 decodes, launch by launch",
        ("slow",),
        18.0,
        start_s=5.4,
        speed=SLOWED,
        turns=(Turn(6.0, "activate"), Turn(10.0, "activate"), Turn(14.0, "move('up')")),
    ),
    Scene("fixed: the same with CUDA graphs", ("graphs",), 8.0, start_s=9.9, speed=SLOWED),
    Scene("slow and fixed, compared", ("slow", "graphs"), 10.0),
)
"""The first seconds of each recording, in which its program loads libraries, are left out."""
