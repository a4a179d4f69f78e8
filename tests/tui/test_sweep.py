"""All views at three sizes: no key that is offered is dead, and no advice is cut."""

from __future__ import annotations

import pytest

from gputui.report.explain import Analysis, conclusion
from gputui.state import Session
from gputui.tui.shell.views import GROUPS
from gputui.tui.source import Options
from gputui.tui.widgets.bars import hinted, tabs_of
from tests.conftest import DATA
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded

SIZES = [(80, 24), (120, 40), (200, 50)]
ENDS = ("quit", "log", "pause")
"""Not tried: they end the program, or change what the next one meets."""


@pytest.mark.parametrize("size", SIZES[::2], ids=str)
async def test_every_key_that_is_offered_does_something_or_says_why_not(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([recorded(DATA / "h200-serve.gputui.gz")], size) as shown:
        main = shown.app.main
        for name in (name for group in GROUPS for name in tabs_of(main.model, group)):
            await main.action_view(name)
            await shown.settle()
            for key in hinted(main.model, main.view, name, ()):
                if key.action in ENDS:
                    continue
                main._message, before = None, main.view.painted
                await main.run_action(key.action)
                await shown.settle()
                where = name, size, key.action
                if shown.app.screen is not main:
                    await shown.press("escape")
                    await shown.until(lambda: shown.app.screen is main)
                elif main.current != name or main.query("#filter"):
                    await main.action_view(name)
                else:
                    assert main._message or main.view.painted != before, where
                if main.current != name:
                    await main.action_view(name)
                await shown.settle()
                assert all(len(line) <= size[0] for line in shown.lines), where


@pytest.mark.parametrize("fault", ["lock_while_asleep", "pageable", "hf_generate", "input"])
@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_no_advice_is_cut(show: Show, fault: str, size: tuple[int, int]) -> None:
    events = recorded(DATA / "faults" / f"{fault}.gputui.gz")
    session = Session.from_events(events)
    assert session.run is not None
    found = conclusion(Analysis(session, session.run))
    assert found is not None
    async with show([events], size, options=Options(shows_run=True)) as shown:
        text = " ".join(" ".join(shown.lines).split())
        first = found.findings[0]  # its line is in the headline, or in what was seen
        line = first.place.partition(" ")[0].rstrip(",")
        gains = [first.gain_text, first.gain_beside_bars]  # this one where bars show the steps
        told = [" ".join(whole.split()) in text.replace(" Enter shows more", "")
                for whole in (first.sentence, line, first.advice, *gains)]  # fmt: skip
        assert all(told[:3])
        assert any(told[3:])
