"""The screen as a person meets it: text at three sizes, keys, dialogs, hostile names."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.color import ColorSystem
from textual import events
from textual.command import CommandList
from textual.geometry import Size
from textual.widgets import Input

from gputui.collect.catalogue import Catalogue, Forecast, TargetGpu, needs_of
from gputui.model.events import Alert, AnyEvent, MachineSample, RunEnded, RunOutput
from gputui.render import formats
from gputui.state import Session
from gputui.tui.app import GputuiApp
from gputui.tui.dialogs.boxes import Answer, DetailsBox, Question
from gputui.tui.dialogs.workloads import Field
from gputui.tui.shell.keys import KEYS, MACHINE, MOVE
from gputui.tui.shell.main import MainScreen
from gputui.tui.shell.views import TABS
from gputui.tui.source import Options
from gputui.tui.threads import Called
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import Batch
from tests.tui.test_recorded import recorded
from tests.tui.test_scope import LAUNCH
from workloads.catalogue import catalogue
from workloads.registry import all_workloads

SIZES = [(80, 24), (120, 40), (200, 50)]
SESSIONS: dict[str, Callable[[], list[Batch]]] = {
    "one GPU": lambda: scripted.gpu_session(1, quiet=20),
    "eight GPUs, running": lambda: scripted.gpu_session(8, quiet=5, ended=False),
    "no GPU": scripted.cpu_session,
    "hostile names": scripted.hostile_session,
    "nothing yet": lambda: [],
    "only a header": lambda: [[scripted.header(2)]],
}


@pytest.mark.parametrize("size", [*SIZES, (60, 16), (40, 10)], ids=str)
@pytest.mark.parametrize("session", SESSIONS)
async def test_every_view_fits_every_size(show: Show, size: tuple[int, int], session: str) -> None:
    async with show(SESSIONS[session](), size) as shown:
        keys = ("4", "5", "right", "right", "6", "6", *["right"] * 4, "1", "1", "7", "l", "6", "4")
        for key in (*keys, "end", "home", "l"):
            await shown.press(key)
            for line in shown.lines:
                assert cell_len(line) <= size[0]
            view = shown.app.main.view
            width, height = view.size
            if size != (40, 10):
                assert len(view.rows(width, height)) <= height


async def test_devices_names_figures_and_axes(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=100), (120, 40)) as shown:
        text = shown.text
        for part in (
            *("GPU 0  NVIDIA H200", "SM active", "Memory bandwidth", "Tensor active", "Power"),
            *("of 140 GiB", "of 700 W", "100 %┤", "-1m", "now", "45 °C (slows at 89)"),
            *("host gpu-box", "python -m x", "40.0 GiB", "2 figures n/a: Enter says why"),
        ):
            assert part in text
        await shown.press("enter", "pagedown", "pagedown")
        assert "no NVLink on this machine" in shown.text


async def test_a_chart_is_labelled_also_on_the_smallest_terminal(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=100), (80, 24)) as shown:
        assert shown.text.count("now") >= 4
        assert "100 %┤" in shown.text


async def test_eight_gpus_are_a_list_and_the_chosen_card(show: Show) -> None:
    async with show(scripted.gpu_session(8, quiet=20), (80, 24)) as shown:
        assert "─ › GPU 0" in shown.text
        await shown.press("right", "right", "right")
        assert "─ › GPU 3" in shown.text
        assert "THROTTLED: power brake" in shown.text


async def test_no_gpu_says_why_and_what_works(show: Show) -> None:
    async with show(scripted.cpu_session(), (80, 24)) as shown:
        assert "the NVIDIA driver is not loaded" in shown.text
        assert "gputui --demo" in shown.text
        assert "CPU" in shown.text
        await shown.press("5")
        assert "the program did not load CUDA" in shown.text
        await shown.press("2")  # where the CPU's time goes, by phase, not an empty screen
        assert "─ Phases  wall time" in shown.text
        assert "4 shows all of them" in shown.text
        await shown.press("3", "3")
        assert re.search(r"─ step  median [\d.]+ ms, p99 ", shown.text)


async def test_phases_show_the_tree_progress_and_metrics(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5, ended=False), (120, 40)) as shown:
        await shown.press("4")
        text = shown.text
        for part in (
            *("inference", "3000 of 3000 tokens", "TTFT 14.2 ms", "tokens/s 340", "● now"),
            *("attention", "share", "per step"),
        ):
            assert part in text


async def test_phases_collapse_move_and_filter(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5), (120, 40)) as shown:
        await shown.press("4", "g", "enter")
        assert "▸ decode" in shown.text
        assert "  qkv_proj" not in shown.text
        await shown.press("right")
        assert "qkv_proj" in shown.text
        await shown.press("slash", *"q_p".replace("_", ""), "enter")
        assert "no phase matches" in shown.text
        await shown.press("escape", "slash", *"mlp", "enter")
        names = [line.split()[0] for line in shown.lines if "%" in line and "tokens" not in line]
        assert "mlp" in names
        assert "norm" not in names
        await shown.press("escape")
        assert "norm" in shown.text


async def test_phases_side_by_side_are_sorted_and_stay_where_they_belong(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5), (120, 60)) as shown:
        await shown.press("4", "0")
        tops = ("load", "warmup", "prefill", "decode")

        def order() -> list[str]:
            words = [line.replace("▾", " ").split()[:1] for line in shown.lines[4:]]
            return [word[0] for word in words if word and word[0] in (*tops, "step", "mlp")]

        assert order()[:3] == ["decode", "step", "mlp"]  # by time: the important rows first
        await shown.press("r")
        assert order()[0] == "prefill"
        assert order()[-2:] == ["step", "mlp"]
        await shown.press("r", "s")
        assert "by program's order" in shown.text
        assert order()[:4] == ["load", "warmup", "prefill", "decode"]
        await shown.press("s", "s", "s")
        assert order()[:3] == ["decode", "step", "mlp"]


async def test_the_summary_is_filtered_line_by_line(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5), (120, 60)) as shown:
        await shown.press("1", "1", "slash", *"mlp", "enter")
        assert "Phases (NVTX ranges)" in shown.text
        assert "CUDA API Summary" not in shown.text
        await shown.click("Phases (NVTX")  # it is the only one, and chosen: a click opens it
        assert "─ Phases (NVTX ranges) ─" in shown.text
        assert "mlp" in shown.text
        assert "lm_head" not in shown.text
        await shown.press("escape")
        assert "lm_head" in shown.text
        await shown.press("escape")
        assert "CUDA API Summary" in shown.text
        await shown.press("slash", *"zzz", "enter")
        assert "nothing matches" in shown.text


async def test_a_phase_that_lasts_the_run_has_its_share_while_it_is_open(show: Show) -> None:
    async with show(scripted.cpu_session(ended=False), (120, 40)) as shown:
        await shown.press("4")
        decode = next(line for line in shown.lines if "decode  ● now" in line)
        assert " 10.0 s" in decode
        assert "%" not in decode  # it is around the steps: shares are of a step
        step = next(line for line in shown.lines if "step  ● now" in line)
        assert "100 %" in step


async def test_kernels_sort_switch_and_show_details(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5), (120, 40)) as shown:
        for key in ("5", "enter"):  # in one write: before the first frame
            shown.app.post_message(events.Key(key, None))
        await shown.until(lambda: isinstance(shown.app.screen, DetailsBox))
        await shown.press("escape")
        assert "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT" in shown.text
        assert "▼total" in shown.text
        await shown.press("s")
        assert "▼count" in shown.text
        await shown.press("enter")
        assert "launched in" in shown.text
        assert "decode/step/attention" in shown.text
        await shown.press("escape", "right")
        assert "cudaLaunchKernel" in shown.text
        await shown.press("tab")
        assert "[CUDA memcpy Device-to-Host]" in shown.text


async def test_summary_has_every_table(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=5), (120, 60)) as shown:
        await shown.press("1", "1")
        for part in ("Run", "Phases", "CUDA GPU Kernel Summary", "CUDA API Summary",
                     "CUDA GPU MemOps Summary", "Capture"):  # fmt: skip
            assert any(line.startswith(part) for line in shown.lines), part
        await shown.press("end", "enter")
        assert "─ Capture ─" in shown.text
        assert "dropped" in shown.text


async def test_before_a_run_views_say_what_to_do(show: Show) -> None:
    async with show([[scripted.header(0)]], (80, 24)) as shown:
        for key in ("1", "1", "2", "3", "4", "5"):
            await shown.press(key)
            assert "No run yet" in shown.text
            assert "choose a workload and start it" in shown.text


async def test_the_menu_checks_starts_and_remembers(show: Show) -> None:
    async with show([[scripted.header(0)]], (80, 24)) as shown:
        await shown.press("w")
        await shown.until(lambda: "GPT-2-shaped" in shown.text)
        await shown.press("enter")
        assert "tiny" in shown.text  # the default without a GPU
        await shown.press("down", "down", "9", "9")
        assert shown.text.count("expected a whole number from 1 to 64") == 1
        await shown.press("enter")
        assert not shown.source.started
        await shown.press("up", "down", "4")  # typing replaces what a field held
        assert "gputui --workload inference -p batch=4" in shown.text
        assert "  Start  " in shown.text
        await shown.press("down", "down", "space", "ctrl+y")
        assert shown.app.clipboard == "gputui --workload inference -p batch=4 -p compile=true"
        await shown.press("ctrl+s")
        await shown.until(lambda: bool(shown.source.started))
        assert shown.source.started == [("inference", {"batch": 4, "compile": True})]
        assert shown.app.main.current == "overview"
        await shown.press("w")
        await shown.until(lambda: "GPT-2-shaped" in shown.text)
        await shown.press("enter", "enter")
        await shown.until(lambda: len(shown.source.started) == 2)
        assert shown.source.started[1] == shown.source.started[0]
        # What keys do, clicks do.
        await shown.press("w")
        await shown.until(lambda: "GPT-2-shaped" in shown.text)
        for text in ("inference", "compile", "Start"):
            await shown.click(text)
        await shown.until(lambda: len(shown.source.started) == 3)
        assert shown.source.started[2] == ("inference", {"batch": 4})


async def test_values_that_do_not_go_together_are_refused_while_they_are_typed(show: Show) -> None:
    """With the workloads' own declarations: help, what it needs and Start in sight at 80x24."""
    real = msgspec.convert(catalogue(*all_workloads()), Catalogue)
    async with show([[scripted.header(1), scripted.machine(1, 1)]], (80, 24)) as shown:
        shown.source.catalogue = lambda: real  # type: ignore[method-assign]
        await shown.press("w")
        await shown.until(lambda: "prefill" in shown.text)
        # What a cut line is about stays in sight, and the ends of the list are a key away.
        assert f"1 of {len(real.workloads)}" in shown.text
        assert "weights or a checkpoint's" in shown.text
        await shown.press("end")
        assert f"{len(real.workloads)} of {len(real.workloads)}" in shown.text
        await shown.press("home")
        await shown.press("enter")
        await shown.until(lambda: shown.app.screen.focused is not None)
        await shown.press(*["down"] * 6, *"3000")
        refused = "prompt + tokens = 128 + 3000 = 3128 is more than the context of 1024"
        await shown.until(lambda: refused in " ".join(shown.text.split()))
        await shown.press("enter")
        assert not shown.source.started
        await shown.press(*"300")  # typing replaces what was refused
        await shown.until(lambda: "memory ≥ 255 MiB of 140 GiB   time ≥ " in shown.text)
        assert refused not in " ".join(shown.text.split())
        for again in (("escape", "enter"), ("ctrl+r",)):  # a form of its own each: it asks again
            await shown.press(*again)
            await shown.until(lambda: "memory ≥ " in shown.text)
        await shown.until(lambda: shown.app.screen.focused is not None)
        fields = shown.app.screen.query(Field)
        next(one for one in fields if one.parameter.name == "tokens").query_one(Input).focus()
        await shown.press(*"300")
        await shown.until(lambda: "memory ≥ 255 MiB of 140 GiB   time ≥ " in shown.text)
        for there in ("tokens to write for each sequence", "  Start  ", "Copy the command"):
            assert there in shown.text
        await shown.pilot.resize_terminal(70, 20)
        await shown.settle()
        assert "  Start  " in shown.text
        await shown.press("ctrl+y")
        assert shown.app.clipboard == "gputui --workload inference -p tokens=300"
        await shown.press("enter")
        await shown.until(lambda: bool(shown.source.started))
        assert shown.source.started == [("inference", {"tokens": 300})]


@pytest.mark.parametrize(
    ("needed", "said", "does_fit"),
    [(2, "≥ 2.00 GiB of 80.0 GiB", True),
     (79, "≥ 79.0 GiB of 80.0 GiB, 60.0 GiB free: does not fit now", False),
     (90, "≥ 90.0 GiB of 80.0 GiB: does not fit", False)],
)  # fmt: skip
def test_whether_a_run_fits_into_the_gpu(needed: int, said: str, does_fit: bool) -> None:
    target = TargetGpu("a GPU", 80 << 30, 60 << 30)
    text, fits = needs_of(Forecast(memory_bytes=needed << 30), target)
    assert text == f"memory {said}   time no estimate yet"
    assert fits == does_fit


async def test_a_preset_fills_the_form(show: Show) -> None:
    async with show([[scripted.header(1)]], (120, 40)) as shown:
        await shown.press("w")
        await shown.until(lambda: "GPT-2-shaped" in shown.text)
        await shown.press("enter", "right")
        assert "throughput" in shown.text
        assert "set parameters" not in "".join(shown.cells())  # no edge of the list around it
        await shown.press("enter")
        await shown.until(lambda: bool(shown.source.started))
        assert shown.source.started == [("inference", {"batch": 32})]


async def test_stop_asks_first(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=2, ended=False)) as shown:
        await shown.press("x", "escape")
        assert shown.source.stops == 0
        await shown.press("x", "enter")  # is no
        assert shown.source.stops == 0
        await shown.press("x", "y")
        assert shown.source.stops == 1


