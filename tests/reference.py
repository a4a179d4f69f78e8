"""The reference files that are made from declarations: `python -m tests.reference` writes them.

Here, not in the package: nothing at run time uses it, and `tests/cli/test_reference.py` says that
the files are current."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Struct

import gputui
from gputui.base import VERSION
from gputui.cli.declaration import Argument, Command, Option
from gputui.cli.doctor import DoctorDocument
from gputui.cli.options import COMMANDS, MAIN, MODES
from gputui.model import events
from gputui.model.events import GpuSample, HostSample, Scope, base
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.metrics import charted_fields, metrics_of
from gputui.render.comparison import ComparisonDocument
from gputui.render.prometheus import (
    BUSY_SECONDS,
    CAUSE_SHARE,
    CPU_SECONDS,
    DROPPED,
    RUN_METRIC,
    STEP_SECONDS,
    Family,
    series_name,
)
from gputui.render.traces import EVENT_TABLES
from gputui.report.schema import AnyColumn, TableSpec
from gputui.report.tables import machine_tables, run_tables
from gputui.trial.outcome import Outcome
from tests.json_schemas import document_schema, hosts_schema, machine_schema, summary_schema

DOCS = Path(gputui.__file__).parent / "docs"


def reference_files() -> dict[str, str]:
    """Every file by its path under the docs."""
    return {f"schema/{name}.json": _json(schema) for name, schema in schemas().items()} | {
        "tables.md": tables_page(),
        "keys.md": keys_page(),
        "grafana.json": _json(dashboard()),
        "gputui.1": manual(),
        "recording.md": recording_page(),
    }


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each document."""
    return {
        "summary": summary_schema(),
        "compare": document_schema("compare", ComparisonDocument),
        "once": machine_schema(),
        "hosts": hosts_schema(),
        "doctor": document_schema("doctor", DoctorDocument),
        "try": document_schema("try", Outcome),
    }


_KEYS_FROM, _KEYS_TO = "<!-- keys -->\n", "<!-- end of keys -->"


def keys_page() -> str:
    """The page of keys: its own words, around a table of every key that the screen declares."""
    from gputui.tui.shell.keys import KEYS, REPLAY_KEYS

    page = (DOCS / "keys.md").read_text(encoding="utf-8")
    # The page is written by hand but for the table, which is that of the one map of keys.
    before, _, rest = page.partition(_KEYS_FROM)
    _, _, after = rest.partition(_KEYS_TO)
    rows = ["| key | does | of |", "|---|---|---|"]
    for key in (*KEYS, *REPLAY_KEYS):
        shown = " ".join(f"`{word}`" for word in key.shown.split())
        rows.append(f"| {shown} | {key.help} | {key.group} |")
    return "".join([before, _KEYS_FROM, "\n".join(rows), f"\n{_KEYS_TO}", after])


def tables_page() -> str:
    """Every table with its columns."""
    runs, machines = run_tables().values(), machine_tables().values()
    sections = [
        _INTRODUCTION,
        "## Of a run\n",
        *(_section(spec) for spec in runs if ":" not in spec.key),
        "## Of a recording without a run\n",
        *map(_section, machines),
        "## Of single events\n\nThey need a trace (`--trace`), or a report of nsys.\n",
        *(_columns(name, kind.title, kind.columns) for name, kind in EVENT_TABLES.items()),
    ]
    return "\n".join(sections)


_INTRODUCTION = """\
# Tables

`gputui summary FILE --table NAME` prints one, or several where it is repeated; `--format csv` has
the headers below, `--format json` and Parquet the names. Headers and names end in the unit. Missing
is empty in CSV and null in JSON; `unavailable` says why. People do not see columns with the same
value in every row.

Tables whose key nsys has too are as `nsys stats` prints them: same columns, order and rounding in
CSV, but that `cuda_gpu_trace` has two columns more (Tid, Latency), that what is not known is
empty, not "Unknown", and that throughput is bytes over time as the header says (nsys 2023.4 has
10,737 MB/s where 1,073,741,824 bytes took 95.7 ms, which are 11,214). With
`:base` after such a key kernels go by the function's own name, with `:mangled` by the symbol.

Made by `python -m tests.reference` from the declarations in `gputui/report/tables/`.
"""


