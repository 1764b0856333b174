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
    described = {place for tool in pinned for place in described_places(tool)}
    missing = described - {place for tool in listed for place in described_places(tool)}
    return [Failure("discovery", f"{min(missing)} has no description")] if missing else []


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


def described_places(tool: Mapping[str, Any]) -> Iterator[str]:
    """The tool itself and the fields of its output schema, where they carry a description."""
    name = str(tool.get("name"))
    if str(tool.get("description", "")).strip():
        yield name
    yield from _described_fields(tool.get("outputSchema"), f"{name}.outputSchema")


def _described_fields(schema: Any, path: str) -> Iterator[str]:
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _described_fields(item, f"{path}[{index}]")
    elif isinstance(schema, dict):
        if isinstance(schema.get("description"), str) and schema["description"].strip():
            yield path
        for name, item in schema.items():
            yield from _described_fields(item, f"{path}.{name}")
