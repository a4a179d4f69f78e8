"""The answer: 24 lines at most, whatever the width, the verdict first."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.cli.dispatch import run as gputui
from gputui.model import units
from gputui.model.events import RunEnded
from gputui.playback.opening import load, open_recording
from gputui.render import formats
from gputui.render.html import roof
from gputui.render.summary import MOST_LINES, NARROWEST, answer_text, fitted, ways_on
from gputui.report.answer import Line, answer, short_line
from gputui.report.phases import phase_rows
from gputui.report.roofline import Roof
from gputui.state import Session
from tests.conftest import DATA
from tests.events_for_tests import at, header, run_started
from tests.report.test_verdict import a_run
from tests.sessions_for_tests import folded, loaded_once

SYNC = str(DATA / "faults" / "sync.gputui.gz")


@pytest.mark.parametrize("name", ["sync", "logits", "leak", "starved", "healthy_server"])
@pytest.mark.parametrize("width", [20, 80, 200, None])
def test_at_most_24_lines_with_the_verdict_first(name: str, width: int | None) -> None:
    loaded = load(str(DATA / "faults" / f"{name}.gputui.gz"))
    text = answer_text(loaded.session, loaded.run, width, ways_on("x.gputui"))
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    typed = [line for line in lines if "   gputui " in line]
    assert all(len(line) <= max(NARROWEST, width or 110) for line in lines if line not in typed)
    assert lines[0].startswith("python3 · run 1 ·")
    verdict = text.split("\n\n")[1]
    first = {
        "sync": "SYNC-BOUND",
        "logits": "COPY-BOUND",
        "leak": "MEMORY OF GPU 0 GROWS",
        "starved": "NO CPU CORE",
        "healthy_server": "WAITS FOR WORK",
    }[name]
    assert " ".join(verdict.split()).startswith(first)


@given(
    st.lists(
        st.lists(
            st.builds(Line, st.text(max_size=20), st.text(max_size=300), st.integers(0, 7)),
            min_size=1,
            max_size=9,
        ),
        max_size=9,
    ),
    st.integers(1, 300) | st.none(),
)
def test_any_lines_fit(groups: list[list[Line]], width: int | None) -> None:
    assert len(fitted(groups, width).splitlines()) <= MOST_LINES


def test_a_command_to_type_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its path is: what was broken could not be copied."""
    monkeypatch.setenv("HOME", "/home/me")
    lines = fitted([[Line("", "t")], ways_on("/home/me/a folder/" + 60 * "x")], 40).splitlines()
    assert lines[-3:] == [
        f"  see it again   gputui --replay ~/'a folder/{60 * 'x'}'",
        f"  try cures      gputui try ~/'a folder/{60 * 'x'}' -- COMMAND",
        f"  tables         gputui summary ~/'a folder/{60 * 'x'}' --full",
    ]


def test_what_matters_least_goes_first() -> None:
    group = [Line("a", "kept"), *(Line("b", str(number), 5) for number in range(40))]
    text = fitted([[Line("", "title")], group, [Line("c", "also kept", 1)]], 80)
    assert "kept" in text
    assert "also kept" in text
    assert len(text.splitlines()) == MOST_LINES


def test_shares_of_a_state_add_up() -> None:
    loaded = load(SYNC)
    assert loaded.run is not None
    text = answer_text(loaded.session, loaded.run, 200)
    states = [line.split() for line in text.splitlines() if line.startswith(("  busy", "  idle"))]
    assert sum(float(words[1]) for words in states) == pytest.approx(100.0, abs=0.11)
    assert short_line(loaded.run)[1:] == ["busy 62 %", "sync 29 %"]


def test_the_command_is_short_and_full_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert gputui(["summary", SYNC]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= MOST_LINES
    assert f"gputui summary {SYNC} --full" in short
    assert gputui(["summary", SYNC, "--full"]) == 0
    full = capsys.readouterr().out
    assert full.splitlines()[:2] == short.splitlines()[:2]
    assert "CUDA GPU Kernel Summary" in full


def test_the_page_and_the_note_begin_with_the_answer() -> None:
    loaded = load(SYNC)
    page = formats.summary(loaded.session, loaded.run, "html")
    assert "<dt>SYNC-BOUND</dt>" in page
    assert page.index("SYNC-BOUND") < page.index("<div class='stack'>") < page.index("<table>")
    # In the stack, in the tree, which has a bar of all idle time too, and as boxes.
    assert page.count("<i class='idle'") == 6 + 7 + 4
    assert "<h2>step from above</h2>" in page
    note = formats.summary(loaded.session, loaded.run, "md")
    assert note.index("**SYNC-BOUND** The CPU synchronizes") < note.index("| Cause | Key |")


def test_the_page_draws_the_roofline() -> None:
    training = load(str(DATA / "faults" / "healthy_training.gputui.gz"))
    page = formats.summary(training.session, training.run, "html")
    assert "<title>steady steps, GPU 0: 521 TFLOP/s</title>" in page
    unknown = Roof("<b>", 0, 1, 1, tensor_flops_per_s=1e300, memory_bytes_per_s=1e-300)
    assert roof([unknown]) == ""
    known = Roof("<b>", 0, 1, 1, tensor_flops_per_s=1e12, memory_bytes_per_s=1e10,
                 peak_flops_per_s=1e15, peak_bytes_per_s=4e12)  # fmt: skip
    assert "&lt;b&gt;" in roof([known, unknown])
    assert "<b>" not in roof([known, unknown])


def test_without_a_verdict_it_says_why() -> None:
    demo = load(str(DATA / "h200-medium.gputui"))
    text = answer_text(demo.session, demo.run, 110)
    assert "No verdict     Where the time went was not measured when this was recorded." in text
    cut = Session.from_events(list(open_recording(str(DATA / "h200-medium.gputui")))[:-1])
    text = answer_text(cut, cut.run, 110)
    assert "No verdict     The steps are not known yet: that takes up to 10 s of GPU work." in text
    assert "No verdict     No kernel so far: it comes with" in answer_text(*a_run(), 110)


def test_a_program_that_was_only_looked_at_was_not_stopped() -> None:
    began = msgspec.structs.replace(run_started(), attached=True)
    ended = RunEnded(time_ns=at(9), run=1, exit_code=None, reason="detached", stopped=True)
    session, run = folded([header(), began, ended])
    title = answer_text(session, run, 110).splitlines()[0]
    assert title == "inference · run 1 · detached after 8.00 s"


def test_casts_are_named_where_the_gpu_mostly_waits() -> None:
    loaded = loaded_once("faults/lightning_train.gputui.gz")
    text = answer_text(loaded.session, loaded.run, 100)
    assert "Kernels that copy or cast tensors are 31 % of the GPU's work." in text
    busy = loaded_once("faults/healthy_training.gputui.gz")
    assert "copy or cast" not in answer_text(busy.session, busy.run, 100)


@pytest.mark.parametrize("name", ["dialogue_generation", "arm_policy_sampler"])
def test_phases_without_a_step_have_their_shares_of_all_that_the_gpu_did(name: str) -> None:
    """Libraries' own ranges may be all there are."""
    loaded = loaded_once(f"gains/{name}.gputui.gz")
    assert loaded.run is not None
    row = max(phase_rows(loaded.run), key=lambda row: row.gpu_busy_percent or 0.0)
    assert row.gpu_busy_percent is not None
    lines = {
        line.label: line.text for group in answer(loaded.session, loaded.run) for line in group
    }
    assert lines["by phase"].startswith(f"{row.name} {units.percent(row.gpu_busy_percent)}")
