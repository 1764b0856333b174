"""What a host sees of the server, and what a launcher may give it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import jsonschema_rs
import pytest
from contract_runner import cases
from judgevet_stdio import create_mcp_server, main, run_stdio
from judgevet_stdio.tools import SERVER_INSTRUCTIONS, TOOLS, server_instructions
from judgment_engine.answers import Judgment, NoulAnswer, Usage
from judgment_engine.providers.base import ProviderUnavailableError
from mcp.client.client import Client
from mcp_types import CallToolRequestParams

from .conftest import StartSession, environment

ERAS = ["legacy", "modern"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Port:
    def __init__(self) -> None:
        self.threads: list[str] = []
        self.models: list[str] = []

    def system_one(self, state: Any, questions: Any, model: str) -> Judgment:
        self.threads.append(threading.current_thread().name)
        self.models.append(model)
        return Judgment(model, Usage(), {name: NoulAnswer(0.25) for name in questions})


@pytest.mark.parametrize("era", ERAS)
def test_a_host_reads_the_pinned_tools_and_instructions(start: StartSession, era: str) -> None:
    session = start(era=era, opened=False)
    opened = session.open()["result"]
    assert opened["instructions"] == cases.instructions("judgevet") == SERVER_INSTRUCTIONS
    assert opened["capabilities"] == {"tools": {"listChanged": False}}
    params = {} if era == "legacy" else {"_meta": session.envelope}
    listed = session.answer(session.server.request("tools/list", params))["result"]["tools"]
    assert listed == TOOLS == cases.tools("judgevet")


def test_the_instructions_are_the_documented_size() -> None:
    assert len(SERVER_INSTRUCTIONS.split()) == 108
    assert len(SERVER_INSTRUCTIONS) == 730


def test_every_schema_is_closed_valid_and_described() -> None:
    def properties(schema: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("type") == "object" and "if" not in path:
                assert schema.get("additionalProperties") is False or "then" in path, path
                found += [(f"{path}.{name}", inner) for name, inner in schema["properties"].items()]
            for name, inner in schema.items():
                found += properties(inner, f"{path}.{name}")
        elif isinstance(schema, list):
            for index, inner in enumerate(schema):
                found += properties(inner, f"{path}[{index}]")
        return found

    for tool in TOOLS:
        assert len(tool["description"]) < 1500
        for side in ("inputSchema", "outputSchema"):
            jsonschema_rs.meta.validate(
                {"$schema": "https://json-schema.org/draft/2020-12/schema", **tool[side]}
            )
            assert tool[side]["additionalProperties"] is False
            for path, schema in properties(tool[side], f"{tool['name']}.{side}"):
                if ".then." not in path:
                    assert schema.get("description"), path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"instructions": "My limits.", "instructions_addendum": "Add."}, "My limits.\n\nAdd."),
        ({"instructions_addendum": "Add."}, f"{SERVER_INSTRUCTIONS}\n\nAdd."),
        ({"instructions": "", "instructions_addendum": ""}, "\n\n"),
    ],
)
def test_a_launcher_states_its_own_instructions(options: dict[str, str], text: str) -> None:
    assert (
        server_instructions(options.get("instructions_addendum"), instructions=options.get("instructions"))
        == text
    )


def test_a_launchers_instructions_and_model_reach_the_host(start: StartSession) -> None:
    session = start(opened=False, options={"model": "my-model", "instructions": "My limits."})
    assert session.open()["result"]["instructions"] == "My limits."
    session.call("ask_noul", state="x", instruction="q?")
    assert session.events("call")[0]["model"] == "my-model"


@pytest.mark.parametrize("argument", ["instructions", "instructions_addendum"])
def test_texts_that_are_no_strings_are_refused_before_serving(argument: str) -> None:
    port: Any = Port()
    texts: dict[str, Any] = {argument: 7}
    for serve in (
        lambda: create_mcp_server(port, **texts),
        lambda: main(port=port, **texts),
        lambda: anyio.run(lambda: run_stdio(port, **texts)),
    ):
        with pytest.raises(TypeError, match=f"{argument} must be a str"):
            serve()


def test_a_port_and_a_factory_together_are_refused_before_acquisition() -> None:
    with pytest.raises(ValueError, match="at most one of port or provider_factory"):
        main(port=Port(), provider_factory=lambda: pytest.fail("acquired"))


def test_an_object_that_is_no_port_is_refused_at_once() -> None:
    with pytest.raises(ProviderUnavailableError, match="callable system_one"):
        create_mcp_server(object())  # pyright: ignore[reportArgumentType] - that is the case


async def test_a_handler_called_outside_a_session_uses_a_temporary_worker() -> None:
    port = Port()
    server = create_mcp_server(port, model="m")
    entry = server.get_request_handler("tools/call")
    assert entry
    params = CallToolRequestParams(name="ask_noul", arguments={"state": "x", "instruction": "q?"})
    context: Any = SimpleNamespace()
    for _ in range(2):
        result: Any = await entry.handler(context, params)
        assert result.structured_content["noul"] == 0.25
    assert port.threads == ["judgevet-mcp_0"] * 2
    for thread in threading.enumerate():
        if thread.name == "judgevet-mcp_0":
            thread.join(5)
            assert not thread.is_alive()


async def test_one_server_serves_an_in_process_client_and_leaves_the_port_open() -> None:
    port = Port()
    server = create_mcp_server(port)
    for _ in range(2):
        async with Client(server) as client:
            result = await client.call_tool("ask_noul", {"state": "x", "instruction": "q?"})
            assert result.structured_content == {
                "noul": 0.25,
                "model": "jev-latest",
                "usage": {"input_tokens": None, "output_tokens": None},
            }
    assert port.models == ["jev-latest"] * 2


@pytest.mark.parametrize("kind", ["port", "async"])
@pytest.mark.parametrize(
    "behaviour",
    [
        {"kind": "crash", "message": "a secret of the provider"},
        {"kind": "garbage"},
        {"kind": "answers", "answers": {}},
        {
            "kind": "answers",
            "answers": {
                "noul_question": {"type": "choice", "choice": "a", "confidence": 1, "probabilities": {"a": 1}}
            },
        },
    ],
    ids=["crash", "garbage", "missing", "variant"],
)
def test_a_broken_provider_is_a_clean_internal_error_and_the_next_call_works(
    start: StartSession, kind: str, behaviour: dict[str, Any]
) -> None:
    session = start(kind, behaviour=behaviour)
    answer = session.answer(session.send("ask_noul", state="the judged text", instruction="q?"))
    assert answer["error"] == {"code": -32603, "message": "Internal error"}
    assert "error" in session.answer(session.send("ask_noul", state="x", instruction="q?"))
    errors = session.server.errors()
    assert "call failed" in errors
    assert "frames" in errors or "File" in errors
    assert "secret" not in errors
    assert "judged text" not in errors


@pytest.mark.parametrize("kind", ["port", "async"])
def test_no_kind_of_exception_ends_the_session_or_hangs_it(start: StartSession, kind: str) -> None:
    session = start(kind)
    for error in (
        "concurrent.futures.CancelledError",
        "asyncio.CancelledError",
        "StopIteration",
        "SystemExit",
    ):
        session.behave(kind="odd", error=error)
        calls = [session.send("ask_noul", state=str(i), instruction="q?") for i in range(3)]
        for call in calls:
            assert session.answer(call)["error"] == {"code": -32603, "message": "Internal error"}
    session.behave(kind="ok")
    assert session.call("ask_noul", state="x", instruction="q?")["structuredContent"]["noul"] == 0.75


def test_text_that_has_no_form_on_the_wire_costs_one_answer_and_not_the_session(start: StartSession) -> None:
    session = start()
    session.behave(kind="raise", error="ProviderUnavailableError", message="gone \udcff")
    assert session.call("ask_noul", state="x", instruction="q?")["content"][0]["text"] == "gone ?"
    session.behave(kind="ok", model="model \ud800")
    assert "error" in session.answer(session.send("ask_noul", state="x", instruction="q?"))
    session.behave(kind="ok")
    assert session.call("ask_noul", state="x", instruction="q?")["structuredContent"]["noul"] == 0.75


@pytest.mark.parametrize("era", ERAS)
def test_hostile_lines_are_answered_or_dropped_and_the_next_call_works(start: StartSession, era: str) -> None:
    session = start(era=era)
    envelope = "" if era == "legacy" else f'"_meta":{json.dumps(session.envelope)},'
    line = (
        '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{' + envelope + '"name":"ask_noul",'
        '"arguments":{"state":%s,"instruction":"q?"}}}'
    )

    def sent(state: str) -> int:
        number = session.server.fresh_id()
        session.server.send(line % (number, state))
        return number

    dropped = [sent(state) for state in ('"\\ud800"', '{"a":' * 300 + "1" + "}" * 300, '"no end')]
    session.server.send(b"\xff\xfe not text \x00")
    refused = [sent(state) for state in ("NaN", '{"a":[1,Infinity]}', "[1]", "7", "false")]
    large = sent(json.dumps("x" * 5_000_000))
    for number in refused:
        result = session.answer(number)["result"]
        assert result["isError"]
        assert result["content"][0]["text"] in (
            "state must hold finite numbers only",
            "state must be a string or an object",
        )
    assert session.answer(large)["result"]["structuredContent"]["noul"] == 0.75
    assert session.call("ask_noul", state="next", instruction="q?")["structuredContent"]["noul"] == 0.75
    for number in dropped:
        assert session.server.wait(number, 0) is None
    assert session.server.errors().count("a line on stdin was dropped") == 4
    assert session.server.impure == []


def test_the_log_quotes_no_line_at_any_level() -> None:
    settings = environment(JEV_PROVIDER="embedded", JEV_LOG__LEVEL="debug")
    command = Path(sys.executable).with_name("judgevet-mcp")
    line = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\nno JSON but a SECRET\n'
    run = subprocess.run([command], input=line, env=settings, capture_output=True, timeout=60, check=True)
    assert b"a line on stdin was dropped" in run.stderr
    assert b"SECRET" not in run.stderr


def test_importing_the_engine_loads_no_mcp() -> None:
    code = (
        "import sys, judgment_engine.policy, judgment_engine.providers.base; assert 'mcp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
