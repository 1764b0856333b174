"""The installed command with the hosted provider, against the stand-in service."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract_runner.judgevet import Target, run
from contract_runner.stand_in import StandIn
from contract_runner.stdio import StdioServer

from .conftest import LAUNCHER, Session, environment

COMMAND = str(Path(sys.executable).with_name("judgevet-mcp"))
StartCommand = Callable[..., StdioServer]


@pytest.fixture
def service() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


@pytest.mark.parametrize("file", ["hosted", "controls", "evidence"])
def test_every_recorded_case_over_http_passes_in_its_eras(file: str) -> None:
    outcomes = run(Target([COMMAND], jobs=2), lambda name: name.startswith(f"{file}/"), lambda _: None)
    assert len([outcome for outcome in outcomes if outcome.status == "pass"]) > 20
    failed = [outcome for outcome in outcomes if outcome.status == "fail"]
    assert [f"{outcome.name}: {outcome.failures[0].detail}" for outcome in failed] == []


@pytest.fixture(scope="module", params=["legacy", "modern"])
def impatient(request: pytest.FixtureRequest) -> Iterator[tuple[Session, StandIn]]:
    """A session of either era whose calls may take a second, and its service."""
    with StandIn() as service:
        settings = {"JEV_API__KEY": "sk-test", "JEV_API__BASE_URL": service.url}
        server = StdioServer([COMMAND], environment(**settings, JEV_API__DEADLINE_SECONDS="1"))
        session = Session(server, request.param, Path())
        session.open()
        yield session, service
        server.stop()


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ({"kind": "reset"}, "[Errno 104] Connection reset by peer"),
        (
            {"kind": "truncate"},
            "peer closed connection without sending complete message body (received 26 bytes, expected 500)",
        ),
        ({"kind": "redirect", "location": "/x"}, "Redirect response '302 Found' (status 302)"),
        ({"kind": "drip", "interval": 0.05}, "The deadline of 1 s passed"),
    ],
    ids=["reset", "truncate", "redirect", "drip"],
)
def test_a_service_that_misbehaves_on_the_way_is_a_tool_error_and_the_next_call_works(
    impatient: tuple[Session, StandIn], behaviour: dict[str, object], text: str
) -> None:
    session, service = impatient
    service.behave(behaviour)
    result = session.call("ask_noul", state="x", instruction="y")
    assert (result["isError"], result["content"]) == (True, [{"text": text, "type": "text"}])
    service.behave({"kind": "ok"})
    assert session.call("ask_noul", state="x", instruction="y")["isError"] is False


def test_requests_from_a_file_are_all_answered_before_exit_0(
    start_command: StartCommand, service: StandIn
) -> None:
    service.behave({"kind": "ok", "delay": 0.2})
    server = start_command(JEV_API__KEY="sk-test", JEV_API__BASE_URL=service.url)
    session = Session(server, "legacy", Path())
    numbers = [server.fresh_id() for _ in range(20)]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [{"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello}]
    for number in numbers:
        call = {"name": "ask_noul", "arguments": {"state": str(number), "instruction": "y"}}
        lines.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
    server.send("\n".join(json.dumps(line) for line in lines))
    server.close_stdin()
    assert all(session.answer(number)["result"]["isError"] is False for number in numbers)
    assert server.exit_code(30) == 0
    assert service.most_at_once > 1


def test_the_embedded_provider_has_the_same_controls_and_needs_no_key(
    start_command: StartCommand, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    server = start_command(
        "--provider", "embedded", JEV_API__AUDIT_PATH=str(audit), JEV_API__SPEND_MAX_ATTEMPTS="1"
    )
    session = Session(server, "legacy", Path())
    session.open()
    assert session.call("ask_noul", state="Thanks a lot!", instruction="Is it polite?")["isError"] is False
    refused = session.call("ask_noul", state="Thanks a lot!", instruction="Is it polite?")
    assert refused["content"][0]["text"].startswith("Spend cap reached: attempts spent 1 of 1;")
    server.close_stdin()
    assert server.exit_code(30) == 0
    records = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    assert [record["error_type"] for record in records] == [None, "JevBudgetExceededError"]
    assert records[0]["resolved_model"] == "embedded-minilm-1"


@pytest.mark.parametrize("kind", ["port", "factory"])
def test_a_launchers_own_provider_gets_no_settings_cap_or_audit_file(kind: str, tmp_path: Path) -> None:
    settings = {
        "SCRIPTED_KIND": kind,
        "JEV_API__MAX_ATTEMPTS": "not a number",
        "JEV_API__SPEND_MAX_ATTEMPTS": "1",
        "JEV_API__AUDIT_PATH": str(tmp_path / "audit.jsonl"),
    }
    server = StdioServer([sys.executable, str(LAUNCHER)], environment(**settings))
    session = Session(server, "legacy", Path())
    session.open()
    for _ in range(2):
        assert session.call("ask_noul", state="x", instruction="y")["isError"] is False
    server.stop()
    assert not (tmp_path / "audit.jsonl").exists()
