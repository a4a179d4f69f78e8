"""Two runs by their causes: the verdict, its noise, conditions on leaves."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    CaptureDelta,
    KernelDefined,
    KernelDelta,
    Scope,
    StepBlock,
    StepMarks,
    StepSource,
)
from gputui.model.leaves import LEAF_OF_KEY, Leaf
from gputui.model.naming import command_key, operands
from gputui.render import formats
from gputui.render.comparison import comparison_tables
from gputui.report.alerts import ThresholdError
from gputui.report.change import Change, RunFigures, change_between, changes, signed_percent
from gputui.report.common_unit import StepKind
from gputui.report.comparable import Subject
from gputui.report.compare import Comparison, Condition, compare
from gputui.report.statistics import Mean, mean_of_blocks, noise
from gputui.tui.views.compare import comparison_columns
from tests.conftest import DATA
from tests.events_for_tests import times
from tests.report.test_verdict import STEP_NS, a_run, delta
from tests.sessions_for_tests import loaded_once

Shares = dict[Leaf, float]
SLOW: Shares = {Leaf.LAUNCH: 0.6, Leaf.SYNC: 0.1, Leaf.MATMUL: 0.3}
FAST: Shares = {Leaf.LAUNCH: 0.1, Leaf.SYNC: 0.2, Leaf.MATMUL: 0.7}


def subject(label: str, shares: Shares, lengths: tuple[float, ...] = ()) -> Subject:
    """Ten steps of each of `lengths` × STEP_NS, a delta each; 100 steps of STEP_NS without."""
    parts = [delta(shares, count=10, length=length) for length in lengths] or [delta(shares)]
    return Subject(label, *a_run(*parts))


def compared(before: Subject, after: Subject) -> Comparison:
    return compare([before, after])


def verdict_on(before: Subject, after: Subject) -> Change:
    [found] = changes(compared(before, after))
    return found


EVEN = (0.99, 1.01, 1.0, 0.99, 1.01, 1.0, 0.99, 1.01)


def test_the_verdict_says_how_much_and_because_of_what() -> None:
    after = tuple(length / 4 for length in EVEN)
    found = verdict_on(subject("a", SLOW, EVEN), subject("b", FAST, after))
    assert found.word == "4.0× FASTER"
    assert "A step takes 2.50 ms in run 2, 10.0 ms in the baseline: −7.50 ms (−75.0 %" in (
        found.sentence
    )
    assert found.because.startswith("launch-bound −5.75 ms, matmul −1.25 ms")
    assert "sync" not in found.because


def test_of_two_workloads_none_is_the_faster_one() -> None:
    both = [subject("a", SLOW, EVEN), subject("b", FAST, EVEN)]
    for one, name in zip(both, ("train", "inference"), strict=True):
        assert one.run is not None
        one.run.started = replace(one.run.started, kind="workload", name=name)
    found = verdict_on(*both)
    assert (found.word, found.step_percent) == ("NOT COMPARABLE", None)
    assert found.sentence.startswith("Other workloads do other work: a step of run 2 is")


def with_kernels(one: Subject, operations: float, *words: str, **kernels: int) -> Subject:
    """The same run with kernels of so many ns, and so many operations a step."""
    assert one.run is not None
    defined = [KernelDefined(time_ns=1, kernel=number, name=name, mangled=name)
               for number, name in enumerate(kernels)]  # fmt: skip
    ran = [KernelDelta(process=1, range=0, kernel=number, device=0, time=times(ns))
           for number, ns in enumerate(kernels.values())]  # fmt: skip
    one.session.apply([*defined, CaptureDelta(time_ns=2, process=1, kernels=tuple(ran))])
    one.run.started = replace(one.run.started, name="python3", arguments=("python3", *words, "3"))
    for sums in one.run.loops.values():
        sums.operations = round(operations * sums.steps)
    return one


def test_of_two_programs_none_is_the_faster_one() -> None:
    def before() -> Subject:
        return with_kernels(subject("a", SLOW, EVEN), 154, "save.py", gemm=99, fill=1, relu=50)

    def after(operations: float, *words: str, **kernels: int) -> Change:
        lengths = tuple(length / 13.6 for length in EVEN)
        other = with_kernels(subject("b", FAST, lengths), operations, *words, **kernels)
        return verdict_on(before(), other)

    found = after(17, "copy.py", nvjet=1000, fill=1)
    assert (found.word, found.because, found.compared_by) == ("NOT COMPARABLE", "", None)
    assert found.sentence.startswith(
        "Different programs: a step of run 2 is 17 operations in 735 µs, a step of the baseline is "
        "154 operations in "
    )
    assert (found.step_percent, found.noise_percent) == (None, None)
    other_words = after(17, "save.py", "copy", nvjet=1000, fill=1)
    assert other_words.word == "NOT COMPARABLE"
    assert other_words.sentence.startswith("Different steps: a step of run 2 is 17 operations")
    # Of a compiled program all is other, but the command only has one more option.
    assert after(17, "save.py", "--compile", nvjet=1000).word == "13.6× FASTER"
    # Kernels that only one has are named so that each is another one.
    gone = {f"sm90_xmma_gemm_{way}_n_tilesize128x256x32_execute_segment_k_off_kernel": 9
            for way in ("nt", "tn", "nn")}  # fmt: skip
    gone |= {f"void apply<{size}>(int)": 9 for size in range(5)}
    both = compared(with_kernels(subject("a", SLOW, EVEN), 9, "x.py", **gone), before())
    [table] = (one for one in comparison_tables(both) if one.name == "compare_unmatched")
    name = comparison_columns(table, table.rows, {})[1]
    shown = [name.words(row) for row in table.rows if name.words is not None]
    assert len(shown) == len(set(shown)) == 3 + 1 + 3
    assert "apply (5 of that name)" in shown
    # A compiler leaves some kernels, other types of numbers leave the operations.
    assert after(17, "save.py", gemm=80, triton=20).word == "13.6× FASTER"
    assert after(140, "copy.py", nvjet=1000).word == "13.6× FASTER"


def fault(name: str) -> Subject:
    loaded = loaded_once(str(DATA / "faults" / f"{name}.gputui.gz"))
    return Subject(name, loaded.session, loaded.run)


GAINS = {
    "allocator": 1.21, "attention": 14.3, "input": 3.78, "launch": 8.63, "logits": 19.8,
    "no_cache": 3.37, "odd_shapes": 4.91, "overlap": 1.29, "pageable": 6.85, "shared_gpu": 1.66,
    "tensor_cores": 11.5, "workers": 7.32,
}  # fmt: skip
"""How many times faster the cured program does the same work, by the mean step of the kernels that
it and the faulty one launch alike. Taken from the recordings by other code than what compares."""

NOT_OF_ONE_SIZE = ("optimizer", "recompiling", "starved", "unfused")
"""Of these the faulty program was recorded with another size of its model, for less than a step, or
with none of the cured one's kernels."""


