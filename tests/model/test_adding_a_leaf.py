"""A leaf of the time tree is added in two files, its declaration and what counts time under it; one
of kernels in its declaration alone: the recipe of docs, carried out on a copy of the package.
"""

from __future__ import annotations

from pathlib import Path

from gputui.attribute.accounting.host_threads import Doing
from gputui.model.leaves import LEAVES, PALETTE, Leaf
from tests.package_copies_for_tests import change, check_copy, copy_package

_NEXT = max(Leaf) + 1
_NUMBERS = f"    MODULE = {_NEXT}\n    QUANTIZATION = {_NEXT + 1}\n"
_DECLARED = """    Leaf.QUANTIZATION: LeafMeaning(
        key="busy.quantization",
        label="quantization",
        meaning="casts to and from eight bits and fewer",
        color="elementwise",
        categories=("quantization",),
    ),
    Leaf.MODULE: LeafMeaning(
        key="idle.module",
        label="loading modules",
        meaning="the CPU loaded kernels",
        color="sync",
        texture="╳",
        letter="m",
        cause=Cause(
            word="LOADING",
            sentence="The GPU idles {share} of {scope} while kernels are loaded{time}.",
            advice="CUDA_MODULE_LOADING=EAGER",
        ),
    ),
"""
_CHANGED = (
    ("model/leaves.py", "\n\nclass Cause(", _NUMBERS, ""),
    ("model/leaves.py", "}\n\n_OF_NUMBER", _DECLARED, ""),
    ("model/leaves.py", '            "quantization",\n', "", '            "quantization",\n'),
    (
        "attribute/accounting/host_threads.py",
        "\n\nLEAF_OF_CALL: dict[int, Leaf] = {\n",
        f"    LOADING = {max(Doing) + 1}\n\n\n"
        "LEAF_OF_CALL: dict[int, Leaf] = {\n    Doing.LOADING: Leaf.MODULE,\n",
        "\n\nLEAF_OF_CALL: dict[int, Leaf] = {\n",
    ),
    (
        "attribute/accounting/host_threads.py",
        "def kind_of_call(",
        "def kind_of_call(name: str) -> Doing:\n"
        '    return Doing.LOADING if "LoadModule" in name else known_kind_of_call(name)\n\n\n'
        "def known_kind_of_call(",
        "def kind_of_call(",
    ),
)
"""File, where the new lines stand before, those, and what they replace."""

_CHECK = """
import gputui
from gputui.model.leaves import LEAF_OF_KEY, Leaf
from gputui.render.formats import summary
from gputui.report.explain import Analysis
from gputui.report.explain.verdict import verdict
from gputui.report.explain.time_tree import time_tree
from gputui.report.summary_document import summary_document
from tests.reference import recording_page
from gputui.tui.widgets.causes import cause_rows, hundred_bar, legend
from tests.attribute.capture_program import Program, Traced

assert gputui.__file__.startswith(FOLDER), gputui.__file__
program = Program()
traced = Traced(program)
MS = 1_000_000
for second in range(3):
    records = []
    for step in range(20):
        begin, number = (20 * second + step) * 50 * MS, 20 * second + step + 1
        records += [
            program.call(begin, begin + 20 * MS, 0, name="cuLibraryLoadModule"),
            program.call(begin + 20 * MS + 1000, begin + 20 * MS + 4000, number),
            program.kernel(
                begin + 20 * MS + 6000, begin + 50 * MS - 6000, number,
                name="quantize_blockwise_kernel",
            ),
        ]
    records.append(program.flush((second + 1) * 1000 * MS))
    traced.feed(records, second + 1)
    traced.collect(second + 1, ended=second == 2)
session, run = traced.session, traced.run
module, quantization = LEAF_OF_KEY["idle.module"], LEAF_OF_KEY["busy.quantization"]
tree = Analysis(session, run).tree
assert 0.35 < tree.share(tree.leaves[module]) < 0.45, tree.leaves
assert 0.55 < tree.share(tree.leaves[quantization]) < 0.65, tree.leaves
found = verdict(Analysis(session, run))
assert found.word == "LOADING"
assert " while kernels are loaded" in found.headline, found.headline
assert found.findings[0].advice == "CUDA_MODULE_LOADING=EAGER"
text = summary(session, run, "table")
assert "LOADING" in text
document = summary_document(session, run)
keys = {row["key"] for row in document["time"]}
assert {"idle.module", "busy.quantization"} <= keys, document["time"]
drawn = "".join(text for text, _ in legend(tree, 100))
assert "loading modules" in drawn, drawn
bar, _ = hundred_bar(tree, 100)
assert ("╳" * 40, "cause-sync") in bar, bar
rows, leaves = cause_rows(tree, 100, 20)
assert {module, quantization} <= set(leaves)
assert f"| {int(quantization)} | `busy.quantization` |" in recording_page()
"""


def test_every_color_is_of_the_palette_and_only_busy_leaves_are_solid() -> None:
    assert {meaning.color for meaning in LEAVES.values()} == set(PALETTE)
    assert {meaning.texture for meaning in LEAVES.values() if not meaning.is_idle} == {"█"}
    assert "█" not in {meaning.texture for meaning in LEAVES.values() if meaning.is_idle}


def test_a_leaf_is_its_declaration_and_what_counts_it(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    change(package, _CHANGED)
    assert len({name for name, *_ in _CHANGED}) == 2
    check_copy(tmp_path, _CHECK)
