"""One thread for a synchronous provider: calls run on it one at a time, in arrival order."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


@dataclass(frozen=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


_Call = tuple[Future[_Outcome], Callable[[], Any]]


def ordinary(error: BaseException) -> Exception:
    """The error itself; one that would end a coroutine, a task group or the process as a RuntimeError."""
    # A future refuses StopIteration and takes a CancelledError for a wish to cancel whoever waits.
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    return RuntimeError(f"the provider raised {type(error).__name__}")


class Worker:
    """A thread of its own; a call that waits can be cancelled, a call that runs is finished first."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[_Outcome], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._turn = anyio.Lock()
        # A daemon, so that a provider that never returns cannot keep the process from ending.
        self._thread = threading.Thread(target=self._serve, name="judgevet-mcp_0", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            try:
                outcome = _Outcome(value=call())
            except BaseException as error:  # the caller gets whatever the provider raised
                outcome = _Outcome(error=error)
            future.set_result(outcome)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`, made on the thread once every earlier call has ended.

        Raises what the call raised; what is no ordinary exception comes as a RuntimeError.
        """
        async with self._turn:
            future: Future[_Outcome] = Future()
            self._calls.put((future, call))
            cancelled: asyncio.CancelledError | None = None
            waiter = asyncio.wrap_future(future)
            with anyio.CancelScope(shield=True):
                while not waiter.done():
                    try:
                        await asyncio.wait([waiter])
                    except asyncio.CancelledError as error:  # cancelled from outside anyio, maybe repeatedly
                        cancelled = error
            if cancelled is not None:
                raise cancelled
            outcome = waiter.result()
            if outcome.error is not None:
                raise ordinary(outcome.error)
            return outcome.value

    def stop(self) -> None:
        """Ends the thread after the call that runs; the thread is not waited for."""
        self._calls.put(None)


@asynccontextmanager
async def temporary_worker() -> AsyncIterator[Worker]:
    """A worker for the time of the block."""
    worker = Worker()
    try:
        yield worker
    finally:
        worker.stop()
