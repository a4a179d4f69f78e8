"""Make the pictures of this folder: every screen, from the demo's recordings, and the demo itself.

    python -m screenshots.make [FOLDER]

Writes SVG files, one a screen, plus the workload menu, the narrow layouts and the demo as a moving
picture, to this folder unless told otherwise. The same recordings give the same pictures.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input

from gputui.collect.catalogue import Forecast, load_catalogue
from gputui.model.events import AnyEvent, RunProgress
from gputui.model.hub import Hub
from gputui.playback.index import Moment
from gputui.playback.opening import open_recording
from gputui.state import Session
from gputui.tui.app import GputuiApp, Pace
from gputui.tui.source import Options
from gputui.tui.tour import FOLDER, SCENES, caption
from screenshots.moving import moving_svg
from tests.idle_for_tests import pilots_wait_for_idle

DATA = Path(__file__).parents[1] / "tests" / "data"
SMALL = DATA / "h200-inference.gputui"
TRACED = DATA / "h100-training.json.gz"
SERVED = DATA / "h200-serve.gputui.gz"

PICTURES: tuple[tuple[str, tuple[int, int], str, tuple[str, ...]], ...] = (
    ("overview", (120, 40), "whole", ("1",)),
    ("time", (120, 40), "whole", ("2",)),
    ("icicle", (120, 40), "served", ("2", "2", "down", "right", "right")),
    ("timeline", (120, 40), "traced", ("3", "plus")),
    ("steps", (120, 40), "whole", ("3", "3")),
    ("phases", (120, 40), "running", ("4",)),
    ("kernels", (120, 40), "whole", ("5",)),
    ("gpus", (120, 40), "running", ("6",)),
    ("memory", (120, 40), "running", ("6", "6")),
    ("runs", (160, 40), "whole", ("7",)),
    ("compare", (120, 40), "whole", ("7", "j", "m", "k", "m", "c")),
    ("overview-80x24", (80, 24), "whole", ("1",)),
    ("gpus-80x24", (80, 24), "running", ("6",)),
    ("overview-200x50", (200, 50), "whole", ("1",)),
    ("workloads", (120, 40), "whole", ("w",)),
    ("workload", (120, 40), "whole", ("w", "enter", *["down"] * 4)),
    ("help", (120, 40), "whole", ("h",)),
)
"""Name, columns and lines, what is shown, keys pressed."""

DAY_S = 1_798_675_200.0
"""When the pictures are drawn, whenever that is: 2026-12-31, after the recordings."""


@dataclass(frozen=True)
class Frame:
    """A moment of a scene of the demo, and what was done until then. None is the end."""

    scene: int
    at_s: float | None = None
    actions: tuple[str, ...] = ()
    lasts_s: float = 1.0


FRAMES = (
    Frame(0, lasts_s=3.0),
    *(Frame(1, at_s) for at_s in (4.0, 4.6, 5.2)),
    Frame(1, lasts_s=2.0),
    Frame(1, actions=("activate",), lasts_s=3.0),
    Frame(1, actions=("activate", "activate"), lasts_s=3.0),
    Frame(2, lasts_s=3.0),
    Frame(3, lasts_s=4.0),
)
STILL = 4
"""The frame for those who want nothing to move."""


class Still:
    """A source that shows one moment of a live session."""

    has_run = False

    def __init__(self, events: Sequence[AnyEvent], path: Path | None = None) -> None:
        self.hub = Hub(lambda: None)
        self.hub.emit(list(events))
        self.interval_s = 1.0
        self.recording = self
        self.path = path
        self.failure = None
        self.notices: tuple[str, ...] = ()
        self.catalogue = load_catalogue

    def start(self) -> None:
        """Nothing moves."""

    def forecaster(self) -> Still:
        """Asked what a run would need, it knows nothing."""
        return self

    def ask(self, *_: object) -> Forecast:
        """See above."""
        return Forecast()

    def close(self) -> bool:
        """Nothing to close."""
        return True

    def start_workload(self, *_: object) -> None:
        """Pictures start nothing."""

    def stop_run(self) -> None:
        """Pictures stop nothing."""


class Halted(Still):
    """A source that shows one moment of a replay."""

    is_paused, is_read, is_indexed, is_exact = False, True, True, True
    speed = 1.0
    name = ""
    remarks: tuple[str, ...] = ()
    moments: tuple[Moment, ...] = ()

    def __init__(self, events: Sequence[AnyEvent], length_s: float) -> None:
        super().__init__(events)
        self.begun_ns = events[0].time_ns
        self.position_s = (events[-1].time_ns - self.begun_ns) / 1e9
        self.length_s = length_s
        self.has_ended = self.position_s >= length_s

    def take(self) -> tuple[None, Sequence[AnyEvent]]:
        """The events, once."""
        return None, self.hub.drain()

    def seek(self, *_: object) -> None:
        """A picture goes nowhere."""

    step = skip = next_phase = next_event = seek


def events_until(path: Path, at_s: float | None) -> list[AnyEvent]:
    """What a recording holds up to a moment."""
    events = list(open_recording(str(path)))
    if at_s is None:
        return events
    until_ns = events[0].time_ns + int(at_s * 1e9)
    return [event for event in events if event.time_ns <= until_ns]


async def settled(app: GputuiApp, pilot: Pilot[None]) -> None:
    """Until what was asked for is read and drawn: no thread works.

    What one thread has read may have the next one read more.
    """
    await pilot.pause()
    while any(thread.name == "work" for thread in threading.enumerate()):
        await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def still(
    name: str, size: tuple[int, int], events: list[AnyEvent], keys: tuple[str, ...],
    path: Path | None,
) -> str:  # fmt: skip
    """The SVG of one screen; `path` is of a file whose single operations can be shown."""
    app = GputuiApp(lambda _: Still(events, path), Session(), Options(shows_run=True))
    async with app.run_test(size=size) as pilot:
        while app.model.source is None:
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await settled(app, pilot)
        await settled(app, pilot)
        for field in app.screen.query(Input):
            field.cursor_blink = False
        await pilot.pause()
        picture = app.export_screenshot(title="gputui")
    # Its own prefix of all names follows how the text happens to be divided, too.
    return re.sub(r"\bterminal-\d+\b", f"gputui-{name}", picture)


async def strips_of(frame: Frame) -> list[Strip]:
    """A frame of the demo, line by line."""
    scene = SCENES[frame.scene]
    whole = events_until(scene.paths[-1], None)
    length_s = (whole[-1].time_ns - whole[0].time_ns) / 1e9
    events = events_until(scene.paths[-1], frame.at_s)
    app = GputuiApp(
        lambda _: Halted(events, length_s), Session(), Options(shows_run=True, is_demo=True)
    )
    async with app.run_test(size=(120, 40)) as pilot:
        while app.model.source is None:
            await pilot.pause()
        assert app.tour is not None
        app.tour.take_over()
        if len(scene.paths) > 1:
            app.main.compare(scene.paths)
        for action in frame.actions:
            await app.main.run_action(action)
        await settled(app, pilot)
        app.model.caption = caption(frame.scene, is_led=True)
        app.main.draw()
        await settled(app, pilot)
        return app.main._compositor.render_strips()


def furnish(home: Path) -> None:
    """A home with recordings, one of which was killed."""
    place = home / ".local" / "share" / "gputui" / "sessions"
    place.mkdir(parents=True)
    for recording in FOLDER.iterdir():
        shutil.copy(recording, place)
    shutil.copy(SMALL, place / "small-64-tokens.gputui")
    (place / "killed.gputui").write_bytes(SMALL.read_bytes()[:30_000])
    for file in place.iterdir():
        os.utime(file, (0, 0))


_FORGOTTEN = ("NO_COLOR", "TMUX", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def _unhurried() -> Pace:
    """However slow the machine: a screen that takes long is drawn every two seconds."""
    return Pace(spent=lambda: 0.0)


@contextmanager
def anywhere() -> Iterator[None]:
    """The same terminal, home, time zone and day, whatever those of the caller are."""
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, HOME=home, TZ="UTC"):
        for name in _FORGOTTEN:
            os.environ.pop(name, None)
        furnish(Path(home))
        time.tzset()
        with (
            mock.patch("textual.constants.COLOR_SYSTEM", "truecolor"),
            mock.patch("gputui.tui.widgets.recordings.now_s", return_value=DAY_S),
            mock.patch("gputui.tui.app.Pace", side_effect=_unhurried),
        ):
            yield
    time.tzset()


async def drawn() -> Mapping[str, str]:
    """Every picture, by the name of its file."""
    whole = events_until(FOLDER / "slow.gputui.gz", None)
    late = [
        number
        for number, event in enumerate(whole)
        if isinstance(event, RunProgress) and event.total and event.done > 0.6 * event.total
    ]
    shown = {
        "running": whole[: late[-1]],
        "whole": whole,
        "traced": events_until(TRACED, None),
        "served": events_until(SERVED, None),
    }
    # The screen opens on the overview: its key would turn to the next tab.
    with pilots_wait_for_idle():
        frames = [await strips_of(frame) for frame in FRAMES]
        pictures = [
            await still(
                name,
                size,
                shown[what],
                keys[1:] if keys[0] == "1" else keys,
                TRACED if what == "traced" else None,
            )
            for name, size, what, keys in PICTURES
        ]
    names = (f"{name}.svg" for name, *_ in PICTURES)
    moving = moving_svg(frames, [frame.lasts_s for frame in FRAMES], STILL)
    numbered = map(_numbered_by_use, pictures)
    return {"demo.svg": moving, **dict(zip(names, numbered, strict=True))}


def _numbered_by_use(picture: str) -> str:
    """With its styles in the order in which something that is seen has them. Rich counts those of
    blanks too, and a blank behind a dialog has the color of one frame or another."""
    rules = dict(re.findall(r"^ *\.(gputui-[\w-]+-r\d+) (\{.*\})$", picture, re.MULTILINE))
    used = dict.fromkeys(re.findall(r'class="(gputui-[\w-]+-r\d+)"', picture))
    names = {old: re.sub(r"\d+$", str(number), old) for number, old in enumerate(used, 1)}
    first, *others = rules
    without = re.sub(r"^\.gputui-[\w-]+-r\d+ \{.*\}\n", "", picture, flags=re.MULTILINE)
    styles = "\n".join(f".{new} {rules[old]}" for old, new in names.items())
    named = re.sub(
        r'class="(gputui-[\w-]+-r\d+)"', lambda each: f'class="{names[each[1]]}"', without
    )
    return named.replace(f".{first} {rules[first]}", styles, 1) if others else picture


def main() -> int:
    """Draw every picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    with anywhere():
        pictures = asyncio.run(drawn())
    for name, picture in pictures.items():
        (folder / name).write_text(picture, encoding="utf-8")
        print(f"{name} {len(picture) // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
