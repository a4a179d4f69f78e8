"""Running `python -m workloads` as a child, the way a monitor does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import workloads

ROOT = Path(workloads.__file__).resolve().parent.parent

# Two workloads that need no torch, and four ways to be broken.
PLUGIN = """
import os, signal, time
from workloads.declaration import Figure, Outcome, Parameter, Workload
from workloads.errors import OutOfMemory
from workloads.stopping import StopRequest

print("a plug-in that prints when it is imported")

def count(given, report):
    to = given.get("to", 3)
    print("noise on stdout")
    for done in range(to + 1):
        report.progress("counting", done, to, "numbers")
    return Outcome(parameters={"to": to}, results={"last": float("nan")}, unavailable={})

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

def declare(name, run, parameters=()):
    return Workload(
        name=name, summary=name, description=name, parameters=parameters, phases=(),
        results=(Figure(name="last", help="the last number"),), run="counting:" + run,
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


@dataclass
class Finished:
    """A child that ended: its status, what it wrote, and the lines on its report pipe."""

    status: int
    stdout: str
    stderr: str
    reports: list[dict[str, Any]]

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    def reported(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.reports if message["type"] == kind]


class Child:
    """`python -m workloads ARGUMENTS` with a report pipe, running."""

    def __init__(self, *arguments: str, path: Path | None = None) -> None:
        reader, writer = os.pipe()
        environment = {**os.environ, "GPUTUI_REPORT_FD": str(writer)}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workloads", *arguments],
            cwd=ROOT,
            env=environment,
            pass_fds=[writer],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writer)
        self.pipe = os.fdopen(reader)
        self.reports: list[dict[str, Any]] = []

    def wait_for(self, kind: str, stage: str | None = None) -> dict[str, Any]:
        """Reads reports up to the first of `kind` (in `stage`)."""
        for line in self.pipe:
            message: dict[str, Any] = json.loads(line)
            self.reports.append(message)
            if message["type"] == kind and stage in (None, message.get("stage")):
                return message
        raise AssertionError(f"no {kind} came; stderr: {self.process.communicate()[1]}")

    def finish(self) -> Finished:
        self.reports += [json.loads(line) for line in self.pipe if not self.pipe.closed]
        self.pipe.close()
        stdout, stderr = self.process.communicate()
        return Finished(self.process.returncode, stdout, stderr, self.reports)
