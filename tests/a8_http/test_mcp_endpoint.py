"""The MCP endpoint's transport: both spellings, both eras, headers, sizes, cancellation, and no leaks."""

import http.client
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from a8_http import app as app_module
from a8_http.operations import Operations
from a8_http.principals import Principal

ERAS = ["2025-11-25", "2026-07-28"]
QUESTION = {"input": "Is it late? It came today."}
SECRET = "a secret detail of the store"


@pytest.mark.parametrize("era", ["2024-11-05", "2025-03-26", "2025-06-18", *ERAS])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_both_spellings_answer_every_version_without_a_redirect(
    server: Any, ticket_key: str, path: str, era: str
) -> None:
    answer = server.rpc(ticket_key, "tools/call", {"name": "judge", "arguments": QUESTION}, era, path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    assert answer.structured["abstention"]["kind"] == "unfamiliar_criterion"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_there_is_no_stream_to_open_and_no_session_to_end(
    server: Any, ticket_key: str, method: str, path: str
) -> None:
    response = server.rest(ticket_key, method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("era", ERAS)
def test_an_unknown_tool_is_a_protocol_error_that_names_the_tools(
    server: Any, ticket_key: str, era: str
) -> None:
    error = server.rpc(ticket_key, "tools/call", {"name": "forget", "arguments": {}}, era).message["error"]
    assert error["code"] == -32602
    assert error["message"] == "Unknown tool. The tools are judge, teach, retract."


def test_white_space_around_mcp_headers_is_no_part_of_them(server: Any, ticket_key: str) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "judge", "arguments": QUESTION, "_meta": meta}
    connection = http.client.HTTPConnection("127.0.0.1", server.settings.port)
    connection.request(
        "POST",
        "/mcp",
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}),
        {
            "authorization": f"Bearer {ticket_key}",
            "content-type": "application/json",
            "accept": "application/json",
            "mcp-name": " judge \t",
            "mcp-method": "tools/call  ",
            "mcp-protocol-version": "2026-07-28 ",
        },
    )
    response = connection.getresponse()
    assert response.status == 200
    assert "abstention" in json.loads(response.read())["result"]["structuredContent"]
    connection.close()


@pytest.mark.parametrize("headers", [{"mcp-name": "teach"}, {"mcp-method": "tools/list"}])
def test_headers_that_contradict_the_body_are_refused(
    server: Any, ticket_key: str, headers: dict[str, str]
) -> None:
    answer = server.rpc(ticket_key, "tools/call", {"name": "judge", "arguments": QUESTION}, headers=headers)
    assert answer.status == 400
    assert answer.message["error"]["code"] == -32020


def test_an_unknown_protocol_version_is_told_the_supported_ones(server: Any, ticket_key: str) -> None:
    answer = server.rpc(ticket_key, "tools/list", headers={"mcp-protocol-version": "2031-01-01"})
    assert answer.status == 400
    assert answer.message["error"]["code"] in (-32022, -32020)


@pytest.mark.parametrize("era", ERAS)
def test_a_body_over_the_limit_is_refused(server: Any, ticket_key: str, era: str) -> None:
    long = {"input": "a" * (server.settings.max_request_bytes + 1)}
    answer = server.rpc(ticket_key, "tools/call", {"name": "judge", "arguments": long}, era)
    assert answer.status == 413


def test_text_and_structured_content_are_the_same_object(server: Any, ticket_key: str) -> None:
    result = server.call(ticket_key, "judge", {"input": "What have I taught you about parcels?"}).result
    (item,) = result["content"]
    assert json.loads(item["text"]) == result["structuredContent"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", -32700),
        ('{"jsonrpc": "2.0"', -32700),
        ("[]", None),
        ("[1, 2]", None),
        ('{"id": {}}', None),
        ("7", None),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_in_our_words(
    server: Any, ticket_key: str, era: str, body: str, code: int | None
) -> None:
    headers = {
        "authorization": f"Bearer {ticket_key}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": era,
    }
    response = server.http.post(server.url + "/mcp", content=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == code or code is None
    assert error["message"] in (
        "Parse error",
        "Body must be a single JSON-RPC request or notification object",
    )


@pytest.mark.parametrize("name", ["judge", "teach", "retract"])
def test_text_that_is_no_unicode_is_refused(server: Any, name: str) -> None:
    key = server.key()
    for given in ("\ud800", float("nan"), ["\udfff"]):
        text = server.call(key, name, {"input": given}).error_text
        assert text.startswith("arguments must be JSON in Unicode")
    response = server.rest(key, "POST", f"/v1/{name}", {"input": "\ud800"})
    assert (response.status_code, response.json()["error"]["field"]) == (400, "arguments")


def failing(monkeypatch: pytest.MonkeyPatch, judge: Callable[..., Any]) -> None:
    """Put an operation that fails or waits in the place of judge."""

    class Broken(Operations):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.by_name = {**self.by_name, "judge": judge}

    monkeypatch.setattr(app_module, "Operations", Broken)


@pytest.mark.parametrize("era", ERAS)
def test_no_exception_text_reaches_the_wire(
    server_with: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    era: str,
) -> None:
    async def judge(principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError(SECRET)

    failing(monkeypatch, judge)
    server = server_with()
    key = server.key()
    answer = server.call(key, "judge", QUESTION, era)
    assert answer.error_text == "A8 could not answer this call. The failure is in the operator's log."
    response = server.rest(key, "POST", "/v1/judge", QUESTION)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "internal"
    assert SECRET not in json.dumps(answer.message) + response.text
    logged = "".join(capfd.readouterr())
    assert "RuntimeError" in logged
    assert SECRET not in logged
    assert key not in logged


@pytest.mark.parametrize("door", [*ERAS, "rest"])
def test_a_client_that_leaves_cancels_its_call(
    server_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    seen: list[str] = []

    async def judge(principal: Principal, arguments: Mapping[str, Any]) -> dict[str, Any]:
        seen.append("started")
        try:
            await anyio.sleep(20)
        except BaseException:
            seen.append("cancelled")
            raise
        return {}

    failing(monkeypatch, judge)
    server = server_with()
    key = server.key()
    server.http.timeout = httpx.Timeout(0.3)
    leave = (
        partial(server.rest, key, "POST", "/v1/judge", QUESTION)
        if door == "rest"
        else partial(server.call, key, "judge", QUESTION, door)
    )
    with pytest.raises(httpx.TimeoutException):
        leave()
    deadline = time.monotonic() + 5
    while seen != ["started", "cancelled"]:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