def _section(spec: TableSpec[Any]) -> str:
    facts = [spec.meaning]
    styles = [key.partition(":")[2] for key in run_tables() if key.startswith(f"{spec.key}:")]
    if styles:
        facts.append(f"With {' or '.join(f'`:{style}`' for style in styles)} too.")
    if spec.in_summary:
        facts.append("In the summary.")
    if spec.document:
        facts.append(f"Its rows are `{spec.document}` in the summary's JSON.")
    return _columns(spec.key, spec.title, spec.columns, " ".join(facts))


def _columns(key: str, title: str, columns: tuple[AnyColumn, ...], facts: str = "") -> str:
    lines = [f"### {key}: {title}", "", *([facts, ""] if facts else [])]
    lines += ["| header in CSV | name | unit | |", "|---|---|---|---|"]
    lines += [
        f"| {column.header if column.in_table else ''} | `{column.name}` | {column.unit} "
        f"| {column.meaning} |"
        for column in columns
    ]
    return "\n".join(lines) + "\n"


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every reference file under the docs, over those that are there."""
    for name, text in reference_files().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


_VARIABLES = {
    "NO_COLOR": "not empty: draw without colours, whatever else is set",
    "CUDA_VISIBLE_DEVICES": "show these GPUs only, matched by UUID",
    "XDG_CONFIG_HOME": "where gputui/config.toml is looked for (~/.config)",
    "XDG_DATA_HOME": "where recordings go, to gputui/sessions (~/.local/share)",
    "PAGER": "what shows the pages of gputui help on a terminal (less -FR)",
}

_STATUS = {
    "0": "done",
    "1": "it failed, or a condition of gputui compare holds",
    "2": "wrong usage",
    "3": "a condition of gputui compare is of steps that two runs do not have in common",
    "other": "around your own command, that command's status; 128 + n if signal n ended it",
}


def manual() -> str:
    """The page in roff, for `man`. It is the same at every time and place."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made by `python -m tests.reference` from gputui/cli/options.py.'
    yield f'.TH GPUTUI 1 "" "gputui {VERSION}" "User Commands"'
    yield from (".SH NAME", r"gputui \- see inside an LLM workload on NVIDIA GPUs")
    yield ".SH SYNOPSIS"
    for mode in MODES:
        yield from (".B gputui", _roff(mode.usage), ".br")
    for command in COMMANDS:
        words = " ".join([*(_word(argument) for argument in command.arguments), "[OPTION ...]"])
        yield from (f".B gputui {command.name}", _roff(words), ".br")
    yield from (".SH DESCRIPTION", _roff(MAIN.help))
    for mode in MODES:
        yield from (".TP", f".B gputui {_roff(mode.usage)}", _roff(mode.help))
    yield ".SH OPTIONS"
    yield from _options(MAIN)
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from (f".SS gputui {command.name}", _roff(command.help))
        for argument in command.arguments:
            help_text = ", ".join((argument.help, *argument.choices))
            yield from (".TP", f".I {_roff(_word(argument))}", _roff(help_text))
        yield from _options(command)
        if command.notes:
            yield from (".PP", ".nf", _roff(command.notes()), ".fi")
    yield ".SH ENVIRONMENT"
    yield _roff(
        "The command line overrides the environment, which overrides the file, which overrides the "
        "default."
    )
    for option in MAIN.options:
        if option.variable:
            yield from (".TP", f".B {option.variable}", f"as {_bold(option.flag)}")
    for name, words in _VARIABLES.items():
        yield from (".TP", f".B {name}", _roff(words))
    yield from (".SH FILES", ".TP", ".I $XDG_CONFIG_HOME/gputui/config.toml")
    names = [option.name for option in MAIN.options if "file" in option.set_in]
    yield _roff(f"settings in TOML, named as the options: {', '.join(names)}")
    yield ".SH EXIT STATUS"
    for status, words in _STATUS.items():
        yield from (".TP", f".B {status}", _roff(words))
    yield from (".SH SEE ALSO", _roff("gputui help lists the pages of the manual."))


def _options(command: Command) -> Iterator[str]:
    for option in command.options:
        yield from (".TP", _flags(option), _roff(option.explanation))


def _flags(option: Option) -> str:
    flags = ", ".join(map(_bold, option.flags))
    return f"{flags} \\fI{_roff(option.metavar)}\\fR" if option.metavar else flags


def _word(argument: Argument) -> str:
    name = argument.metavar
    return {
        "one": name,
        "at most one": f"[{name}]",
        "one or more": f"{name} ...",
        "any number": f"[{name} ...]",
    }[argument.number]


def _bold(text: str) -> str:
    return f"\\fB{_roff(text)}\\fR"


