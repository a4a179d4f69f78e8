"""The demo: scenes in turn until a person takes over, in recordings of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from gputui.playback.opening import load
from gputui.playback.player import Playback
from gputui.report.explain import Analysis, conclusion
from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.source import Options
from gputui.tui.tour import FOLDER, SCENES
from screenshots.make import anywhere, drawn
from tests.tui.conftest import wait_until

PICTURES = Path(__file__).parents[2] / "screenshots"


async def test_the_tour_goes_on_until_a_key_and_again_after_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No scene ends by its own clock while this test looks at it.
    long = [
        replace(s, length_s=1e6, turns=[replace(t, after_s=1e6) for t in s.turns]) for s in SCENES
    ]
    monkeypatch.setattr("gputui.tui.tour.SCENES", long)
    first = SCENES[0]
    app = GputuiApp(
        lambda notify: Playback.open(str(first.paths[0]), notify, start_s=first.start_s),
        Session(),
        Options(shows_run=True, is_demo=True, tour=False, folder=FOLDER),
    )
    async with app.run_test(size=(120, 40)) as pilot:
        tour, main = app.tour, app.main
        assert tour is not None
        await wait_until(pilot, lambda: bool(main.caption.drawn))
        assert f"demo 1/{len(SCENES)}  healthy" in main.caption.drawn[0]
        assert not tour.leads  # --no-tour
        assert "Esc plays the tour" in main.caption.drawn[0]
        await pilot.press("escape")
        assert tour.leads
        assert "any key takes over" in main.caption.drawn[0]

        tour.begin(1)
        await wait_until(pilot, lambda: "LAUNCH-BOUND" in "\n".join(main.view.drawn))
        assert "demo 2/" in main.caption.drawn[0]
        await wait_until(pilot, lambda: "×0.25" in main.top.drawn[0])
        for turn in SCENES[1].turns:
            await main.run_action(turn.action)
            await pilot.pause()
        assert main.current == "timeline"
        assert tour.leads

        await pilot.press("7")
        assert not tour.leads
        assert "Esc plays the tour" in main.caption.drawn[0]
        await wait_until(pilot, lambda: "graphs" in "\n".join(main.view.drawn))
        listed = "\n".join(main.view.drawn)
        assert all(scene.recordings[0] in listed for scene in SCENES)
        await pilot.press("D")
        assert "cannot delete it: it belongs to the demo" in str(main.message.content)

        await pilot.press("escape")
        assert tour.leads
        assert main.current == "overview"
        tour.begin(len(SCENES) - 1)
        await wait_until(pilot, lambda: "FASTER" in "\n".join(main.view.drawn))
        assert main.current == "compare"


def test_it_fits_the_narrowest_screen_and_a_small_package() -> None:
    for number, scene in enumerate(SCENES):
        assert len(f" ◆ demo {number + 1}/{len(SCENES)}  {scene.caption}") < 80 - 28
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000


@pytest.mark.skipif(
    version("textual").startswith("8.0."),
    reason="drawn with a newer Textual, where the text of a field with the focus looks different",
)
async def test_the_pictures_are_current() -> None:
    """Each as `python -m screenshots.make` draws it, whoever draws it, where and when."""
    with anywhere():
        pictures = await drawn()
    assert len(pictures["demo.svg"]) < 600_000
    for name, picture in pictures.items():  # each shows what its name says, not why it cannot
        text = " ".join(re.sub(r"<[^>]*>", "", picture).replace("&#160;", " ").split())
        for wrong in ("starts nothing", "cannot", "is not available", "Traceback", "nothing here"):
            assert wrong not in text, (name, wrong)
    kept = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    old = sorted(name for name in {*kept, *pictures} if kept.get(name) != pictures.get(name))
    if old:
        pytest.fail(f"to redraw: python -m screenshots.make   ({', '.join(old)})", pytrace=False)


@pytest.mark.parametrize(
    ("name", "word"),
    [("healthy", "HEALTHY"), ("slow", "LAUNCH-BOUND"), ("graphs", "LAUNCH-BOUND")],
)
def test_the_recordings_say_what_they_are_shown_for(name: str, word: str) -> None:
    """Graphs that are captured before the steps are no fault of these, nor is warming up a row of
    a benchmark."""
    loaded = load(str(FOLDER / f"{name}.gputui.gz"))
    assert loaded.run is not None
    analysis = Analysis(loaded.session, loaded.run)
    outcome = conclusion(analysis)
    assert outcome is not None
    assert outcome.word == word
    assert analysis.tree is not None
    assert not analysis.tree.benchmark_rows
