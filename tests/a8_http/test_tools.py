"""tools/list on every protocol version, and what a client learns of the server."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jsonschema_rs
import pytest
from a8_http import tools
from a8_http.pins import pins
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

CONTRACT = Path(__file__).parents[2] / "contracts" / "a8"
VERSIONS = [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS]


def fixtures(name: str) -> list[Any]:
    cases = [json.loads(line) for line in (CONTRACT / "fixtures" / name).read_text("utf-8").splitlines()]
    return [pytest.param(case, id=case["case"]) for case in cases]


@pytest.mark.parametrize("version", VERSIONS)
def test_tools_list_is_the_pinned_one_on_every_protocol_version(
    server: Any, ticket_key: str, version: str
) -> None:
    listed = server.rpc(ticket_key, "tools/list", era=version).result["tools"]
    assert listed == json.loads((CONTRACT / "tools.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["tools.json", "openapi.json", "instructions.txt", "taught.jsonl"])
def test_the_pins_are_what_the_code_says(name: str) -> None:
    assert (CONTRACT / name).read_text("utf-8") == pins()[name], "make contracts rewrites the pins"


@pytest.mark.parametrize("case", fixtures("definitions.jsonl"))
def test_every_documented_definition_is_on_the_wire(
    server: Any, ticket_key: str, case: dict[str, Any]
) -> None:
    listed = {tool["name"]: tool for tool in server.rpc(ticket_key, "tools/list").result["tools"]}
    for name in case["tools"]:
        member = listed[name][case["at"]]
        if "is" in case:
            assert member == case["is"]
        else:
            assert {key: member.get(key) for key in case["holds"]} == case["holds"]


def test_a_tool_says_nothing_beyond_the_documented_members(server: Any, ticket_key: str) -> None:
    for tool in server.rpc(ticket_key, "tools/list").result["tools"]:
        optional = {"outputSchema"} if tool["name"] == "judge" else set[str]()
        assert set(tool) == {"name", "description", "inputSchema", "annotations"} | optional
        assert set(tool["inputSchema"]) == {"$defs", "type", "properties", "required", "additionalProperties"}
        assert set(tool["annotations"]) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }


def test_the_schemas_are_valid_and_refer_to_nothing_outside_themselves() -> None:
    for tool in tools.TOOLS:
        for member in ("inputSchema", "outputSchema"):
            if member in tool:
                jsonschema_rs.Draft202012Validator(tool[member])
                written = json.dumps(tool[member])
                assert written.count('"$ref"') == written.count('"$ref": "#/$defs/')


def test_the_instructions_put_limits_first_and_stay_short() -> None:
    assert tools.INSTRUCTIONS.startswith("Limits first.")
    assert len(tools.INSTRUCTIONS) < 1500


async def greet(url: str, key: str, mode: str) -> tuple[str, str | None, str]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        assert client.server_info is not None
        return client.server_info.name, client.instructions, client.protocol_version


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_a_client_of_either_era_learns_name_and_instructions_at_both_spellings(
    server: Any, ticket_key: str, mode: str, version: str, path: str
) -> None:
    assert anyio.run(greet, server.url + path, ticket_key, mode) == ("A8", tools.INSTRUCTIONS, version)
