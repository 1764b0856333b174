"""The hosted provider: judgments from a System One service over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast

import anyio
import httpx

from judgment_engine.answers import Judgment
from judgment_engine.criteria import Question, State
from judgment_engine.providers.base import (
    JevAuthError,
    JevError,
    JevMaxTokensExceededError,
    JevRateLimitError,
    JevRequestError,
    JevResponseError,
    JevServiceError,
    ProviderError,
    ProviderUnavailableError,
    Questions,
)
from judgment_engine.providers.controls import ControlledCall, Controls
from judgment_engine.providers.disclosure import Disclosure
from judgment_engine.providers.retries import Retries, retry_after_seconds
from judgment_engine.providers.wire import (
    WireError,
    error_detail,
    parse_judgment,
    request_body,
    typed_questions,
)

DEFAULT_BASE_URL = "https://api.typesafe.ai"
DEFAULT_PATH = "/v1/systemone"
CONNECT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
REQUEST_ID_HEADER = "x-typesafe-request-id"

_TOO_LARGE = f"Response is larger than {MAX_RESPONSE_BYTES} bytes"

logger = logging.getLogger(__name__)

# The id sent under `Service.request_id_header` for the calls of the current context.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """Where the service is and how to talk to it; times in seconds.

    `timeout` bounds one read or write, `deadline` the whole call with its waiting and retries.
    `confidence="recompute"` derives confidence from the probabilities. At any other path than the usual one
    probabilities, confidence and legends may be missing from answers and are computed.
    """

    key: str = field(repr=False)
    base_url: str = DEFAULT_BASE_URL
    path: str = DEFAULT_PATH
    timeout: float = 30.0
    deadline: float = 45.0
    max_concurrency: int = 8
    auth_header: str = "Authorization"
    auth_scheme: str = "Bearer"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id_header: str | None = None
    proxy: str | None = field(default=None, repr=False)
    verify: bool | ssl.SSLContext = True
    confidence: Literal["service", "recompute"] = "service"
    retries: Retries = field(default_factory=Retries)

    @property
    def url(self) -> str:
        """The address judgments are asked at; a path in the base URL is kept."""
        return self.base_url.rstrip("/") + "/" + self.path.lstrip("/")


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def request_id(self) -> str | None:
        value = self.headers.get(REQUEST_ID_HEADER)
        return value if value is not None and re.fullmatch(r"[!-~]{1,128}", value) else None

    @property
    def suffix(self) -> str:
        identity = f", request id {self.request_id}" if self.request_id else ""
        return f" (status {self.status}{identity})"


class HostedProvider:
    """An asynchronous port on one pooled connection; use it on one event loop and close it there.

    Calls run at once up to the service's `max_concurrency` and wait in arrival order beyond it. A waiting
    call that is cancelled is never sent; a running one is finished, counted and recorded before the
    cancellation goes on.
    """

    def __init__(self, service: Service, controls: Controls | None = None) -> None:
        self._service = service
        self._controls = controls or Controls()
        self._turns = asyncio.Semaphore(service.max_concurrency)
        scheme = f"{service.auth_scheme} " if service.auth_scheme else ""
        self._client = httpx.AsyncClient(
            headers=[
                ("Accept", "*/*"),
                ("Accept-Encoding", "gzip, deflate"),
                ("Connection", "keep-alive"),
                ("User-Agent", f"judgment-engine/{version('judgment-engine')}"),
                (service.auth_header, scheme + service.key),
                ("Content-Type", "application/json"),
                *((name.lower(), value) for name, value in service.headers.items()),
            ],
            # A wait without end is left to the deadline.
            timeout=httpx.Timeout(
                service.timeout if 0 < service.timeout < float("inf") else None, connect=CONNECT_SECONDS
            ),
            limits=httpx.Limits(
                max_connections=service.max_concurrency, max_keepalive_connections=service.max_concurrency
            ),
            proxy=service.proxy,
            verify=service.verify,
            # Judgments are independent of each other: nothing the service sets comes back to it.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def system_one(self, state: State, questions: Questions, model: str) -> Judgment:
        """The service's judgment.

        Raises JevError, ProviderRequestError when the redactor fails, ProviderUnavailableError once closed.
        """
        if self._client.is_closed:
            raise ProviderUnavailableError("The provider is closed")
        deadline = asyncio.get_running_loop().time() + self._service.deadline
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError:
            with self._controls.call(state, questions, model):
                raise JevServiceError(
                    f"{self._deadline_text()} while the call waited its turn; nothing was sent"
                ) from None
        try:
            return await run_to_end(self._judge(state, questions, model, deadline))
        finally:
            self._turns.release()

    async def aclose(self) -> None:
        """Closes the pooled connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _judge(self, state: State, questions: Questions, model: str, deadline: float) -> Judgment:
        call: ControlledCall | None = None
        error_type: str | None = None
        try:
            with self._controls.call(state, questions, model) as call:
                if self._controls.redact is not None:
                    # A redactor may be slow, so it must not hold up the other calls.
                    call.state = await asyncio.to_thread(self._controls.redacted, state)
                typed = typed_questions(questions)
                body = request_body(call.state, typed, model)
                return await self._attempts(call, body, typed, deadline)
        except ProviderError as error:
            error_type = type(error).__name__
            raise
        finally:
            if call is not None:
                _log_call(call, model, len(questions), error_type)

    async def _attempts(
        self, call: ControlledCall, body: bytes, questions: Mapping[str, Question], deadline: float
    ) -> Judgment:
        retries = self._service.retries
        disclosure = Disclosure(call.state, self._service.key, self._service.url)
        clock = asyncio.get_running_loop().time
        attempt = 0
        while True:
            attempt += 1
            if clock() >= deadline:  # a slow redactor, or a wait that ended late
                raise JevServiceError(f"{self._deadline_text()}; nothing more was sent")
            call.claim()
            wish: float | None = None
            try:
                reply = await self._send(body, deadline)
            except _Unreached as error:
                failure = JevServiceError(disclosure.without_secrets(str(error)))
                again = retries.transport and not error.final
            else:
                call.status_code, call.request_id = reply.status, reply.request_id
                if 200 <= reply.status <= 299:
                    return call.answered(self._parse(reply, questions, disclosure))
                failure = _status_error(reply, disclosure)
                again = retries.covers_status(reply.status)
                wish = retry_after_seconds(reply.headers)
            if not again or attempt >= retries.max_attempts:
                raise failure
            delay = retries.delay(attempt, wish)
            if clock() + delay >= deadline:
                raise failure
            await asyncio.sleep(delay)

    async def _send(self, body: bytes, deadline: float) -> _Reply:
        headers: dict[str, str] = {}
        name, value = self._service.request_id_header, request_id.get()
        if name is not None and value is not None:
            headers[name] = value
        try:
            async with asyncio.timeout_at(deadline):
                async with self._client.stream(
                    "POST", self._service.url, content=body, headers=headers
                ) as response:
                    content = bytearray()
                    try:
                        async for part in response.aiter_bytes():
                            content += part
                            if len(content) > MAX_RESPONSE_BYTES:
                                raise _Unreached(_TOO_LARGE, final=True)
                    except httpx.DecodingError:
                        raise _Unreached("Response is not encoded as it says", final=True) from None
                    return _Reply(response.status_code, response.headers, bytes(content))
        except TimeoutError:
            raise _Unreached(self._deadline_text(), final=True) from None
        except httpx.TimeoutException:
            raise _Unreached("timed out") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _Unreached(_transport_text(error)) from None

    def _parse(self, reply: _Reply, questions: Mapping[str, Question], disclosure: Disclosure) -> Judgment:
        recompute = self._service.confidence == "recompute"
        elsewhere = self._service.path.strip("/") != DEFAULT_PATH.strip("/")
        try:
            return parse_judgment(reply.content, questions, fill=recompute or elsewhere, recompute=recompute)
        except WireError as error:
            raise JevResponseError(
                disclosure.without_quotations(str(error)) + reply.suffix,
                status_code=reply.status,
                request_id=reply.request_id,
            ) from None

    def _deadline_text(self) -> str:
        return f"The deadline of {self._service.deadline:g} s passed"