@pytest.mark.parametrize("name", GAINS)
def test_a_cure_is_as_much_faster_as_it_was_measured(name: str) -> None:
    found = verdict_on(fault(name), fault(f"{name}-cure"))
    assert found.step_percent is not None
    assert 1 / (1 + found.step_percent / 100) == pytest.approx(GAINS[name], rel=0.02)
    # Its mean varies by half: it waits in each sixteenth step.
    assert found.word.endswith("UNCERTAIN" if name == "overlap" else " FASTER")
    back = verdict_on(fault(f"{name}-cure"), fault(name))
    assert back.word.endswith("UNCERTAIN" if name == "overlap" else " SLOWER")


@pytest.mark.parametrize("name", NOT_OF_ONE_SIZE)
def test_without_common_work_no_run_is_the_faster_one(name: str) -> None:
    for pair in ((name, f"{name}-cure"), (f"{name}-cure", name)):
        found = verdict_on(*map(fault, pair))
        assert found.word in ("NOT COMPARABLE", "NO STEPS")
        assert (found.step_percent, found.compared_by) == (None, None)
        assert not re.search(r"\d×", found.word + found.sentence)


def test_a_run_whose_time_was_not_measured_is_not_compared_in_silence() -> None:
    loaded = loaded_once("h200-inference.gputui")
    change = verdict_on(fault("launch"), Subject("old", loaded.session, loaded.run))
    assert (change.word, change.step_percent) == ("NOT COMPARABLE", None)
    assert change.sentence.startswith("Where the time of run 2 went was not measured")


def test_runs_of_two_programs_are_not_compared_by_what_they_call_steps() -> None:
    for pair in (("varied_docs", "with_eval"), ("launch", "sync"), ("leak", "healthy_training")):
        assert verdict_on(*map(fault, pair)).word == "NOT COMPARABLE"


