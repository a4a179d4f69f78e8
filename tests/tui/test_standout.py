"""The row that says, while a run goes on, why it is slow."""

from __future__ import annotations

from gputui.tui.widgets.canvas import row_width
from gputui.tui.widgets.standout import headline_row
from tests.tui import scripted
from tests.tui.conftest import Show


def text(headlines: tuple[str, ...], width: int) -> str:
    return "".join(part for part, _ in headline_row(headlines, width))


def test_headlines_are_shown_whole_or_not_at_all_but_for_the_first():
    found = (
        "GPU 0 idle 81 %, most in decode/step/mlp",
        "launch-bound",
        "memory of GPU 0 95 % full",
    )
    assert text(found, 200) == f"stands out {' · '.join(found)}   5 says more"
    assert text(found, 66) == f"stands out {' · '.join(found[:2])}"
    assert text(found, 30) == "stands out GPU 0 idle 81 %, m…"
    assert all(row_width(headline_row(found, width)) <= width for width in range(1, 200))


async def test_the_phases_of_a_live_run_say_what_stands_out(show: Show) -> None:
    run = scripted.decode_run(0, 500, cuda=True, ended=False)
    async with show([[scripted.header(1)], *run], (120, 40)) as shown:
        await shown.press("2")
        assert any(line.startswith("stands out LAUNCH-BOUND: 90 %") for line in shown.lines)
        await shown.press("5")
        assert "What stands out" in shown.text
