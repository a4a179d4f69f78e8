"""Make the pictures of this folder: every screen, from the recorded H200 session.

    python screenshots/make.py [FOLDER]

Writes SVG files, one a screen, plus the workload menu and the narrow layouts, to this folder
unless told otherwise. The same recording gives the same pictures.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

# Whatever terminal this is called from, the pictures are those of one with all colours.
os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"
os.environ.pop("NO_COLOR", None)

import gputui
from gputui.collect.catalogue import load_catalogue
from gputui.model.events import AnyEvent, RunEnded, RunProgress
from gputui.model.hub import Hub
from gputui.playback.opening import open_recording
from gputui.state import Session
from gputui.store.journal import JournalReader
from gputui.tui.app import GputuiApp
from gputui.tui.source import Options

RECORDING = Path(gputui.__file__).with_name("demo.gputui")
SMALL = Path(__file__).parents[1] / "tests" / "data" / "h200-inference.gputui"

FAULT = Path(__file__).parents[1] / "tests" / "data" / "faults" / "optimizer.gputui.gz"
"""A run with an account of its time: the demo was recorded before there was one."""

REPORT = Path(__file__).parents[1] / "tests" / "data" / "h200-ranges.sqlite.gz"
"""Steps as nsys recorded them."""

PICTURES: tuple[tuple[str, tuple[int, int], str, tuple[str, ...]], ...] = (
    ("overview", (120, 40), "fault", ("1",)),
    ("time", (120, 40), "fault", ("2",)),
    ("timeline", (120, 40), "report", ("3",)),
    ("phases", (120, 40), "running", ("4",)),
    ("kernels", (120, 40), "whole", ("5",)),
    ("gpus", (120, 40), "running", ("6",)),
    ("memory", (120, 40), "running", ("6", "6")),
    ("runs", (160, 40), "whole", ("7",)),
    ("compare", (120, 40), "whole", ("7", "m", "j", "m", "c")),
    ("overview-80x24", (80, 24), "fault", ("1",)),
    ("gpus-80x24", (80, 24), "running", ("6",)),
    ("overview-200x50", (200, 50), "fault", ("1",)),
    ("workloads", (120, 40), "whole", ("w",)),
    ("help", (120, 40), "whole", ("h",)),
)
"""Name, columns and lines, what is shown, keys pressed."""


class Still:
    """A source that shows one moment of a recording."""

    def __init__(self, events: list[AnyEvent]) -> None:
        self.hub = Hub(lambda: None)
        self.hub.emit(events)
        self.interval_s = 1.0
        self.recording = self
        self.path = None
        self.failure = None
        self.notices: tuple[str, ...] = ()
        self.catalogue = load_catalogue

    def start(self) -> None:
        """Nothing moves."""

    def close(self) -> bool:
        """Nothing to close."""
        return True

    def start_workload(self, *_: object) -> None:
        """Pictures start nothing."""

    def stop_run(self) -> None:
        """Pictures stop nothing."""


def moments() -> tuple[list[AnyEvent], list[AnyEvent]]:
    """The recording until the run is well into its last stage, and whole."""
    events = list(JournalReader.open(RECORDING))
    late = [
        i
        for i, event in enumerate(events)
        if isinstance(event, RunProgress) and event.total and event.done > 0.6 * event.total
    ]
    ended = [i for i, event in enumerate(events) if isinstance(event, RunEnded)]
    return events[: late[-1] if late else ended[0]], events


async def draw(
    folder: Path, name: str, size: tuple[int, int], events: list[AnyEvent], keys: tuple[str, ...]
) -> None:
    """One picture."""
    app = GputuiApp(lambda _: Still(events), Session(), Options(shows_run=True))
    async with app.run_test(size=size) as pilot:
        while app.model.source is None:
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            while any(thread.name == "work" for thread in threading.enumerate()):
                await pilot.pause(0.02)
            await pilot.pause()
        await app.workers.wait_for_complete()
        for _ in range(20):
            await pilot.pause(0.02)
        (folder / f"{name}.svg").write_text(app.export_screenshot(title="gputui"))
    print(f"{name}.svg")


def furnish(home: Path) -> None:
    """A home with recordings, one of which was killed."""
    place = home / ".local" / "share" / "gputui" / "sessions"
    place.mkdir(parents=True)
    shutil.copy(RECORDING, place / "medium-batch4.gputui")
    shutil.copy(SMALL, place / "small-64-tokens.gputui")
    shutil.copy(FAULT, place / "optimizer.gputui.gz")
    shutil.copy(FAULT.with_name("launch.gputui.gz"), place / "launch.gputui.gz")
    (place / "killed.gputui").write_bytes(RECORDING.read_bytes()[:100_000])
    for file in place.iterdir():
        os.utime(file, (0, 0))


def main() -> int:
    """Draw every picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    running, whole = moments()
    shown = {"running": running, "whole": whole, "fault": list(open_recording(str(FAULT)))}
    os.environ.pop("XDG_DATA_HOME", None)
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        furnish(Path(home))
        report = Path(home, "report.sqlite")
        report.write_bytes(gzip.decompress(REPORT.read_bytes()))
        shown["report"] = list(open_recording(str(report)))
        for name, size, what, keys in PICTURES:
            # The screen opens on the overview: its key would turn to the next tab.
            typed = keys[1:] if keys[0] == "1" else keys
            asyncio.run(draw(folder, name, size, shown[what], typed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
