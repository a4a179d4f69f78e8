"""Every document that a test makes is checked against its JSON Schema, with no room for a field
that the schema does not have."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from tests.reference import DOCS

_KNOWN_BY = {"overhead": "summary", "noise_rule": "compare", "launchers": "once", "hosts": "hosts"}


def checked(encode: Callable[..., bytes]) -> Callable[..., bytes]:
    """`msgspec.json.encode` that fails where a document is not as its schema says."""

    def encoded(document: Any, **options: Any) -> bytes:
        data = encode(document, **options)
        kind = kind_of(document)
        if kind:
            check(kind, json.loads(data))
        return data

    return encoded


def kind_of(document: Any) -> str | None:
    """Which of the documents it is, None for anything else."""
    names = document if isinstance(document, dict) else getattr(document, "__struct_fields__", ())
    if "schema" not in names:
        return None
    if type(document).__name__ == "DoctorDocument":
        return "doctor"
    return next((kind for name, kind in _KNOWN_BY.items() if name in names), None)


def check(kind: str, document: Any) -> None:
    """Fails where a document is not as its schema says."""
    _check(kind, json.dumps(document))


@functools.lru_cache(maxsize=64)  # a test often makes a document twice, and a look takes long
def _check(kind: str, text: str) -> None:
    error = best_match(validator(kind).iter_errors(json.loads(text)))
    assert error is None, f"{error.json_path}: {error.message[:300]}"


@functools.cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    """For one kind of document."""
    schema = _read(f"{kind}.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    others: Registry[Any] = Registry(retrieve=lambda name: Resource.from_contents(_read(name)))
    return jsonschema.Draft202012Validator(schema, registry=others)


def _read(name: str) -> Any:
    return _closed(json.loads((DOCS / "schema" / name).read_text(encoding="utf-8")))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