def _roff(text: str) -> str:
    """Text with what roff reads as its own made harmless."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


# --- A Grafana dashboard of what `--prometheus` serves, made from the declarations of the metrics.


# Of dashboards, as Grafana 10 has it.
_SCHEMA_VERSION = 39

# Grafana's names, by how names of metrics end.
_UNITS = {
    "_ratio": "percentunit", "_bytes": "bytes", "_bytes_per_second": "Bps", "_watts": "watt",
    "_celsius": "celsius", "_hertz": "hertz", "_seconds": "s", "_joules": "joule",
}  # fmt: skip

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WHERE = '{instance=~"$instance"}'
_WIDTH, _HEIGHT, _A_ROW = 12, 8, 2


class _Panel(NamedTuple):
    title: str
    query: str
    legend: str
    unit: str
    stacked: bool = False


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports; its variables are the data source and the instances."""
    return {
        "uid": "gputui",
        "title": "gputui",
        "tags": ["gpu", "gputui"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_variable_source(), _variable_instance()]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    numbers = count(1)
    top = 0
    for title, panels in (
        ("Where each step goes", _OF_RUNS),
        ("GPUs", [*_machine(GpuSample, "gpu_", "GPU {{gpu}}")]),
        ("Host", [*_machine(HostSample, "host_", "{{instance}}")]),
    ):
        where = {"x": 0, "y": top, "w": _WIDTH * _A_ROW, "h": 1}
        yield {"id": next(numbers), "type": "row", "title": title, "gridPos": where, "panels": []}
        top += 1
        for place, panel in enumerate(panels):
            row, column = divmod(place, _A_ROW)
            where = {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": next(numbers), "gridPos": where, **_time_series(panel)}
        top += -(-len(panels) // _A_ROW) * _HEIGHT


def _time_series(panel: _Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10}
    if panel.stacked:
        custom = {"fillOpacity": 60, "stacking": {"mode": "normal"}}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": panel.query,
                "legendFormat": panel.legend,
            }
        ],
    }


def _machine(kind: type[Struct], prefix: str, legend: str) -> Iterator[_Panel]:
    """A panel for each figure that has a chart."""
    seen = set()
    for metric in charted_fields(kind).values():
        if metric.prometheus is None or metric.prometheus in seen:
            continue
        seen.add(metric.prometheus)
        name = f"gputui_{prefix}{metric.prometheus}"
        yield _Panel(metric.title or metric.label, f"{name}{_WHERE}", legend, _unit(name))


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "short")


def _selector(family: Family) -> str:
    return f"{series_name(family)}{_WHERE}"


def _spent(family: Family) -> str:
    """Seconds a second in the phases that take most."""
    return f"topk(12, sum by (phase) (rate({_selector(family)}[$__rate_interval])))"


_OF_RUNS = [
    _Panel("Where each step goes", f"avg by (cause) ({_selector(CAUSE_SHARE)}) > 0", "{{cause}}",
           "percentunit", stacked=True),
    _Panel("Step time", _selector(STEP_SECONDS), "run {{run}} GPU {{gpu}}", "s"),
    _Panel("CPU time by phase", _spent(CPU_SECONDS), "{{phase}}", "percentunit"),
    _Panel("GPU busy by phase", _spent(BUSY_SECONDS), "{{phase}}", "percentunit"),
    _Panel("What the workload reports", _selector(RUN_METRIC), "{{metric}}", "short"),
    _Panel("Records lost", f"rate({_selector(DROPPED)}[$__rate_interval])", "pid {{pid}}", "short"),
]  # fmt: skip


def _variable_source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable_instance() -> dict[str, Any]:
    query = "label_values(gputui_build_info, instance)"
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instances"},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "refresh": 2,
    }


# --- The page about the recording, from the declarations of the events.

# How parts are merged does not matter to how they are written.
_RULE = re.compile(
    rf"Annotated\[(.*?), (?:{'|'.join(rule.name.title() for rule in base.Rule)})"
    r"(?:, Reader\.\w+)?\]$"
)


_ABOUT_RECORDINGS = f"""\
# The recording (`.gputui`), schema {events.JOURNAL_SCHEMA}

<!-- Made by `python -m tests.reference`; edit the docstrings of the events. -->

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
  operation as records of 64 bytes; when it is full the oldest are overwritten.
  `gputui/store/trace.py` describes the file.
  Without a trace the operations of some steps are recorded (`step_operations`), packed:
  `gputui/store/trace.py` describes that too.

Parts written as arrays list their fields in the order given here.
"""


def recording_page() -> str:
    """The page about the file of a recording: each kind of event, each part, each number."""
    kinds = events.WRITTEN_KINDS
    lines = [_ABOUT_RECORDINGS, "## Events\n"]
    lines += [_kind_section(kind, f"`{kind.__struct_config__.tag}`") for kind in kinds]
    lines.append("## Parts of events\n")
    lines += [_kind_section(part, part.__name__) for part in _parts_of_events()]
    return "\n".join((*lines, _numbers_text()))


def written_shapes() -> dict[str, dict[str, Any]]:
    """What is written of each event, by its tag, and of each part, by its class: whether it is an
    array, and of each field the name, the type and whether it has a default."""
    kinds = {str(kind.__struct_config__.tag): kind for kind in events.WRITTEN_KINDS}
    parts = {part.__name__: part for part in _parts_of_events()}
    return {
        name: {
            "array": kind.__struct_config__.array_like,
            "fields": [
                [field.encode_name, _type_text(kind, field.name), not field.required]
                for field in msgspec.structs.fields(kind)
            ],
        }
        for name, kind in (kinds | parts).items()
    }


def _parts_of_events() -> list[type[msgspec.Struct]]:
    """What fields of events hold, and theirs, in the order of their declarations."""
    written: set[type[msgspec.Struct]] = set()
    seen: set[Any] = set()
    pending: list[Any] = list(events.WRITTEN_KINDS)
    while pending:
        hint = pending.pop()
        if hint in seen:
            continue
        seen.add(hint)
        if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
            written.add(hint)
            pending += [field.type for field in msgspec.structs.fields(hint)]
        pending += get_args(hint)
    return [
        value
        for module in _event_modules()
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, msgspec.Struct)
        and value in written
        and value.__module__ == module.__name__
        and value not in events.WRITTEN_KINDS
    ]


def _event_modules() -> Iterator[ModuleType]:
    """Those that declare events and their parts."""
    for module_info in pkgutil.iter_modules(events.__path__):
        module = importlib.import_module(f"{events.__name__}.{module_info.name}")
        if module is not base:
            yield module


def _numbers_text() -> str:
    """The bounds of the named types, and what the numbers of enumerations stand for."""
    bounds = []
    for name, alias in _named_types().items():
        kind, meta, *numbered = get_args(alias)
        least, most = (meta.ge, meta.le) if kind is int else (0, meta.max_length)
        what = f"number of {numbered[0].value}" if numbered else ""
        bounds.append(_table_row([f"`{name}`", kind.__name__, str(least), str(most), what]))
    scopes = [_table_row([str(int(scope)), scope.name.lower()]) for scope in Scope]
    leaves = [
        _table_row([str(int(leaf)), f"`{LEAVES[leaf].key}`", LEAVES[leaf].meaning]) for leaf in Leaf
    ]
    return _NUMBERS.format(*map("\n".join, (bounds, scopes, leaves)))


def _named_types() -> dict[str, Any]:
    return {
        name: alias
        for module in (base, *_event_modules())
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


def _kind_section(kind: type[msgspec.Struct], title: str) -> str:
    shape = ", written as an array" if kind.__struct_config__.array_like else ""
    metrics = metrics_of(kind)
    heads = ["field", "type", "left out when", *(["meaning", "read with"] if metrics else [])]
    rows = []
    for field in msgspec.structs.fields(kind):
        cells = [
            f"`{field.encode_name}`",
            f"`{_type_text(kind, field.name)}`",
            _default_text(field),
        ]
        if metrics:
            metric = metrics.get(field.name)
            cells += [metric.help, metric.source] if metric else ["", ""]
        rows.append(cells)
    line = f"|{'---|' * len(heads)}"
    table = "\n".join([_table_row(heads), line, *map(_table_row, rows)])
    words = inspect.cleandoc(kind.__doc__ or "")
    return f"### {title}\n\n{words}\n\n{kind.__name__}{shape}:\n\n{table}\n"


def _table_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _type_text(kind: type, name: str) -> str:
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
        for module in (base, *_event_modules())
        for name, alias in vars(module).items()
        if get_origin(alias) is Literal
    }


_WORDS = re.compile(rf"\b(?:{'|'.join(_named_words())})\b")


# The bounded numbers by their names.
_NAMED = {alias: name for name, alias in vars(base).items() if get_origin(alias) is Annotated}


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


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = msgspec.json.encode(field.default).decode()
        return f"`{value}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    return ""


if __name__ == "__main__":
    main()
