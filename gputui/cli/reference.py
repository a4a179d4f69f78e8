"""The reference files that are made from declarations: `python -m gputui.cli.reference` writes
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gputui.cli.doctor import DoctorDocument
from gputui.cli.manual import manual
from gputui.render.comparison import ComparisonDocument
from gputui.render.grafana import dashboard
from gputui.render.traces import event_columns
from gputui.report.json_schema import document_schema, hosts_schema, machine_schema, summary_schema
from gputui.report.registry import machine_tables, run_tables
from gputui.report.schema import AnyColumn, TableSpec

DOCS = Path(__file__).parents[1] / "docs"


def reference_files() -> dict[str, str]:
    """Every file by its path under the docs."""
    return {f"schema/{name}.json": _json(schema) for name, schema in schemas().items()} | {
        "tables.md": tables_page(),
        "grafana.json": _json(dashboard()),
        "gputui.1": manual(),
    }


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each document."""
    return {
        "summary": summary_schema(),
        "compare": document_schema("compare", ComparisonDocument),
        "once": machine_schema(),
        "hosts": hosts_schema(),
        "doctor": document_schema("doctor", DoctorDocument),
    }


def tables_page() -> str:
    """Every table with its columns."""
    runs, machines = run_tables().values(), machine_tables().values()
    parts = [
        _INTRODUCTION,
        "## Of a run\n",
        *(_section(spec) for spec in runs if ":" not in spec.key),
        "## Of a recording without a run\n",
        *map(_section, machines),
        "## Of single events\n\nThey need a trace (`--trace`), or a report of nsys.\n",
        *(_columns(name, title, columns) for name, title, columns in event_columns()),
    ]
    return "\n".join(parts)


_INTRODUCTION = """\
# Tables

`gputui summary FILE --table NAME` prints one; `--format csv` has the headers below, `--format json`
and Parquet the names. Headers and names end in the unit. Missing is empty in CSV and null in JSON;
`unavailable` says why. People do not see columns with the same value in every row.

Tables whose key nsys has too are as `nsys stats` prints them: same columns, order and rounding in
CSV. With `:base` after such a key kernels go by the function's own name, with `:mangled` by the
symbol.

Made by `python -m gputui.cli.reference` from the declarations in `gputui/report/tables/`.
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
    """Write every file."""
    for name, text in reference_files().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
