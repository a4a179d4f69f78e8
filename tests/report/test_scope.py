"""Shares of a part of a run: cut to it, the run gives the part's figures by the same rules."""

from __future__ import annotations

import csv
import io
from functools import cache

import pytest

from gputui.report.explain.time_tree import TimeTree, time_tree
from gputui.report.explain.verdict import verdict
from gputui.report.scope import (
    RunScope,
    ScopeKind,
    beside_benchmark,
    cut_to_scope,
    scope_in_words,
    scopes,
    why_no_stretch,
)
from gputui.state import Run, Session
from gputui.store.journal.reader import JournalReader
from tests.conftest import DATA
from tests.sessions_for_tests import analysed

LAUNCH, RANKS = "faults/launch.gputui.gz", "ranks/late_work.gputui.gz"
STEPS = 36_465


@cache
def run_of(name: str) -> Run:
    session = Session.from_events(JournalReader.open(DATA / name))
    assert session.run is not None
    return session.run


def tree_of(run: Run, scope: RunScope) -> TimeTree:
    tree = time_tree(cut_to_scope(run, scope))
    assert tree is not None
    return tree


def test_the_parts_of_the_steps_add_up_to_all_of_them() -> None:
    run = run_of(LAUNCH)
    whole = time_tree(run)
    assert whole is not None
    assert tree_of(run, RunScope(ScopeKind.STEPS, 1, STEPS)).leaves == whole.leaves
    first, second = RunScope(ScopeKind.STEPS, 1, 9_999), RunScope(ScopeKind.STEPS, 10_000, STEPS)
    trees = [tree_of(run, scope) for scope in (first, second)]  # a border inside a block
    assert [tree.steps for tree in trees] == [9_999, 26_466]
    assert sum(tree.wall_ns for tree in trees) == pytest.approx(whole.wall_ns, abs=9)
    assert sum(tree.operations for tree in trees) == pytest.approx(whole.operations, abs=2)
    for leaf, ns in whole.leaves.items():
        assert sum(tree.leaves.get(leaf, 0) for tree in trees) == pytest.approx(ns, abs=9)
    assert trees[0].step_mean_ns != trees[1].step_mean_ns
    one = tree_of(run, RunScope(ScopeKind.STEPS, STEPS, STEPS))
    assert one.steps == 1
    assert one.wall_ns == pytest.approx(one.step_mean_ns, abs=9)


def test_warm_up_and_the_rest_of_the_run_can_be_taken_in() -> None:
    run = run_of(LAUNCH)
    steady, turns, everything = scopes(run)
    assert scope_in_words(run, steady) == "steady steps"
    assert scope_in_words(run, turns) == "all steps, with 2 of warm-up"
    assert scope_in_words(run, everything) == "all time since the first kernel"
    trees = [tree_of(run, scope) for scope in (steady, turns, everything)]
    assert [tree.steps for tree in trees] == [STEPS, STEPS + 2, 0]
    assert trees[0].wall_ns < trees[1].wall_ns < trees[2].wall_ns
    assert trees[1].step_ns.count == STEPS + 2
    assert trees[2].wall_ns == sum(time.ns for time in run.leaf_times.values())
    assert not trees[2].beside_ns
    found = verdict(analysed(cut_to_scope(run, everything)))
    assert found is not None
    assert found.headline.endswith("of the time since its first kernel.")


def test_of_several_ranks_no_stretch_is_told() -> None:
    run = run_of(RANKS)
    assert why_no_stretch(run_of(LAUNCH)) is None
    assert "several ranks" in (why_no_stretch(run) or "")
    assert [scope.part for scope in scopes(run)] == [ScopeKind.STEADY, ScopeKind.RUN]
    tree = time_tree(run)
    assert tree is not None
    assert beside_benchmark(run, tree) == ""  # it ran two other loops before: no steps of this one


def test_tables_of_a_phase_are_of_its_kernels_calls_and_copies_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gputui.cli.dispatch import run as gputui

    report = str(DATA / "h200-medium.gputui")

    def rows(table: str, *phase: str) -> list[dict[str, str]]:
        arguments = ["summary", report, "--table", table, "--format", "csv", *phase]
        assert gputui(arguments) == 0
        return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    def total(table: str, column: str, *phase: str) -> int:
        return sum(int(float(row[column])) for row in rows(table, *phase))

    for table, column in (
        ("cuda_gpu_kern_sum", "Total Time (ns)"),
        ("cuda_api_sum", "Num Calls"),
        ("cuda_gpu_mem_time_sum", "Count"),
        ("kernel_categories", "Total Time (ns)"),
    ):
        whole = total(table, column)
        parts = [total(table, column, "--phase", name) for name in ("prefill", "decode")]
        assert all(0 < part < whole for part in parts), table
        # Steps are in the warm-up, the prefill and the decode: in all of these once.
        steps = total(table, column, "--phase", "step")
        assert parts[0] + parts[1] < steps < whole
    ranges = {row["Range"] for row in rows("nvtx_pushpop_sum", "--phase", "prefill")}
    assert {":prefill", ":step", ":attention"} <= ranges
    assert ":decode" not in ranges


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--table", "phases", "--phase", "decod"], "there is no range 'decod' (did you mean deco"),
        (["--phase", "decode"], "--phase: needs --table with one of phases"),
        (["--table", "roofline", "--phase", "decode"], "--phase: needs --table with one of"),
    ],
)
def test_a_phase_that_cannot_be_cut_out_is_one_clear_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gputui.cli.dispatch import run as gputui

    assert gputui(["summary", str(DATA / "h200-medium.gputui"), *arguments]) == 2
    assert line in capsys.readouterr().err
