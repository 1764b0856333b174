"""Which published schemas trip which hosts: warnings, since the contract itself may ask for such a schema.

The limits are those that the hosts' own issue trackers and manuals report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMBINATORS = ("oneOf", "anyOf", "allOf", "not", "if")
GEMINI_UNKNOWN = (
    "const",
    "if",
    "oneOf",
    "allOf",
    "propertyNames",
    "patternProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "multipleOf",
)
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TEXT_LIMIT = 2048  # characters of a description or of the instructions that Claude Code keeps
CURSOR_TOOLS = 40
CURSOR_NAME = 60  # characters of server and tool name together
INLINE_ONLY = ("Gemini CLI", "opencode", "Kiro", "Cursor", "Kimi", "Copilot with Gemini")
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@dataclass(frozen=True)
class Warning:
    """One place of the published tools, what is wrong with it there, and the hosts it trips."""

    place: str
    problem: str
    hosts: tuple[str, ...]


def warnings(tools: Sequence[Mapping[str, Any]], instructions: str = "", server: str = "") -> list[Warning]:
    """Every known trip of a tool list, in the order of the tools."""
    found = [warning for tool in tools for warning in _tool_warnings(tool, server)]
    if len(tools) > CURSOR_TOOLS:
        found.append(Warning("tools", f"{len(tools)} tools, the first {CURSOR_TOOLS} are kept", ("Cursor",)))
    if len(instructions) > TEXT_LIMIT:
        found.append(
            Warning("instructions", f"{len(instructions)} characters, cut at {TEXT_LIMIT}", ("Claude Code",))
        )
    return found


def _tool_warnings(tool: Mapping[str, Any], server: str) -> Iterator[Warning]:
    name = str(tool.get("name", ""))
    if not TOOL_NAME.fullmatch(name):
        yield Warning(name, "the name is not 1 to 64 letters, digits, _ or -", ("Claude Desktop", "OpenAI"))
    if len(server) + len(name) > CURSOR_NAME:
        yield Warning(name, f"server and tool name have more than {CURSOR_NAME} characters", ("Cursor",))
    if len(str(tool.get("description", ""))) > TEXT_LIMIT:
        yield Warning(name, f"the description is cut at {TEXT_LIMIT} characters", ("Claude Code",))
    missing = [hint for hint in HINTS if hint not in (tool.get("annotations") or {})]
    if missing:
        yield Warning(name, f"lacks {', '.join(missing)}", ("ChatGPT", "Codex"))
    for kind in ("inputSchema", "outputSchema"):
        schema = tool.get(kind)
        if isinstance(schema, Mapping):
            yield from _root_warnings(schema, f"{name}.{kind}", kind)
            yield from _schema_warnings(schema, f"{name}.{kind}")


def _root_warnings(schema: Mapping[str, Any], place: str, kind: str) -> Iterator[Warning]:
    for word in COMBINATORS:
        if word in schema:
            hosts = ("Claude API", "Claude Code") if kind == "inputSchema" else ("TypeScript SDK clients",)
            yield Warning(place, f"{word} at the root", hosts)
    if schema.get("type") != "object":
        yield Warning(place, 'the root is not "type": "object"', ("TypeScript SDK clients", "Claude API"))
    for name in schema.get("properties") or {}:
        if kind == "inputSchema" and not PROPERTY_NAME.fullmatch(name):
            yield Warning(f"{place}.{name}", "the name is not 1 to 64 plain characters", ("Claude API",))


def _schema_warnings(schema: Any, place: str) -> Iterator[Warning]:
    """Walks a schema; only real schemas are looked at, not values such as enum or examples."""
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    if isinstance(kind, list):
        yield Warning(place, "type is an array", ("Gemini", "Kuadrant"))
    if "$ref" in schema or "$dynamicRef" in schema:
        yield Warning(place, "$ref", INLINE_ONLY)
    if "$defs" in schema:
        yield Warning(place, "$defs", INLINE_ONLY)
    if "$schema" in schema:
        yield Warning(place, "$schema is given", ("VS Code", "Gemini CLI"))
    is_array = kind == "array" or (isinstance(kind, list) and "array" in kind)
    if is_array and "items" not in schema:
        yield Warning(place, "an array without items", ("VS Code", "Codex", "OpenAI", "Gemini"))
    for word in GEMINI_UNKNOWN:
        if word in schema:
            yield Warning(place, f"{word} is not understood", ("Gemini",))
    for name, field in (schema.get("properties") or {}).items():
        inner = f"{place}.{name}"
        if isinstance(field, Mapping) and not _is_typed(field):
            yield Warning(inner, "a property without a type", ("Codex", "OpenAI"))
        yield from _schema_warnings(field, inner)
    for word in ("items", "additionalProperties", "not", "if", "then", "else"):
        yield from _schema_warnings(schema.get(word), f"{place}.{word}")
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, branch in enumerate(schema.get(word) or []):
            yield from _schema_warnings(branch, f"{place}.{word}[{index}]")
    for name, definition in (schema.get("$defs") or {}).items():
        yield from _schema_warnings(definition, f"{place}.$defs.{name}")


def _is_typed(schema: Mapping[str, Any]) -> bool:
    return any(word in schema for word in ("type", "$ref", "anyOf", "oneOf", "allOf"))
