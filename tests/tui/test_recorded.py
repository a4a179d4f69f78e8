"""Sessions of a real H200, replayed whole: what the screens say is what was recorded."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from gputui.model.events import AnyEvent, CaptureDelta, MachineSample
from gputui.store.journal.reader import JournalReader
from gputui.tui.source import Options
from gputui.tui.tour import FOLDER
from tests.conftest import DATA
from tests.tui.conftest import Show

INFERENCE = Path(__file__).parents[1] / "data" / "h200-inference.gputui"
MEDIUM = INFERENCE.with_name("h200-medium.gputui")
HEALTHY = FOLDER / "healthy.gputui.gz"


@cache
def recorded(path: Path) -> list[AnyEvent]:
    """All its events."""
    return list(JournalReader.open(path))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_phases_and_progress_of_the_inference(show: Show, size: tuple[int, int]) -> None:
    async with show([recorded(INFERENCE)], size) as shown:
        await shown.press("4")
        for part in ("✓ done in 4.45 s", "64 of 64 tokens", "tokens/s 463", "▾ decode"):
            assert part in shown.text
        assert ("  energy" in shown.text) == (size[0] >= 132)
        await shown.press("end")
        copies = next(
            line for line in reversed(shown.lines) if "copy_back" in line and " × " not in line
        )
        assert " 63 " in copies  # 64 tokens, of which prefill made the first
        await shown.press("slash", *"attention", "enter", "end")
        attention = next(line for line in shown.lines if line.strip().startswith("attention "))
        assert f" {63 * 12} " in attention  # twelve layers
        await shown.press("1")
        assert re.search(r"[\d.]+ m?J/token · ", shown.text)
        # At 80 columns too, beside the memory's: two figures a line.
        assert re.search(r" Power +\d+ W ", shown.text)


async def test_kernels_and_calls_of_the_inference(show: Show) -> None:
    async with show([recorded(INFERENCE)], (160, 50)) as shown:
        await shown.press("5")
        for part in ("nvjet_", "matmul", "flash_fwd", "vectorized_layer_norm_kernel"):
            assert part in shown.text
        await shown.press("right")
        assert "cudaLaunchKernel" in shown.text
        await shown.press("right")
        assert "[CUDA memcpy Device-to-Host]" in shown.text


async def test_what_a_table_has_out_of_sight_is_said(show: Show) -> None:
    async with show([recorded(MEDIUM)], (80, 24)) as shown:
        await shown.press("5")
        listed = next(re.findall(r"(\d+) names", line) for line in shown.lines if " names" in line)
        at = next(n for n, line in enumerate(shown.lines) if "more ↓" in line)
        seen = sum(1 for line in shown.lines[at + 1 :] if " %" in line)
        assert f"name  {int(listed[0]) - seen} more ↓" in shown.lines[at]
        # Categories without a place of their own are one: their shares still add up.
        shares = re.findall(r"(<?[\d.]+) %", shown.lines[at - 1])
        assert re.search(r"\d+ more +[\d.]+ %$", shown.lines[at - 1])
        assert 98 <= sum(float(share.lstrip("<")) for share in shares) <= 102
        await shown.press("end")
        assert "more ↑" in shown.text
        assert "more ↓" not in shown.text


async def test_what_a_small_screen_leaves_out_is_said(show: Show) -> None:
    ranks = recorded(DATA / "ranks" / "late_work.gputui.gz")
    async with show([ranks], (80, 24), options=Options(shows_run=True)) as shown:
        await shown.press("2")
        assert re.search(r" cause  .*\d+ more ↑ ", shown.text)  # its cause is in sight
        await shown.press("6", "6", "6")
        assert "Memory of the host" in shown.text
        assert "scale to" not in shown.text  # no chart of what nobody read
    async with show([recorded(HEALTHY)], (80, 24), options=Options(shows_run=True)) as shown:
        assert re.search(r" \d+ smaller +[\d.]+ % ", shown.text)


async def test_under_a_short_table_stands_how_the_chosen_kernel_was_launched(show: Show) -> None:
    async with show([recorded(MEDIUM)], (120, 50)) as shown:
        await shown.press("5")
        below = shown.lines.index(next(line for line in shown.lines if "y: copy the name" in line))
        first = shown.lines[below]
        text = "\n".join(shown.lines[below:])
        assert " ×  grid " in text
        assert " ×  decode/step/" in text
        await shown.press("down")
        assert first not in shown.lines
        assert "y: copy the name" in shown.lines[below]
        await shown.pilot.resize_terminal(120, 28)
        await shown.press("4")
        view = shown.app.main.view
        chosen = view.cursor.key
        assert len(view.cursor.keys) > len(view.cursor.shown)
        await shown.click("Kernels of ")  # no row of the phases: none out of sight is chosen
        assert (view.cursor.key, shown.app.main.current) == (chosen, "phases")


async def test_what_watching_the_inference_cost(show: Show) -> None:
    async with show([recorded(INFERENCE)], (160, 50)) as shown:
        await shown.press("1", "1", "end", "enter")
        for part in ("records a second", "7.28 k", "library's own code, of the run", "0.03 %"):
            assert part in shown.text


async def test_the_machine_while_it_ran(show: Show) -> None:
    events = recorded(MEDIUM)
    samples = [event for event in events if isinstance(event, MachineSample)]
    power = samples[-1].gpus[0].power_watts
    assert power is not None
    async with show([events], (120, 40)) as shown:
        for part in (
            *("GPU 0  NVIDIA H200", "140 GiB · 132 SMs · compute 9.0", "of 4.81 TB/s"),
            *(f"Power  {power:.0f} W of 700 W", "driver 580.159.04"),
        ):
            assert part in shown.text
        await shown.press("enter")
        seen = shown.text
        await shown.press("pagedown")
        assert "2 × 3201 MHz × 6016 bit from NVML" in seen + shown.text


async def test_moment_by_moment_what_runs_is_in_sight(show: Show) -> None:
    """At every delta some open phase can be seen, without a key pressed."""
    async with show((), (80, 24)) as shown:
        await shown.press("4")
        for event in recorded(MEDIUM):
            await shown.give([[event]])
            if isinstance(event, CaptureDelta) and event.open_ranges:
                assert "● now" in shown.text
        assert "✓ done" in shown.text
