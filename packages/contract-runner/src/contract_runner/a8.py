"""Holds a live a8-http server against contracts/a8, over Streamable HTTP in both protocol eras."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract_runner import cases
from contract_runner.answers import Outputs, answer_failure
from contract_runner.comparison import difference, short
from contract_runner.discovery import list_failures, schema_failures
from contract_runner.outcomes import CouldNotRun, Failure, Outcome
from contract_runner.stdio import ENVELOPE, LEGACY, MODERN

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN)
VERSION_OF = {"legacy": LEGACY, "modern": MODERN}
PERMISSIONS = frozenset({"models:infer", "models:train", "models:explain"})


@dataclass(frozen=True)
class Target:
    """The endpoint and its key, keys with fewer permissions by those, and whether writing is allowed."""

    url: str
    key: str
    teach: bool = False
    limited_keys: Mapping[frozenset[str], str] = field(default_factory=dict)
    seconds: float = 30.0
    # How long a taught example may take to reach the version that answers.
    fitted_seconds: float = 120.0


@dataclass(frozen=True)
class Reply:
    """An HTTP answer: its status, its headers and the JSON-RPC message in it, if there is one."""

    status: int
    headers: Mapping[str, str]
    message: dict[str, Any] | None
    text: str


class Client:
    """Sends JSON-RPC requests to the endpoint, each complete in itself."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = httpx.Client(timeout=target.seconds)
        self._next_id = 0

    def close(self) -> None:
        self._http.close()

    def send(
        self,
        method: str,
        params: Mapping[str, Any],
        version: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply | None:
        """The reply, or None when none comes in time. A `key` of "" sends none."""
        self._next_id += 1
        own = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
        if token := self._target.key if key is None else key:
            own["Authorization"] = f"Bearer {token}"
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": {**params}}
        if version >= MODERN:
            body["params"]["_meta"] = {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": version}
            own["Mcp-Method"] = method
            if method == "tools/call":
                own["Mcp-Name"] = params["name"]
        try:
            answer = self._http.post(self._target.url, json=body, headers={**own, **(headers or {})})
        except httpx.TimeoutException:
            return None
        except httpx.HTTPError as problem:
            raise CouldNotRun(f"{self._target.url} cannot be reached: {type(problem).__name__}") from None
        return Reply(answer.status_code, answer.headers, _message(answer), answer.text)

    def call(self, name: str, arguments: Mapping[str, Any], era: str, key: str | None = None) -> Reply | None:
        return self.send("tools/call", {"name": name, "arguments": arguments}, VERSION_OF[era], key=key)


def _message(answer: httpx.Response) -> dict[str, Any] | None:
    text = answer.text
    if "text/event-stream" in answer.headers.get("content-type", ""):
        data = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        text = data[-1] if data else ""
    try:
        message = json.loads(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "jsonrpc" in message else None


def names() -> list[str]:
    """Every case of the contract, as `--only` knows it."""
    listed = [f"discovery/{version}" for version in VERSIONS] + [f"transport/{name}" for name in TRANSPORT]
    return listed + [f"{case['file']}/{case['case']}" for case in cases.load("a8")]


def list_tools(target: Target) -> list[dict[str, Any]]:
    """The tools that the server publishes. Raises CouldNotRun when it does not answer."""
    client = Client(target)
    try:
        reply = client.send("tools/list", {}, MODERN)
    finally:
        client.close()
    if reply is None or reply.message is None or "result" not in reply.message:
        raise CouldNotRun(f"tools/list was not answered: {reply and (reply.status, reply.text[:200])}")
    return reply.message["result"]["tools"]


def run(target: Target, wanted: Callable[[str], bool], done: Callable[[Outcome], None]) -> list[Outcome]:
    """Every wanted case: the safe ones, and with `teach` those that need taught examples or write."""
    tools = list_tools(target)
    client = Client(target)
    outcomes: list[Outcome] = []

    def add(outcome: Outcome) -> None:
        outcomes.append(outcome)
        done(outcome)

    try:
        for version in VERSIONS:
            if wanted(f"discovery/{version}"):
                add(_discover(client, version))
        for name, check in TRANSPORT.items():
            if wanted(f"transport/{name}"):
                started = time.monotonic()
                failure = check(client)
                seconds = time.monotonic() - started
                add(Outcome(f"transport/{name}", "", (failure,) if failure else (), seconds=seconds))
        chosen = [case for case in cases.load("a8") if wanted(f"{case['file']}/{case['case']}")]
        if target.teach and any(case.get("taught") for case in chosen):
            _teach(client, target)
        for case in chosen:
            if "tools" in case:
                add(_defined(case, tools))
                continue
            for era in case.get("eras", ("legacy", "modern")):
                add(_play(case, era, client, target, Outputs(tools)))
    finally:
        client.close()
    return outcomes


# --- discovery and transport -------------------------------------------------------------------------


def _discover(client: Client, version: str) -> Outcome:
    started = time.monotonic()
    method, params = ("server/discover", {}) if version == MODERN else ("initialize", _hello(version))
    hello = client.send(method, params, version)
    listed = client.send("tools/list", {}, version)
    failure = _hello_failure(hello, version)
    if failure is None:
        message = listed.message if listed else None
        if message is None or not isinstance(message.get("result"), dict):
            failure = Failure("answered", f"tools/list was not answered: {short(message)}")
        else:
            found = list_failures(message["result"].get("tools"), cases.tools("a8"))
            failure = found[0] if found else None
    seconds = time.monotonic() - started
    return Outcome(f"discovery/{version}", "", (failure,) if failure else (), seconds=seconds)


def _hello(version: str) -> dict[str, Any]:
    client = {"name": "contract-run", "version": "1"}
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": client}


def _hello_failure(hello: Reply | None, version: str) -> Failure | None:
    result = (hello.message or {}).get("result") if hello else None
    if hello is None or not isinstance(result, dict):
        return Failure("answered", f"no answer to the opening request: {hello and hello.text[:200]}")
    if result.get("instructions") != cases.instructions("a8"):
        return Failure("instructions", f"the instructions are {short(result.get('instructions'))}")
    if version == MODERN:
        spoken, expected = result.get("supportedVersions"), [MODERN]
    else:
        spoken, expected = result.get("protocolVersion"), version
    found = difference(expected, spoken, "version") or difference(
        {"tools": "@ANY@"}, result.get("capabilities"), "capabilities"
    )
    return Failure("discovery", found) if found else None


def _status(reply: Reply | None, expected: int, header: str = "", part: str = "") -> Failure | None:
    if reply is None:
        return Failure("answered", "no answer in time")
    if reply.status != expected:
        return Failure("status", f"HTTP status {reply.status}, expected {expected}: {reply.text[:160]}")
    if header and part not in reply.headers.get(header, ""):
        return Failure("status", f"{header} is {reply.headers.get(header)!r}, expected {part!r} in it")
    return None


def _without_key(client: Client) -> Failure | None:
    return _status(client.send("tools/list", {}, MODERN, key=""), 401, "www-authenticate", "Bearer")


def _with_wrong_key(client: Client) -> Failure | None:
    wrong = "sk-contract-run-wrong"
    reply = client.send("tools/list", {}, MODERN, key=wrong)
    if reply and wrong in reply.text + str(dict(reply.headers)):
        return Failure("secrets", "the refusal echoes the key")
    return _status(reply, 401, "www-authenticate", "Bearer")


def _with_foreign_origin(client: Client) -> Failure | None:
    return _status(client.send("tools/list", {}, MODERN, headers={"Origin": "https://foreign.example"}), 403)


def _with_another_name(client: Client) -> Failure | None:
    params = {"name": "judge", "arguments": {"input": "x"}}
    reply = client.send("tools/call", params, MODERN, headers={"Mcp-Name": "teach"})
    return _status(reply, 400) or _code(reply, -32020)


def _with_unknown_version(client: Client) -> Failure | None:
    reply = client.send("tools/list", {}, "2099-01-01")
    return _status(reply, 400) or _code(reply, -32022)


def _with_unknown_method(client: Client) -> Failure | None:
    reply = client.send("nope/x", {}, MODERN)
    return _status(reply, 404) or _code(reply, -32601)


def _code(reply: Reply | None, expected: int) -> Failure | None:
    error = (reply.message or {}).get("error") if reply else None
    code = error.get("code") if isinstance(error, dict) else None
    return None if code == expected else Failure("error", f"error code {code}, expected {expected}")


TRANSPORT: dict[str, Callable[[Client], Failure | None]] = {
    "no key": _without_key,
    "a wrong key": _with_wrong_key,
    "a foreign origin": _with_foreign_origin,
    "a name that differs from the body": _with_another_name,
    "an unknown protocol version": _with_unknown_version,
    "an unknown method": _with_unknown_method,
}


# --- cases -------------------------------------------------------------------------------------------


def _defined(case: Mapping[str, Any], tools: list[dict[str, Any]]) -> Outcome:
    """A case about the published tools: a member of each named one is a value, or holds these members."""
    name = f"{case['file']}/{case['case']}"
    for tool_name in case["tools"]:
        tool = next((tool for tool in tools if tool.get("name") == tool_name), None)
        if tool is None:
            return Outcome(name, "", (Failure("discovery", f"there is no tool {tool_name}"),))
        if failures := schema_failures(tool):
            return Outcome(name, "", (failures[0],))
        path = f"{tool_name}.{case['at']}"
        if "is" in case:
            found = difference(case["is"], tool.get(case["at"]), path)
        else:
            found = _lacks(case["holds"], tool.get(case["at"]), path)
        if found:
            return Outcome(name, "", (Failure("discovery", found),))
    return Outcome(name, "")


def _lacks(expected: Mapping[str, Any], actual: Any, path: str) -> str:
    """The first member of `expected` that differs; members beyond those are the server's own."""
    if not isinstance(actual, dict):
        return f"{path} is {short(actual)}"
    for member, value in expected.items():
        if member not in actual:
            return f"{path} lacks {member!r}"
        if found := difference(value, actual[member], f"{path}.{member}"):
            return found
    return ""


def _play(case: Mapping[str, Any], era: str, client: Client, target: Target, outputs: Outputs) -> Outcome:
    name = f"{case['file']}/{case['case']}"
    if (case.get("writes") or case.get("taught")) and not target.teach:
        return Outcome(name, era, skipped="writes: run with --teach in an organization meant for it")
    key = None
    if "permissions" in case:
        key = target.limited_keys.get(frozenset(case["permissions"]))
        if key is None:
            return Outcome(name, era, skipped="needs a key with fewer permissions (--limited-key)")
    started = time.monotonic()
    failures: tuple[Failure, ...] = ()
    for step in case["steps"]:
        reply = client.call(step["call"]["name"], step["call"].get("arguments", {}), era, key)
        failure = _step_failure(reply, step, era, target, outputs, key)
        if failure:
            failures = (failure,)
            break
    return Outcome(name, era, failures, seconds=time.monotonic() - started)


def _step_failure(
    reply: Reply | None,
    step: Mapping[str, Any],
    era: str,
    target: Target,
    outputs: Outputs,
    key: str | None,
) -> Failure | None:
    expect = step["expect"]
    message = reply.message if reply else None
    secrets = [key or target.key]
    tool = step["call"]["name"]
    if reply is not None and reply.message is None:
        return Failure("status", f"HTTP status {reply.status} without a JSON-RPC message: {reply.text[:160]}")
    if "error" in expect:
        # Only the code is contract: the words of a protocol error are the transport's.
        failure = answer_failure(message, {"error": "@ANY@"}, seconds=target.seconds, secrets=secrets)
        return failure or _code(reply, expect["error"]["code"])
    if "tool_error" in expect:
        wanted = expect["tool_error"]
        text = wanted if isinstance(wanted, str) else "@ANY@"
        result = {"content": [{"type": "text", "text": text}], "isError": True}
        failure = answer_failure(
            message, {"result": result}, tool=tool, era=era, seconds=target.seconds, secrets=secrets
        )
        if failure or isinstance(wanted, str) or message is None:
            return failure
        written = message["result"]["content"][0]["text"]
        absent = [name for name in wanted.get("names", []) if name not in written]
        return Failure("error", f"the text does not name {absent[0]}: {short(written)}") if absent else None
    result = {"content": "@ANY@", "isError": False, "structuredContent": expect["result"]}
    return answer_failure(
        message,
        {"result": result},
        tool=tool,
        era=era,
        outputs=outputs,
        seconds=target.seconds,
        secrets=secrets,
        ordered=False,
    )


# --- teaching what the cases need --------------------------------------------------------------------


def _teach(client: Client, target: Target) -> None:
    """Teaches the contract's examples and waits until the version that answers has them.

    Raises CouldNotRun when an example is refused or the version does not come in time.
    """
    examples = cases.examples("a8")
    for example in examples:
        reply = client.call("teach", example, "modern")
        result = (reply.message or {}).get("result") if reply else None
        if not isinstance(result, dict) or result.get("isError"):
            raise CouldNotRun(f"an example of the contract could not be taught: {short(result)}")
    deadline = time.monotonic() + target.fitted_seconds
    last = examples[-1]
    asked = {name: last[name] for name in ("input", "format") if name in last}
    while time.monotonic() < deadline:
        reply = client.call("judge", {**asked, "model": "a8:0"}, "modern")
        result = (reply.message or {}).get("result") if reply else None
        content = result.get("structuredContent") if isinstance(result, dict) else None
        if isinstance(content, dict) and content.get("verdict") is not None:
            return
        time.sleep(0.5)
    raise CouldNotRun(f"no version with the taught examples within {target.fitted_seconds:g} s")
