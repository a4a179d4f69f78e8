"""The Sessions view on real files: listed, opened in place, changed, compared, exported."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events

from gputui.model.events import RunEnded, RunStarted
from gputui.playback.player import Playback
from gputui.store import default_folder
from gputui.store.journal import Limits
from gputui.store.journal.reader import JournalReader
from gputui.store.journal.writer import JournalWriter
from gputui.tui.source import Options
from gputui.tui.views.sessions import SessionsView
from tests.conftest import DATA
from tests.tui import scripted
from tests.tui.conftest import Show, Shown
from tests.tui.test_recorded import INFERENCE, MEDIUM, recorded

DEMO = Path(__file__).parents[2] / "gputui" / "demo"
LIVE = scripted.gpu_session(1, quiet=3, ended=False)


@pytest.fixture
def folder() -> Path:
    """Two recordings of an H200, one that was cut, two files that are none."""
    place = default_folder()
    place.mkdir(parents=True)
    shutil.copy(MEDIUM, place / "demo.gputui")
    shutil.copy(INFERENCE, place / "small.gputui")
    (place / "cut.gputui").write_bytes(MEDIUM.read_bytes()[:20_000])
    (place / "foreign.gputui").write_text("hello\n")
    (place / "[red]evil[b +].gputui").write_bytes(b"")
    for number, file in enumerate(sorted(place.iterdir())):
        os.utime(file, (1000 + number, 1000 + number))
    return place


def files(shown: Shown) -> int:
    """How many files the view has read, -1 while it is reading."""
    view = shown.app.main.view
    assert isinstance(view, SessionsView)
    return -1 if view.library.unread != 0 else len(view.library.entries)


async def listed(shown: Shown) -> None:
    """Until the folder was read."""
    await shown.press("7")
    await shown.until(lambda: files(shown) > 0)


def line_of(shown: Shown, name: str) -> str:
    return next(line for line in shown.lines if line.rstrip().endswith(f" {name}"))


async def choose(shown: Shown, name: str) -> None:
    """Move the cursor to a recording."""
    await shown.press("slash", *name, "enter", "home")
    await shown.press("escape")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_what_is_in_the_folder(show: Show, size: tuple[int, int]) -> None:
    async with show(LIVE, size) as shown:
        await listed(shown)
        assert files(shown) == 5
        assert "inference" in line_of(shown, "demo")
        begun, ended = (
            next(event.time_ns for event in recorded(MEDIUM) if isinstance(event, kind))
            for kind in (RunStarted, RunEnded)
        )
        if size[0] > 80:  # of the run: the screen goes on recording the machine
            assert f"{(ended - begun) / 1e9:.2f} s" in line_of(shown, "demo")
        await shown.until(lambda: "5.32 ms" in line_of(shown, "demo"))
        assert "done" in line_of(shown, "small")
        assert "no end was recorded" in line_of(shown, "cut")
        assert "is not a gputui" in line_of(shown, "foreign")
        assert "is empty" in line_of(shown, "[red]evil[b +]")


async def test_lines_far_from_the_chosen_one_may_be_scrolled_to(show: Show, folder: Path) -> None:
    for number in range(60):
        shutil.copy(folder / "small.gputui", folder / f"run-{number:02}.gputui")
    async with show(LIVE, (120, 24)) as shown:
        await listed(shown)
        await shown.until(lambda: files(shown) == 65)
        await shown.press("s", "end")  # by name
        last = shown.lines[3:-1]
        view = shown.app.main.view
        assert isinstance(view, SessionsView)
        view.records.scroll_to(y=0, animate=False)
        await shown.settle()
        assert "cut" in shown.text
        assert shown.lines[3:-1] != last


async def test_an_empty_folder_says_what_to_do(show: Show) -> None:
    async with show([[scripted.header(0)]], (80, 24)) as shown:
        await shown.press("7")
        await shown.until(lambda: "No recordings here" in shown.text)
        await shown.press("enter", "m", "c", "R", "D", "e")
        assert shown.app.main.current == "sessions"


@pytest.mark.usefixtures("folder")
async def test_sort_and_filter(show: Show) -> None:
    async with show(LIVE, (160, 40)) as shown:
        await listed(shown)
        names = ("demo", "small", "cut", "foreign")

        def order() -> list[str]:
            return [
                line.split()[-1]
                for line in shown.lines
                if line.split()[-1:] and line.split()[-1] in names
            ]

        await shown.press("s")  # name
        assert order() == ["cut", "demo", "foreign", "small"]
        await shown.press("r")
        assert order() == ["small", "foreign", "demo", "cut"]
        await shown.press("slash", *"dem", "enter")
        assert order() == ["demo"]
        await shown.press("escape")
        assert len(order()) == 4


@pytest.mark.usefixtures("folder")
async def test_a_recording_is_opened_in_place_and_left_again(show: Show) -> None:
    async with show(LIVE, (120, 40)) as shown:
        live = shown.app.model.session
        await listed(shown)
        await choose(shown, "small")
        await shown.press("enter")
        await shown.until(lambda: shown.app.model.visited == "small")
        assert shown.app.main.current == "overview"
        assert "small" in shown.lines[0]
        shown.app.model.source.is_paused = True  # type: ignore[union-attr]
        await shown.press("J")
        await shown.until(lambda: "Go to a time" in shown.text)
        await shown.press(*"100%", "enter")
        await shown.until(lambda: "run done" in shown.lines[0])
        await shown.press("2")
        assert "space play it" in shown.lines[-1]  # not "pause": it is at its end
        await shown.press("1")
        # What is live goes on out of sight.
        before = live.samples
        await shown.give([[scripted.machine(200, 1)]])
        assert live.samples == before + 1
        assert shown.app.model.session is not live
        await shown.press("q")  # a run is active at home
        assert "Quit?" in shown.text
        await shown.press("escape", "b")
        assert shown.app.model.session is live
        assert shown.app.model.source is shown.source
        assert not shown.source.closed
        assert "every 1 s" in shown.lines[0]
        await shown.until(lambda: shown.app.main.current == "sessions")
        await shown.press("b")
        assert "no recording was opened" in shown.text


@pytest.mark.usefixtures("folder")
async def test_a_recording_is_shown_whose_only_news_came_before_it_was(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine all of a small one is read before the screen turns to it."""
    opened = Playback.open

    def tell_once(path: str, notify: Callable[[], None], **options: Any) -> Playback:
        news: list[Playback] = []

        def tell() -> None:
            if news and news[0].has_ended:
                news.clear()
                notify()

        playback = opened(path, tell, **options)
        news.append(playback)
        return playback

    monkeypatch.setattr(Playback, "open", tell_once)
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "small")
        await shown.press("enter")
        await shown.until(lambda: shown.app.model.visited == "small")
        await shown.until(lambda: "run done" in shown.lines[0])


