"""The view of a serving engine: who waits, and why."""

from __future__ import annotations

import pytest

from gputui.model.events import LatencyDelta
from tests.report.test_serving import readings
from tests.tui import scripted
from tests.tui.conftest import Show

TTFT = LatencyDelta(sum_s=1.5, count=10, buckets=((0.1, 0.25, 9), (0.25, 0.5, 1)))
QUEUE = LatencyDelta(sum_s=1.2, count=10, buckets=((0.0, 0.3, 10),))
WHOLE = LatencyDelta(sum_s=8.0, count=10, buckets=((0.5, 0.8, 10),))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_who_waits_and_why(show: Show, size: tuple[int, int]) -> None:
    """Figures of now, latencies with their buckets, and what was found."""
    samples = readings(
        requests_running=7,
        requests_waiting=23,
        kv_cache_percent=99.0,
        ttft=TTFT,
        model="m/llama",
        queue=QUEUE,
        e2e=WHOLE,
    )
    async with show([*scripted.gpu_session(1), samples], size) as shown:
        await shown.press("1")
        assert "vLLM  running 7   waiting 23   TTFT 150 ms   KV cache 99 %" in shown.text
        await shown.press("1")
        assert shown.app.main.current == "serving"
        for text in ("vLLM at http://127.0.0.1:8000/metrics", "waiting 23", "KV cache 99 %",
                     "TTFT", "150 ms", "100 ms to 250 ms", "KV CACHE FULL",
                     "request takes 800 ms   queue 15 %   prompt 3.8 %   tokens 81 %"):  # fmt: skip
            assert text in shown.text
        assert "KV cache ████" in shown.text
        await shown.press("enter")
        assert shown.app.main.current == "phases"


async def test_why_there_is_none(show: Show) -> None:
    """And no key leads there."""
    async with show(scripted.gpu_session(1), (80, 24)) as shown:
        await shown.press("1", "1")
        assert shown.app.main.current == "summary"
        await shown.app.main.action_view("serving")
        await shown.settle()
        assert "No serving engine's metrics are read" in shown.text


async def test_what_an_engine_does_not_tell_has_no_chart(show: Show) -> None:
    """llama.cpp says nothing of its KV cache: an empty chart to 100 % stood there."""
    samples = readings(requests_running=2, requests_waiting=5)
    async with show([*scripted.gpu_session(1), samples], (80, 24)) as shown:
        await shown.press("1", "1")
        assert " waiting  ██████████ to 5" in shown.text
        assert "KV cache" not in shown.text


async def test_an_engine_that_cannot_be_read_has_no_chart(show: Show) -> None:
    """An empty chart of no readings stood there."""
    why = readings(unavailable_reason="reading metrics needs prometheus_client")
    async with show([*scripted.gpu_session(1), why], (80, 24)) as shown:
        await shown.press("1", "1")
        assert "vLLM at http://127.0.0.1:8000/metrics" in shown.text
        assert "readings" not in shown.text