async def test_quit_asks_while_a_run_is_active(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=2, ended=False)) as shown:
        await shown.press("q")
        assert "Quit?" in shown.text
        await shown.press("n")
        assert shown.app.is_running


async def test_a_view_that_is_asked_for_may_come_as_the_screen_ends(show: Show) -> None:
    """Textual mounted it a turn of the loop after it was looked whether that could be."""
    async with show() as shown:
        asked = asyncio.create_task(shown.app.main.action_view("phases"))
        await asyncio.sleep(0)
        shown.app.exit()
        await asked


async def test_quit_asks_while_a_run_is_starting(show: Show) -> None:
    async with show([[scripted.machine(0, 1)]]) as shown:
        shown.source.start_workload("anything", {})  # whose start is not said yet
        await shown.press("q")
        assert "Quit?" in shown.text
        await shown.press("n")
        assert shown.app.is_running


async def test_quit_asks_before_the_source_of_a_run_is_open() -> None:
    may_open = threading.Event()

    def connect(notify: Callable[[], None]) -> scripted.ScriptedSource:
        may_open.wait()
        return scripted.ScriptedSource(notify)

    for starts_run in (True, False):
        app = GputuiApp(connect, Session(), Options(starts_run=starts_run))
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("q")
            await pilot.pause()
            assert app.is_running == starts_run
            may_open.set()
            app.await_source()