def test_an_optimizer_of_the_same_class_makes_two_scripts_no_one_program() -> None:
    """Adam ends a step of both: of many times the operations, none of the same size."""
    pair = []
    for name in ("ad_ctr", "char_gru"):
        loaded = loaded_once(f"gains/{name}.gputui.gz")
        pair.append(Subject(name, loaded.session, loaded.run))
    assert verdict_on(*pair).word == verdict_on(*reversed(pair)).word == "NOT COMPARABLE"


@pytest.mark.parametrize(("name", "by"), [("sync", "items"), ("unfused", "step")])
def test_steps_that_programs_count_themselves_are_compared(name: str, by: str) -> None:
    """Recorded on one H100, one after the other. The recognized steps are others: three operations
    of one layer against all 24; nothing that a compiler makes has a name of before."""
    pair = []
    for file in (name, f"{name}-cure"):
        loaded = loaded_once(str(DATA / "pairs" / f"{file}.gputui.gz"))
        pair.append(Subject(file, loaded.session, loaded.run))
    before, after = (float(str(one.run.metrics["step_ms"])) for one in pair if one.run)
    found = verdict_on(*pair)
    assert found.step_percent == pytest.approx(100 * (after / before - 1), rel=0.01)
    assert found.compared_by == by  # what is recognized and what is counted may be the same
    assert ("by step_ms, takes" in found.sentence) == (by == "items")


def test_rows_of_a_grid_and_the_whole_grid_are_not_one_step() -> None:
    """CuPy, whose steps nothing marks: some kernels of 5 µs for each row, then the same kernels
    once for all rows. As many operations repeat, and the cure looked 17 times slower."""
    pair = []
    for name in ("cupy_heat", "cupy_heat-cure"):
        loaded = loaded_once(str(DATA / "pairs" / f"{name}.gputui.gz"))
        pair.append(Subject(name, loaded.session, loaded.run))
    assert verdict_on(*pair).word == verdict_on(*reversed(pair)).word == "NOT COMPARABLE"


def test_steps_that_both_programs_mark_are_compared_by_their_marks() -> None:
    def marked(each_ns: int, lengths: tuple[float, ...], site: str = "train.py:9") -> Subject:
        one = subject("a", SLOW, lengths)
        return with_marks(one, "optimizer", site, 11, 10 * each_ns)

    def with_marks(
        one: Subject, source: StepSource, site: str, marks: int, span_ns: int
    ) -> Subject:
        one.session.apply(
            [StepMarks(time_ns=STEP_NS, process=1, thread=7, source=source, site=site, first=1,
                       marks=marks, span_ns=span_ns)]
        )  # fmt: skip
        return one

    # One mark holds four recognized steps of 10 ms before, and one of 16 ms after.
    before, after = marked(40_000_000, EVEN), marked(16_000_000, tuple(1.6 * n for n in EVEN))
    found = verdict_on(before, after)
    assert (found.word, found.compared_by) == ("2.5× FASTER", "step")
    assert found.sentence.startswith("The work of a step of the baseline, by train.py:9, takes")
    # A module is called in each micro-batch: the end of the optimizer's step says what a step is,
    # however often another source marks. What spans 1 % of the steps, as a module that a CUDA graph
    # holds, says nothing.
    for one, calls, span in ((before, 400, 0.4), (after, 900, 0.6)):
        with_marks(one, "module", "Net", calls, round(span * 1e9))
        with_marks(one, "lightning", "", 30, 4_000_000)
    assert verdict_on(before, after).word == "2.5× FASTER"
    # Marks of another place say nothing of these.
    elsewhere = marked(16_000_000, tuple(1.6 * n for n in EVEN), "eval.py:3")
    assert verdict_on(before, elsewhere).word == "1.6× SLOWER"


def test_a_slow_clock_is_said() -> None:
    """The cure was recorded while the GPU was hot: each of its kernels takes twice as long."""
    comparison = compared(fault("sync"), fault("sync-cure"))
    assert comparison.remarks == [
        "the GPU's clock in sync-cure was 42 % of that in sync: times differ for this alone"
    ]
    [found] = changes(comparison)
    assert found.sentence.startswith("The work of a step of the baseline, by its nvjet_sm90")
    assert found.compared_by == "work"