@pytest.mark.usefixtures("folder")
async def test_one_recording_after_another(show: Show) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        for name in ("small", "demo"):
            await shown.press("7")
            await choose(shown, name)
            await shown.press("enter")
            await shown.until(lambda name=name: shown.app.model.visited == name)
        await shown.press("escape")  # as b, where there is nothing else to leave
        await shown.until(lambda: shown.app.main.current == "sessions")
        assert shown.app.model.source is shown.source


async def test_what_is_no_recording_is_not_opened(show: Show, folder: Path) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "foreign")
        await shown.press("enter")
        assert "is not a gputui session" in shown.lines[-1]
        shown.app.visit(folder / "gone.gputui", follow=False)
        await shown.until(lambda: "no such file" in shown.lines[-1])
        assert not shown.app.model.visited


@pytest.mark.usefixtures("folder")
async def test_what_a_line_has_no_room_for_is_a_key_away(show: Show) -> None:
    async with show(LIVE, (80, 24)) as shown:
        await listed(shown)
        await choose(shown, "demo")
        await shown.press("right")
        assert "NVIDIA H200" in shown.text
        assert f"{MEDIUM.stat().st_size / 1024:.0f} KiB" in shown.text


async def test_a_recording_is_renamed(show: Show, folder: Path) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "small")
        await shown.press("R", "ctrl+u", *"a/b", "enter")
        await shown.until(lambda: "not a file name" in shown.text)
        await shown.press("R", *"baseline", "enter")  # typing replaces what a field held
        await shown.until(lambda: (folder / "baseline.gputui").exists())
        await shown.until(lambda: any(line.endswith("baseline") for line in shown.lines))
        assert not (folder / "small.gputui").exists()


