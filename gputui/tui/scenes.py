"""What the demo shows: scenes of recorded runs, and what is turned to in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gputui

FOLDER = Path(gputui.__file__).with_name("demo")
"""The recordings of the demo."""


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
    turns: tuple[Turn, ...] = ()

    @property
    def paths(self) -> list[Path]:
        return [FOLDER / f"{name}.gputui.gz" for name in self.recordings]


SCENES = (
    Scene("healthy: GPT-2 medium trains", ("healthy",), 9.0, start_s=14.0),
    Scene(
        "slow: GPT-2 decodes, launch by launch",
        ("slow",),
        16.0,
        start_s=9.0,
        turns=(Turn(5.0, "activate"), Turn(9.0, "activate"), Turn(13.0, "move('up')")),
    ),
    Scene("fixed: the same with CUDA graphs", ("graphs",), 8.0, start_s=11.6),
    Scene("slow and fixed, compared", ("slow", "graphs"), 10.0),
)
"""The first seconds of each recording, in which its program loads libraries, are left out."""
