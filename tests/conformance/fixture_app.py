"""The tools that the official suite calls, on our own transport: host check, authentication and endpoint.

`python fixture_app.py PORT DATABASE` serves it on loopback. The suite cannot send a key, so under
/keyed/ one is added before the host check, and passes through the same authentication as any other.
"""

import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as t
import uvicorn
from a8_http import metrics
from a8_http.authentication import Authentication
from a8_http.hosts import HostAndOriginMiddleware
from a8_http.mcp_endpoint import McpEndpoint
from a8_http.organizations import create_organization
from a8_http.principals import create_key
from a8_http.store import Store
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

Context = ServerRequestContext[Any, Any]

# A picture of one pixel and a sound of one sample.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STATE_KEY = secrets.token_bytes(32)
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def text(content: str) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(type="text", text=content)])


def embedded(uri: str, mime_type: str, content: str) -> t.EmbeddedResource:
    resource = t.TextResourceContents(uri=uri, mime_type=mime_type, text=content)
    return t.EmbeddedResource(type="resource", resource=resource)


def image() -> t.ImageContent:
    return t.ImageContent(type="image", data=PNG, mime_type="image/png")


# --- tools that ask the caller for something first ---------------------------------------------------


def form(message: str, member: str, kind: str = "string") -> t.ElicitRequest:
    schema = {"type": "object", "properties": {member: {"type": kind}}, "required": [member]}
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=t.TextContent(type="text", text=prompt))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[message], max_tokens=100))


def sealed(value: str) -> str:
    """The state with a signature, so that a changed one is seen."""
    return f"{value}.{hmac.new(STATE_KEY, value.encode(), hashlib.sha256).hexdigest()}"


def opened(state: str | None) -> str:
    """The value of a sealed state. Raises MCPError for one that was changed."""
    value, _, _ = (state or "").rpartition(".")
    if not hmac.compare_digest(sealed(value), state or ""):
        raise MCPError(t.INVALID_PARAMS, "requestState is not what this server sent")
    return value


def ask(requests: Mapping[str, Any], state: str | None = None) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=dict(requests), request_state=state)


NAME = {"user_name": form("What is your name?", "name")}
GREETING = {"greeting": sampling("Say hello")}
ROOTS = {"client_roots": t.ListRootsRequest()}
CONFIRM = {"confirm": form("Do you confirm?", "ok", "boolean")}


def answered(params: t.CallToolRequestParams, names: Mapping[str, Any]) -> bool:
    return params.input_responses is not None and all(name in params.input_responses for name in names)


