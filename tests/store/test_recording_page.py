"""docs/recording.md against what is written: a reader made from the page alone takes every line."""

from __future__ import annotations

import ast
import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect as inspection
import pytest

from gputui.model.events import KINDS as SOURCE_KINDS
from gputui.model.events import WRITTEN_KINDS as KINDS
from gputui.model.events import CaptureSum, Header
from gputui.store.journal.writer import JournalWriter
from tests.reference import DOCS

DATA = Path(__file__).parents[1] / "data"
PAGE = DOCS / "recording.md"
RECORDINGS = ["h200-inference.gputui", "faults/launch.gputui.gz"]


class Field(NamedTuple):
    name: str
    type: ast.expr
    default: str


class Section(NamedTuple):
    fields: tuple[Field, ...]
    is_array: bool


def sections() -> dict[str, Section]:
    """The tables of the page, by the name of an event's kind or a part."""
    found = {}
    text = PAGE.read_text(encoding="utf-8")
    for title, body in re.findall(r"^### (.+?)\n(.*?)(?=^### |^## |\Z)", text, re.M | re.S):
        rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.*?) \|", body, re.M)
        fields = tuple(
            Field(name, ast.parse(kind.replace(r"\|", "|"), mode="eval").body, default.strip("`"))
            for name, kind, default in rows
        )
        found[title.strip("`")] = Section(fields, "written as an array" in body)
    return found


PAGES = sections()


