"""The view of ranks: the late one and why, those alike as one line, each one's time."""

from __future__ import annotations

import pytest

from tests.events_for_tests import header
from tests.report.test_ranks import job_events, rank
from tests.tui.conftest import Show

RANKS = [rank() for _ in range(8)]
RANKS[5] = rank(wait=40_000_000)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_the_late_rank_comes_first_and_ranks_alike_are_folded(
    show: Show, size: tuple[int, int]
) -> None:
    async with show([[header(), *job_events(RANKS)]], size) as shown:
        await shown.press("1", "6", "6", "6")
        assert "RANK 5 IS LATE" in shown.text
        assert "7 ranks wait 40.0 ms of each 82.0 ms step for rank 5." in shown.text
        rows = [line.split() for line in shown.lines if line.split()[:1] == ["5"]]
        assert len(rows) == 1
        assert "▸ 4 more ranks, late 0 %, waiting 49 %" in shown.text
        await shown.press("right")
        assert "more ranks" not in shown.text
        assert {"0", "4", "7"} <= {(line.split() or [""])[0] for line in shown.lines}
        await shown.press("left", "home", "enter")
        assert "Rank 5 (GPU 5)" in shown.text
        assert "host waiting" in shown.text


async def test_a_run_without_ranks_says_how_to_get_some(show: Show) -> None:
    async with show([[header(), *job_events([rank()])]], (80, 24)) as shown:
        await shown.press("1", "6", "6", "6")
        assert "start a job with torchrun" in shown.text
