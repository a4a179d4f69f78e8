"""JSON Schemas of gputui's documents, from the declarations that the documents are made from.

`reference` writes them, and tests say that documents are as they say.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from gputui.model.events import (
    SCHEMA_VERSION,
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostFacts,
    HostSample,
    LauncherSample,
    MigFacts,
    MigSample,
    ProcessSample,
)
from gputui.report.schema import AnyColumn, AnyTable, TableSpec
from gputui.report.summary_document import Summary, document_tables

Schema = dict[str, Any]

_REFERENCE = "#/$defs/{name}"
_NULL: Schema = {"type": "null"}


def document_schema(title: str, kind: Any) -> Schema:
    """The schema of a document that is a Struct."""
    (schema,), definitions = _components(kind)
    return _whole(title, schema, definitions)


def summary_schema() -> Schema:
    """The JSON Schema of what `summary --format json` writes."""
    (_,), definitions = _components(Summary)
    summary = definitions.pop("Summary")
    for name, spec in document_tables().items():
        rows, more = rows_schema(spec)
        definitions |= more
        summary["properties"][name] = {
            "description": spec.meaning,
            "anyOf": [{"type": "array", "items": rows}, _NULL],
        }
        summary["required"].append(name)
    return _whole("summary", summary, definitions)


def rows_schema(table: TableSpec[Any] | AnyTable) -> tuple[Schema, Schema]:
    """The schema of a row of a table, and the definitions that it refers to."""
    kinds, definitions = _components(*(column.kind for column in table.columns))
    properties = {
        column.name: _described(column, kind)
        for column, kind in zip(table.columns, kinds, strict=True)
    }
    row = {"type": "object", "properties": properties, "required": list(properties)}
    return row, definitions


def machine_schema() -> Schema:
    """The JSON Schema of what `--once --format json` writes."""
    definitions: Schema = {}

    def fields(kind: type[msgspec.Struct], *without: str) -> Schema:
        _, more = _components(kind)
        properties: Schema = more.pop(kind.__name__)["properties"]
        definitions.update(more)
        return {name: prop for name, prop in properties.items() if name not in without}

    text = {"type": "string"}
    text_or_none = _or_null("string")
    reasons = {"type": "object", "additionalProperties": text}
    versions = dict.fromkeys(("driver_version", "cuda_driver_version"), text_or_none)
    instances = _object(fields(MigFacts) | fields(MigSample))
    gpu = (
        fields(GpuFacts, "mig_instances")
        | fields(GpuSample, "mig_instances")
        | fields(GpuStatus, "gpu", "time_ns", "event")
    )
    facts = fields(GpuFacts, "index", "uuid", "name")
    of_facts = [name for name in facts if name not in GpuSample.__struct_fields__]
    gpu = {name: prop for name, prop in gpu.items() if name not in of_facts}
    gpu |= {
        "mig_instances": _array(instances),
        "status_time": text_or_none,
        "facts": _object(facts | {"mig_instances": _array(_object(fields(MigFacts)))}),
        "unavailable": reasons,
    }
    # Without a header nothing is known of the host.
    host = _object(fields(HostFacts) | versions | fields(HostSample) | {"unavailable": reasons})
    host["required"] = [
        name for name in host["required"] if name not in HostFacts.__struct_fields__
    ]
    document = _object(
        {
            "schema": {"type": "integer"},
            "time": text,
            "host": host,
            "gpu_unavailable_reason": text_or_none,
            "gpus": _array(_object(gpu)),
            "processes": _array(_object(fields(ProcessSample))),
            "launchers": _array(_object(fields(LauncherSample))),
        }
    )
    return _whole("once", document, definitions)


def hosts_schema() -> Schema:
    """`--once --json` with other hosts."""
    host = _object(
        {
            "name": {"type": "string"},
            "unavailable_reason": _or_null("string"),
            "clock_offset_ns": _or_null("integer"),
            "clock_error_ns": _or_null("integer"),
            # By reference: the schema of hosts held all of the other again.
            "machine": {"anyOf": [{"$ref": "once.json"}, _NULL]},
        }
    )
    document = _object({"schema": {"type": "integer"}, "hosts": _array(host)})
    return _whole("hosts", document, {})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _or_null(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _components(*kinds: Any) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    schemas, definitions = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    return tuple(map(_adapted, schemas)), {
        name: _adapted(schema) for name, schema in definitions.items()
    }


def _adapted(schema: Any) -> Any:
    """As documents are written: every field stands in them, and a figure that is no number, as
    damaged recordings have, is null."""
    if isinstance(schema, list):
        return [_adapted(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    adapted = {name: _adapted(part) for name, part in schema.items()}
    if isinstance(words := schema.get("description"), str):
        adapted["description"] = inspect.cleandoc(words)  # as Python 3.13 compiles docstrings
    # Bounds hold for what is read; of what is computed they say nothing.
    adapted.pop("minimum", None)
    adapted.pop("maximum", None)
    if schema.get("type") == "number":
        adapted["type"] = ["number", "null"]
    choices = adapted.get("anyOf", ())
    if choices and all(part.keys() == {"type"} for part in choices):
        kinds = [
            [prop["type"]] if isinstance(prop["type"], str) else prop["type"] for prop in choices
        ]
        adapted = {"type": list(dict.fromkeys(chain(*kinds))), **adapted}
        del adapted["anyOf"]
    if schema.get("type") == "object" and "properties" in schema:
        properties = schema["properties"]
        filled = {name for name, prop in properties.items() if "default" in prop}
        required = filled.union(schema.get("required", ()))
        adapted["required"] = [name for name in properties if name in required]
        for prop in adapted["properties"].values():
            prop.pop("default", None)
    return adapted


def _described(column: AnyColumn, kind: Schema) -> Schema:
    described = {"description": column.meaning, **kind} if column.meaning else kind
    return {**described, "unit": column.unit} if column.unit else described


def _whole(title: str, schema: Schema, definitions: Schema) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gputui {title}, schema {SCHEMA_VERSION}",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }
