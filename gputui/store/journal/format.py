"""docs/recording.md, generated from the code: `python -m gputui.store.journal.format`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from gputui.model import events
from gputui.model.events import Scope, base
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.metrics import metrics_of

_RULE = re.compile(
    rf"Annotated\[(.*?), (?:{'|'.join(rule.name.title() for rule in base.Rule)})"
    r"(?:, Reader\.\w+)?\]$"
)
"""How parts are merged does not matter to how they are written."""

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"

_INTRODUCTION = f"""\
# The recording (`.gputui`), schema {events.JOURNAL_SCHEMA}

<!-- Made by `python -m gputui.store.journal.format`; edit the docstrings of the events. -->

A recording is UTF-8 text, one JSON object per line, each ending in a line feed. The first line is
the `header`. Every object has `event` (its kind) and `time_ns` (nanoseconds of CLOCK_REALTIME
since the epoch). Lines are in the order in which the events were folded, which is the order of
time except for small steps between sources.

- **Flushing.** Each tick is written and flushed to the operating system at once. If the writer is
  killed, the recording ends at or within a line; all lines before it are complete.
- **Compression.** A file named `.gputui.gz` is gzip, `.gputui.zst` Zstandard. Every tick ends in a
  flushed block, so the same holds for killed writers. Readers go by the first bytes, not by the
  name.
- **Missing.** A field at its default is left out. `null`, or absence, means unknown; 0 means zero.
- **Versions.** A reader refuses another `schema` than its own, skips and counts unknown kinds of
  events, and ignores unknown fields. So a new kind, a new field with a default, or one appended to
  an array, leaves the schema as it is; all else raises it (`tests/store/test_schema.py`).
- **Sums.** A `capture_sum` is the sum of the preceding `capture` events of its process in the
  file. A reader of the events ignores the sums; a reader of the final state may skip those events,
  and earlier sums of that process, by looking at the beginning of their lines: `event`, `time_ns`
  and `process` come first.
- **Limits.** A line is at most 32 MiB. Times are before the year 2100; counts, durations and sizes
  are below 2^63. Control characters in strings are replaced when they are read.
- **Several files.** A rotated recording continues in NAME.2.gputui, NAME.3.gputui, …; each begins
  with the header and with the definitions (runs, processes, ranges, marks, kernels, launch shapes)
  still in force, so that each can be read by itself and covers its own time. Given the first file,
  readers take them all as one session.
- **Trace.** NAME.gputui-trace beside it, if there is one, holds every range, mark, call and GPU
  operation as records of 64 bytes; when it is full the oldest are overwritten. An index says from
  when to when each block of records goes: `TraceReader.operations` gives those of a window of time
  as columns, with the calls that launched them, and `operations_of_step` those of a kept step
  (`step_lanes`), reading only the blocks concerned. Without a trace single operations are not
  recorded, only what `step_lanes` shows of a step. `gputui/store/trace.py` describes the file.

