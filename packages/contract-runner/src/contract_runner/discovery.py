"""Holds a published tool list against its pin, and its schemas against JSON Schema 2020-12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs

from contract_runner.answers import refuse_remote
from contract_runner.comparison import difference, short
from contract_runner.outcomes import Failure

SCHEMAS = ("inputSchema", "outputSchema")


def list_failures(listed: Any, pinned: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """What is wrong with a tool list: broken schemas first, then its order, then the first difference."""
    if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
        return [Failure("discovery", f"tools is {short(listed)}, expected an array of objects")]
    if failures := [failure for tool in listed for failure in schema_failures(tool)]:
        return failures
    names = [tool.get("name") for tool in listed]
    expected = [tool["name"] for tool in pinned]
    if names != expected and sorted(map(str, names)) == sorted(expected):
        return [
            Failure(
                "order", f"the tools come as {', '.join(map(str, names))}; expected {', '.join(expected)}"
            )
        ]
    if found := difference(without_descriptions(list(pinned)), without_descriptions(listed), "tools"):
        return [Failure("discovery", found)]
    place = next((place for tool in listed if (place := undescribed(tool))), "")
    return [Failure("discovery", f"{place} has no description")] if place else []


def schema_failures(tool: Mapping[str, Any]) -> list[Failure]:
    """Schemas of a tool that are no JSON Schema 2020-12 or refer to something outside themselves."""
    failures: list[Failure] = []
    for name in SCHEMAS:
        if name not in tool:
            continue
        schema, where = tool[name], f"{tool.get('name')}.{name}"
        if remote := next((uri for uri in references(schema) if not uri.startswith("#")), None):
            failures.append(Failure("schemas", f"{where} refers to {remote}"))
            continue
        try:
            jsonschema_rs.Draft202012Validator(schema, retriever=refuse_remote)
            jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        except (
            ValueError,
            TypeError,
            jsonschema_rs.ValidationError,
            jsonschema_rs.ReferencingError,
        ) as problem:
            failures.append(
                Failure("schemas", f"{where} is no JSON Schema 2020-12: {str(problem).splitlines()[0]}")
            )
    return failures


def references(schema: Any) -> Iterator[str]:
    """Every $ref and $dynamicRef in a schema."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from references(item)


def without_descriptions(value: Any) -> Any:
    """The value without its description texts: their words are the server's own."""
    if isinstance(value, list):
        return [without_descriptions(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_descriptions(item)
        for name, item in value.items()
        if not (name == "description" and isinstance(item, str))
    }


def undescribed(tool: Mapping[str, Any]) -> str:
    """The first place of a tool that must have a description and has none: itself or an output field."""
    if not str(tool.get("description", "")).strip():
        return str(tool.get("name"))
    return _undescribed_field(tool.get("outputSchema"), f"{tool.get('name')}.outputSchema")


def _undescribed_field(schema: Any, path: str) -> str:
    if isinstance(schema, list):
        found = (_undescribed_field(item, f"{path}[{index}]") for index, item in enumerate(schema))
        return next((place for place in found if place), "")
    if not isinstance(schema, dict):
        return ""
    for name, field in (schema.get("properties") or {}).items():
        if isinstance(field, dict) and not str(field.get("description", "")).strip():
            return f"{path}.{name}"
    found = (_undescribed_field(item, f"{path}.{name}") for name, item in schema.items())
    return next((place for place in found if place), "")
