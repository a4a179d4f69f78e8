"""A table, or a rule, is one file: added to a copy of the package, it is everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gputui

PACKAGE = Path(gputui.__file__).parent
RECORDING = Path(__file__).parents[1] / "data" / "h200-medium.gputui"

TABLE = """
from gputui.report.schema import TableSpec, number, text, time

LENGTHS: TableSpec = TableSpec(
    key="process_lengths",
    title="How Long Processes Ran",
    meaning="The time that each traced process was seen.",
    columns=(
        number("PID", "pid", lambda row: row.attached.pid, "The process"),
        time("Seen", "seen_ns", lambda row: row.ended_ns - row.began_ns, "Time it was seen"),
        text("Command", "command", lambda row: row.attached.command, "The command line"),
    ),
    rows=lambda session, run: list(run.processes.values()),
    order=950,
    in_summary=True,
    document="process_lengths",
)
TABLES = (LENGTHS,)
"""

RULE = """
from gputui.report.explain.analysis import RunRule
from gputui.report.explain.finding import Finding


def many_records(analysis):
    records = sum(process.records for process in analysis.run.processes.values())
    yield Finding(
        cause="many_records",
        word="many records",
        sentence=f"{records} records",
        advice="nothing",
        value=records,
        threshold=0,
        source="a test",
        evidence=("All of them",),
        view="processes",
        leads=True,
        ends_run=True,
        explains=("launch_bound_twice",),
    )


def launch_bound_twice(analysis):
    yield Finding(
        cause="launch_bound_twice", word="launches", sentence="Many launches", advice="nothing",
        value=1, threshold=0, source="a test", leads=True, urgent=True,
    )


RULES = (RunRule(5, many_records), RunRule(6, launch_bound_twice))
"""

LOOK = """
import contextlib, io, json, sys
from gputui.cli.dispatch import run as gputui
from tests.reference import schemas, tables_page
from gputui.playback.opening import load
from gputui.report.explain import Analysis, conclusion
from gputui.tui.widgets.run import evidence

def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        gputui([*words])
    return out.getvalue()

demo = sys.argv[1]
loaded = load(demo)
analysis = Analysis(loaded.session, loaded.run)
one = ["summary", demo, "--table", "process_lengths", "--format"]
json.dump({
    **{name: printed(*one, name) for name in ("csv", "json", "md", "table")},
    "summary": printed("summary", demo, "--full"),
    "document": printed("summary", demo, "--format", "json"),
    "html": printed("export", demo, "--format", "html"),
    "list": printed("summary", demo, "--table", "nothing"),
    "schema": schemas()["summary"]["properties"].get("process_lengths"),
    "page": tables_page(),
    "word": conclusion(analysis).word,
    "view": evidence(conclusion(analysis).findings[0]).view,
    "lead": [one.cause for one in conclusion(analysis).findings if one.leads],
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the copy prints."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.md")
    shutil.copytree(PACKAGE, root / "gputui", ignore=ignored)
    (root / "gputui" / "report" / "tables" / "lengths.py").write_text(TABLE)
    (root / "gputui" / "report" / "explain" / "records.py").write_text(RULE)
    words = [
        sys.executable,
        "-c",
        LOOK,
        str(RECORDING),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        words, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def test_a_table_of_one_file_is_in_every_format(found: dict[str, Any]) -> None:
    assert found["csv"].splitlines()[0] == "PID,Seen (ns),Command"
    (row,) = json.loads(found["json"])["rows"]
    assert set(row) == {"pid", "seen_ns", "command"}
    assert "| PID | Seen | Command |" in found["md"]
    assert "How Long Processes Ran" in found["summary"]
    assert "How Long Processes Ran" in found["html"]
    assert json.loads(found["document"])["process_lengths"] == [row]


def test_it_is_in_the_list_the_schema_and_the_reference(found: dict[str, Any]) -> None:
    assert ", process_lengths" in found["list"]
    assert "process_lengths" not in (PACKAGE / "docs" / "tables.md").read_text()
    names = found["schema"]["anyOf"][0]["items"]["properties"]
    assert names["seen_ns"] == {
        "description": "Time it was seen", "type": "integer", "unit": "ns"
    }  # fmt: skip
    assert "| Seen (ns) | `seen_ns` | ns | Time it was seen |" in found["page"]


def test_a_rule_of_one_file_is_in_the_findings(found: dict[str, Any]) -> None:
    rules = [one["cause"] for one in json.loads(found["document"])["findings"]]
    assert "many_records" in rules
    assert rules.index("many_records") == 0
    assert "MANY RECORDS" in found["summary"]
    assert "All of them." in found["summary"]
    # It leads, the finding that it explains no longer does, and the screen knows its view.
    assert found["word"] == "MANY RECORDS"
    assert found["lead"] == ["many_records"]
    assert found["view"] == "processes"