class _Unreached(Exception):
    """An attempt without a usable answer; `final` when another one would not help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


async def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; when cancelled, even repeatedly, it is finished first."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    # anyio repeats a cancellation until it takes effect; the shield keeps that from spinning.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen, so that it is not reported as forgotten
        raise cancelled
    return task.result()


def _status_error(reply: _Reply, disclosure: Disclosure) -> JevError:
    kind, detail = error_detail(reply.content)
    status = reply.status
    if not 300 <= status <= 599:
        text = f"Unexpected status {status}"
    else:
        family = {3: "Redirect response", 4: "Client error", 5: "Server error"}[status // 100]
        # The standard phrase, whatever the service put on its status line.
        text = f"{family} '{status} {httpx.codes.get_reason_phrase(status)}'"
    if detail is not None:
        text += f"; {disclosure.without_state(detail)}"
    if status in (401, 403):
        error = JevAuthError
    elif status == 429:
        error = JevRateLimitError
    elif 400 <= status <= 499:
        error = JevMaxTokensExceededError if kind == "max_tokens_exceeded" else JevRequestError
    elif 500 <= status <= 599:
        error = JevServiceError
    else:
        error = JevError
    return error(text + reply.suffix, status_code=status, request_id=reply.request_id)


def _transport_text(error: BaseException) -> str:
    # The library wraps what the system said, some of it with the address, so the cause is looked for.
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        inner = _first_of_group(cause)
        cause = inner or cause.__cause__ or cause.__context__
    for found in reversed(seen):
        if isinstance(found, ssl.SSLError | socket.gaierror):
            return str(found)
        if isinstance(found, OSError) and found.errno is not None:
            return f"[Errno {found.errno}] {os.strerror(found.errno)}"
    return str(error) or type(error).__name__


def _first_of_group(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return None


_PUBLIC_MODEL = re.compile(r"jev-(latest|preview|\d+\.\d+\.\d+)")


def _public(model: str | None) -> str | None:
    # A model name is free text that a caller's configuration may have put anything in.
    return model if model is not None and len(model) <= 64 and _PUBLIC_MODEL.fullmatch(model) else None


def _log_call(call: ControlledCall, model: str, question_count: int, error_type: str | None) -> None:
    judgment = call.judgment
    logger.debug(
        "http.call",
        extra={
            "model": _public(model),
            "question_count": question_count,
            "status_code": call.status_code,
            "outcome": "success" if judgment is not None else "error",
            "error_type": error_type,
            "resolved_model": _public(judgment.model) if judgment is not None else None,
            "input_tokens": judgment.usage.input_tokens if judgment is not None else None,
            "output_tokens": judgment.usage.output_tokens if judgment is not None else None,
            "request_id": call.request_id,
        },
    )