async def test_pause_freezes_the_screen_and_loses_nothing(show: Show) -> None:
    batches = scripted.gpu_session(1, quiet=10)
    async with show(batches[:5]) as shown:
        await shown.press("space")
        assert "paused" in shown.text
        before = shown.lines[1:]
        await shown.give(batches[5:])
        assert shown.lines[1:] == before
        await shown.press("space")
        assert shown.lines[1:] != before
        assert shown.app.model.session.run is not None


async def test_nothing_is_drawn_behind_a_dialog(show: Show) -> None:
    batches = scripted.gpu_session(1, quiet=10, ended=False)
    async with show(batches[:5]) as shown:
        before = list(shown.app.main.view.drawn)
        await shown.press("h")
        await shown.give(batches[5:])
        assert shown.app.main.view.drawn == before
        await shown.press("escape")
        assert shown.app.main.view.drawn != before


async def test_the_interval_changes_within_its_bounds(show: Show) -> None:
    async with show([[scripted.header(1)]]) as shown:
        await shown.press("greater_than_sign")
        assert shown.source.interval_s == 2.0
        await shown.press(*["less_than_sign"] * 9)
        assert shown.source.interval_s == 0.1


async def test_the_log_shows_what_was_printed(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=2), (80, 24)) as shown:
        assert "token 9 done" not in shown.text
        await shown.press("l")
        assert "│ token 9 done" in shown.text
        assert " · │ stderr · " in shown.text
        await shown.press("right_square_bracket")
        assert "the log has no newer lines" in shown.lines[-1]
        await shown.press("left_square_bracket")
        assert "token 9 done" not in shown.text
        await shown.press("l")
        assert "Log of" not in shown.text