Parts written as arrays list their fields in the order given here.
"""


def page() -> str:
    kinds = events.WRITTEN_KINDS
    lines = [_INTRODUCTION, "## Events\n"]
    lines += [_section(kind, f"`{kind.__struct_config__.tag}`") for kind in kinds]
    lines.append("## Parts of events\n")
    lines += [_section(part, part.__name__) for part in _parts_of_events()]
    return "\n".join((*lines, _numbers()))


def written_shapes() -> dict[str, dict[str, Any]]:
    """What is written of each event, by its tag, and of each part, by its class: whether it is an
    array, and of each field the name, the type and whether it has a default."""
    kinds = {str(kind.__struct_config__.tag): kind for kind in events.WRITTEN_KINDS}
    parts = {part.__name__: part for part in _parts_of_events()}
    return {
        name: {
            "array": kind.__struct_config__.array_like,
            "fields": [
                [field.encode_name, _type_of(kind, field.name), not field.required]
                for field in msgspec.structs.fields(kind)
            ],
        }
        for name, kind in (kinds | parts).items()
    }


def _parts_of_events() -> list[type[msgspec.Struct]]:
    return [
        value
        for module in _modules()
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
        and value not in events.WRITTEN_KINDS
    ]


def _modules() -> Iterator[ModuleType]:
    """Those that declare events and their parts."""
    for module_info in pkgutil.iter_modules(events.__path__):
        module = importlib.import_module(f"{events.__name__}.{module_info.name}")
        if module is not base:
            yield module


def _numbers() -> str:
    """The bounds of the named types, and what the numbers of enumerations stand for."""
    bounds = []
    for name, alias in _named_types().items():
        kind, meta, *numbered = get_args(alias)
        least, most = (meta.ge, meta.le) if kind is int else (0, meta.max_length)
        what = f"number of {numbered[0].value}" if numbered else ""
        bounds.append(_row([f"`{name}`", kind.__name__, str(least), str(most), what]))
    scopes = [_row([str(int(scope)), scope.name.lower()]) for scope in Scope]
    leaves = [
        _row([str(int(leaf)), f"`{LEAVES[leaf].key}`", LEAVES[leaf].meaning]) for leaf in Leaf
    ]
    return _NUMBERS.format(*map("\n".join, (bounds, scopes, leaves)))


def _named_types() -> dict[str, Any]:
    return {
        name: alias
        for module in (base, *_modules())
        for name, alias in vars(module).items()
        if get_origin(alias) is Annotated and not name.startswith("_")
    }


_NUMBERS = """\
## Numbers

Whole numbers from least to most, and text by its characters:

| type | of | least | most | |
|---|---|---|---|---|
{}

`Scope`, the part of a run:

| number | part |
|---|---|
{}

The `leaf` of LeafTime and StepBlock, a leaf of the time tree:

| number | leaf | meaning |
|---|---|---|
{}
"""


def _section(kind: type[msgspec.Struct], title: str) -> str:
    shape = ", written as an array" if kind.__struct_config__.array_like else ""
    metrics = metrics_of(kind)
    heads = ["field", "type", "left out when", *(["meaning", "read with"] if metrics else [])]
    rows = []
    for field in msgspec.structs.fields(kind):
        cells = [f"`{field.encode_name}`", f"`{_type_of(kind, field.name)}`", _default(field)]
        if metrics:
            metric = metrics.get(field.name)
            cells += [metric.help, metric.source] if metric else ["", ""]
        rows.append(cells)
    line = f"|{'---|' * len(heads)}"
    table = "\n".join([_row(heads), line, *map(_row, rows)])
    words = inspect.cleandoc(kind.__doc__ or "")
    return f"### {title}\n\n{words}\n\n{kind.__name__}{shape}:\n\n{table}\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _type_of(kind: type, name: str) -> str:
    """The type as its declaration spells it, with `|` escaped for a table."""
    for parent in kind.__mro__:
        annotation = inspect.get_annotations(parent).get(name)
        if annotation is not None:
            text = annotation if isinstance(annotation, str) else _type_name(annotation)
            text = _WORDS.sub(lambda name: _type_name(_named_words()[name[0]]), text)
            return _RULE.sub(r"\1", text).replace("|", "\\|")
    raise KeyError(name)


def _named_words() -> dict[str, Any]:
    """The types that are a choice of words, by the names that declarations have for them."""
    return {
        name: alias
        for module in (base, *_modules())
        for name, alias in vars(module).items()
        if get_origin(alias) is Literal
    }


_WORDS = re.compile(rf"\b(?:{'|'.join(_named_words())})\b")


_NAMED = {alias: name for name, alias in vars(base).items() if get_origin(alias) is Annotated}
"""The bounded numbers by their names."""


def _type_name(hint: Any) -> str:
    """How a declaration spells what it was evaluated to."""
    if hint in _NAMED:
        return _NAMED[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (UnionType, Union):
        return " | ".join(map(_type_name, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type_name, arguments))}]"
    if hint is Ellipsis:
        return "..."
    return "None" if hint is NoneType else hint.__name__


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = msgspec.json.encode(field.default).decode()
        return f"`{value}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    return ""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
