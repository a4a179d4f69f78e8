"""The schema of recordings: one number, in one place, raised by what a reader could not take.

A reader of schema 3 ignores unknown kinds and fields, and takes a field that is left out for its
default. So these leave the number as it is: a new kind of event, a new field with a default, and at
the end of a part that is written as an array. Whoever has to remove, rename, retype or move
something raises JOURNAL_SCHEMA, records or converts the recordings of tests/data, replaces
schema-3.gputui, and makes the list of shapes anew: python -m tests.store.test_schema
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import gputui
from gputui.base import JournalError
from gputui.model import events
from gputui.model.events import JOURNAL_SCHEMA
from gputui.store.journal.reader import JournalReader
from tests.reference import written_shapes

DATA = Path(__file__).parents[1] / "data"
SHAPES = DATA / f"schema-{JOURNAL_SCHEMA}-shapes.json"
KEPT = json.loads(SHAPES.read_text(encoding="utf-8")) if SHAPES.exists() else {}


def test_the_number_stands_in_one_place() -> None:
    assert JOURNAL_SCHEMA == 3
    root = Path(gputui.__file__).parent
    literal = re.compile(r"^\s*JOURNAL_SCHEMA\s*=|schema\s*=\s*\d", re.MULTILINE)
    places = [path for path in root.rglob("*.py") if literal.search(path.read_text())]
    assert [path.relative_to(root).as_posix() for path in places] == ["model/events/base.py"]


@pytest.mark.parametrize("number", [0, 1, JOURNAL_SCHEMA - 1, JOURNAL_SCHEMA + 1, 2**31])
def test_another_number_is_refused_with_what_to_do(tmp_path: Path, number: int) -> None:
    recording = (DATA / f"schema-{JOURNAL_SCHEMA}.gputui").read_bytes()
    own = b'"schema":%d' % JOURNAL_SCHEMA
    assert recording.count(own) == 1
    path = tmp_path / "x.gputui"
    path.write_bytes(recording.replace(own, b'"schema":%d' % number))
    remedy = "upgrade gputui" if number > JOURNAL_SCHEMA else "record it again"
    with pytest.raises(JournalError, match=rf"schema {number}, this one reads 3\); {remedy}"):
        JournalReader.open(path)


@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_schema_3_wrote_is_still_read(name: str) -> None:
    shapes = written_shapes()
    assert name in shapes, f"{name} is gone: raise JOURNAL_SCHEMA"
    before, now = KEPT[name], shapes[name]
    assert now["array"] == before["array"]
    if before["array"]:
        kept = now["fields"][: len(before["fields"])]
        added = now["fields"][len(before["fields"]) :]
    else:
        names = [field for field, *_ in before["fields"]]
        kept = sorted(field for field in now["fields"] if field[0] in names)
        added = [field for field in now["fields"] if field[0] not in names]
        before["fields"].sort()
    assert kept == before["fields"], f"the shape of {name} changed: raise JOURNAL_SCHEMA"
    without_default = [field for field, _, has_default in added if not has_default]
    assert not without_default, f"new fields of {name} without a default: raise JOURNAL_SCHEMA"


def test_every_kind_is_in_the_list() -> None:
    kinds = {str(kind.__struct_config__.tag) for kind in events.WRITTEN_KINDS}
    assert kinds <= set(KEPT), "run: python -m tests.store.test_schema"


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in written_shapes().items())
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