def ask_once(names: Mapping[str, Any], done: str) -> Callable[..., t.CallToolResult | t.InputRequiredResult]:
    def tool(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
        return text(done) if answered(params, names) else ask(names)

    return tool


def name(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    response = (params.input_responses or {}).get("user_name")
    content = getattr(response, "content", None)
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        return ask(NAME)
    return text(f"Hello, {content['name']}!")


def with_state(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    if not answered(params, CONFIRM):
        return ask(CONFIRM, sealed("confirm"))
    return text(f"state-ok: {opened(params.request_state)}")


def several(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    wanted = {**NAME, **GREETING, **ROOTS}
    return text("All inputs received") if answered(params, wanted) else ask(wanted, sealed("several"))


def rounds(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    first = {"step1": form("Step 1: what is your name?", "name")}
    second = {"step2": form("Step 2: what is your favourite colour?", "color")}
    if params.request_state is None:
        return ask(first, sealed("1"))
    if opened(params.request_state) == "1":
        return ask(second, sealed("2"))
    return text("Both rounds complete")


def by_capability(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    capabilities = (ctx.meta or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
    if params.input_responses:
        return text("Input received")
    wanted: dict[str, Any] = {}
    if "elicitation" in capabilities:
        wanted |= NAME
    if "sampling" in capabilities:
        wanted |= GREETING
    return ask(wanted) if wanted else text("Nothing this client could be asked")


def missing_capability(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
    capabilities = (ctx.meta or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
    if "sampling" not in capabilities:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(-32021, "Missing required client capability", needed)
    return text("The client can sample")


async def with_progress(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
    return text("Progress reported")


def failing(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
    said = text("This tool intentionally returns an error for testing")
    return t.CallToolResult(content=said.content, is_error=True)


HEADER_TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
    "required": ["region"],
}
JSON_SCHEMA_TOOL: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

TOOLS: dict[str, tuple[Callable[..., Any], str]] = {
    "test_simple_text": (
        lambda ctx, params: text("This is a simple text response for testing."),
        "Answers with a text.",
    ),
    "test_image_content": (
        lambda ctx, params: t.CallToolResult(content=[image()]),
        "Answers with an image.",
    ),
    "test_audio_content": (
        lambda ctx, params: t.CallToolResult(
            content=[t.AudioContent(type="audio", data=WAV, mime_type="audio/wav")]
        ),
        "Answers with a sound.",
    ),
    "test_embedded_resource": (
        lambda ctx, params: t.CallToolResult(
            content=[
                embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
            ]
        ),
        "Answers with an embedded resource.",
    ),
    "test_multiple_content_types": (
        lambda ctx, params: t.CallToolResult(
            content=[
                t.TextContent(type="text", text="Multiple content types test:"),
                image(),
                embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
            ]
        ),
        "Answers with a text, an image and a resource.",
    ),
    "test_error_handling": (failing, "Always fails."),
    "test_tool_with_progress": (with_progress, "Reports progress."),
    "json_schema_2020_12_tool": (
        lambda ctx, params: text(json.dumps(params.arguments)),
        "Has a rich schema.",
    ),
    "test_logging_tool": (lambda ctx, params: text("Nothing is logged to clients"), "Logs to stderr only."),
    "test_streaming_elicitation": (name, "Asks within its result, never on a stream."),
    "test_x_mcp_header": (lambda ctx, params: text("Headers match"), "Has a parameter in a header."),
    "test_missing_capability": (missing_capability, "Needs a client that can sample."),
    "test_input_required_result_elicitation": (name, "Asks for a name."),
    "test_input_required_result_sampling": (ask_once(GREETING, "Sampled"), "Asks for a completion."),
    "test_input_required_result_list_roots": (ask_once(ROOTS, "Roots received"), "Asks for roots."),
    "test_input_required_result_request_state": (with_state, "Asks, and keeps a state."),
    "test_input_required_result_multiple_inputs": (several, "Asks for three things."),
    "test_input_required_result_multi_round": (rounds, "Asks twice."),
    "test_input_required_result_tampered_state": (with_state, "Sees a changed state."),
    "test_input_required_result_capabilities": (by_capability, "Asks for what the client can give."),
}

SCHEMAS = {"json_schema_2020_12_tool": JSON_SCHEMA_TOOL, "test_x_mcp_header": HEADER_TOOL}

RESOURCES = {
    "test://static-text": ("Static text", "text/plain"),
    "test://static-binary": ("Static binary", "image/png"),
}


def prompt(*contents: Any) -> t.GetPromptResult:
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=content) for content in contents])


def words(content: str) -> t.TextContent:
    return t.TextContent(type="text", text=content)


PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


def fixture_server() -> Server[Any]:
    """A server with the suite's tools, resources and prompts."""

    async def list_tools(ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        return t.ListToolsResult(
            tools=[
                t.Tool(
                    name=tool,
                    description=description,
                    input_schema=SCHEMAS.get(tool, EMPTY),
                )
                for tool, (_, description) in TOOLS.items()
            ]
        )

    async def call_tool(
        ctx: Context, params: t.CallToolRequestParams
    ) -> t.CallToolResult | t.InputRequiredResult:
        if params.name not in TOOLS:
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {params.name}")
        result = TOOLS[params.name][0](ctx, params)
        return result if isinstance(result, t.CallToolResult | t.InputRequiredResult) else await result

    async def list_resources(ctx: Context, params: Any) -> t.ListResourcesResult:
        return t.ListResourcesResult(
            resources=[
                t.Resource(uri=uri, name=name, mime_type=kind) for uri, (name, kind) in RESOURCES.items()
            ]
        )

    async def list_templates(ctx: Context, params: Any) -> t.ListResourceTemplatesResult:
        template = t.ResourceTemplate(uri_template="test://template/{id}/data", name="By id")
        return t.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(ctx: Context, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        uri = str(params.uri)
        head, _, rest = uri.partition("test://template/")
        content: t.TextResourceContents | t.BlobResourceContents
        if uri == "test://static-text":
            content = t.TextResourceContents(
                uri=uri, mime_type="text/plain", text="This is the content of the static text resource."
            )
        elif uri == "test://static-binary":
            content = t.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
        elif not head and rest.endswith("/data"):
            number = rest.removesuffix("/data")
            data = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
            content = t.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
        else:
            raise MCPError(t.INVALID_PARAMS, "Resource not found", {"uri": uri})
        return t.ReadResourceResult(contents=[content])

    async def list_prompts(ctx: Context, params: Any) -> t.ListPromptsResult:
        return t.ListPromptsResult(
            prompts=[
                t.Prompt(
                    name=name,
                    description=name,
                    arguments=[t.PromptArgument(name=argument, required=True) for argument in arguments],
                )
                for name, arguments in PROMPTS.items()
            ]
        )

    async def get_prompt(
        ctx: Context, params: t.GetPromptRequestParams
    ) -> t.GetPromptResult | t.InputRequiredResult:
        given = params.arguments or {}
        match params.name:
            case "test_simple_prompt":
                return prompt(words("This is a simple prompt for testing."))
            case "test_prompt_with_arguments":
                said = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
                return prompt(words(said))
            case "test_prompt_with_embedded_resource":
                uri = str(given.get("resourceUri"))
                resource = embedded(uri, "text/plain", "Embedded resource content for testing.")
                return prompt(resource, words("Please process the embedded resource above."))
            case "test_prompt_with_image":
                return prompt(image(), words("Please analyze the image above."))
            case "test_input_required_result_prompt":
                if params.input_responses:
                    return prompt(words("Thank you for the context."))
                return ask({"user_context": form("What is the context?", "context")})
            case _:
                raise MCPError(t.INVALID_PARAMS, f"Unknown prompt: {params.name}")

    async def complete(ctx: Context, params: t.CompleteRequestParams) -> t.CompleteResult:
        return t.CompleteResult(completion=t.Completion(values=[], total=0, has_more=False))

    cached = CacheHint(ttl_ms=60_000, scope="public")
    cacheable = ("tools/list", "server/discover", "resources/list", "resources/templates/list")
    return Server(
        "conformance-fixture",
        version="1.0.0",
        instructions="Fixtures of the official conformance suite.",
        cache_hints=dict.fromkeys((*cacheable, "resources/read", "prompts/list"), cached),  # pyright: ignore[reportArgumentType] - literal keys
        get_tool_input_schema=lambda tool: SCHEMAS.get(tool, EMPTY) if tool in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )


class WithKey:
    """Serves the app at /keyed/ as well, with a key added to every request."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.header = (b"authorization", f"Bearer {key}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/keyed/"):
            path = scope["path"].removeprefix("/keyed")
            headers = [*scope["headers"], self.header]
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self.app(scope, receive, send)


def create_app(database: str) -> ASGIApp:
    """Our stack over the fixture server, with one key in a database of its own."""
    store = Store(database)
    store.migrate()
    key = create_key(store, create_organization(store, "conformance"), "conformance", ("models:infer",))
    authentication = Authentication(store, 60.0)
    manager = StreamableHTTPSessionManager(app=fixture_server(), json_response=True, stateless=True)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", McpEndpoint(manager, authentication.principal))], lifespan=lifespan)
    local = ["127.0.0.1:*", "localhost:*"]
    origins = [f"http://{host}" for host in local]
    checked = HostAndOriginMiddleware(app, hosts=local, origins=origins, metrics=metrics.Metrics())
    return WithKey(checked, key.secret)


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
