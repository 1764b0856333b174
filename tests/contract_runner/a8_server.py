"""A small A8 server for the runner's own tests: it answers the safe cases as pinned, or breaks one thing."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from contract_runner import cases

KEY = "sk-fixture-key"
INFO = {"name": "A8", "version": "1.2.3"}
META = {"io.modelcontextprotocol/serverInfo": INFO}
MODERN = "2026-07-28"


@dataclass
class Reply:
    """An HTTP answer on its way out, for a mutation to change."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]
    method: str = ""


Mutation = Callable[[Reply], None]


def answer(headers: dict[str, str], message: dict[str, Any]) -> Reply:
    version = headers.get("mcp-protocol-version", "2025-03-26")
    method, params = message.get("method", ""), message.get("params", {})
    if headers.get("authorization") != f"Bearer {KEY}":
        return Reply(401, {"error": {"message": "no"}}, {"WWW-Authenticate": 'Bearer realm="A8"'})
    if "origin" in headers:
        return Reply(403, {"error": {"message": "origin"}}, {})
    modern = version >= MODERN
    envelope: dict[str, Any] = {"resultType": "complete", "_meta": META} if modern else {}

    def result(value: dict[str, Any]) -> Reply:
        return Reply(
            200, {"jsonrpc": "2.0", "id": message["id"], "result": {**value, **envelope}}, {}, method
        )

    def error(code: int, status: int = 200) -> Reply:
        said = {"code": code, "message": "refused"}
        return Reply(status, {"jsonrpc": "2.0", "id": message["id"], "error": said}, {}, method)

    if version > MODERN:
        return error(-32022, 400)
    if modern and headers.get("mcp-name", params.get("name")) != params.get("name"):
        return error(-32020, 400)
    opening = {"capabilities": {"tools": {}}, "instructions": cases.instructions("a8")}
    match method:
        case "initialize":
            return result({**opening, "protocolVersion": params["protocolVersion"], "serverInfo": INFO})
        case "server/discover":
            return result({**opening, "supportedVersions": [MODERN]})
        case "tools/list":
            return result({"tools": cases.tools("a8")})
        case "tools/call":
            return call(params, result, error)
        case _:
            return error(-32601, 404)


def call(
    params: dict[str, Any], result: Callable[[dict[str, Any]], Reply], error: Callable[[int], Reply]
) -> Reply:
    if params["name"] == "judge" and params["arguments"].get("input") == "Is it open?":
        verdict = {"verdict": True, "model": "a8-1-1:90@20260715t140322z", "min_accuracy": 90}
        text = {"type": "text", "text": json.dumps(verdict)}
        return result({"content": [text], "isError": False, "structuredContent": verdict})
    for case in cases.load("a8"):
        for step in case.get("steps", []):
            asked = step["call"]
            if asked["name"] != params["name"] or asked.get("arguments") != params["arguments"]:
                continue
            expect = step["expect"]
            if "error" in expect:
                return error(expect["error"]["code"])
            refusal = expect.get("tool_error", "")
            text = refusal if isinstance(refusal, str) else " ".join(refusal["names"])
            return result({"content": [{"type": "text", "text": text}], "isError": True})
    return error(-32602)


@contextmanager
def serving(mutation: Mutation | None = None) -> Iterator[str]:
    """Serves on a loopback port until the block ends; gives the endpoint's URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(headers, json.loads(body))
            if mutation:
                mutation(reply)
            content = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, client_address: None  # clients that gave up are no error here
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()


def late(reply: Reply) -> None:
    if reply.method == "tools/call":
        time.sleep(4.5)
