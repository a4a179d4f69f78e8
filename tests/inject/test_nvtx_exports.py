"""What a program says through NVTX, from its calls to the tables and exports of a recording."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gputui.cli.dispatch import run as gputui
from gputui.playback.opening import load
from gputui.report.phases import phase_rows
from gputui.report.summary_document import summary_document

PAYLOADS = (
    "int64Value", "uint64Value", "doubleValue", "int32Value", "uint32Value", "floatValue",
)  # fmt: skip


def recorded(folder: Path, *command: str) -> Path:
    path = folder / "r.gputui"
    arguments = ["--record", "-o", str(path), "--trace", "--no-kernels", "--", *command]
    assert gputui(arguments) == 0
    return path


def rows_of(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def attributes(nvtx_program: str, tmp_path: Path) -> Path:
    """A recording of every kind of payload, colour and category."""
    return recorded(tmp_path, nvtx_program, "attributes")


def test_payloads_of_every_type_are_in_the_nsys_export(attributes: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.sqlite"
    assert gputui(["export", str(attributes), "--format", "nsys", "-o", str(out)]) == 0
    found = rows_of(
        out,
        f"SELECT eventType, {', '.join(PAYLOADS)} FROM NVTX_EVENTS WHERE eventType IN (34, 59) "
        "ORDER BY start",
    )
    nothing = (None,) * 6

    def with_one(name: str, value: float) -> tuple[float | None, ...]:
        return tuple(value if name == column else None for column in PAYLOADS)

    assert found == [
        (59, *with_one("uint64Value", -(1 << 63))),  # SQLite has no unsigned integers
        (59, *with_one("int64Value", -5)),
        (34, *with_one("doubleValue", 0.5)),
        (34, *with_one("uint32Value", 7)),
        (34, *with_one("int32Value", -7)),
        (34, *with_one("floatValue", 1.25)),
        (34, *nothing),
        (34, *nothing),
    ]


def test_categories_have_names_and_numbers_in_the_nsys_export(
    attributes: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.sqlite"
    assert gputui(["export", str(attributes), "--format", "nsys", "-o", str(out)]) == 0
    domains = dict(rows_of(out, "SELECT domainId, text FROM NVTX_EVENTS WHERE eventType = 75"))
    named = rows_of(
        out, "SELECT domainId, category, text FROM NVTX_EVENTS WHERE eventType = 33 ORDER BY text"
    )
    assert [(domains.get(domain, ""), *rest) for domain, *rest in named] == [
        ("", 5, "loading"),
        ("library", 5, "wïde"),
    ]
    used = rows_of(out, "SELECT category FROM NVTX_EVENTS WHERE eventType IN (34, 59)")
    # Of marks of one name that of the first: 6 comes second in its domain.
    assert sorted(category for (category,) in used) == [5, 5, 5, 5, 5, 5, 5, 6]
    assert rows_of(out, "SELECT name FROM ENUM_NSYS_EVENT_TYPE WHERE id = 33") == [
        ("NvtxCategory",)
    ]


def test_payloads_are_in_the_tables(attributes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert gputui(["summary", str(attributes), "--table", "nvtx_marks", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    told = [(row["Domain"], row["Name"], row["Category"], row["Payload"]) for row in rows]
    assert told == [("default", "a", "loading", "5 bytes"), ("library", "a", "6", "1.25")]
    loaded = load(str(attributes))
    document = summary_document(loaded.session, loaded.run)
    assert [msgspec.to_builtins(mark["payload"]) for mark in document["marks"]] == [
        {"type": "bytes", "value": 5},
        {"type": "float", "value": 1.25},
    ]
    assert [msgspec.to_builtins(phase["payload"]) for phase in document["phases"]] == [
        {"type": "uint64", "value": 1 << 63},
        {"type": "int64", "value": -5},
    ]


def test_payloads_are_arguments_in_the_chrome_export(attributes: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert gputui(["export", str(attributes), "--format", "chrome", "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    marks = [event for event in events if event.get("cat") == "nvtx_mark"]
    assert [mark["args"].get("payload") for mark in marks] == [0.5, 7, -7, 1.25, None, 5]
    assert {mark["ph"] for mark in marks} == {"i"}
    [ranged] = [e for e in events if e["ph"] == "X" and e["args"].get("domain") == "library"]
    of_the_range = {
        "domain": "library", "category": "wïde", "payload": -5, "payload type": "int64",
    }  # fmt: skip
    assert ranged["args"].items() >= of_the_range.items()


def test_an_export_read_again_says_the_same(attributes: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.sqlite"
    assert gputui(["export", str(attributes), "--format", "nsys", "-o", str(out)]) == 0
    first, again = load(str(attributes)).run, load(str(out)).run

    def told(run):
        marks = [(m.domain, m.name, m.payload) for m in run.newest_marks if m.payload]
        ranges = [(row.path, row.domain, row.category, row.payload) for row in phase_rows(run)]
        return [mark for mark in marks if mark[2].type != "bytes"], sorted(ranges, key=str)

    assert told(first) == told(again)


NOT_NUMBERS = """
import nvtx
for value in (float("nan"), float("inf"), float("-inf"), 2**62, {"a": 1}):
    nvtx.mark("value", payload=value)
"""


def test_payloads_that_json_has_no_numbers_for(tmp_path: Path) -> None:
    path = recorded(tmp_path, sys.executable, "-c", NOT_NUMBERS)
    values = [
        mark.payload.value if mark.payload else None for mark in load(str(path)).run.newest_marks
    ]
    assert values[:4] == ["nan", "inf", "-inf", 2**62]
    out = tmp_path / "t.json"
    assert gputui(["export", str(path), "--format", "chrome", "-o", str(out)]) == 0
    json.loads(out.read_text(), parse_constant=lambda _: pytest.fail("not JSON"))
    again = tmp_path / "r.sqlite"
    assert gputui(["export", str(path), "--format", "nsys", "-o", str(again)]) == 0
    found = [row[0] for row in rows_of(again, "SELECT doubleValue FROM NVTX_EVENTS")]
    # SQLite keeps no NaN.
    assert found[:3] == [None, math.inf, -math.inf]


def test_threads_are_called_what_nvtx_calls_them(nvtx_program: str, tmp_path: Path) -> None:
    path = recorded(tmp_path, nvtx_program, "named-threads")
    run = load(str(path)).run
    [process] = run.processes.values()
    names = {named.name: named for named in process.threads.values()}
    assert set(names) == {"scheduler", "loader ö"}
    assert {named.source for named in names.values()} == {"nvtx"}
    assert names["scheduler"].thread == process.attached.pid
    rows = {row.path: row.threads for row in phase_rows(run)}
    assert rows["in a thread"] == (f"loader ö ({names['loader ö'].thread})",)
    out = tmp_path / "r.sqlite"
    assert gputui(["export", str(path), "--format", "nsys", "-o", str(out)]) == 0
    for query in (
        "SELECT text, globalTid & 0xFFFFFF FROM NVTX_EVENTS WHERE eventType = 39",
        "SELECT s.value, globalTid & 0xFFFFFF FROM ThreadNames t JOIN StringIds s "
        "ON s.id = t.nameId",
    ):
        assert dict(rows_of(out, query)) == {name: names[name].thread for name in names}