async def test_what_gputui_says_of_a_program_is_no_output_of_it(show: Show) -> None:
    """`python3 ended with status 0` stood under Output, of `1 lines`, as if it had printed it."""
    events = [one for one in recorded(LAUNCH) if not isinstance(one, RunOutput)]
    ended = next(n for n, one in enumerate(events) if isinstance(one, RunEnded))
    events[ended] = replace(events[ended], reason="python3 ended with status 0")
    async with show([events], (120, 40)) as shown:
        await shown.press("l")
        assert "the program printed nothing" in shown.text
        assert "Log of python3 · 1 line " in shown.text
        assert "› gputui: python3 ended with status 0" in shown.text


async def test_export_writes_a_file_and_says_where(show: Show, tmp_path: Path) -> None:
    journal = tmp_path / "session.gputui"
    async with show(scripted.gpu_session(1, quiet=2), path=journal) as shown:
        await shown.press("e")
        for known in formats.every():
            assert f"{known.key} " in shown.text
            if known.requirements:
                assert known.requirements in shown.text
            await shown.press("down")
        await shown.click("md  ")
        await shown.press("enter")
        await shown.until(lambda: "written:" in shown.text)
        assert (tmp_path / "session-run1.md").read_text()
        await shown.press("e", "ctrl+u", *"/nowhere/x.json", "enter")
        await shown.until(lambda: "cannot write" in shown.text)
        await shown.press("e", "ctrl+u")
        shown.app.screen.post_message(events.Paste("/a-long-folder" * 8))
        await shown.settle()
        assert "/a-long-folder/a-long-folder" in shown.text


async def test_help_lists_keys_that_exist(show: Show) -> None:
    for key in KEYS:
        name = key.action.partition("(")[0]
        assert callable(getattr(MainScreen, f"action_{name}", None)), key.action
    bound = {key for keys in KEYS for key in keys.keys}
    assert len(bound) == sum(len(key.keys) for key in KEYS)
    async with show(scripted.gpu_session(1, quiet=2), (200, 60)) as shown:
        await shown.press("f1")
        listed = shown.app.screen.query_one(CommandList)
        await shown.until(lambda: listed.option_count >= len(KEYS))
        told = " ".join(str(option.prompt) for option in listed.options)
        assert all(key.help in told for key in KEYS)


async def test_every_key_of_the_help_is_bound(show: Show) -> None:
    async with show([[scripted.header(1)]]) as shown:
        active = shown.app.screen.active_bindings
        for key in KEYS:
            for name in key.keys:
                assert active[name].binding.action == key.action


async def test_no_key_is_without_an_answer(show: Show) -> None:
    """In a run without a GPU, where there is least to move through: what looks the same after a
    key has said why."""
    keys = [key for key in KEYS if key.group in (MOVE, MACHINE) or key.action in (
        "clear", "sort", "reverse", "follow", "scope", "libraries",
        "recording('mark')", "recording('compare')")]  # fmt: skip
    async with show(scripted.cpu_session(ended=False), (80, 24)) as shown:
        main = shown.app.main
        for name in TABS:
            await main.action_view(name)
            await shown.settle()
            for key in keys:
                main._message, before = None, main.view.painted
                await main.run_action(key.action)
                await shown.settle()  # what a view says comes as a message
                if main.current != name:
                    await main.action_view(name)
                elif shown.app.screen is not main:
                    await shown.app.pop_screen()
                else:
                    same = main._message is None and main.view.painted == before
                    assert not same, (name, key.shown)
        await shown.press("B")
        assert shown.lines[-1] == " B does nothing here: ? shows every key"
        await shown.press("ctrl+d")
        assert "ctrl+d does nothing here" in shown.lines[-1]


async def test_too_small_a_terminal_says_so(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=2), (40, 10)) as shown:
        assert "needs 60×16, has 40×10" in shown.text


