"""The Memory view: what devices hold, what phases moved and allocated, what the workload says."""

from __future__ import annotations

import re

import pytest

from gputui.model.events import GpuSample, GpuUnavailable
from gputui.state import Gpu, Session
from gputui.tui.views.memory import bar_row
from gputui.tui.widgets.canvas import row_width
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import GIB
from tests.tui.test_recorded import INFERENCE, recorded


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_a_recorded_inference(show: Show, size: tuple[int, int]) -> None:
    async with show([recorded(INFERENCE)], size) as shown:
        await shown.press("6")
        for part in ("Memory of NVIDIA H200", "GPU 0 memory used", "weight 237 MiB", "now"):
            assert part in shown.text
        copies = next(line for line in shown.lines if line.strip().startswith("load"))
        assert "1.00 KiB" in copies
        if size[1] >= 40:  # what it held between these few readings was not read
            assert re.search(r"[KMG]iB at most in (one reading|\d readings)", shown.text)
        await shown.press("right")
        assert "pageable" in shown.text
        assert "pinned" in shown.text
        assert "peak memory reserved" in shown.text


async def test_details_sort_and_filter(show: Show) -> None:
    async with show([recorded(INFERENCE)], (120, 40)) as shown:
        await shown.press("6", "enter")
        assert "calls that allocate" in shown.text
        await shown.press("escape", "right", "enter")
        assert "Bytes a second while they ran" in shown.text
        await shown.press("escape", "s")
        assert "▼count" in shown.text
        await shown.press("r")
        assert "▲count" in shown.text
        await shown.press("slash", *"to-host", "enter")
        assert "Device-to-Host" in shown.text
        assert "Host-to-Device" not in shown.text
        await shown.press("escape")
        assert "Host-to-Device" in shown.text


async def test_without_a_gpu_the_host_is_shown_and_why(show: Show) -> None:
    async with show(scripted.cpu_session(), (120, 40)) as shown:
        await shown.press("6")
        assert "no NVIDIA GPU: the NVIDIA driver is not loaded" in shown.text
        assert "of 126 GiB" in shown.text
        assert "the program did not load CUDA" in shown.text
        assert "peak memory 1.22 GiB" in shown.text


async def test_eight_gpus_have_a_bar_each(show: Show) -> None:
    async with show(scripted.gpu_session(8, quiet=20), (80, 24)) as shown:
        await shown.press("6")
        for index in range(8):
            assert f"GPU {index} ▕" in shown.text


async def test_charts_are_as_high_as_all_there_is_until_z(show: Show) -> None:
    """1.65 of 140 GiB looked full; in the data's own scale it is said how much that enlarges."""
    async with show(scripted.gpu_session(1, quiet=2), (120, 40)) as shown:
        await shown.press("6")
        assert "140 GiB┤" in shown.text
        assert "×" not in "".join(line[:10] for line in shown.lines)
        await shown.press("z")
        assert "charts are in the scale of their data" in shown.lines[-1]
        assert "140 GiB┤" not in shown.text
        assert re.search(r"^ *×\d+\.\d│", shown.text, re.MULTILINE)
        await shown.press("z")
        assert "140 GiB┤" in shown.text
        await shown.press("2", "z")
        assert "no charts here" in shown.lines[-1]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_bar_says_what_is_not_known(width: int) -> None:
    session = Session.from_events([scripted.header(1)])
    gpu = session.gpus[0]
    assert "no reading yet" in text_of(gpu, width)
    session.apply([GpuUnavailable(time_ns=1, gpu=0, reasons={"memory_used_bytes": "fell off"})])
    assert "fell off" in text_of(gpu, width)
    gpu.samples.newest = GpuSample(
        index=0, memory_used_bytes=139 * GIB, memory_total_bytes=140 * GIB
    )
    assert "NEARLY FULL" in text_of(gpu, width)


def text_of(gpu: Gpu, width: int) -> str:
    row = bar_row(gpu, width)
    assert row_width(row) <= width
    return "".join(text for text, _ in row)