def numbers() -> dict[str, tuple[int, int]]:
    """Least and most of each named whole number, as the page has them; those of a scope."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| int \| (-?\d+) \| (-?\d+) \|", text, re.M)
    scopes = re.findall(r"^\| (\d+) \| \w+ \|", text, re.M)
    return {name: (int(least), int(most)) for name, least, most in rows} | {
        "Scope": (0, len(scopes) - 1)
    }


NUMBERS = numbers()
TEXTS = dict(re.findall(r"^\| `(\w+)` \| str \| 0 \| (\d+) \|", PAGE.read_text("utf-8"), re.M))
PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "bytes": str,
    "bool": bool,
    "float": (int, float),
}


def why_not(kind: ast.expr, value: Any, where: str) -> str | None:
    """Why a value is not of a type as the page spells it, None if it is."""
    match kind:
        case ast.BinOp():
            left = why_not(kind.left, value, where)
            return left and why_not(kind.right, value, where)
        case ast.Constant():
            fits = value is None
        case ast.Name(id=name) if name in PAGES:
            return why_no_part(name, value, where)
        case ast.Name(id="int"):
            fits = isinstance(value, int) and not isinstance(value, bool)
        case ast.Name(id=name) if name in NUMBERS:
            least, most = NUMBERS[name]
            fits = isinstance(value, int) and least <= value <= most
        case ast.Name(id=name) if name in TEXTS:
            fits = isinstance(value, str) and len(value) <= int(TEXTS[name])
        case ast.Name(id=name):
            fits = isinstance(value, PLAIN[name]) and (name == "bool" or value is not True)
        case ast.Subscript(value=ast.Name(id="Literal")):
            fits = value in ast.literal_eval(ast.unparse(kind.slice))
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            return why_not(inner, value, where)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, inner])):
            text = isinstance(key, ast.Name) and key.id != "str"
            told = [why_not(key, int(one) if text else one, where) for one in value]
            told += [why_not(inner, one, f"{where}.{name}") for name, one in value.items()]
            return next(filter(None, told), None)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=inner)):
            if not isinstance(value, list):
                return f"{where}: {value!r} is no array"
            if isinstance(inner[1], ast.Constant) and inner[1].value is Ellipsis:
                inner = [inner[0]] * len(value)
            if len(inner) != len(value):
                return f"{where}: {len(value)} entries"
            found = [why_not(*pair, where) for pair in zip(inner, value, strict=True)]
            return next(filter(None, found), None)
        case _:
            raise AssertionError(f"the page does not say what {ast.unparse(kind)} is")
    return None if fits else f"{where}: {value!r} is not {ast.unparse(kind)}"


def why_no_part(name: str, value: Any, where: str) -> str | None:
    fields, is_array = PAGES[name]
    if is_array:
        if not isinstance(value, list) or len(value) > len(fields):
            return f"{where}: {value!r} has not the fields of {name}"
        if not all(field.default for field in fields[len(value) :]):
            return f"{where}: {value!r} ends before fields without a default"
        found = [
            why_not(field.type, one, f"{where}.{field.name}")
            for field, one in zip(fields, value, strict=False)
        ]
        return next(filter(None, found), None)
    if not isinstance(value, dict) or set(value) - {field.name for field in fields}:
        return f"{where}: {value!r} has other fields than {name}"
    for field in fields:
        here = f"{where}.{field.name}"
        if field.name not in value:
            if not field.default:
                return f"{here} is missing"
        elif field.default and json.dumps(value[field.name]) == field.default:
            return f"{here} is written though it is {field.default}"
        elif reason := why_not(field.type, value[field.name], here):
            return reason
    return None


def check(line: dict[str, Any]) -> None:
    kind = line.pop("event")
    reason = why_no_part(kind, line, kind)
    assert reason is None, reason


def filled(kind: inspection.Type) -> Any:
    """A value of a type that is not a default: the parts of unions that say most."""
    match kind:
        case inspection.StructType(cls=cls, fields=fields):
            values = {field.name: filled(field.type) for field in fields}
            off = {field.name: False for field in fields if field.default is True}
            return cls(**values | off)
        case inspection.IntType(ge=least):
            return max(7, least or 0)
        case inspection.FloatType():
            return 1.25
        case inspection.StrType():
            return "text"
        case inspection.BytesType():
            return b"bytes"
        case inspection.BoolType():
            return True
        case inspection.UnionType(types=types):
            kinds = [one for one in types if not isinstance(one, inspection.NoneType)]
            structs = [one for one in kinds if isinstance(one, inspection.StructType)]
            return filled((structs or kinds)[0])
        case inspection.VarTupleType(item_type=item):
            return (filled(item),)
        case inspection.TupleType(item_types=items):
            return tuple(map(filled, items))
        case inspection.DictType(key_type=key, value_type=value):
            return {filled(key): filled(value)}
        case inspection.LiteralType(values=values):
            return values[-1]
        case inspection.EnumType(cls=cls):
            return list(cls)[-1]
        case inspection.Metadata(type=inner):
            return filled(inner)
        case _:
            raise AssertionError(kind)


def test_every_kind_has_a_section_and_every_section_is_written() -> None:
    tags = {kind.__struct_config__.tag for kind in KINDS}
    assert tags <= set(PAGES)
    parts: set[str] = set()
    pending = set(tags)
    while pending:
        name = pending.pop()
        parts.add(name)
        used = {
            node.id
            for field in PAGES[name].fields
            for node in ast.walk(field.type)
            if isinstance(node, ast.Name)
        }
        pending |= (used & set(PAGES)) - parts
    assert parts == set(PAGES)


def test_every_field_of_every_kind_is_written_as_the_page_says(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "all.gputui")
    events = [filled(inspection.type_info(kind)) for kind in SOURCE_KINDS]
    writer.write([event for event in events if isinstance(event, Header)])
    writer.write([event for event in events if not isinstance(event, Header)])
    writer.close()
    assert (writer.failure, writer.left_out) == (None, 0)
    lines = [json.loads(line) for line in (tmp_path / "all.gputui").read_text().splitlines()]
    lines.append(json.loads(msgspec.json.encode(filled(inspection.type_info(CaptureSum)))))
    assert {line["event"] for line in lines} >= {kind.__struct_config__.tag for kind in KINDS}
    for line in lines:
        named = {field.name for field in PAGES[line["event"]].fields}
        assert set(line) == named | {"event"}
        check(line)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_line_of_a_recording_is_as_the_page_says(name: str) -> None:
    data = (DATA / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    for line in text.splitlines():
        check(json.loads(line))
