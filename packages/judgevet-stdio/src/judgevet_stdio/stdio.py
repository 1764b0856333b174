"""Serving over stdin and stdout: every admitted request is answered before the session ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any, Self, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.abc import AsyncResource
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

# Hosts cut a tool call at 60 s; a call that took longer has nobody left to answer.
DRAIN_SECONDS = 45.0
_CHUNK = 1 << 20

logger = logging.getLogger(__name__)


class Stopping:
    """What ends a session before stdin does: the first Ctrl-C or SIGTERM; a second one ends the process."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._callbacks: list[Callable[[], None]] = []

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Calls back when the first signal comes, at once when it has come already."""
        self._callbacks.append(callback)
        if self.exit_code is not None:
            callback()

    def received(self, number: int, _: FrameType | None = None) -> None:
        """Takes a signal: 130 for SIGINT, 143 for SIGTERM."""
        code = 128 + number
        if self.exit_code is not None:
            os._exit(code)
        self.exit_code = code
        for callback in self._callbacks:
            callback()


class _Session:
    """The requests of one session that are still to be answered."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._unanswered: Counter[Any] = Counter()
        self.signalled = False
        self._changed = anyio.Event()

    def admitted(self, message: object) -> None:
        if isinstance(message, JSONRPCRequest):
            self._unanswered[message.id] += 1
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            request_id = (message.params or {}).get("requestId")
            if isinstance(request_id, int | str):  # a cancelled request is never answered
                self._settle(request_id)

    def answered(self, message: object) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._settle(message.id)

    def _settle(self, request_id: int | str) -> None:
        if self._unanswered[request_id] > 1:
            self._unanswered[request_id] -= 1
        else:
            del self._unanswered[request_id]
        self._changed.set()

    async def drain(self) -> None:
        """Waits until every admitted request is answered.

        Gives up when none has been for the drain's seconds, and after a signal when they are over in all.
        """
        with anyio.move_on_after(self._drain_seconds) as patience:
            while self._unanswered:
                self._changed = anyio.Event()
                await self._changed.wait()
                if not self.signalled:
                    patience.deadline = anyio.current_time() + self._drain_seconds
        if patience.cancelled_caught:
            logger.warning("%d calls were still running at the end of the session", self._unanswered.total())


class _Requests(AsyncResource):
    """The read side: notes what is admitted, and ends only when everything admitted is answered."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], session: _Session) -> None:
        self._inner = inner
        self._session = session

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            item = await self._inner.receive()
        except anyio.EndOfStream:
            await self._session.drain()
            raise
        if isinstance(item, SessionMessage):
            self._session.admitted(item.message)
        else:
            logger.warning("a line on stdin was dropped: it is not a JSON-RPC message")
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Answers(AsyncResource):
    """The write side: notes what is answered."""

    def __init__(self, inner: WriteStream[SessionMessage], session: _Session) -> None:
        self._inner = inner
        self._session = session

    async def send(self, item: SessionMessage, /) -> None:
        await self._inner.send(item)
        self._session.answered(item.message)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _StdinLines:
    """Lines of a descriptor, read by a daemon thread.

    A read that blocks cannot be cancelled; on a thread nobody waits for, it does not keep the session
    or the process from ending while the host leaves stdin open.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._token = anyio.lowlevel.current_token()
        self._send, self._receive = anyio.create_memory_object_stream[str](64)

    def __aiter__(self) -> AsyncIterator[str]:
        threading.Thread(target=self._read, name="judgevet-mcp_stdin", daemon=True).start()
        return self._receive

    def end(self) -> None:
        """Ends the lines here, as if stdin had ended. For a signal handler, on the loop's own thread."""
        cast(asyncio.AbstractEventLoop, self._token.native_token).call_soon_threadsafe(self._send.close)

    def _read(self) -> None:
        pending: list[bytes] = []
        try:
            while chunk := _read_chunk(self._descriptor):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    self._deliver(b"".join([*pending, line]))
                    pending.clear()
                pending.append(rest)
            if any(pending):
                self._deliver(b"".join(pending))
            anyio.from_thread.run_sync(self._send.close, token=self._token)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.RunFinishedError):
            return  # the session ended first

    def _deliver(self, line: bytes) -> None:
        anyio.from_thread.run(self._send.send, line.decode("utf-8", "replace"), token=self._token)


def _read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""  # the host took stdin away: the same as its end


def _claim_stdin() -> int:
    """A descriptor of its own for the wire; descriptor 0 then reads nothing, for whoever else reads it."""
    wire = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return wire


async def serve_stdio(
    server: Server[Any], *, stopping: Stopping | None = None, drain_seconds: float = DRAIN_SECONDS
) -> None:
    """Serves one session until stdin ends or a signal stops it, and answers what was admitted."""
    session = _Session(drain_seconds)
    wire = _claim_stdin()
    lines = _StdinLines(wire)

    def stop() -> None:
        session.signalled = True
        lines.end()

    if stopping is not None:
        stopping.on_stop(stop)
    try:
        # The transport only iterates over its stdin.
        async with stdio_server(stdin=cast(Any, lines)) as (read, write):
            options = server.create_initialization_options()
            await server.run(_Requests(read, session), _Answers(write, session), options)
    finally:
        os.dup2(wire, 0)


def handle_signals(stopping: Stopping) -> Callable[[], None]:
    """Routes SIGINT and SIGTERM to `stopping`; returns what puts the former handlers back."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    numbers = [signal.SIGINT, signal.SIGTERM]
    former = [signal.signal(number, stopping.received) for number in numbers]

    def restore() -> None:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)

    return restore
