"""The MCP endpoint: three tools over Streamable HTTP, stateless, answered as JSON, in both protocol eras."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from a8_http import __version__, tools
from a8_http.errors import Refused
from a8_http.principals import Principal

Admit = Callable[[Headers], Awaitable[Principal]]
Call = Callable[[str, Principal, Mapping[str, Any]], Awaitable[dict[str, Any]]]

PRINCIPAL = "a8.principal"

# The tool list is the same for every caller and changes only with a release.
_ONE_HOUR = CacheHint(ttl_ms=3_600_000, scope="public")

# A call that is over by then needs no watch on its client; seconds.
_WATCH_AFTER = 0.02


def mcp_server(call: Call) -> Server[Any]:
    """The low-level server: it puts the tool literals on the wire unchanged and runs `call` for each tool."""
    listing = types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in tools.TOOLS])

    async def list_tools(
        ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return listing

    async def call_tool(
        ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in tools.INPUT_SCHEMAS:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"Unknown tool. The tools are {', '.join(tools.INPUT_SCHEMAS)}.",
            )
        request = ctx.request
        assert request is not None  # over HTTP there always is one
        try:
            result = await until_disconnect(
                request, call(params.name, request.scope[PRINCIPAL], params.arguments or {})
            )
        except Refused as refusal:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=refusal.message)], is_error=True
            )
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(result, ensure_ascii=False))],
            structured_content=result,
        )

    server: Server[Any] = Server(
        tools.SERVER_NAME,
        version=__version__,
        instructions=tools.INSTRUCTIONS,
        cache_hints={"tools/list": _ONE_HOUR, "server/discover": _ONE_HOUR},
        get_tool_input_schema=tools.INPUT_SCHEMAS.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    # The default OpenTelemetry span would carry the exception's text, and costs a tenth of a call.
    server.middleware.clear()
    return server


async def until_disconnect(request: Request, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Run `work`; cancel it when the client closes the request, which the SDK's JSON mode does not do."""
    watcher: asyncio.Task[None] | None = None

    async def watch(scope: anyio.CancelScope) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    def start_watching(scope: anyio.CancelScope) -> None:
        nonlocal watcher
        watcher = asyncio.get_running_loop().create_task(watch(scope))

    with anyio.CancelScope() as scope:
        later = asyncio.get_running_loop().call_later(_WATCH_AFTER, start_watching, scope)
        try:
            return await work
        finally:
            later.cancel()
            if watcher is not None:
                watcher.cancel()
    raise Refused("cancelled", "The client closed the request before it was answered.")


class McpEndpoint:
    """ASGI application for /mcp: admits the caller, then hands the request to the SDK's transport."""

    def __init__(self, manager: StreamableHTTPSessionManager, admit: Admit) -> None:
        self._manager = manager
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # No session, so no stream to open or to end.
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
            return
        try:
            scope[PRINCIPAL] = await self._admit(Headers(scope=scope))
        except Refused as refusal:
            response = JSONResponse(refusal.body(), refusal.status, refusal.headers)
            await response(scope, receive, send)
            return
        # httptools leaves white space at a value's end, which is no part of it (RFC 9110, section 5.5), and
        # the transport compares these headers with the body.
        scope["headers"] = [
            (name, value.strip(b" \t") if name.startswith(b"mcp-") else value)
            for name, value in scope["headers"]
        ]
        await self._manager.handle_request(scope, receive, without_parser_texts(send))


# What the transport says of a body it cannot read goes on with the parser's own text.
_PARSER_TEXTS = {
    "Parse error: ": "Parse error",
    "Validation error: ": "Body must be a single JSON-RPC request or notification object",
}


def without_parser_texts(send: Send) -> Send:
    """Pass everything on, but cut a parser's text out of the message of a 400."""
    start: Message | None = None

    async def clean(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and message["status"] == 400:
            start = message
            return
        if start is None:
            await send(message)
            return
        body: bytes = message.get("body", b"")
        for prefix, plain in _PARSER_TEXTS.items():
            if b'"message":"' + prefix.encode() in body:
                error = json.loads(body)
                error["error"]["message"] = plain
                body = json.dumps(error).encode()
        headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        first, start = {**start, "headers": [*headers, length]}, None
        await send(first)
        await send({**message, "body": body})

    return clean
