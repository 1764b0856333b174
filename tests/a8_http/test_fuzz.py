"""Malformed calls of every kind: none is answered with a 500, a traceback or an exception's text.

A8_FUZZ_EXAMPLES=10000 runs more of them.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a8_http.tickets import CRITERION, FORMAT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("A8_FUZZ_EXAMPLES", "1000"))
# Shares of the whole: calls of well-formed JSON, and bodies that are not.
CALLS = settings(
    max_examples=EXAMPLES * 8 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    database=None,
)
BYTES = settings(CALLS, max_examples=EXAMPLES * 2 // 10)

# What no text of ours contains and every leaked exception would.
TRACES = (
    "Traceback",
    'File "',
    "Error:",
    "Error(",
    "Exception",
    "pydantic",
    "alidation error",
    "line 1",
    "site-packages",
    "a8_http",
    "0x",
    "sqlalchemy",
)

text = st.text(max_size=30) | st.sampled_from(
    [
        "",
        " ",
        "\x00",
        "\ud800",
        "a" * 2_000,
        "What have I taught you?",
        "Is it late?",
        "[]",
        "{}",
        '"a"',
        "🙂",
    ]
)
numbers = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**400, -1, 1e308, 2**63])
)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | values,
            "content": text,
        },
        optional={"name": values},
    )
    | values,
    max_size=5,
)
keywords = st.sampled_from(
    [
        "type",
        "enum",
        "const",
        "properties",
        "items",
        "$ref",
        "$defs",
        "required",
        "minimum",
        "maximum",
        "multipleOf",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "not",
        "pattern",
        "default",
        "title",
        "$schema",
    ]
)
types = st.sampled_from(["boolean", "integer", "number", "string", "array", "object", "null"])
schemas = st.recursive(
    st.dictionaries(keywords, types | scalars | st.lists(scalars, max_size=4), max_size=4),
    lambda inner: st.dictionaries(
        keywords,
        inner | st.dictionaries(text, inner, max_size=3) | types | st.lists(inner | scalars, max_size=3),
    ),
    max_leaves=8,
)
models = (
    text
    | st.from_regex(r"a8(-[0-9]{1,3}){0,3}(:-?[0-9]{0,4})?(@[0-9]{8}t[0-9]{6}z)?", fullmatch=True)
    | values
)
inputs = (
    text
    | messages
    | values
    | st.just([{"role": "system", "content": CRITERION}, {"role": "user", "content": "x"}])
)
arguments = (
    st.fixed_dictionaries(
        {},
        optional={
            "input": inputs,
            "format": schemas | values | st.just(FORMAT),
            "answer": values | st.just({"queue": "billing"}),
            "model": models,
            "cases": st.lists(values, max_size=3),
            "surplus": values,
        },
    )
    | values
)
names = st.sampled_from(["judge", "teach", "retract", "test", "JUDGE", ""])
doors = st.sampled_from(["2026-07-28", "2025-11-25", "2024-11-05", "rest"])


@pytest.fixture(scope="module")
def key(server: Any) -> Iterator[str]:
    """A key that may do everything, in an organization that fuzzing may fill with anything."""
    yield server.taught(
        [{"input": "Is it late? It came today.", "format": {"type": "boolean"}, "answer": False}]
    )
    # An internal error has a clean text too, so it is looked for where it is counted.
    assert 'outcome="internal"' not in server.http.get(server.url + "/metrics").text


def held_clean(response: httpx.Response, sent: str) -> None:
    assert response.status_code < 500 or response.status_code == 503, (sent, response.text)
    for trace in TRACES:
        assert trace not in response.text or trace in sent, (sent, response.text)
    if response.status_code == 202:  # a broken id makes a call a notification, which gets no answer
        assert response.text == ""
    elif "json" in response.headers.get("content-type", ""):
        json.loads(response.text, parse_constant=pytest.fail)


def post(server: Any, key: str, path: str, body: str | bytes, **headers: str) -> httpx.Response:
    return server.http.post(
        server.url + path,
        content=body,
        headers={
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **headers,
        },
    )


@CALLS
@given(name=names, given=arguments, door=doors)
def test_a_malformed_call_gets_a_clean_answer(
    server: Any, key: str, name: str, given: Any, door: str
) -> None:
    if door == "rest":
        body = json.dumps(given)
        response = post(server, key, f"/v1/{name or 'judge'}", body)
        held_clean(response, body)
        return
    params: dict[str, Any] = {"name": name, "arguments": given}
    headers = {"mcp-protocol-version": door}
    if door == "2026-07-28":
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": door,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers |= {"mcp-method": "tools/call", "mcp-name": name}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    response = post(server, key, "/mcp", body, **headers)
    held_clean(response, body)
    message = response.json()
    if "result" in message:
        (item,) = message["result"]["content"]
        assert item["type"] == "text"
        assert item["text"].strip()
    else:
        assert message["error"]["code"] in (-32700, -32602, -32600, -32020), message


def broken(body: bytes, at: int, junk: bytes) -> bytes:
    at %= len(body)
    return body[:at] + junk + body[at + len(junk) :]


@BYTES
@given(at=st.integers(min_value=0, max_value=10_000), junk=st.binary(min_size=1, max_size=8), door=doors)
@example(at=len('{"jsonrpc": "2.0", "'), junk=b"x", door="2025-11-25")
def test_a_broken_body_gets_a_clean_answer(server: Any, key: str, at: int, junk: bytes, door: str) -> None:
    rest = door == "rest"
    call: dict[str, Any] = {
        "input": [{"role": "system", "content": CRITERION}, {"role": "user", "content": "x"}]
    }
    message = (
        call
        if rest
        else {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "judge", "arguments": call},
        }
    )
    body = broken(json.dumps(message).encode(), at, junk)
    headers = {} if rest else {"mcp-protocol-version": door, "mcp-method": "tools/call", "mcp-name": "judge"}
    held_clean(post(server, key, "/v1/judge" if rest else "/mcp", body, **headers), repr(body))
