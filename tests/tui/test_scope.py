"""What shares are of is chosen by a key, or by dragging over steps, and the views follow."""

from __future__ import annotations

import re

from msgspec.structs import replace

from gputui.model.events import RunStarted
from gputui.report.scope import RunScope, ScopeKind
from gputui.tui.source import Options
from gputui.tui.views.steps import StepsView
from tests.conftest import DATA
from tests.tui.conftest import Show
from tests.tui.test_recorded import recorded

LAUNCH = DATA / "faults" / "launch.gputui.gz"


async def test_the_scope_is_chosen_and_all_views_follow(show: Show) -> None:
    async with show([recorded(LAUNCH)], (120, 40), options=Options(shows_run=True)) as shown:
        assert "100 % = 90.3 µs" in shown.text
        await shown.press("v")
        assert "scope  all steps, with 2 of warm-up" in shown.text
        assert "scope: all steps, with 2 of warm-up" in shown.lines[-1]
        assert "100 % = 95.4 µs" in shown.text
        await shown.press("v", "2")
        assert " scope  all time since the first kernel" in shown.text
        assert " total                         100.0 %" in shown.text
        assert "3.58 s" in shown.text
        await shown.press("v", "5", "v")
        assert "GPUs and Runs" not in shown.lines[-1]
        await shown.press("0", "3")
        assert "scope: steady steps" not in shown.lines[-1]
        assert not any(line.startswith(" scope") for line in shown.lines)

        view = shown.app.main.view
        y = next(n for n, line in enumerate(view.drawn) if line.startswith(" GPU busy"))
        x = view.drawn[y + 2].index("▲")
        await shown.pilot.mouse_down(view, offset=(14, y))
        await shown.pilot.hover(view, offset=(60, y))
        await shown.settle()
        assert "Steps 1 to 21,627  " in shown.text
        await shown.pilot.mouse_up(view, offset=(65, y + 20))  # where, up or down, does not matter
        await shown.settle()
        assert " scope  steps 1 to 21,627 of the steady ones" in shown.text
        assert view.drawn[y + 3].index("▲") == x  # the end of a drag is no click
        assert isinstance(view, StepsView)
        whole = shown.app.model.scope
        view.take_stretch(7, 9)  # columns that there are no longer
        assert shown.app.model.scope == whole
        await shown.press("1")
        assert " scope  steps 1 to 21,627 of the steady ones" in shown.text
        assert "─ Step time  mean 90.3 µs ─" in shown.text
        assert "─ 21.6 k steps " in shown.text
        assert " slow" not in shown.text
        assert "Distribution" not in shown.text  # single lengths are kept of all steps only
        await shown.press("4")
        assert " scope  the whole run (there is no recording of it), not steps 1 to 2" in shown.text
        assert " the whole run  100 % = " in shown.text
        await shown.press("6")
        assert " scope  the newest readings of the GPUs, not steps 1 to 21,627" in shown.text
        await shown.press("1", "v", "v")
        assert " scope " not in shown.text
        await shown.press("v", "v")
        assert " scope  steps 1 to 21,627" in shown.text  # it is kept
        started = next(one for one in recorded(LAUNCH) if isinstance(one, RunStarted))
        await shown.give([[replace(started, run=started.run + 1)]])
        assert " scope " not in shown.text  # steps are numbered anew


async def test_phases_and_kernels_of_some_steps_are_read_from_the_recording(show: Show) -> None:
    options = Options(shows_run=True)
    async with show([recorded(LAUNCH)], (120, 40), path=LAUNCH, options=options) as shown:
        model = shown.app.model
        assert "Kernels  GPU time, the whole run ─" in shown.text
        assert re.search(r"vectorized_layer_norm_kernel +38 % +121 ms", shown.text)
        model.stretch = RunScope(ScopeKind.STEPS, 1, 13_591)
        await shown.press("v", "v")
        await shown.until(lambda: "Kernels  GPU time, the scope, about 1.23 s ─" in shown.text)
        assert re.search(r"vectorized_layer_norm_kernel +38 % +44\.2 ms", shown.text)
        assert " means of these steps" in shown.text
        await shown.press("5")
        assert " 3 names, the scope, about 1.23 s" in shown.text
        assert re.search(
            r"vectorized_l.*_norm_kernel.* 3\.\d\d µs +3\.\d\d µs +3\.\d\d µs$", shown.text, re.M
        )
        assert " 13.2 k × " in shown.text  # in what grids the chosen one was launched
        await shown.press("right")
        assert re.search(r"cudaLaunchKernel .* 26\.5 k ", shown.text)
        await shown.press("4")
        assert " the scope, about 1.23 s  100 % = 1.23 s, the run" in shown.text
        await shown.press("0")
        assert " the scope" not in shown.text
        model.choose_scope(RunScope(ScopeKind.STEPS, 40_000, 40_001))
        await shown.press("5")
        await shown.until(lambda: "does not hold these steps" in shown.lines[-1])
        assert " scope  the whole run (the scope cannot be read), not steps 40,000" in shown.text


async def test_without_steps_a_line_says_so(show: Show) -> None:
    async with show([], (80, 24)) as shown:
        await shown.press("v")
        assert "no run yet" in shown.lines[-1]
        for key in "1234":  # nor is Enter without a word
            await shown.press(key, "enter")
            assert re.search(r" no run yet: |nothing is chosen: |no time is", shown.lines[-1])


async def test_a_phase_that_is_marked_has_kernels_of_its_ranges_alone(show: Show) -> None:
    run = DATA / "h200-annotated.gputui.gz"
    async with show([recorded(run)], (140, 40), options=Options(shows_run=True)) as shown:
        await shown.press("5")
        assert "names, the whole run" in shown.text
        whole = count_of_names(shown.text)
        await shown.press("4", "end", "m")
        name = re.search(r"kernels, calls and copies \(5\) are inside (.+); m again", shown.text)
        assert name is not None
        await shown.press("5")
        assert re.search(rf"\d+ names?, inside {re.escape(name[1])}", shown.text)
        assert 0 < count_of_names(shown.text) < whole
        await shown.press("right")
        assert f", inside {name[1]}" in shown.text
        await shown.press("0")
        assert "all phases, steady steps" in shown.lines[-1]
        await shown.press("left")
        assert count_of_names(shown.text) == whole
        await shown.press("4", "m", "m")
        assert "(5) are of the whole scope" in shown.lines[-1]


def count_of_names(text: str) -> int:
    found = re.search(r"(\d+) names?, ", text)
    assert found is not None
    return int(found[1])
