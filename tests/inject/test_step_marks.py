"""Marks of a program's steps, from real interpreters to the ring."""

from __future__ import annotations

import pytest

from gputui.inject.build import CAPTURE
from gputui.model.events import ITEM_UNITS, STEP_SOURCES
from gputui.ring.layout import RecordKind
from tests.inject.traced import run_python

pytestmark = pytest.mark.usefixtures("library")

LIBRARY = f"""
import ctypes
library = ctypes.PyDLL({str(CAPTURE.path)!r})
library.gputui_step_site.restype = ctypes.c_void_p
library.gputui_step.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.gputui_step.restype = None
site, step = library.gputui_step_site, library.gputui_step
"""


def _number(source):
    return STEP_SOURCES.index(source) + 1


def test_marks_stand_in_the_ring_as_they_were_made(tmp_path):
    tokens = ITEM_UNITS.index("tokens") + 1
    trace = run_python(
        f"""{LIBRARY}
adam = site({_number("optimizer")}, {tokens}, b"AdamW", 1)
bar = site({_number("tqdm")}, 0, b"train.py:7", 0)
for n in range(3):
    step(bar, 0)
    step(adam, 512 + n)
step(None, 1)
""",
        tmp_path,
    ).trace
    marks = trace.of(RecordKind.STEP)
    rows = [
        (STEP_SOURCES[mark["sub"] - 1], trace.name(mark["name"]), int(mark["value"]),
         int(mark["end"]), int(mark["source_kind"]))
        for mark in marks
    ]  # fmt: skip
    assert rows == [
        row
        for n in range(3)
        for row in (
            ("tqdm", "train.py:7", n + 1, 0, 0),
            ("optimizer", "AdamW", n + 1, 512 + n, tokens),
        )
    ]
    assert (marks["thread"] == trace.facts.pid).all()
    starts = marks["start"].tolist()
    assert starts == sorted(starts)
    assert starts[0] >= trace.facts.start_ns


def test_a_program_that_only_shows_progress_gets_no_ring_for_it(tmp_path):
    outcome = run_python(
        f"""{LIBRARY}
bar = site({_number("tqdm")}, 0, b"download", 0)
assert bar is None
step(bar, 0)
""",
        tmp_path,
    )
    assert outcome.traces == []


def test_sites_beyond_the_limit_are_not_marked(tmp_path):
    source = f"""{LIBRARY}
sites = [site({_number("module")}, 0, str(n).encode(), 1) for n in range(2000)]
print(sum(s is not None for s in sites))
for s in sites:
    step(s, 0)
"""
    outcome = run_python(source, tmp_path)
    assert outcome.words == ["1024"]
    assert len(outcome.trace.of(RecordKind.STEP)) == 1024


def test_a_forked_process_marks_nothing_and_its_marks_are_no_ranges(tmp_path):
    source = f"""{LIBRARY}
import os
adam = site({_number("optimizer")}, 0, b"AdamW", 1)
step(adam, 0)
if os.fork() == 0:
    step(adam, 0)
    os._exit(0)
os.wait()
step(adam, 0)
"""
    trace = run_python(source, tmp_path).trace
    assert trace.of(RecordKind.STEP)["value"].tolist() == [1, 2]
    assert trace.facts.unseen_forks == 0
