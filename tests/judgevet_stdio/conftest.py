"""Real judgevet-mcp processes over stdio, with a scripted provider or the command's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_runner.stdio import ENVELOPE, LEGACY, StdioServer

LAUNCHER = Path(__file__).with_name("scripted_port.py")


class Session:
    """One open session: calls by tool name, in either protocol era."""

    envelope = ENVELOPE

    def __init__(self, server: StdioServer, era: str, record: Path, script: Path = Path(os.devnull)) -> None:
        self.server = server
        self.era = era
        self._record = record
        self._script = script

    def behave(self, **behaviour: Any) -> None:
        """Changes what the provider does from its next call on."""
        self._script.write_text(json.dumps(behaviour), encoding="utf-8")

    def open(self) -> dict[str, Any]:
        if self.era == "modern":
            return self.answer(self.server.request("server/discover", {"_meta": ENVELOPE}))
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client}
        answer = self.answer(self.server.request("initialize", params))
        self.server.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return answer

    def send(self, tool: str, **arguments: Any) -> int:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self.era == "modern":
            params["_meta"] = ENVELOPE
        return self.server.request("tools/call", params)

    def cancel(self, number: int) -> None:
        params: dict[str, Any] = {"requestId": number}
        if self.era == "modern":
            params["_meta"] = ENVELOPE
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self.server.send(json.dumps(notification))

    def answer(self, number: int, seconds: float = 30) -> dict[str, Any]:
        message = self.server.wait(number, seconds)
        assert message is not None, f"no answer to {number}: {self.server.errors()}"
        return message

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call that is answered with one."""
        return self.answer(self.send(tool, **arguments))["result"]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What happened to the provider, oldest first."""
        lines = self._record.read_text(encoding="utf-8").splitlines() if self._record.exists() else []
        events = [json.loads(line) for line in lines]
        return [event for event in events if not names or event["event"] in names]


StartSession = Callable[..., Session]


def environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.upper().startswith(("JEV", "TYPESAFE"))
    }
    return {**kept, **settings}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartSession]:
    """Starts a server with a scripted provider and opens a session."""
    servers: list[StdioServer] = []

    def started(
        kind: str = "port",
        era: str = "legacy",
        opened: bool = True,
        options: dict[str, Any] | None = None,
        behaviour: dict[str, Any] | None = None,
        delay: float = 0,
    ) -> Session:
        record = tmp_path / f"record-{len(servers)}.jsonl"
        script = tmp_path / f"provider-{len(servers)}.json"
        script.write_text(json.dumps({"kind": "ok", "delay": delay, **(behaviour or {})}), encoding="utf-8")
        scripted = environment(
            SCRIPTED_KIND=kind,
            SCRIPTED_PROVIDER=str(script),
            SCRIPTED_OPTIONS=json.dumps(options or {}),
            SCRIPTED_RECORD=str(record),
        )
        server = StdioServer([sys.executable, str(LAUNCHER)], scripted)
        servers.append(server)
        session = Session(server, era, record, script)
        if opened:
            session.open()
        return session

    yield started
    for server in servers:
        server.stop()


@pytest.fixture
def start_command() -> Iterator[Callable[..., StdioServer]]:
    """Starts the installed judgevet-mcp with arguments and settings."""
    servers: list[StdioServer] = []
    command = str(Path(sys.executable).with_name("judgevet-mcp"))

    def started(*arguments: str, **settings: str) -> StdioServer:
        servers.append(StdioServer([command, *arguments], environment(**settings)))
        return servers[-1]

    yield started
    for server in servers:
        server.stop()
