"""The FastAPI application: the MCP endpoint, the REST interface, health and metrics."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import anyio
import structlog
import uvicorn
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from a8_http import __version__, metrics, openapi_page, rest
from a8_http.authentication import Authentication
from a8_http.calls import Calls
from a8_http.errors import Refused
from a8_http.hosts import HostAndOriginMiddleware
from a8_http.limits import RateLimits
from a8_http.logs import configure_logs
from a8_http.mcp_endpoint import McpEndpoint, mcp_server
from a8_http.operations import Operations
from a8_http.principals import Principal
from a8_http.settings import Settings, misspelt

log = structlog.get_logger("a8_http.app")

# A request that is not whole after so many seconds loses its connection: half-sent ones hold sockets.
ARRIVAL_SECONDS = 30.0
# After the calls in flight had their time: to finish a fit that runs and to close the database.
CLOSING_SECONDS = 2.0
SWITCH_SECONDS = 0.0005

DESCRIPTION = "Judge, teach and retract over REST. The same three tools are served over MCP at /mcp."


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application for one database; each call makes an independent one."""
    settings = settings or Settings()
    counts = metrics.Metrics()
    operations = Operations(settings, counts)
    calls = Calls(operations.by_name, counts)
    authentication = Authentication(operations.store, settings.key_cache_seconds)
    rates = RateLimits(settings.key_rates, settings.organization_rates)

    async def admit(headers: Headers) -> Principal:
        """Credentials, then rates; raises Refused."""
        try:
            principal = await authentication.principal(headers)
        except Refused:
            counts.refusals.labels("credentials").inc()
            raise
        wait = rates.admit(principal.key_id, principal.organization_id)
        if wait is not None:
            counts.refusals.labels("rate").inc()
            raise Refused(
                "rate_limited",
                f"This key or its organization calls too often: try again in {wait} seconds.",
                headers={"Retry-After": str(wait)},
            )
        return principal

    def call_tool(name: str, principal: Principal, arguments: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        return calls.run("mcp", name, principal, arguments)

    manager = StreamableHTTPSessionManager(
        app=mcp_server(call_tool),
        json_response=True,
        stateless=True,
        max_request_body_size=settings.max_request_bytes,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with operations.running(), manager.run():
            yield

    app = FastAPI(
        title="A8",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        max_body_size=settings.max_request_bytes,
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        exception_handlers={HTTPException: rest.http_error, Exception: rest.http_error},
    )
    app.add_middleware(
        HostAndOriginMiddleware,
        hosts=settings.allowed_hosts,
        origins=settings.allowed_origins,
        metrics=counts,
    )

    # Both spellings, and no redirect: some hosts drop the Authorization header when they follow one.
    endpoint = McpEndpoint(manager, admit)
    app.router.routes += [Route("/mcp", endpoint), Route("/mcp/", endpoint)]
    app.include_router(rest.router(calls, admit))

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        """The process runs."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        """The database answers and the encoder is loaded."""
        ready = await anyio.to_thread.run_sync(operations.ready)
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The REST interface as a page."""
        headers = {"Content-Security-Policy": openapi_page.SECURITY_POLICY}
        return HTMLResponse(openapi_page.page(app.openapi()), headers=headers)

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page(request: Request) -> Response:
        return Response(counts.page(), media_type=metrics.CONTENT_TYPE)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            document["components"] = {
                "schemas": rest.SCHEMAS,
                "securitySchemes": {
                    "key": {"type": "http", "scheme": "bearer", "description": "An API key."}
                },
            }
            document["security"] = [{"key": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    return app


class Connection(HttpToolsProtocol):
    """A connection that is closed when a request takes longer than ARRIVAL_SECONDS to arrive."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The parts of a request move its deadline no further.
        if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            self._wait()
        else:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self._close)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        log.info("request did not arrive", seconds=ARRIVAL_SECONDS)
        self.transport.close()


class Server(uvicorn.Server):
    """A server that is gone within its deadline after a signal, whatever its threads are doing."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so only then."""
        try:
            await super().startup(sockets)
        except SystemExit:
            if not self.lifespan.should_exit:
                log.error(
                    "cannot listen",
                    rule="A8_HOST must be an address of this machine, and A8_PORT a free port of it",
                    host=self.config.host,
                    port=self.config.port,
                )
            raise
        log.info("ready", mcp="/mcp", rest="/v1")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; uvicorn calls it for SIGINT and SIGTERM."""
        seconds = (self.config.timeout_graceful_shutdown or 0) + CLOSING_SECONDS
        timer = threading.Timer(seconds, _leave, [128 + sig])
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)


def _leave(code: int) -> None:
    # A thread cannot be stopped from outside, and what was acknowledged is on disk.
    log.warning("stopped with calls still at work")
    os._exit(code)


def server(settings: Settings) -> Server:
    """The server of one database, not running yet."""
    config = uvicorn.Config(
        create_app(settings),
        http=Connection,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.graceful_seconds,
        # Behind a proxy the client's address is of no use here, and trusting its headers is a risk.
        proxy_headers=False,
    )
    return Server(config)


def serve(settings: Settings) -> None:
    """Serve until Ctrl-C (exit 130) or SIGTERM; calls in flight have `graceful_seconds` to finish."""
    configure_logs(settings.log_level)
    # A fit gives the interpreter away hundreds of times: at Python's 5 ms each, busy calls would starve it.
    sys.setswitchinterval(SWITCH_SECONDS)
    for wrong, right in misspelt(os.environ):
        log.warning("unknown setting", name=wrong, meant=right)
    log.info(
        "starting",
        version=__version__,
        url=f"http://{settings.host}:{settings.port}",
        hosts=settings.allowed_hosts,
    )
    running = server(settings)
    try:
        running.run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if not running.started:
        raise SystemExit(1)