DIALOGS: dict[str, tuple[str, ...]] = {
    "Palette": ("colon",), "ExportDialog": ("1", "e"), "WorkloadDialog": ("w",),
    "WorkloadForm": ("w", "enter"),
    "DetailsBox": ("1", "6", "down", "enter"), "SignalQuestion": ("1", "6", "down", "K"),
    "Question": ("1", "6", "down", "a"), "Prompt": ("1", "7", "f"),
}  # fmt: skip


async def test_hostile_names_in_every_view_and_under_every_dialog_of_any_size(show: Show) -> None:
    """Views, dialogs and what stands in them: whole, within the screen, and open until Escape."""

    def started(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, MachineSample):
            return event
        known = [replace(one, start_time_ns=scripted.START_NS) for one in event.processes or ()]
        return replace(event, processes=tuple(known))

    evil = scripted.HOSTILE
    alert = Alert(time_ns=scripted.START_NS, condition=evil, subject=evil, what=evil, gpu=0,
                  since_ns=scripted.START_NS, value=1e308, worst=-1e308)  # fmt: skip
    batches = [[started(event) for event in batch] for batch in scripted.hostile_session()]

    def whole(width: int, where: str) -> None:
        strips = shown.app.screen._compositor.render_strips()
        assert all(strip.cell_length == width for strip in strips), where
        assert all(cell_len(line) <= width for line in shown.lines), where

    async with show([*batches, [alert]], (120, 40)) as shown:
        known = shown.source.catalogue()
        spoiled = [
            replace(one, name=evil, summary=evil, description=evil, parameters=tuple(
                replace(parameter, name=f"{parameter.name}{evil}", help=evil, allowed=evil)
                for parameter in one.parameters
            ))
            for one in known.workloads
        ]  # fmt: skip
        shown.source.catalogue = lambda: replace(known, workloads=tuple(spoiled))  # type: ignore[method-assign]
        assert f"▲ ALERT {evil}" in shown.text
        told: set[str] = set()
        for key in "11223345556667":
            await shown.press(key)
            told.add(key if "[red]x[/evil]" in shown.text else "")
            whole(120, key)
        assert told >= set("146")
        await shown.press("l", "slash", *"[/evil]", "escape", "l")
        for name, keys in DIALOGS.items():
            for key in keys:
                await shown.press(key)
                if key == "w":
                    await shown.until(lambda: evil in shown.text)
            for width, height in ((60, 16), (40, 10), (120, 40)):
                await shown.pilot.resize_terminal(width, height)
                await shown.settle()
                assert type(shown.app.screen).__name__ == name
                whole(width, name)
            if name == "WorkloadForm":
                await shown.press("down", "down", *evil[:9], "escape")
            await shown.press("escape")
            assert shown.app.screen is shown.app.main


async def test_ascii_leaves_nothing_else(show: Show) -> None:
    options = Options(ascii=True)
    async with show(scripted.hostile_session(), (120, 40), options=options) as shown:
        for key in ("1", "1", "2", "3", "4", "5", "6", "6", "7", "7", "l", "h"):
            await shown.press(key)
            strips = shown.app.screen._compositor.render_strips()
            assert all(strip.text.isascii() for strip in strips)
            assert all(strip.cell_length == 120 for strip in strips)


async def test_without_colours_a_choice_is_still_seen(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with show(scripted.gpu_session(1, quiet=2), (120, 40)) as shown:
        await shown.press("4")
        segments = [s for strip in shown.app.screen._compositor.render_strips() for s in strip]
        assert any(s.style and s.style.reverse and "decode" in s.text for s in segments)


async def test_themes(show: Show) -> None:
    """In turn on one screen: another theme is other colours, and the same text."""
    async with show(scripted.gpu_session(1, quiet=2), (120, 40)) as shown:
        await shown.press("4")
        text = shown.text
        # A theme of Textual's has the dark one's figures. Of sixteen colours there is one set for
        # dark and one for light backgrounds.
        for system, sets in ((ColorSystem.TRUECOLOR, 3), (ColorSystem.STANDARD, 2)):
            shown.app.console._color_system = system
            colors = set()
            for theme in ("nord", "gputui-light", "gputui-safe", "gputui-dark"):
                shown.app.theme = theme
                await shown.settle()
                assert shown.text == text
                strips = shown.app.screen._compositor.render_strips()
                colors.add(frozenset(s.style.color for strip in strips for s in strip if s.style))
            assert len(colors) == sets


async def test_a_source_that_cannot_be_made_is_explained() -> None:
    from gputui.state import Session
    from gputui.tui.app import GputuiApp

    def connect(_: Callable[[], None]) -> scripted.ScriptedSource:
        raise OSError("the recording cannot be written: disk full")

    app = GputuiApp(connect, Session())
    async with app.run_test(size=(80, 24)) as pilot:
        while not app.model.failure:
            await pilot.pause(0.005)
        await pilot.pause()
        assert "disk full" in "\n".join(app.main.view.drawn)


async def test_a_recording_that_stops_is_said_to_and_so_is_what_it_lost(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3, ended=False), (120, 40)) as shown:
        shown.source.recording.notices.append("x.2.gputui was removed to keep its size")
        await shown.give([[scripted.machine(200, 1)]])
        await shown.until(lambda: "x.2.gputui was removed" in shown.text)
        shown.source.recording.failure = "the recording x.gputui stopped: no space left"
        await shown.give([[scripted.machine(201, 1)]])
        assert "stopped: no space left" in shown.lines[-1]
        await shown.press("4")
        assert "! the recording x.gputui stopped" in shown.text


