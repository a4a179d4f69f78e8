"""Jobs of two and four ranks, recorded on H100s: who is late, hangs or died, and where nobody is.

Of recordings of `parallel` and `comm` (4 ranks) and of programs with a lost rank (2 ranks), what
names ranks was kept, and a process's events were added up.
"""

from __future__ import annotations

import pytest

from gputui.playback.opening import load
from gputui.report.answer import answer
from gputui.report.explain import Analysis, findings
from gputui.report.explain.time_tree import time_tree
from gputui.report.scope import beside_benchmark
from gputui.report.summary_document import summary_document
from gputui.report.tables.ranks import why_unknown
from gputui.state import Run, Session
from tests.conftest import DATA
from tests.sessions_for_tests import analysed


def of(name: str) -> tuple[Session, Run]:
    loaded = load(str(DATA / "ranks" / f"{name}.gputui.gz"))
    assert loaded.run is not None
    return loaded.session, loaded.run


@pytest.mark.parametrize(
    ("name", "word", "evidence"),
    [
        # It slept 20 ms each step.
        (
            "late_host",
            "RANK 2 IS LATE",
            "Rank 2 (GPU 2): its GPU waits for its CPU (CPU code) 22.2 ms a step more than the "
            "others, most of it in ddp/step/load, most often at engines.py:75 _late",
        ),
        # It took each sequence twice.
        (
            "late_work",
            "RANK 3 IS LATE",
            "Rank 3 (GPU 3): its GPU computes 49.5 ms a step more than the others, most of it "
            "matmul",
        ),
    ],
    ids=["host", "work"],
)
def test_the_late_one_is_named_with_the_cause(name: str, word: str, evidence: str) -> None:
    found = analysed(of(name)[1]).lateness
    assert found is not None
    assert (found.word, found.evidence) == (word, (evidence,))


def test_where_nobody_was_late_nobody_is_named() -> None:
    session, run = of("nobody")
    assert analysed(run).lateness is None
    assert why_unknown(run, analysed(run).ranks) == ""
    assert not [one for one in findings(Analysis(session, run)) if "rank" in one.cause]


def test_a_few_collectives_of_a_short_run_name_nobody_and_it_says_why() -> None:
    """Only its last, smallest ones were compared: in these two CPUs launched more slowly."""
    _, run = of("comm")
    assert analysed(run).lateness is None
    assert why_unknown(run, analysed(run).ranks) == (
        "which rank is late is not known: 26 % of the collectives came after the first second"
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hang", "Rank 1 did not come to the all_reduce that rank 0 is in for 15.1 s."),
        ("kill", "Rank 1 (pid 4845) vanished without ending properly."),
    ],
    ids=["hang", "kill"],
)
def test_a_lost_rank_is_named(name: str, sentence: str) -> None:
    found = [one.sentence for one in findings(Analysis(*of(name))) if "rank" in one.cause]
    assert found == [sentence]


def test_the_answer_names_a_phase_of_all_ranks_once_and_no_gpu_of_which_nothing_is_known() -> None:
    lines = {line.label: line.text for group in answer(*of("late_host")) for line in group}
    assert lines["by phase"].startswith("optimizer 50 %   forward 50 %   load 0.02 %   ")
    assert not [label for label in lines if label.startswith("GPU")]


@pytest.mark.parametrize(
    ("name", "steps", "sum_of_ranks"),
    [("late_host", 65, 260), ("late_work", 44, 177), ("comm", 577, 2321)],
)
def test_steps_are_counted_once_for_all_ranks(name: str, steps: int, sum_of_ranks: int) -> None:
    session, run = of(name)
    tree = time_tree(run)
    assert tree is not None
    assert (tree.program_steps, tree.steps) == (steps, sum_of_ranks)
    lines = [line.text for group in answer(session, run) for line in group if line.label == "step"]
    assert f"; {steps} steady steps" in lines[0]
    document = summary_document(session, run)
    assert document["verdict"]["steps"] == steps


def test_a_rank_whose_steps_are_others_is_in_no_figure_of_a_step_and_it_says_so() -> None:
    """Rank 0 also runs a baseline by itself, twice: its loop has 193 steps of 152 ms, that of each
    other rank 226 of 30 ms."""
    _, run = of("nobody")
    tree = time_tree(run)
    assert tree is not None
    assert {rank: loop.steps for rank, loop in tree.apart.items()} == {0: 193}
    assert (tree.program_steps, tree.steps) == (226, 226 + 226 + 227)
    assert tree.step_mean_ns == pytest.approx(30.05e6, rel=0.001)
    assert beside_benchmark(run, tree).endswith(
        "Rank 0 takes others, which are in no figure here: 193 of 152 ms."
    )
    assert [row.late_ns for row in analysed(run).ranks] == [None] * 4
