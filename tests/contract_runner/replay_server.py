"""A stdio server that answers one case as its contract says: `python replay_server.py CASE`.

It starts in a tenth of a second, so that every mutant can wrap a server of its own.
"""

import http.client
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from contract_runner import cases

INFO = {"name": "judgevet-mcp", "version": "1.2.3"}
CAPABILITIES = {"tools": {"listChanged": False}}
META = {"io.modelcontextprotocol/serverInfo": INFO}


def main(name: str) -> int:
    case = next((case for case in cases.load("judgevet") if f"{case['file']}/{case['case']}" == name), {})
    signal.signal(signal.SIGINT, _exit)
    signal.signal(signal.SIGTERM, _exit)
    if audit := os.environ.get("JEV_API__AUDIT_PATH"):
        _write_audit(Path(audit), case.get("audit", []))
    steps = case.get("steps", [case] if case else [])
    expected = itertools.cycle([step["expect"] for step in steps if "expect" in step] or [{}])
    upstream = itertools.cycle(cases.expand(case.get("upstream", [])) or [None])
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "id" in message:
            print(json.dumps(answer(message, expected, upstream)), flush=True)
    return 0


def answer(
    message: dict[str, Any], expected: Iterator[dict[str, Any]], upstream: Iterator[dict[str, Any] | None]
) -> dict[str, Any]:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    params = message.get("params") or {}
    modern = "_meta" in params
    envelope: dict[str, Any] = {"resultType": "complete", "_meta": META} if modern else {}
    instructions = cases.instructions("judgevet")
    match message["method"]:
        case "initialize":
            version = params["protocolVersion"]
            opened = {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": INFO}
            return {**reply, "result": {**opened, "instructions": instructions}}
        case "server/discover":
            opened = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES}
            return {**reply, "result": {**opened, "instructions": instructions, **envelope}}
        case "tools/list":
            return {**reply, "result": {"tools": cases.tools("judgevet"), **envelope}}
        case "tools/call":
            request = next(upstream)
            if request is not None:
                # What was called decides what is sent, so that a mutated call is seen at the provider.
                body = json.loads(request["body"])
                body["state"] = params["arguments"]["state"]
                _post(body)
            expect = next(expected)
            if expect.get("result") == "@ANY@":
                text = {"type": "text", "text": "refused"}
                return {**reply, "result": {"content": [text], "isError": True, **envelope}}
            if "error" in expect:
                error = {"code": -32603, "message": "Internal error"}
                return {**reply, "error": error if expect["error"] == "@ANY@" else expect["error"]}
            return {**reply, "result": {**expect["result"], **envelope}}
        case "ping":
            return {**reply, "result": {}}
        case unknown:
            return {**reply, "error": {"code": -32601, "message": "Method not found", "data": unknown}}


def _post(body: dict[str, Any]) -> None:
    url = urlsplit(os.environ.get("JEV_API__BASE_URL") or os.environ["TYPESAFE_BASE_URL"])
    key = os.environ.get("JEV_API__KEY") or os.environ["TYPESAFE_API_KEY"]
    connection = http.client.HTTPConnection(url.hostname or "", url.port)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/systemone", json.dumps(body), headers)
    connection.getresponse().read()


def _write_audit(path: Path, records: list[dict[str, Any]]) -> None:
    written = [{**record, "timestamp": "2026-11-30T20:23:23.735078+00:00"} for record in records]
    path.touch(mode=0o600)
    path.write_text("".join(json.dumps(record) + "\n" for record in written), encoding="utf-8")


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
