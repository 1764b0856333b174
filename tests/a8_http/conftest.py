"""A running server, and clients that speak to it as hosts do."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from a8_http import app
from a8_http.organizations import create_organization, set_organization
from a8_http.principals import PERMISSIONS, create_key
from a8_http.settings import Settings
from a8_http.store import Store
from a8_http.tickets import teachings

MODERN = "2026-07-28"

# One line for each of thousands of calls would bury what a failing test has to say.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@dataclass
class Answer:
    """What came back over MCP: the HTTP status, and the JSON-RPC result or error."""

    status: int
    message: dict[str, Any]
    headers: httpx.Headers

    @property
    def result(self) -> dict[str, Any]:
        return self.message["result"]

    @property
    def structured(self) -> dict[str, Any]:
        assert not self.result.get("isError"), self.result
        return self.result["structuredContent"]

    @property
    def error_text(self) -> str:
        assert self.result.get("isError") is True, self.result
        assert "structuredContent" not in self.result
        (item,) = self.result["content"]
        assert item["type"] == "text"
        return item["text"]


@dataclass
class RunningServer:
    """A real uvicorn on a loopback port, with its store at hand for what an operator does."""

    url: str
    settings: Settings
    store: Store
    http: httpx.Client
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9)))

    def organization(self, **settings: Any) -> str:
        organization = create_organization(self.store, f"organization {next(self._numbers)}")
        if settings:
            set_organization(self.store, organization, **settings)
        return organization

    def key(self, organization: str | None = None, permissions: Sequence[str] = PERMISSIONS) -> str:
        """The secret of a new key; without an organization, of a new one."""
        return create_key(self.store, organization or self.organization(), "test", permissions).secret

    def rpc(
        self,
        key: str | None,
        method: str,
        params: Mapping[str, Any] | None = None,
        era: str = MODERN,
        path: str = "/mcp",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One JSON-RPC request in one era."""
        params = dict(params or {})
        sent = {"accept": "application/json, text/event-stream", "mcp-protocol-version": era}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        if era == MODERN:
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": era,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            sent["mcp-method"] = method
            if "name" in params:
                sent["mcp-name"] = str(params["name"])
        sent.update(headers or {})
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        response = self.http.post(
            self.url + path, content=body, headers={"content-type": "application/json", **sent}
        )
        message = response.json() if "json" in response.headers.get("content-type", "") else {}
        return Answer(response.status_code, message, response.headers)

    def call(self, key: str | None, tool: str, arguments: Mapping[str, Any], era: str = MODERN) -> Answer:
        return self.rpc(key, "tools/call", {"name": tool, "arguments": dict(arguments)}, era)

    def rest(self, key: str | None, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        headers |= more.pop("headers", {})
        if body is not None:
            more["content"] = json.dumps(body)
            headers.setdefault("content-type", "application/json")
        return self.http.request(method, self.url + path, headers=headers, **more)

    def taught(self, examples: Sequence[Mapping[str, Any]] | None = None, **settings: Any) -> str:
        """A key of a new organization that was taught these examples, or else the forty tickets."""
        key = self.key(self.organization(**settings))
        for arguments in teachings() if examples is None else examples:
            assert self.call(key, "teach", arguments).structured["replaced"] is False
        return key


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_server(settings: Settings) -> Iterator[RunningServer]:
    """Serve in a thread until the generator is closed."""
    server = app.server(settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server took too long to start"
        time.sleep(0.02)
    store = Store(settings.database_url)
    try:
        with httpx.Client(timeout=30) as http:
            yield RunningServer(f"http://127.0.0.1:{settings.port}", settings, store, http)
    finally:
        server.should_exit = True
        thread.join(20)
        store.close()


def settings_for(folder: Path, **changed: Any) -> Settings:
    """Settings of a server on a fresh SQLite file, with rates that no test meets by chance."""
    return Settings(
        **{
            "database_url": f"sqlite:///{folder / 'a8.sqlite3'}",
            "port": free_port(),
            "rate_limit_key": "1000000/minute",
            "rate_limit_organization": "1000000/minute",
            "key_cache_seconds": 0,
            "graceful_seconds": 2,
            **changed,
        }
    )


@pytest.fixture(scope="session")
def server(sqlite_server: RunningServer) -> RunningServer:
    """One server for every test that makes organizations of its own."""
    return sqlite_server


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    yield from run_server(settings_for(tmp_path_factory.mktemp("server")))


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def either_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server on each kind of database, for tests of what is kept there."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_server")
    else:
        url = request.getfixturevalue("new_postgresql")()
        yield from run_server(settings_for(tmp_path_factory.mktemp("server"), database_url=url))


@pytest.fixture
def server_with(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts a server with other settings."""
    running: list[Iterator[RunningServer]] = []

    def start(**changed: Any) -> RunningServer:
        generator = run_server(settings_for(tmp_path, **changed))
        running.append(generator)
        return next(generator)

    yield start
    for generator in running:
        next(generator, None)


@pytest.fixture(scope="session")
def ticket_key(server: RunningServer) -> str:
    """A key of an organization that was taught the forty tickets; no test changes its examples."""
    return server.taught()