async def test_deleting_asks_first(show: Show, folder: Path) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "small")
        await shown.press("D")
        assert str(folder / "small.gputui")[-30:] in "".join(shown.text.split("\n"))
        for no in ("n", "enter", "escape"):
            await shown.press(no)
            assert shown.app.screen is shown.app.main
            assert (folder / "small.gputui").exists()
            await shown.press("D")
        await shown.press("y")
        await shown.until(lambda: not (folder / "small.gputui").exists())
        await shown.until(lambda: files(shown) == 4)


async def test_what_is_exported_of_the_demo_is_written_where_one_is(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with show(LIVE, (160, 40), options=Options(folder=DEMO)) as shown:
        await listed(shown)
        await shown.press("e")
        assert "Export the recording" in shown.text
        assert str(tmp_path)[-20:] in "".join(shown.text.split("\n"))
        assert str(DEMO) not in shown.text
        await shown.press("escape")
        deleted = tmp_path / "deleted"
        deleted.mkdir()
        monkeypatch.chdir(deleted)
        deleted.rmdir()
        await shown.press("e")
        assert "Export the recording" in shown.text


async def test_what_lies_elsewhere_is_neither_renamed_nor_deleted(
    show: Show, folder: Path, tmp_path: Path
) -> None:
    """It is not gputui's: somebody's own data, or another program's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = shutil.copy(folder / "small.gputui", elsewhere)
    async with show(LIVE, (120, 40), options=Options(folder=elsewhere)) as shown:
        await shown.press("7")
        await shown.until(lambda: files(shown) == 1)
        await choose(shown, "small")
        for key, what in (("R", "rename"), ("D", "delete")):
            await shown.press(key)
            assert f"cannot {what} it: only those in gputui's own folder" in shown.lines[-1]
            await shown.press("y")
    assert Path(kept).exists()


async def test_a_rotated_recording_is_listed_and_deleted_as_one(show: Show, folder: Path) -> None:
    writer = JournalWriter(folder / "long.gputui", Limits(rotate_bytes=20_000))
    for event in JournalReader.open(INFERENCE):
        writer.write([event])
    writer.close()
    parts = list(folder.glob("long*"))
    assert len(parts) > 2
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        assert files(shown) == 6
        assert "done" in line_of(shown, "long")
        await choose(shown, "long")
        await shown.press("D")
        assert f"{len(parts)} files" in " ".join(shown.text.split())
        await shown.press("y")
        await shown.until(lambda: files(shown) == 5)
        assert not list(folder.glob("long*"))


async def test_readonly_changes_nothing(show: Show, folder: Path) -> None:
    async with show(LIVE, (120, 40), options=Options(readonly=True)) as shown:
        await listed(shown)
        await shown.press("R")
        assert "gputui is read-only" in shown.lines[-1]
        await shown.press("D")
        assert "gputui is read-only" in shown.lines[-1]
        assert len(list(folder.iterdir())) == 5


async def test_the_file_being_written_is_told_and_kept(show: Show, folder: Path) -> None:
    current = folder / "cut.gputui"
    async with show(LIVE, (120, 40), path=current) as shown:
        await listed(shown)
        assert "being recorded here" in line_of(shown, "cut")
        await choose(shown, "cut")
        await shown.press("D")
        assert "being recorded here" in shown.lines[-1]
        assert current.exists()


async def test_a_file_that_someone_else_is_writing_is_told(show: Show, folder: Path) -> None:
    cut = folder / "cut.gputui"
    cut.write_bytes(cut.read_bytes().replace(b'"interval_s":0.5', b'"interval_s":600.0', 1))
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        assert "being recorded" in line_of(shown, "cut")


async def test_a_recording_is_exported(show: Show, folder: Path) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "small")
        await shown.press("e", "down", "down", "enter")
        await shown.until(lambda: "written:" in shown.text)
        assert "Phases" in (folder / "small.md").read_text()
        await choose(shown, "small")
        await shown.press("e", *["down"] * 5, "enter")
        await shown.until(lambda: "has no trace beside it" in shown.text)


@pytest.mark.usefixtures("folder")
async def test_another_folder(show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Typed by their names only: a long path is cut on the screen, and takes seconds to type.
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    shutil.copy(INFERENCE, Path("other", "alone.gputui"))
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await shown.press("f", "ctrl+u", *"nowhere", "enter")
        for none in ("nowhere", "~nobody-of-this-name", "n" * 300):
            await shown.press("ctrl+u")
            shown.app.screen.post_message(events.Paste(none))
            await shown.press("enter")
            assert "is not a folder" in shown.text
        await shown.press("ctrl+u", *"other", "enter")
        await shown.until(lambda: files(shown) == 1)
        assert "done" in line_of(shown, "alone")


@pytest.mark.usefixtures("folder")
async def test_marked_recordings_are_compared(show: Show) -> None:
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        await choose(shown, "small")
        await shown.press("c")
        assert "no earlier run of this command" in shown.lines[-1]
        await choose(shown, "demo")
        await shown.press("m")
        await choose(shown, "small")
        await shown.press("m", "m", "m", "c")  # which stays chosen
        await shown.until(lambda: "GPU busy of one" in shown.text)
        assert "baseline  demo" in shown.text
        assert "run 2     small" in shown.text
        assert "What is within it is dim." in shown.text
        assert "Esc back to Runs" in shown.lines[-1]
        await shown.press("slash", *"decode/step/mlp", "enter")
        mlp = next(line for line in shown.lines if line.startswith("decode/step/mlp"))
        assert "%" in mlp
        await shown.press("escape", "left", "left", "left")
        assert "recording  " in shown.text
        await shown.press("right")
        assert "240 MiB" in shown.text  # the KV cache, in the unit of its name
        assert "tokens/s" in shown.text
        assert "tokens_per_s" not in shown.text
        await shown.press("s")
        changes = [abs(float(found)) for found in re.findall(r"[+−]([\d.]+) %", shown.text)]
        assert len(changes) > 5
        assert changes == sorted(changes, reverse=True)
        await shown.press("enter")
        assert "Baseline" in shown.text
        await shown.press("escape")
        view = shown.app.main.view
        for number in range(len(view.tabs)):
            view.tab = number  # and Enter before it is drawn: of the line that is still there
            view.activate()
        await shown.press("7")
        await shown.until(lambda: shown.app.main.current == "sessions")
        await shown.press("c")
        await shown.until(lambda: shown.app.main.current == "compare")
        await shown.press("escape")
        assert shown.app.main.current == "sessions"


NONE = "NOT COMPARABLE"


async def test_run_change_run_again_compare(show: Show, tmp_path: Path) -> None:
    """One row a run, by command, with what changed and what it did; c compares with the one
    before."""
    place = default_folder()
    place.mkdir(parents=True)
    for name in ("launch", "sync"):
        shutil.copy(DATA / "faults" / f"{name}.gputui.gz", place)
    async with show([[scripted.header(0)]], (160, 40)) as shown:
        await listed(shown)
        await shown.until(lambda: "launch-bound 88 %" in shown.text and "90.3 µs" in shown.text)
        newer, older = (line for line in shown.lines if "faults.py" in line and ".gz" not in line)
        assert "first run" in older
        changed = newer.partition("faults.py")[2].split()[0]
        assert changed in ("launch", "sync")
        assert "another step" in newer  # three operations each, and no kernel in common
        assert (tmp_path / "xdg-cache" / "gputui" / "run-facts.json").exists()
        await shown.press("home", "c")
        await shown.until(lambda: shown.app.main.current == "compare" and NONE in shown.text)
        assert f"run 2     {changed}" in shown.text
        assert "Causes" in shown.text
        await shown.press("escape")
        assert shown.app.main.current == "sessions"
        await shown.press("1")  # without a run those that were recorded
        await shown.until(
            lambda: "─ Last runs ─" in shown.text and "launch-bound 88 %" in shown.text
        )
        await shown.press("down", "down", "enter")
        assert shown.app.main.current == "sessions"
        [other] = {"launch", "sync"} - {changed}
        assert shown.app.main.view.cursor.key == place / f"{other}.gputui.gz"
        # The palette opens a run, and compares another one with it.
        await shown.press("colon", *"open", "space", *"run")
        await shown.until(lambda: len(re.findall(r"open run \S", shown.text)) == 2)
        assert "compare with run" not in shown.text
        await shown.press("enter")
        await shown.until(lambda: shown.app.model.visited == changed)
        await shown.press("ctrl+p", *"compare", "space", *"with")
        await shown.until(lambda: "compare with run" in shown.text)
        assert "first run" in shown.text
        await shown.press("enter")
        await shown.until(lambda: NONE in shown.text)
        assert [f"baseline  {other}", f"run 2     {changed}"] == shown.lines[1:3]


async def test_a_recording_without_a_run_is_compared_by_its_machine_alone(
    show: Show, folder: Path
) -> None:
    header = JournalReader.open(MEDIUM).header
    lines = MEDIUM.read_bytes().split(b"\n", 1)[0]
    assert header
    (folder / "bare.gputui").write_bytes(lines + b"\n")
    async with show(LIVE, (120, 40)) as shown:
        await listed(shown)
        for name in ("bare", "demo"):
            await choose(shown, name)
            await shown.press("m")
        await shown.press("c")
        await shown.until(lambda: "machine only" in shown.text)


async def test_runs_have_their_energy_and_causes_their_effect(show: Show) -> None:
    """J/token was in no row of Runs; how long each cause made a step was to be subtracted."""
    place = default_folder()
    place.mkdir(parents=True)
    for name in ("slow", "graphs"):
        shutil.copy(DEMO / f"{name}.gputui.gz", place)
    async with show([[scripted.header(0)]], (160, 40)) as shown:
        await listed(shown)
        await shown.until(lambda: len(re.findall(r" (?:0\.\d\d |[\d.]+ m)J  ", shown.text)) == 2)
        assert "J/token" in shown.text
        slow = [line for line in shown.lines if "inference  " in line][-1]
        for title in ("step", "per s", "busy", "J/token"):  # from the most, again from the least
            orders = []
            for _ in range(2):
                await shown.click(f"{title} ")
                orders.append([slow[-8:] in line for line in shown.lines if "inference  " in line])
            assert orders in ([[True, False], [False, True]], [[False, True], [True, False]])
        await shown.click("workload")
        await shown.press(*["s"] * 11)
        await shown.press("home", "c")
        await shown.until(lambda: "Causes" in shown.text)
        launch, *rest = (line for line in shown.lines if line.startswith(("idle ", "busy ")))
        assert re.search(r"−[\d.]+ ms █{7}│", launch)  # to the left, for a step got shorter
        assert all(line.count("█") < 7 for line in rest)
        assert any(re.search(r"\+[\d.]+ µs +│█", line) for line in rest)
        await shown.click("change ")  # by the change of each, as s does
        assert shown.lines[8] != launch
