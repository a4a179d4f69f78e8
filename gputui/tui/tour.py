"""The demo: recorded runs shown one after another, until a person takes over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gputui

if TYPE_CHECKING:
    from textual.timer import Timer

    from gputui.tui.app import GputuiApp


# What the demo shows: scenes of recorded runs, and what is turned to in them.


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
    Scene("healthy: GPT-2 medium trains", ("healthy",), 9.0, start_s=8.0),
    Scene(
        "slow: GPT-2 decodes, launch by launch",
        ("slow",),
        18.0,
        start_s=4.6,
        speed=SLOWED,
        turns=(Turn(6.0, "activate"), Turn(10.0, "activate"), Turn(14.0, "move('up')")),
    ),
    Scene("CUDA graphs (tracing costs them 1.3×)", ("graphs",), 8.0, start_s=8.6, speed=SLOWED),
    Scene("compared; untraced, graphs gain more", ("slow", "graphs"), 10.0),
)
"""The first seconds of each recording, in which its program loads libraries, are left out. What
tracing costs in graphs is from `docs/cost.md`."""


_PLAYS = "any key takes over"
_TAKEN = "you lead: Esc plays the tour"


class Tour:
    """Plays the scenes in turn, again and again. A key or a click takes over; time goes on."""

    def __init__(self, app: GputuiApp, *, leads: bool = True) -> None:
        """Without `leads` it waits until it is asked to."""
        self._app = app
        self._timers: list[Timer] = []
        self._at = 0
        self._is_led = leads

    @property
    def leads(self) -> bool:
        """Whether nobody took over."""
        return self._is_led

    def start(self) -> None:
        """The first scene is shown already."""
        if self._is_led:
            self._schedule()
        else:
            self._caption()

    def begin(self, number: int = 0) -> None:
        """Show a scene from its beginning."""
        self._stop()
        self._at = number % len(SCENES)
        self._is_led = True
        scene = SCENES[self._at]
        main = self._app.main
        main.trail.clear()
        if len(scene.recordings) > 1:
            main.compare(scene.paths)
        else:
            main.show_run()
            self._app.play(scene.paths[0], scene.start_s, scene.speed)
        self._schedule()

    def take_over(self) -> None:
        """A person pressed something."""
        if self._is_led:
            self._is_led = False
            self._stop()
            self._caption()

    def hand_back(self) -> None:
        """Go on with the scene that was shown."""
        self.begin(self._at)

    def _schedule(self) -> None:
        self._caption()
        scene = SCENES[self._at]
        for turn in scene.turns:
            self._later(turn.after_s, turn.action)
        following = self._app.set_timer(scene.length_s, lambda: self.begin(self._at + 1))
        self._timers.append(following)

    def _stop(self) -> None:
        while self._timers:
            self._timers.pop().stop()

    def _later(self, after_s: float, action: str) -> None:
        async def act() -> None:
            await self._app.main.run_action(action)

        self._timers.append(self._app.set_timer(after_s, act))

    def _caption(self) -> None:
        self._app.model.caption = caption(self._at, is_led=self._is_led)
        self._app.main.draw()


def caption(number: int, *, is_led: bool) -> tuple[str, str]:
    """What is shown, and what a key does."""
    text = f"demo {number + 1}/{len(SCENES)}  {SCENES[number].caption}"
    return text, _PLAYS if is_led else _TAKEN
