"""A package that adds workloads through the entry point, installed in a folder of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.workloads import forked_python


def pytest_collection_finish() -> None:
    """Before the first test runs: after that torch may have threads."""
    if "torch" in sys.modules:
        forked_python.prepare()


# Workloads that need no torch: good ones, failing ones, and entry points that are broken.
PLUGIN = """
import os, signal, time
from gputui_workloads.declaration import Figure, Outcome, Parameter, Table, Workload
from gputui_workloads.errors import OutOfMemory
from gputui_workloads.stopping import StopRequest

print("a plug-in that prints when it is imported")

def count(given, report):
    to = given.get("to", 3)
    print("noise on stdout")
    for done in range(to + 1):
        report.progress("counting", done, to, "numbers")
    squares = [{"n": n, "square_m2": n * n if n < 3 else float("nan")} for n in range(to + 1)]
    return Outcome(
        parameters={"to": to}, results={"last": float("nan")}, tables={"squares": squares}
    )

def wait(given, report):
    with StopRequest() as stop:
        report.progress("waiting", 0, 1)
        while stop.signal is None:
            report.metrics({"alive": True})
            time.sleep(0.01)
    return Outcome(parameters={}, results={"last": None}, stopped_by=stop.signal)

def fail(given, report):
    raise OutOfMemory("Tried to allocate 2 GiB.")

def bug(given, report):
    report.metrics({"reached": 1})
    raise KeyError("a\\nb")

def torchless(given, report):
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

SQUARES = Table(
    name="squares", title="Squares",
    columns=(Figure(name="n", help="a number"),
             Figure(name="square_m2", unit="m2", help="its square")),
)

def declare(name, run, parameters=()):
    return Workload(
        name=name, summary=name, description=name, parameters=parameters, phases=(),
        results=(Figure(name="last", help="the last number"),), tables=(SQUARES,),
        run="counting:" + run,
    )

COUNT = declare("count", "count", (Parameter(name="to", kind="int", default=3, help="end"),))
WAIT = declare("wait", "wait")
FAIL = declare("fail", "fail")
BUG = declare("bug", "bug")
TWIN = declare("count", "count")
NONE = 7
"""

ENTRY_POINTS = """\
[gputui.workloads]
bug = counting:BUG
count = counting:COUNT
exits = exiting:NOTHING
fail = counting:FAIL
missing = counting:NOTHING
none = counting:NONE
twin = counting:TWIN
wait = counting:WAIT
"""


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package that adds workloads, some of them broken."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "counting.py").write_text(PLUGIN)
    (folder / "exiting.py").write_text("raise SystemExit(5)\n")
    metadata = folder / "counting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder
