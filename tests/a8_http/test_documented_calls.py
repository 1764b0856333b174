"""Every call that contracts/a8 records, against a running server, over MCP in both eras and over REST."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

CONTRACT = Path(__file__).parents[2] / "contracts" / "a8"
CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (CONTRACT / "fixtures" / "calls.jsonl").read_text("utf-8").splitlines()
]


def name(case: dict[str, Any]) -> str:
    return case["case"]


@pytest.fixture(scope="module")
def server(either_server: Any) -> Any:
    return either_server


@pytest.fixture(scope="module")
def ticket_key(server: Any) -> str:
    return server.taught()


def agrees(expected: Any, actual: Any) -> bool:
    """Whether a value is the recorded one, identifiers and times by pattern."""
    if isinstance(expected, str) and expected.startswith("@MODEL"):
        tag = expected.removeprefix("@MODEL").strip(":@") or r"\d\d?"
        return (
            isinstance(actual, str)
            and re.fullmatch(rf"a8-\d+-\d+:{tag}@\d{{8}}t\d{{6}}z", actual) is not None
        )
    if expected == "@TIME@":
        return (
            isinstance(actual, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", actual) is not None
        )
    if expected == "@TEXT@":
        return isinstance(actual, str) and actual.strip() != ""
    if expected == "@INTEGER@":
        return type(actual) is int and 0 <= actual <= 100
    if expected == "@EXAMPLES@":
        return (
            isinstance(actual, list)
            and 1 <= len(actual) <= 10
            and all(
                {"input", "answer", "recorded_at"} <= set(e) <= {"input", "format", "answer", "recorded_at"}
                for e in actual
            )
        )
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and set(expected) == set(actual)
            and all(agrees(value, actual[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(agrees(one, other) for one, other in zip(expected, actual, strict=True))
        )
    return type(expected) is type(actual) and expected == actual


def refuses(expected: str | dict[str, list[str]], text: str) -> bool:
    return text == expected if isinstance(expected, str) else all(word in text for word in expected["names"])


def key_for(server: Any, ticket_key: str, case: dict[str, Any]) -> str:
    if case.get("taught"):
        return ticket_key
    return server.key(permissions=case["permissions"]) if "permissions" in case else server.key()


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_recorded_call_over_mcp(server: Any, ticket_key: str, case: dict[str, Any], era: str) -> None:
    key = key_for(server, ticket_key, case)
    for step in case["steps"]:
        answer = server.call(key, step["call"]["name"], step["call"]["arguments"], era)
        expected = step["expect"]
        if "result" in expected:
            assert agrees(expected["result"], answer.structured), answer.structured
            (item,) = answer.result["content"]
            assert json.loads(item["text"]) == answer.structured
        elif "tool_error" in expected:
            assert refuses(expected["tool_error"], answer.error_text), answer.error_text
        else:
            assert answer.message["error"]["code"] == expected["error"]["code"]


@pytest.mark.parametrize("case", [case for case in CASES if "status" in case["steps"][0]], ids=name)
def test_a_recorded_call_over_rest(server: Any, ticket_key: str, case: dict[str, Any]) -> None:
    key = key_for(server, ticket_key, case)
    for step in case["steps"]:
        response = server.rest(key, "POST", f"/v1/{step['call']['name']}", step["call"]["arguments"])
        assert response.status_code == step["status"], response.text
        expected = step["expect"]
        if "result" in expected:
            assert agrees(expected["result"], response.json()), response.json()
        else:
            assert refuses(expected["tool_error"], response.json()["error"]["message"])