async def test_views_keep_their_places_whichever_is_current(show: Show) -> None:
    """The titles behind the current one stood a cell further right."""
    async with show(scripted.gpu_session(1, quiet=2), (80, 24)) as shown:
        places = set()
        for key in "1234567":
            await shown.press(key)
            places.add(tuple(shown.lines[0].index(f"{each} ") for each in "1234567"))
        assert len(places) == 1


async def test_a_window_that_is_dragged_is_drawn_in_its_last_size_and_then_no_more(
    show: Show,
) -> None:
    async with show(scripted.gpu_session(1, quiet=3), (120, 40)) as shown:
        screen = shown.app.main
        passed: list[Size] = []
        layout = screen._refresh_layout

        def counted(size: Size | None = None, scroll: bool = False) -> None:
            passed.append(screen.size)
            if len(passed) < 20:  # else it goes on for ever
                layout(size, scroll)

        screen._refresh_layout = counted  # type: ignore[method-assign]
        # Both wait before the first is laid out, and something else between them: Textual makes one
        # of two that are neighbours.
        screen.post_message(events.Resize(Size(40, 12), Size(40, 12)))
        screen.post_message(Called(lambda: None))
        screen.post_message(events.Resize(Size(120, 40), Size(120, 40)))
        before = -1
        while before != len(passed):
            before = len(passed)
            await shown.pilot.pause(0.3)
        assert len(passed) < 20
        assert screen.size == Size(120, 40)


async def test_what_is_due_before_it_is_first_looked_at_comes_still(show: Show) -> None:
    """As another size of the terminal, on a machine too busy to look within its 8 ms."""
    async with show() as shown:
        comes = threading.Event()
        shown.app.set_timer(1e-9, comes.set)
        await shown.until(comes.is_set)


async def test_a_question_outlives_a_terminal_without_room_for_its_keys(show: Show) -> None:
    async with show(scripted.gpu_session(1, quiet=3, ended=False), (120, 40)) as shown:
        await shown.press("q")
        for size in ((12, 10), (1, 1), (120, 40)):
            await shown.pilot.resize_terminal(*size)
        await shown.until(lambda: "Quit?" in shown.text)


async def test_a_question_has_all_its_answers_in_sight_in_ten_columns(show: Show) -> None:
    async with show((), (10, 24)) as shown:
        title = "End it and quit?"
        shown.app.push_screen(Question(title, [((title, "text"),)], Answer("y", "yes, end it")))
        await shown.settle()
        first = [line.strip("│ ").split() for line in shown.cells()]
        assert [words[0] for words in first if words and words[0] in ("n", "y")] == ["n", "y"]


async def test_nothing_is_agreed_to_where_the_question_cannot_be_read(show: Show) -> None:
    answers: list[str | None] = []
    async with show((), (9, 24)) as shown:
        question = Question("End it and quit?", [], Answer("y", "yes, end it"))
        shown.app.push_screen(question, answers.append)
        await shown.press("y", "right", "enter")
        assert answers == []
        await shown.pilot.resize_terminal(10, 24)
        await shown.press("y")
        assert answers == ["y"]
