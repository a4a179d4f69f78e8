"""Files made from declarations are current, and documents are as their schemas say."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

from gputui.cli.doctor import Check, DoctorDocument
from gputui.model.events import SCHEMA_VERSION
from gputui.render import formats
from gputui.report.comparable import Subject
from gputui.report.compare import compare
from gputui.report.machine_now import machine_document
from gputui.report.summary_document import summary_document
from gputui.report.tables import run_tables
from gputui.state import Session
from tests.json_schemas import rows_schema
from tests.reference import DOCS, reference_files, schemas
from tests.schemas_for_tests import check
from tests.sessions_for_tests import loaded_once


@pytest.mark.parametrize("name", reference_files())
def test_the_file_is_current(name: str) -> None:
    """`python -m tests.reference` writes them."""
    assert (DOCS / name).read_text(encoding="utf-8") == reference_files()[name]


def test_nothing_is_left_of_a_document_that_is_gone() -> None:
    assert {path.stem for path in (DOCS / "schema").iterdir()} == set(schemas())


@pytest.mark.parametrize("name", ["h200-annotated.gputui.gz", "h200-inference.gputui"])
def test_documents_of_a_recorded_run_are_as_their_schemas_say(name: str) -> None:
    loaded = loaded_once(name)
    session, run = loaded.session, loaded.run
    check("summary", json.loads(formats.summary(session, run, "json")))
    subjects = [Subject(label, session, run) for label in "ab"]
    check("compare", json.loads(formats.comparison(compare(subjects), "json")))
    check("once", json.loads(msgspec.json.encode(machine_document(session))))


def test_documents_of_nothing_are_as_their_schemas_say() -> None:
    session = Session()
    check("once", json.loads(msgspec.json.encode(machine_document(session))))
    check("summary", json.loads(msgspec.json.encode(summary_document(session, None))))
    checks = DoctorDocument(SCHEMA_VERSION, [Check("driver", "missing", "none")])
    check("doctor", json.loads(msgspec.json.encode(checks)))


def test_a_document_with_another_field_or_without_one_is_refused(h200: Session) -> None:
    document = json.loads(msgspec.json.encode(summary_document(h200, h200.run)))
    for broken in (document | {"more": 1}, {**document, "schema": "1"}):
        with pytest.raises(AssertionError):
            check("summary", broken)
    del document["phases"][0]["path"]
    with pytest.raises(AssertionError, match="'path' is a required property"):
        check("summary", document)


@pytest.mark.parametrize("name", run_tables())
def test_rows_of_a_table_are_as_its_columns_say(name: str) -> None:
    loaded = loaded_once("h200-annotated.gputui.gz")
    spec = run_tables()[name]
    row, definitions = rows_schema(spec)
    rows = json.loads(formats.one_table(spec.table(loaded.session, loaded.run), "json"))["rows"]
    jsonschema.validate(rows, {"type": "array", "items": row, "$defs": definitions})


@pytest.mark.parametrize("name", run_tables())
def test_every_column_says_what_it_means_under_a_name_of_its_own(name: str) -> None:
    columns = run_tables()[name].columns
    names = [column.key for column in columns]
    assert len(set(names)) == len(names)
    assert all(column.key and column.meaning for column in columns)
    # A reader sees one column, or its tooltip, without the one before it.
    assert not [column.meaning for column in columns if "The same" in column.meaning]
    suffixes = {"ns": "_ns", "bytes": "_bytes", "%": "_percent", "bytes/s": "_bytes_per_s"}
    for column in columns:
        if column.unit in suffixes and column.key != "bytes_per_s":
            assert column.key.endswith(suffixes[column.unit])
