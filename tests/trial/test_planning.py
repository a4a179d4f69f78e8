"""Which cures are tried for which findings, and what the answer says of them."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.cures import ANY, BOUND, DIFFERENT, cures
from gputui.model.events import CaptureDelta
from gputui.model.events.capture_parts import LineCalls
from gputui.model.leaves import CAUSES, LEAF_OF_KEY, LEAVES
from gputui.report import explain
from gputui.report.explain import Analysis
from gputui.report.explain.finding import Finding, Gain
from gputui.report.explain.kernels import ALL_IN_HALF
from gputui.trial.blocks import BlockReader
from gputui.trial.calibration import (
    calibration_path,
    calibration_table,
    keep_forecasts,
)
from gputui.trial.outcome import (
    MOST_LINES,
    MOST_REMARKS,
    Outcome,
    Trial,
    answer_lines,
    encode,
    reason_of,
    write_beside,
)
from gputui.trial.planning import (
    EVALUATED_S,
    Compiling,
    PlanError,
    Watch,
    by_name_only,
    diagnosis_of,
    named,
    plan,
)
from tests.conftest import DATA
from tests.report.test_step_meaning import loop_of, marks_of
from tests.report.test_verdict import a_run
from tests.schemas_for_tests import check
from tests.sessions_for_tests import loaded_once


def finding(cause: str, *gains: Gain, place: str = "", advice: str = "") -> Finding:
    leaf = LEAF_OF_KEY.get(cause)
    usual = CAUSES[leaf].advice if leaf in CAUSES else ""
    return Finding(
        cause=cause, word="word", sentence="", advice=advice or usual, value=1.0, threshold=0.1,
        source="", gains=gains, place=place,
    )  # fmt: skip


def test_the_largest_forecast_comes_first_and_ablations_last() -> None:
    simt = finding("busy.matmul_simt", Gain(2.0, 2.4, "TF32"), Gain(3.0, 5.0, "bf16"))
    inputs = finding("idle.input", Gain(1.1, 1.3))
    names = [candidate.name for candidate in plan([inputs, simt])]
    assert names.index("tf32") < names.index("loader_workers") < names.index("repeat_batch")
    assert "bf16_autocast" not in names, "changes results: by name only"
    (tf32,) = (candidate for candidate in plan([simt]) if candidate.name == "tf32")
    assert tf32.forecast == Gain(2.0, 2.4, "TF32")
    (bf16,) = named(["bf16_autocast"], [simt])
    assert bf16.forecast == Gain(3.0, 5.0, "bf16")


def test_what_the_advice_names_comes_first_and_has_the_forecast() -> None:
    gains = Gain(1.5, 3.0)
    launch = finding(
        "idle.launch", gains, advice="fused=True for the optimizer; then torch.compile"
    )
    ordered = plan([launch])
    assert [each.name for each in ordered[:2]] == ["fused_optimizer", "compile"]
    forecasts = {each.name: each.forecast for each in ordered}
    assert forecasts["fused_optimizer"] == gains
    assert forecasts["anomaly_off"] is None, "the advice does not mean it"


def test_what_a_finding_without_a_forecast_advises_comes_first_if_it_leads() -> None:
    grows = finding("steps_grow", advice="keep a KV cache (use_cache=True)")
    plans = finding("cudnn_plans", Gain(1.6, 2.1), advice="enable_cudnn_sdp(False)")
    names = [candidate.name for candidate in plan([grows, plans])]
    assert names[:3] == ["texts_kept", "kv_cache", "cudnn_attention_off"]
    assert plan([plans, grows])[0].name == "cudnn_attention_off"


def test_cures_of_the_library_that_makes_the_kernels_come_first() -> None:
    names = [candidate.name for candidate in plan([finding("idle.launch")], library="jax")]
    assert names.index("optax_jitted") < names.index("accumulation_merged")
    assert names.index("tracing_off") < names.index("accumulation_merged"), "it needs no library"
    names = [candidate.name for candidate in plan([finding("idle.launch")], library="torch")]
    assert names.index("accumulation_merged") < names.index("optax_jitted")


def test_the_function_at_a_findings_line_is_skipped() -> None:
    host = finding("idle.host", Gain(1.5, 2.0), place="train.py:62 report")
    names = [candidate.name for candidate in plan([host])]
    assert "skip@train.py:report" in names
    chain = finding("busy.elementwise_chain", Gain(1.5, 2.0), place="sim.py:9 advance")
    names = [candidate.name for candidate in plan([chain], ["sim.py:main", "sim.py:collide"])]
    assert [n for n in names if "@" in n] == [
        "compile_function@sim.py:advance", "compile_function@sim.py:collide",
        "function_kept@sim.py:advance", "function_kept@sim.py:collide",
        "skip@sim.py:advance", "skip@sim.py:collide",
    ]  # fmt: skip
    # Several cures that are switched as one are called so.
    assert "skip@a + b.py:f" not in [each.name for each in plan([host], ["a + b.py:f"])]
    for place in ("", "train.py:3 <module>", "../x.py;rm:1 f", "train.py:9 main"):
        others = plan([finding("idle.host", place=place)])
        assert not any(each.name.startswith("skip") for each in others), place


def every_cause() -> set[str]:
    """What findings are about: leaves of the time tree, and what rules name in the source."""
    source = "".join(path.read_text() for path in Path(explain.__file__).parent.glob("*.py"))
    said = re.findall(
        r'\bcause="(\w+)"|^        "([a-z_0-9]+)",$|^[A-Z_]+ = "([a-z_]+)"$', source, re.M
    )
    return {LEAVES[leaf].key for leaf in CAUSES} | {
        name for names in said for name in names if name
    }


BY_HAND = "has to be changed by hand"


def test_every_cause_leads_to_a_cure_an_ablation_or_a_line() -> None:
    for cause in every_cause():
        placed = plan([finding(cause, place="train.py:62 report")])
        of_it = [each for each in placed if each.finding and each.finding.cause == cause]
        assert any(each.cure.result == BOUND for each in of_it), cause
        planned = plan([finding(cause, advice="write it so")])
        if not any(each.finding and each.finding.cause == cause for each in planned):
            said = reason_of((), [finding(cause, advice="write it so")])
            assert said == f"What it is slow for (word) {BY_HAND}: write it so.", cause


def test_cures_answer_causes_that_there_are() -> None:
    answered = {cause for cure in cures().values() for cause in cure.answers} - {ANY}
    assert answered <= every_cause(), answered - every_cause()


@pytest.mark.parametrize(
    ("compiled_s", "is_at_work", "over_s"),
    [
        (lambda s: s < 15, lambda _: True, 22),
        (lambda s: s in (3, 4, 9, 10), lambda _: True, 20),
        (lambda s: s < 12 or s % 8 < 2, lambda _: True, None),
        (lambda _: False, lambda _: True, None),
        (lambda s: {4: 3, 20: 16}.get(s, 0), lambda s: s < 4 or s > 20, 28),
    ],
)
def test_what_is_compiled_at_the_start_alone_is_over(compiled_s, is_at_work, over_s) -> None:
    """Not where each epoch, of eight seconds, compiles anew, or nothing did; nor while nothing
    runs, because what is compiled is told when that has ended."""
    compiling, compiled_ns, operations = Compiling(), 0, 0
    looks = []
    for second in range(1, 60):
        compiled_ns += int(1e9 * compiled_s(second))
        operations += is_at_work(second)
        compiling.look(compiled_ns, float(second), operations)
        looks.append(compiling.is_over)
    assert ([*looks, True].index(True) + 1 if True in looks else None) == over_s


@pytest.mark.parametrize(
    ("recording", "step"),
    [
        ("experiments/finetune.gputui.gz", "optimizer AdamW"),
        ("experiments/checkpointing.gputui.gz", "module Decoder"),
        ("faults/launch.gputui.gz", ""),
    ],
)
def test_a_trial_has_the_steps_of_the_verdict(recording: str, step: str) -> None:
    """By what marks them, where anything marks steps of that length."""
    loaded = loaded_once(str(DATA / recording))
    assert diagnosis_of(loaded.session, loaded.run, None).step == step


MS = 1_000_000


@pytest.mark.parametrize(
    ("each_ns", "others", "step"),
    [
        (400 * MS, [("token", "generate", 320, 25 * MS)], "loop serve.py:30"),
        # There is no time for a proof by turns of seconds.
        (4000 * MS, [("token", "generate", 3200, 25 * MS)], "token generate"),
        (4000 * MS, [("token", "generate", 1200, 25 * MS)], "loop serve.py:30"),
        (400 * MS, [("module", "Compose", 1200, 5 * MS), ("module", "Net", 20, 402 * MS)],
         "module Net"),
    ],
    ids=["turns", "long turns", "tokens are a part of them", "module"],
)  # fmt: skip
def test_the_steps_of_a_trial_are_turns_that_it_has_time_for(
    each_ns: int, others: list[tuple[str, str, int, int]], step: str
) -> None:
    session, run = a_run(
        loop_of(1, 20, each_ns, MS, "loop"),
        marks_of("loop", "serve.py:30", 21, each_ns, MS),
        *(marks_of(*other, MS) for other in others),
    )
    assert diagnosis_of(session, run, None).step == step


def seconds_watched(trains_from: int, *, has_optimizer: bool) -> int:
    """After how many seconds a verdict holds of a program that calls its model 40 times a second,
    and learns from some second on."""
    session, run = a_run(marks_of("module", "GPT", 40, 25 * MS, MS))
    made = (LineCalls(3, "optimizer.made", 1, 0, ""),) if has_optimizer else ()
    session.apply([CaptureDelta(time_ns=1, process=1, line_calls=made)])
    watch = Watch(30.0)
    for second in range(1, 60):
        session.apply([loop_of(1, 40, 25 * MS, second * 1000 * MS, "module")])
        if second >= trains_from:
            session.apply([marks_of("optimizer", "AdamW", 2, 25 * MS, second * 1000 * MS)])
        if watch.look(Analysis(session, run), float(second)):
            return second
    raise AssertionError


def test_a_program_that_evaluates_before_it_trains_is_watched_until_it_trains() -> None:
    """nanoGPT evaluates 400 batches before its first step."""
    alone = seconds_watched(60, has_optimizer=False)
    assert seconds_watched(alone, has_optimizer=True) == 2 * (alone - 1)
    # An optimizer that never learns is waited for no longer than an evaluation may take.
    assert alone < seconds_watched(60, has_optimizer=True) == alone + EVALUATED_S


def test_with_everything_all_that_leave_results_as_they_are() -> None:
    names = {candidate.name for candidate in plan([], everything=True)}
    kept = {
        name for name, cure in cures().items()
        if cure.result not in (BOUND, DIFFERENT) and not cure.argument
    }  # fmt: skip
    assert names == kept
    assert {candidate.name for candidate in plan([])} < names


@pytest.mark.parametrize("word", ["nothing", "skip", "tf32@train.py:report", "", "@"])
def test_a_wrong_name_is_said(word: str) -> None:
    with pytest.raises(PlanError, match=r"^--cure "):
        named([word], [])


def trial(number: int, verdict: str = "gain", **more: object) -> Trial:
    return Trial(
        cure=f"cure{number}", result="exact", verdict=verdict, gain=1.0 + number, gain_low=1.0,
        gain_high=2.0 + number, off_ns=2e6, on_ns=1e6, way="in one run", pairs=6,
        change=f"change {number}", **more,
    )  # type: ignore[arg-type]  # fmt: skip


def outcome(*trials: Trial) -> Outcome:
    return Outcome(
        command=("python", "train.py", "\x1b[31m"), folder="/", time="2026-01-01T00:00:00Z",
        verdict="LAUNCH-BOUND", headline="x" * 500, step_ns=1e7, trials=trials, runs=3,
        remarks=("one", "two", "three"),
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 12, 60])
@pytest.mark.parametrize("width", [40, 80, 200, None])
def test_the_answer_is_short(count: int, width: int | None) -> None:
    verdicts = ("gain", "bound", "unclear", "not tried")
    made = outcome(*(trial(n, verdicts[n % 4], why="why") for n in range(count)))
    lines = answer_lines(made, width)
    assert len(lines) <= MOST_LINES
    assert "\x1b" not in "".join(lines)
    if count:
        assert any("change" in line for line in lines), "the largest gain's line is always there"
    check("try", json.loads(encode(made)))


def test_a_gain_that_the_table_has_no_room_for_is_not_said_to_have_had_no_time() -> None:
    made = outcome(*(trial(number) for number in range(1, 9)), trial(9, "not tried"))
    said = " ".join(answer_lines(made, 80))
    assert "not shown for want of room" in said
    assert "had no time" not in said


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_cut_off_or_broken_within_a_word(width: int) -> None:
    why = "there was no time left: it wants some 13 s"
    tried = trial(2, place="train.py:12"), trial(1, "not tried", why=why)
    headline = "The GPU waits for the next batch 80 % of each step. Mostly at train.py:62 report."
    made = msgspec.structs.replace(
        outcome(*tried), headline=headline, reason="a few words " * 20, remarks=("and " * 30,)
    )
    lines = answer_lines(made, width)
    words = " ".join(lines).split()
    assert max(map(len, lines)) <= width
    line = "train.py:12: change 2 # cure2, 3.00×"
    for text in (headline, f"not tried: {why}", line, "and " * 30):
        assert " ".join(text.split()) in " ".join(words), text


def test_a_line_that_two_cures_have_in_common_is_written_once() -> None:
    batches, model = trial(1), msgspec.structs.replace(trial(2), change="change 1")
    compiled = [
        msgspec.structs.replace(trial(number), cure=f"compile_function@a.py:{name}", change="it")
        for number, name in ((3, "f"), (4, "g"))
    ]
    lines = answer_lines(outcome(batches, model, *compiled), None)
    assert [line for line in lines if "#" in line] == [
        "  it  # compile_function@a.py:g, 5.00×",
        "  it  # compile_function@a.py:f, 4.00×",
        "  change 1  # cure2, 3.00×",
    ]


def test_without_a_gain_the_answer_ends_with_what_it_is_slow_for() -> None:
    bounds = trial(5, "bound"), trial(2, "bound"), trial(0, "unclear")
    read = finding("idle.sync", Gain(1.5, 2.0), place="train.py:9 report", advice="read it once")

    def ending(*trials: Trial, findings: tuple[Finding, ...] = (read,)) -> str:
        made = msgspec.structs.replace(outcome(*trials), reason=reason_of(trials, findings))
        return answer_lines(made, None)[-1 - MOST_REMARKS]

    assert ending(*bounds) == (
        "No gain is proven, but what costs most is: without it (cure5 at train.py:9 report) a step "
        "is 6.00× as fast, 1.00 ms in place of 2.00 ms. To do by hand: change 5."
    )
    whole = msgspec.structs.replace(trial(0, "bound"), cure="skip@train.py:report", gain=14.0)
    assert "(skip@train.py:report) a step is 14.0× as fast" in ending(whole)
    whole = msgspec.structs.replace(whole, cure="skip@train.py:other")
    assert "a step is" not in ending(whole), "it is nearly the whole step"
    nothing = trial(0, "nothing")
    assert ending(nothing) == (
        "No gain is proven. What it is slow for (word at train.py:9 report, 1.5 to 2× by forecast) "
        "has to be changed by hand: read it once."
    )
    assert ending(nothing, findings=()).endswith("Nothing that a cure is for was found in it.")
    assert reason_of((trial(0, "not tried", why="no step in 0.1 s"),), ()) == ""
    other = trial(4, "another result")
    said = "No gain is proven. What is faster computes something else (cure4)."
    assert ending(other, findings=()) == said
    assert ending(other, nothing).startswith(f"{said} What it is slow for (word at train.py:9 ")
    waiting = trial(3, "not tried", forecast_low=1.4, why="there was no time left")
    waiting = msgspec.structs.replace(waiting, gain=None)
    assert ending(trial(9, "unclear"), waiting) == (
        "No gain is proven. Not tried to the end: cure9 (10.0× so far, 6 of 11 pairs), cure3 "
        "(1.40× at least by forecast); a longer --budget may prove it."
    )
    doubted = trial(
        1, "unclear", why="most blocks show it, but steps wait: runs of its own must tell"
    )
    doubted = msgspec.structs.replace(doubted, pairs=11)
    assert "cure1 (2.00× so far, 11 pairs; runs of its own must tell)" in ending(doubted)
    assert ending(bounds[0], waiting).startswith("No gain is proven, but what costs most is: ")
    assert ending(bounds[0], waiting).endswith("a longer --budget may prove it.")
    assert reason_of((*bounds, trial(1)), (read,)) == ""


def test_it_is_kept_private_and_forecasts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert calibration_table().rows == []
    good = trial(1, cause="idle.launch", forecast_low=1.5, forecast_high=2.5)
    off = msgspec.structs.replace(good, gain=4.0, gain_low=3.9, gain_high=4.1)
    keep_forecasts(outcome(good, off, trial(2)))
    assert stat.S_IMODE(os.stat(calibration_path()).st_mode) == 0o600
    (row,) = calibration_table().rows
    assert (row.cause, row.cure, row.trials, row.within) == ("idle.launch", "cure1", 2, 1)
    with calibration_path().open("a") as file:
        file.write('no entry\n{"time": 1}\n')
    assert calibration_table().rows == [row]
    write_beside(outcome(good), tmp_path / "x.gputui-try.json")
    assert stat.S_IMODE(os.stat(tmp_path / "x.gputui-try.json").st_mode) == 0o600


LINES = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from(
            [
                b'{"site": "SGD", "source": "optimizer", "steps": 3, "first": 2}',
                b'{"pair": 0, "cure": "tf32", "on": true, "steps": 3, "ns": 5, "first": 2}',
                b'{"pair": 0, "cure": "tf32", "on": false, "steps": 3, "ns": 9, "first": 2}',
                b'{"pair": -1, "cure": "tf32", "on": true, "steps": 0, "ns": 5, "first": 2}',
                b'{"losses": [0, 1.5, null]}',
                b'{"losses": [null, 7]}',
                b'{"losses": [1e999, "x"]}',
                b'{"switch": "tf32"}',
                b'{"over": "done"}',
                b'{"cure": "tf32", "applied": false, "why": "\\u001b[31m"}',
            ]
        ),
    ),
    max_size=30,
)


@given(LINES, LINES)
def test_whatever_a_program_writes_is_read(tmp_path_factory, lines, more) -> None:
    folder = tmp_path_factory.mktemp("written")
    (folder / "trial-7").write_bytes(b"\n".join(lines))
    (folder / "cures-7").write_bytes(b"\n".join(more))
    (folder / "trial-x").write_bytes(b"")
    reader = BlockReader(folder)
    reader.poll()
    reader.poll()
    for steps in reader.processes.values():
        assert all(ratio > 0 for ratio in steps.ratios("tf32"))
        assert all(block.steps > 0 for block in steps.blocks)
    assert "\x1b" not in "".join(reader.not_applied.values())


def test_a_cure_with_other_results_is_named_in_a_line() -> None:
    simt = finding("busy.matmul_simt", Gain(3.0, 4.2, "TF32"), Gain(4.0, 6.4, "bf16"))
    said = by_name_only([simt], {"busy.matmul_simt": 3.9}, trains=True)
    assert said.startswith("--cure bf16_autocast: 4.0 to 6.4× by forecast; tried by name only")
    assert by_name_only([simt], {"busy.matmul_simt": 4.9}, trains=True) == ""
    others = [finding("padding"), finding("idle.host", Gain(2.0, 3.0))]
    assert by_name_only(others, {}, trains=True) == ""
    # What is proven of something else is beside it.
    assert by_name_only([*others, simt], {"padding": 4.9}, trains=True) == said
    # What is not trained may have its weights in bf16.
    of_inference = by_name_only([simt], {}, trains=False)
    assert of_inference.startswith("--cure bf16_autocast,bf16_weights: 4.0 to 6.4× by forecast")


def test_half_precision_is_named_where_products_are_in_tf32_already() -> None:
    """And where attention is in FP32."""
    tf32 = finding("outside_autocast", Gain(1.5, 2.0), advice=ALL_IN_HALF)
    assert by_name_only([tf32], {}, trains=True).startswith("--cure bf16_autocast: 1.5 to 2.0×")
    gains = Gain(1.8, 2.4, "all under autocast"), Gain(1.3, 1.5, "q, k and v in bf16")
    attention = finding("attention_fp32", *gains, advice="give it bf16: autocast, or")
    assert by_name_only([attention], {}, trains=True).startswith(
        "--cure bf16_autocast: 1.8 to 2.4×"
    )