def test_the_gate_passes_a_fix_and_says_where_it_cannot_judge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def gate(before: str, after: str, *conditions: str) -> int:
        files = [str(DATA / "faults" / f"{name}.gputui.gz") for name in (before, after)]
        return gputui(["compare", *files, *(f"--fail-if={text}" for text in conditions)])

    slower = "step.mean_ns>+3%"
    assert gate("launch", "launch-cure", slower) == 0
    assert gate("launch-cure", "launch", slower) == 1
    text = capsys.readouterr().out
    assert "By cause" in text
    assert "\nKernels" not in text
    assert text.rstrip().endswith("launch.gputui.gz --full")
    assert gate("varied_docs", "with_eval", slower, "idle.launch>90%") == 3
    error = capsys.readouterr().err
    assert "its steps are of other work than those of" in error
    assert gate("varied_docs", "with_eval", slower, "busy>1%") == 1
    # Where the steps are other parts of the program, only their mean can be scaled.
    assert gate("launch", "launch-cure", "step.p99_ns>+3%") == 3


def test_changes_are_read_at_a_glance() -> None:
    shown = [signed_percent(value) for value in (-75.3, 899.0, 1258.8, 1952978.6, -99.995, -100.0)]
    assert shown == ["−75.3 %", "+899.0 %", "13.6×", ">1000×", "<−99.9 %", "−100.0 %"]
    shares = {**FAST, Leaf.OPTIMIZER: 0.1}
    text = formats.comparison(
        compared(subject("a", SLOW, EVEN), subject("b", shares, EVEN)), "table"
    )
    assert re.search(r"busy optimizer +step_ns +0 ns +1\.00 ms +from 0 +±", text)
    assert re.search(r"step +median_ns +10\.0 ms +10\.0 ms +0 %\n", text)


def test_what_moved_against_the_change_is_said() -> None:
    before = subject("a", {Leaf.LAUNCH: 0.9, Leaf.MATMUL: 0.1}, EVEN)
    after = tuple(0.7 * length for length in EVEN)
    found = verdict_on(before, subject("b", {Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}, after))
    assert found.word == "30 % FASTER"
    assert found.because == "launch-bound −4.80 ms; against it matmul +1.80 ms"


def test_a_difference_within_noise_is_the_same() -> None:
    uneven = (0.8, 1.2, 0.9, 1.1, 1.3, 0.7, 1.0, 1.0)
    longer = tuple(1.02 * length for length in uneven)
    found = verdict_on(subject("a", SLOW, uneven), subject("b", SLOW, longer))
    assert (found.word, found.because) == ("SAME", "")
    assert found.noise_percent is not None
    assert found.noise_percent > 2


def test_without_steps_shares_are_compared() -> None:
    def unstepped(label: str, shares: Shares) -> Subject:
        return Subject(label, *a_run(delta(shares, Scope.UNSTEPPED, count=2)))

    found = verdict_on(unstepped("a", SLOW), unstepped("b", FAST))
    assert found.word == "NO STEPS"
    assert "idles 30 % of the time in run 2, 70 % in the baseline" in found.sentence
    assert found.because.startswith("launch-bound −50.0 points, matmul +40.0 points")


def test_causes_come_by_effect_and_small_ones_not_at_all() -> None:
    shares = {**SLOW, Leaf.HOST: 0.0005}
    comparison = compared(subject("a", shares, EVEN), subject("b", FAST, EVEN))
    text = formats.comparison(comparison, "table", 120)
    table = text[text.index("By cause") :].split("\n\n")[0].splitlines()[3:]
    assert [line.split("  ")[0] for line in table] == [
        "idle launch-bound",
        "busy matmul",
        "idle sync",
    ]
    assert text.startswith("SAME")
    assert all(" yes" in line for line in table)


@pytest.mark.parametrize(
    ("condition", "trips"),
    [
        ("idle.launch>40%", False),
        ("idle.launch>9%", True),
        ("idle.sync>15%", True),
        ("idle.sync>+9%", True),
        ("idle.sync>+11%", False),
        ("idle.launch<-40%", True),
        ("idle>25%", True),
        ("busy<71%", True),
        ("busy.matmul_simt>0%", False),
        ("idle.sync.step_ns>+50%", True),
        ("step.mean_ns>+3%", False),
        ("step.mean_ns>9000000", True),
    ],
)
def test_conditions_on_causes(condition: str, trips: bool) -> None:
    comparison = compared(subject("a", SLOW, EVEN), subject("b", FAST, EVEN))
    assert bool(Condition.parse(condition).tripped(comparison)) is trips


