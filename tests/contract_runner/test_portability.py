"""Published schemas that trip hosts are reported with the host's name."""

from typing import Any

import pytest
from contract_runner import cases
from contract_runner.portability import warnings

HINTS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": True}


def tool(**changes: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"state": {"type": "string"}}, "additionalProperties": False}
    return {"name": "ask", "description": "Asks.", "annotations": HINTS, "inputSchema": schema, **changes}


def schema(**members: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": {"a": {"type": "string", **members}}}}


TRIPS = {
    "a root combinator": (
        {"inputSchema": {"type": "object", "anyOf": []}},
        "anyOf at the root",
        "Claude API",
    ),
    "a root without a type": (
        {"outputSchema": {"properties": {}}},
        "the root is not",
        "TypeScript SDK clients",
    ),
    "a type array": (schema(type=["string", "object"]), "type is an array", "Gemini"),
    "an array without items": (schema(type="array"), "an array without items", "VS Code"),
    "a reference": (schema(**{"$ref": "#/$defs/x"}), "$ref", "Cursor"),
    "definitions": ({"inputSchema": {"type": "object", "$defs": {}}}, "$defs", "Gemini CLI"),
    "a dialect": ({"inputSchema": {"type": "object", "$schema": "x"}}, "$schema is given", "VS Code"),
    "a property without a type": (
        {"inputSchema": {"type": "object", "properties": {"a": {}}}},
        "a property without a type",
        "Codex",
    ),
    "a constant": (schema(const="x"), "const is not understood", "Gemini"),
    "a long property name": (
        {"inputSchema": {"type": "object", "properties": {"a" * 65: {"type": "string"}}}},
        "the name is not 1 to 64 plain characters",
        "Claude API",
    ),
    "a dotted tool name": ({"name": "ask.noul"}, "the name is not 1 to 64 letters", "Claude Desktop"),
    "a long description": ({"description": "x" * 2049}, "the description is cut", "Claude Code"),
    "missing hints": ({"annotations": {"readOnlyHint": True}}, "lacks destructiveHint", "ChatGPT"),
}


def test_a_plain_tool_trips_no_host() -> None:
    assert warnings([tool()], "Short.", "judge") == []


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_is_reported_with_its_host(name: str) -> None:
    changes, problem, host = TRIPS[name]
    found = warnings([tool(**changes)])
    assert any(problem in warning.problem and host in warning.hosts for warning in found), found


def test_too_many_tools_and_long_names_and_instructions_are_reported() -> None:
    found = warnings([tool(name=f"ask_{number}") for number in range(41)], "x" * 3000, "s" * 60)
    problems = " ".join(warning.problem for warning in found)
    assert "41 tools" in problems
    assert "3000 characters, cut at 2048" in problems
    assert "more than 60 characters" in problems


def test_the_contract_s_own_trips_are_known() -> None:
    found = warnings(cases.tools("judgevet"))
    assert ("ask_score.inputSchema.criteria", "an array without items") in {
        (warning.place, warning.problem) for warning in found
    }
