"""The MCP server: its tools over a borrowed provider, in both protocol eras."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any, TypeVar, cast

from judgment_engine.answers import Judgment
from judgment_engine.criteria import State
from judgment_engine.evidence import judge_with_evidence, judge_with_evidence_async
from judgment_engine.providers.base import (
    AsyncSystemOnePort,
    ProviderUnavailableError,
    Questions,
    SystemOnePort,
)
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from judgevet_stdio.calls import UnknownTool, call_tool
from judgevet_stdio.tools import TOOLS, server_instructions
from judgevet_stdio.worker import Worker, ordinary, temporary_worker

SERVER_NAME = "judgevet-mcp"
SERVER_VERSION = version("judgevet-stdio")
DEFAULT_MODEL = "jev-latest"

logger = logging.getLogger(__name__)

T = TypeVar("T")


def require_port(port: object) -> SystemOnePort | AsyncSystemOnePort:
    """The port itself. Raises ProviderUnavailableError when it has no callable `system_one`."""
    if not callable(getattr(port, "system_one", None)):
        raise ProviderUnavailableError("Provider must expose callable system_one")
    return port  # pyright: ignore[reportReturnType] - checked above; the protocols are structural


class PortCalls:
    """Calls to one port: a synchronous one on a worker thread, an asynchronous one where it is awaited.

    Outside a session a synchronous call gets a temporary worker.
    """

    def __init__(
        self, port: SystemOnePort | AsyncSystemOnePort, model: str, worker: Worker | None = None
    ) -> None:
        self._port = port
        self._model = model
        self._worker = worker
        self._sessions = 0
        self._asynchronous = inspect.iscoroutinefunction(port.system_one)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Keeps one worker for the time of the block; sessions that overlap share it."""
        if self._asynchronous or (self._worker is not None and self._sessions == 0):
            yield  # nothing to keep, or the worker belongs to whoever supplied it
            return
        if self._sessions == 0:
            self._worker = Worker()
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if self._sessions == 0 and self._worker is not None:
                self._worker.stop()
                self._worker = None

    async def judge(self, state: State, questions: Questions) -> Judgment:
        """The provider's judgment of the state. Raises TypeError when it returns anything else."""
        port, model = self._port, self._model
        if self._asynchronous:
            with _only_ordinary_errors():
                result = await port.system_one(state=state, questions=questions, model=model)  # pyright: ignore[reportGeneralTypeIssues] - asynchronous, as found above
        else:
            result = await self._on_worker(
                lambda: port.system_one(state=state, questions=questions, model=model)
            )
        return _require_judgment(result)

    async def judge_with_evidence(self, evidence: object, state: State, questions: Questions) -> Judgment:
        """Like `judge`, with an image-evidence manifest as the caller sent it."""
        port, model = self._port, self._model
        if self._asynchronous:
            with _only_ordinary_errors():
                result = await judge_with_evidence_async(
                    cast(AsyncSystemOnePort, port), state, questions, model, evidence
                )
        else:
            result = await self._on_worker(
                lambda: judge_with_evidence(cast(SystemOnePort, port), state, questions, model, evidence)
            )
        return _require_judgment(result)

    async def _on_worker(self, call: Callable[[], T]) -> T:
        if self._worker is not None:
            return await self._worker.run(call)
        async with temporary_worker() as worker:
            return await worker.run(call)


@contextmanager
def _only_ordinary_errors() -> Iterator[None]:
    """Passes on exceptions and the cancellation of this call; anything else becomes a RuntimeError."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise ordinary(error) from error


def _require_judgment(result: object) -> Judgment:
    if isinstance(result, Coroutine):
        result.close()
    if not isinstance(result, Judgment):
        raise TypeError(f"Expected Judgment, got {type(result).__name__}")
    return result


def create_mcp_server(
    port: SystemOnePort | AsyncSystemOnePort,
    *,
    model: str = DEFAULT_MODEL,
    instructions: str | None = None,
    instructions_addendum: str | None = None,
) -> Server[Any]:
    """A server over a borrowed port, which it never builds or closes.

    Raises ProviderUnavailableError for an object that is no port, TypeError for texts that are no strings.
    """
    text = server_instructions(instructions_addendum, instructions=instructions)
    return build_server(PortCalls(require_port(port), model), text)


def build_server(calls: PortCalls, instructions: str) -> Server[Any]:
    """The server over calls that are already set up, with its final instructions."""
    tools = [Tool.model_validate(tool) for tool in TOOLS]

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[None]:
        async with calls.session():
            yield

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def on_call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        try:
            return await call_tool(
                params.name, params.arguments or {}, calls.judge, calls.judge_with_evidence
            )
        except UnknownTool as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        except Exception as error:
            # Its text may hold what was judged, so neither the wire nor the log gets it.
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("call failed: %s: %s\n%s", params.name, type(error).__name__, frames)
            raise MCPError(INTERNAL_ERROR, "Internal error") from None

    server: Server[Any] = Server(
        SERVER_NAME,
        version=SERVER_VERSION,
        instructions=instructions,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=on_call_tool,
    )
    server.middleware.clear()  # only OpenTelemetry's, which nothing here exports
    return server


__all__ = [
    "DEFAULT_MODEL",
    "SERVER_NAME",
    "SERVER_VERSION",
    "PortCalls",
    "build_server",
    "create_mcp_server",
    "require_port",
]
