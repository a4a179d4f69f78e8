"""Nested parts of the time: they add up, however they are asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from gputui.cli.dispatch import run as gputui
from gputui.model.leaves import LEAVES, Leaf, leaf_of_number
from gputui.playback.opening import load
from gputui.report.explain import Analysis
from gputui.report.phases import main_step, phase_rows
from gputui.report.tables.time import IciclePart, divide_by_kernel, icicle, icicle_of_step
from tests.conftest import DATA
from tests.events_for_tests import header, run_ended, run_started
from tests.render.pages_for_tests import Page

SERVE = DATA / "h200-serve.gputui.gz"


def every(part: IciclePart) -> list[IciclePart]:
    return [part, *(one for inside in part.parts for one in every(inside))]


@pytest.mark.parametrize("name", ["h200-serve", "h200-annotated", "h200-transformers"])
def test_parts_add_up_to_what_is_around_them_and_to_all_that_was_recorded(name: str) -> None:
    run = load(str(DATA / f"{name}.gputui.gz")).needed_run()
    whole = icicle(run)
    for part in every(whole):
        assert part.ns > 0
        if part.parts:
            assert sum(one.ns for one in part.parts) == part.ns
    recorded = [
        part.ns for part in run.timing.range_leaves.values() if leaf_of_number(part.leaf) in LEAVES
    ]
    assert whole.ns == sum(recorded)
    assert sum(ns for _, ns in whole.stacks()) == whole.ns


def test_a_step_is_the_programs_own_with_its_phases() -> None:
    loaded = load(str(SERVE))
    run = loaded.needed_run()
    step, times = icicle_of_step(run, None)
    row = main_step(run, phase_rows(run))
    assert row is not None
    assert (step.key, times) == (row.key, row.instances)
    assert {"prefill", "decode"} <= {part.name for part in step.parts}


def test_without_phases_it_is_the_causes_of_the_steps_that_were_found() -> None:
    loaded = load(str(DATA / "faults" / "launch.gputui.gz"))
    run = loaded.needed_run()
    tree = Analysis(loaded.session, run).tree
    assert tree is not None
    step, times = icicle_of_step(run, tree)
    assert step.ns / times == pytest.approx(tree.step_mean_ns, rel=0.01)
    assert {part.leaf for part in step.parts} == {leaf for leaf, ns in tree.leaves.items() if ns}
    divide_by_kernel(step, loaded.session, run)
    assert {part.leaf for part in step.parts if part.parts} >= {Leaf.MATMUL, Leaf.NORMALIZATION}
    for part in step.parts:
        assert {kernel.leaf for kernel in part.parts} <= {part.leaf}
        if part.parts:
            assert sum(kernel.ns for kernel in part.parts) == pytest.approx(part.ns, abs=99)


def test_the_page_has_a_step_with_its_phases(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    assert gputui(["export", str(SERVE), "--format", "html", "-o", str(path)]) == 0
    page = path.read_text()
    assert Page(page).is_inert
    boxes = re.findall(r"left:([\d.]+)%;width:([\d.]+)%;top:([\d.]+)rem' title='([^']*)'", page)
    [step] = [box for box in boxes if box[2] == "0.00"]
    assert step[3].startswith("step ")
    inside = [box for box in boxes if box[2] == "1.35"]
    assert sum(float(width) for _, width, _, _ in inside) == pytest.approx(100, abs=1)
    assert {"prefill", "decode"} <= {words.split()[0] for *_, words in inside}


def test_both_exports_hold_the_same_stacks(tmp_path: Path) -> None:
    whole = icicle(load(str(SERVE)).needed_run())
    folded, scope = tmp_path / "a.collapsed", tmp_path / "a.speedscope.json"
    for key, path in (("collapsed", folded), ("speedscope", scope)):
        assert gputui(["export", str(SERVE), "--format", key, "-o", str(path)]) == 0
    lines = [line.rpartition(" ") for line in folded.read_text().splitlines()]
    stacks = [(tuple(names.split(";")), int(ns)) for names, _, ns in lines]
    assert stacks == list(whole.stacks())
    document = json.loads(scope.read_text())
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    [profile] = document["profiles"]
    assert profile["endValue"] == whole.ns
    samples = [tuple(frames[at] for at in sample) for sample in profile["samples"]]
    assert list(zip(samples, profile["weights"], strict=True)) == stacks


def test_stacks_of_a_program_without_ranges_are_the_causes_of_its_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    launches = DATA / "faults" / "launch.gputui.gz"
    loaded = load(str(launches))
    run = loaded.needed_run()
    assert not icicle(run).ns
    assert gputui(["export", str(launches), "--format", "collapsed", "-o", "-"]) == 0
    lines = [line.rpartition(" ") for line in capsys.readouterr().out.splitlines()]
    tree = Analysis(loaded.session, run).tree
    assert tree is not None
    told = {LEAVES[leaf].label: ns for leaf, ns in tree.leaves.items() if ns}
    assert {names.partition(";")[2]: int(ns) for names, _, ns in lines} == told
    # Without any GPU time there is nothing to write, and one line says why.
    idle = tmp_path / "idle.gputui"
    events = (header(), run_started(), run_ended())
    idle.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    assert gputui(["export", str(idle), "--format", "speedscope", "-o", "-"]) != 0
    assert "it used no GPU" in capsys.readouterr().err


def test_ranges_of_xla_alone_name_no_step() -> None:
    """They are mostly of its compiling, which was the picture of a JAX program."""
    session = load(str(DATA / "faults" / "jax_operators.gputui.gz"))
    assert session.run is not None
    tree = Analysis(session, session.run).tree
    step, times = icicle_of_step(session.run, tree)
    assert tree is not None
    assert (step.name, times) == ("step", tree.steps)
    assert {part.leaf for part in step.parts} == {leaf for leaf, ns in tree.leaves.items() if ns}