def test_a_condition_says_what_it_saw() -> None:
    comparison = compared(subject("a", SLOW, EVEN), subject("b", FAST, EVEN))
    assert Condition.parse("idle.sync>15%").tripped(comparison) == ["b: idle.sync>15%: it is 20 %"]
    assert Condition.parse("idle.sync>+9%").tripped(comparison) == [
        "b: idle.sync>+9%: 10 → 20 (+10 %)"
    ]


def test_an_unknown_cause_is_answered_with_the_known_ones() -> None:
    comparison = compared(subject("a", SLOW, EVEN), subject("b", FAST, EVEN))
    with pytest.raises(ThresholdError, match=r"there is no cause 'idle\.lunch'") as caught:
        Condition.parse("idle.lunch>40%").tripped(comparison)
    assert all(key in str(caught.value) for key in LEAF_OF_KEY)
    nothing = compared(Subject("a", *a_run()), Subject("b", *a_run()))
    with pytest.raises(ThresholdError, match="no run captured what a GPU did"):
        Condition.parse("idle.launch>40%").tripped(nothing)


def test_the_mean_of_blocks_weighs_them_by_their_steps() -> None:
    found = mean_of_blocks([(1, 10.0), (1, 10.0), (2, 20.0), (6, 60.0)])
    assert (found.amount, found.error, found.freedom) == (10.0, 0.0, 3.0)
    assert mean_of_blocks([(1, 10.0), (3, 60.0)]) == Mean(17.5)
    assert noise(found, Mean(10.0)) is None
    assert noise(Mean(1.0, 1e300, 3), Mean(1.0, 1e300, 3)) is None
    assert noise(Mean(1.0, 1e-200, 3), Mean(1.0, 0.0, 3)) is not None


def test_blocks_that_a_delta_brings_count_one_by_one() -> None:
    blocks = tuple(
        StepBlock(0, 0, 10, round(length * 10 * STEP_NS), ((Leaf.MATMUL, 10 * STEP_NS),))
        for length in EVEN
    )
    _, run = a_run(delta({Leaf.MATMUL: 1.0}, blocks=blocks))
    tree = Subject("a", *a_run(delta({Leaf.MATMUL: 1.0}, blocks=blocks))).tree
    assert tree is not None
    assert run.step_blocks[1].loops[0, 0] == list(blocks)
    assert tree.step_mean.error is not None
    assert tree.step_mean.freedom == len(EVEN) - 1


def test_one_recording_is_held_to_conditions_too(capsys: pytest.CaptureFixture[str]) -> None:
    sync = str(DATA / "faults" / "sync.gputui.gz")
    assert gputui(["summary", sync, "--fail-if", "idle.sync>40%"]) == 0
    assert gputui(["summary", sync, "--fail-if", "idle.sync>20%", "--fail-if", "idle>99%"]) == 1
    assert "idle.sync>20%: it is 29" in capsys.readouterr().err
    assert gputui(["summary", sync, "--fail-if", "idle.sync>+5%"]) == 2
    assert "a change needs two runs: gputui compare" in capsys.readouterr().err
    assert gputui(["summary", sync, "--fail-if", "idle.sink>5%"]) == 2
    assert "there is no cause 'idle.sink'; known: idle, busy" in capsys.readouterr().err


def test_runs_of_other_programs_are_no_runs_of_one_command() -> None:
    def key(*words: str) -> tuple[str, ...]:
        return command_key("command", "python3", ("python3", *words))

    assert key("wait.py", "lock", "save.py") != key("wait.py", "lock", "variant.py", "sync", "3")
    assert key("train.py", "--lr", "1") == key("train.py", "--compile")
    assert operands(("python3", "a.py", "--lr", "1e-3", "small", "3", "-v")) == (
        "python3", "a.py", "small",
    )  # fmt: skip
    small, large = (
        RunFigures(step=Mean(ms * 1e6, 0.0, 9.0), kind=StepKind(operations, frozenset({1})))
        for ms, operations in ((0.17, 3.0), (6.47, 17.0))
    )
    assert change_between(small, large, has_same_words=False) == "another step"
    assert change_between(small, large, has_same_words=True) == "38.1× slower"
    assert change_between(replace(small, kind=None), large, has_same_words=False) != "another step"
    unlike = replace(small, kind=StepKind(3.0, frozenset({2})))
    assert change_between(small, unlike, has_same_words=False) == "another step"
    assert change_between(small, unlike, has_same_words=True) == "same"
