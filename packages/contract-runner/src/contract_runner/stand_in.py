"""A stand-in System One service on a loopback port, for tests and contract runs.

It answers `POST <any path>` as its *behaviour* says and remembers every request.
A behaviour is a JSON object with a `kind` and that kind's members (defaults in parentheses):

    ok                                       a fixed answer of the right kind to each question
    answers   answers, usage, model          these answers; the rest of the body as in `ok`
    status    status, body (""), reason      this status; a body that is no string is sent as JSON;
                                             the reason phrase is Python's own unless given
    raw       body, status (200)             this body, byte for byte
    redirect  location, status (302)         a redirect
    close                                    the connection closed without an answer
    reset                                    the connection reset without an answer
    truncate  body (26 bytes), length (500)  a body that ends before its declared length
    hold                                     silence until the behaviour changes, then as that says
    hang      secs                           silence for that long, then a closed connection
    drip      interval (0.05)                the `ok` answer, one byte per interval in seconds
    sequence  sequence                       one behaviour per request; the last one repeats

Every behaviour may also have `delay` (seconds before it begins) and `headers` (more response headers).

In a test: `with StandIn({"kind": "ok"}) as service: ...` gives `service.url`, `service.requests`,
`service.most_at_once` and `service.behave(...)`. As a process: `python -m contract_runner.stand_in` prints
`{"url": ...}` on its first line; `PUT /stand-in/behaviour` changes the behaviour (and forgets the requests),
`GET /stand-in/requests` returns `{"requests": [...], "most_at_once": n}`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

MODEL = "jev-1.13.0"
USAGE = {"input_tokens": 120, "output_tokens": 3}

Behaviour = Mapping[str, Any]


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it arrived: header names as sent, in their order; the body as bytes."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value of a header, its name in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def to_json(self) -> dict[str, Any]:
        """The members that recorded cases compare, and the headers."""
        return {
            "method": self.method,
            "path": self.path,
            "authorization": self.header("authorization"),
            "body": self.body.decode("utf-8", "replace"),
            "headers": [list(pair) for pair in self.headers],
        }


def answer_to(question: Mapping[str, Any]) -> dict[str, Any]:
    """The fixed answer to one question of a request."""
    criteria: Any = question.get("criteria")
    match question.get("type"):
        case "choice":
            labels = list(criteria)
            rest = 0.3 / (len(labels) - 1) if len(labels) > 1 else 0.0
            probabilities = {label: round(rest, 12) for label in labels}
            probabilities[labels[0]] = 0.7 if len(labels) > 1 else 1.0
            return {
                "type": "choice",
                "choice": labels[0],
                "confidence": 0.4,
                "probabilities": probabilities,
            }
        case "score":
            last = len(criteria) - 1
            weights = {last: 0.75, last - 1: 0.25} if last else {0: 1.0}
            return {
                "type": "score",
                "score": float(sum(level * weight for level, weight in weights.items())),
                "confidence": 0.5,
                "legend": {
                    str(level): text if isinstance(text, str) else json.dumps(text)
                    for level, text in enumerate(criteria)
                },
                "probabilities": {str(level): weights.get(level, 0.0) for level in range(last + 1)},
            }
        case _:
            return {"type": "noul", "noul": 0.75}


def _ok_body(request: ReceivedRequest, behaviour: Behaviour) -> bytes:
    if "answers" in behaviour:
        answers = behaviour["answers"]
    else:
        try:
            questions = json.loads(request.body)["questions"]
            answers = {name: answer_to(question) for name, question in questions.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            answers = {}
    body = {
        "model": behaviour.get("model", MODEL),
        "usage": behaviour.get("usage", USAGE),
        "answers": answers,
    }
    return json.dumps(body).encode()


def _head(status: int, length: int, headers: Mapping[str, str], reason: str | None = None) -> bytes:
    if reason is None:  # Python 3.13 renamed the phrases of 413 and 422
        reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    lines = [f"HTTP/1.1 {status} {reason}", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


class StandIn:
    """The service in a thread of its own; a context manager, or `start()` and `stop()`."""

    def __init__(self, behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self.requests: list[ReceivedRequest] = []
        self.most_at_once = 0
        self._running = 0
        self._served = 0
        self._behaviour: Behaviour = behaviour or {"kind": "ok"}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def behave(self, behaviour: Behaviour, *, forget: bool = True) -> None:
        """Answer the coming requests this way; what was received so far is forgotten unless kept."""
        self._behaviour = behaviour
        if forget:
            self._served = 0
            self.requests = []
            self.most_at_once = self._running

    def start(self) -> Self:
        """Listen; `port` is known when this returns."""
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="stand-in", daemon=True
        )
        self._thread.start()
        if not ready.wait(10):
            raise RuntimeError("the stand-in service did not start within 10 seconds")
        return self

    def stop(self) -> None:
        """Close the listener and every connection at once, whatever is in flight."""
        if self._loop is not None and self._stop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self) -> None:
        """Serve in this thread until interrupted, printing `{"url": ...}` once."""

        def announce() -> None:
            print(json.dumps({"url": self.url}), flush=True)

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(None, announce))

    async def _serve(self, ready: threading.Event | None, announce: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._converse(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # the client went away or did not speak HTTP
            except asyncio.CancelledError:
                writer.transport.abort()
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(connected, self.host, self.port, backlog=1024, limit=1 << 16)
        self.port = server.sockets[0].getsockname()[1]
        if ready is not None:
            ready.set()
        if announce is not None:
            announce()
        await self._stop.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first = await reader.readline()
            if not first:
                return
            parts = first.decode("latin-1").split()
            if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
                writer.write(_head(400, 0, {"Connection": "close"}))
                await writer.drain()
                return
            headers: list[tuple[str, str]] = []
            while (line := (await reader.readline()).decode("latin-1").rstrip("\r\n")) != "":
                name, _, value = line.partition(":")
                headers.append((name, value.strip()))
            request = ReceivedRequest(parts[0], parts[1], tuple(headers), b"")
            length = int(request.header("content-length") or 0)
            body = await reader.readexactly(length)
            request = ReceivedRequest(parts[0], parts[1], tuple(headers), body)
            if request.path.startswith("/stand-in/"):
                self._control(request, writer)
                await writer.drain()
                continue
            self.requests.append(request)
            behaviour = self._next_behaviour()
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            try:
                keep = await self._answer(request, behaviour, writer)
            finally:
                self._running -= 1
            if not keep:
                return

    def _next_behaviour(self) -> Behaviour:
        behaviour = self._behaviour
        if behaviour["kind"] == "sequence":
            steps = behaviour["sequence"]
            behaviour = steps[min(self._served, len(steps) - 1)]
        self._served += 1
        return behaviour

    def _control(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        reply: dict[str, Any] = {}
        status = 200
        match (request.method, request.path):
            case ("PUT", "/stand-in/behaviour"):
                self.behave(json.loads(request.body))
            case ("GET", "/stand-in/requests"):
                reply = {"requests": [r.to_json() for r in self.requests], "most_at_once": self.most_at_once}
            case _:
                status = 404
        content = json.dumps(reply).encode()
        writer.write(_head(status, len(content), {}) + content)

    async def _answer(
        self, request: ReceivedRequest, behaviour: Behaviour, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection stays open for another request."""
        if delay := behaviour.get("delay"):
            await asyncio.sleep(delay)
        headers: dict[str, str] = dict(behaviour.get("headers") or {})
        status = int(behaviour.get("status", 200))
        match behaviour["kind"]:
            case "ok" | "answers":
                content = _ok_body(request, behaviour)
            case "status" | "raw":
                content = _bytes(behaviour.get("body", ""))
            case "redirect":
                status = int(behaviour.get("status", 302))
                headers["Location"] = behaviour["location"]
                content = b""
            case "close":
                return False
            case "reset":
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            case "truncate":
                content = _bytes(behaviour.get("body", '{"model":"jev-1.13.0","us'.ljust(26)))
                writer.write(_head(status, int(behaviour.get("length", 500)), headers) + content)
                await writer.drain()
                return False
            case "hold":
                while self._behaviour is behaviour:
                    await asyncio.sleep(0.01)
                return await self._answer(request, self._behaviour, writer)
            case "hang":
                await asyncio.sleep(behaviour["secs"])
                return False
            case "drip":
                content = _ok_body(request, behaviour)
                writer.write(_head(status, len(content), headers))
                for byte in content:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(behaviour.get("interval", 0.05))
                return True
            case unknown:
                raise ValueError(f"unknown behaviour kind {unknown!r}")
        if status in (204, 304):
            content = b""
        writer.write(_head(status, len(content), headers, behaviour.get("reason")) + content)
        await writer.drain()
        return True


def main(arguments: list[str] | None = None) -> int:
    """`python -m contract_runner.stand_in [--behaviour JSON] [--host H] [--port N]`"""
    parser = argparse.ArgumentParser(prog="stand-in", description="A stand-in System One service.")
    parser.add_argument("--behaviour", type=json.loads, default={"kind": "ok"}, help="JSON object")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    StandIn(options.behaviour, host=options.host, port=options.port).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
