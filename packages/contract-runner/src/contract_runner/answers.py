"""Judges one answer against what its case expects, and names the one check that it breaks first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs

from contract_runner.comparison import difference, order_difference, short
from contract_runner.outcomes import Failure

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


class Outputs:
    """The output schemas that a server declares, compiled; nothing remote is ever fetched."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._schemas = {
            tool.get("name"): tool["outputSchema"]
            for tool in tools
            if isinstance(tool.get("outputSchema"), dict)
        }
        self._compiled: dict[Any, Any] = {}

    def failure(self, tool: str, content: Any) -> Failure | None:
        """Whether structured content breaks the tool's declared output schema."""
        if tool not in self._schemas:
            return None
        try:
            if tool not in self._compiled:
                self._compiled[tool] = jsonschema_rs.Draft202012Validator(
                    self._schemas[tool], retriever=refuse_remote
                )
            error = next(iter(self._compiled[tool].iter_errors(content)), None)
        except (ValueError, jsonschema_rs.ReferencingError) as problem:
            return Failure("output", f"the declared output schema cannot be used: {problem}")
        if error is None:
            return None
        where = ".".join(str(part) for part in error.instance_path) or "structuredContent"
        return Failure("output", f"{where}: {error.message}")


def refuse_remote(uri: str) -> Any:
    """Raises instead of fetching a schema."""
    raise ValueError(f"the schema refers to {uri}")


def answer_failure(
    message: dict[str, Any] | None,
    expect: Mapping[str, Any],
    *,
    tool: str | None = None,
    era: str = "legacy",
    outputs: Outputs | None = None,
    seconds: float = 30.0,
    secrets: Iterable[str] = (),
    ordered: bool = True,
) -> Failure | None:
    """The first check that an answer breaks, or None.

    With `tool` the era's envelope is checked here and not part of `expect`. With `ordered` the members of the
    result come in the expected order.
    """
    if message is None:
        return Failure("answered", f"no answer within {seconds:g} s")
    raw = json.dumps(message, ensure_ascii=False)
    for secret in secrets:
        if secret and secret in raw:
            return Failure("secrets", f"the answer echoes {secret!r}: {short(message)}")
    if failure := _frame_failure(message):
        return failure
    if "error" in expect:
        if "error" not in message:
            return Failure("error", f"a result, expected an error: {short(message['result'])}")
        found = difference(expect["error"], message["error"], "error")
        return Failure("error", found) if found else None
    expected = expect["result"]
    kind = "error" if isinstance(expected, dict) and expected.get("isError") else "result"
    if "error" in message:
        return Failure(kind, f"an error, expected a result: {short(message['error'])}")
    result = message["result"]
    if not isinstance(result, dict):
        return Failure("frame", f"the result is {short(result)}, expected an object")
    if tool is None or not isinstance(expected, dict):
        return _plain_failure(expected, result)
    if failure := _envelope_failure(result, era):
        return failure
    bare = {name: value for name, value in result.items() if name not in ("resultType", "_meta")}
    return _tool_failure(tool, expected, bare, kind, outputs, ordered)


def _frame_failure(message: Mapping[str, Any]) -> Failure | None:
    if message.get("jsonrpc") != "2.0":
        return Failure("frame", f'jsonrpc is {short(message.get("jsonrpc"))}, expected "2.0"')
    if ("result" in message) == ("error" in message):
        return Failure("frame", "expected exactly one of result and error")
    if extra := sorted(set(message) - {"jsonrpc", "id", "result", "error"}):
        return Failure("frame", f"the message has an extra {extra[0]!r}")
    return None


def _envelope_failure(result: Mapping[str, Any], era: str) -> Failure | None:
    if era != "modern":
        extra = [name for name in ("resultType",) if name in result]
        return Failure("envelope", f"a result before 2026-07-28 has {extra[0]!r}") if extra else None
    if result.get("resultType") != "complete":
        return Failure("envelope", f'resultType is {short(result.get("resultType"))}, expected "complete"')
    info = (result.get("_meta") or {}).get(SERVER_INFO)
    if not isinstance(info, dict) or not all(isinstance(info.get(name), str) for name in ("name", "version")):
        return Failure("envelope", f"_meta lacks the server's name and version: {short(result.get('_meta'))}")
    return None


def _plain_failure(expected: Any, result: Mapping[str, Any]) -> Failure | None:
    found = difference(expected, result, "result")
    return Failure("result", found) if found else None


def _tool_failure(
    tool: str,
    expected: Mapping[str, Any],
    result: dict[str, Any],
    kind: str,
    outputs: Outputs | None,
    ordered: bool,
) -> Failure | None:
    if kind == "error":
        found = difference(expected, result, "result")
        return Failure("error", found) if found else None
    if result.get("isError") is not False:
        return Failure(
            "result", f"isError is {short(result.get('isError'))}, expected false: {short(result)}"
        )
    structured = result.get("structuredContent")
    if "structuredContent" not in result:
        return Failure("output", "no structuredContent, though an output schema is declared")
    if outputs is not None and (failure := outputs.failure(tool, structured)):
        return failure
    if failure := _text_failure(result.get("content"), structured):
        return failure
    without_text = {**expected, "content": "@ANY@"}
    if found := difference(without_text, result, "result"):
        return Failure("result", found)
    if not ordered:
        return None
    written = json.loads(result["content"][0]["text"])
    expected_content = expected.get("structuredContent")
    found = order_difference(expected_content, structured, "structuredContent") or order_difference(
        expected_content, written, "text"
    )
    return Failure("order", found) if found else None


def _text_failure(content: Any, structured: Any) -> Failure | None:
    if not isinstance(content, list) or len(content) != 1 or not isinstance(content[0], dict):
        return Failure("text", f"content is {short(content)}, expected one text item")
    item = content[0]
    if item.get("type") != "text" or not isinstance(item.get("text"), str):
        return Failure("text", f"content[0] is {short(item)}, expected a text item")
    try:
        written = json.loads(item["text"])
    except ValueError:
        return Failure("text", f"the text is no JSON: {short(item['text'])}")
    found = difference(structured, written, "text")
    return Failure("text", f"the text is not the structured content: {found}") if found else None
