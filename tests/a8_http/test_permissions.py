"""The permission matrix: every tool and REST path with every set of permissions a key can have."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from a8_http.principals import PERMISSIONS

INFER, EXPLAIN, TRAIN = PERMISSIONS
SETS = [list(chosen) for size in (1, 2, 3) for chosen in combinations(PERMISSIONS, size)]

SYSTEM = {"role": "system", "content": "Is it late?"}
PLAIN = {"input": [SYSTEM, {"role": "user", "content": "It came today."}], "format": {"type": "boolean"}}
CITED = {
    "input": [
        {"role": "system", "content": "Is it late? Show the precedents."},
        {"role": "user", "content": "It came today."},
    ],
    "format": {"type": "boolean"},
}
RECALL = {"input": "What have I taught you about refunds?"}
LESSON = {**PLAIN, "answer": True}

# What is called, and the permissions it needs in the order they are checked.
TOOL_CALLS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "judge": ("judge", PLAIN, (INFER,)),
    "judge with precedents": ("judge", CITED, (INFER, EXPLAIN)),
    "recall": ("judge", RECALL, (EXPLAIN,)),
    "teach": ("teach", LESSON, (TRAIN,)),
    "teach a proposal": ("teach", {"input": "Late parcels go to shipping."}, (TRAIN,)),
    "retract": ("retract", PLAIN, (TRAIN,)),
}
LISTS = {"/v1/examples": EXPLAIN, "/v1/versions": EXPLAIN}
TEST = {"cases": [LESSON]}


def missing(held: Sequence[str], needed: Sequence[str]) -> str | None:
    """The permission that a refusal names."""
    return next((permission for permission in needed if permission not in held), None)


def named(call: str, held: Sequence[str]) -> str | None:
    _, _, needed = TOOL_CALLS[call]
    if call == "recall" and not {INFER, EXPLAIN} & set(held):
        return INFER  # refused before the request is read
    return missing(held, needed)


@pytest.fixture(scope="module")
def organization(server: Any) -> str:
    return server.organization()


@pytest.mark.parametrize("held", SETS, ids=" ".join)
@pytest.mark.parametrize("call", TOOL_CALLS)
def test_a_tool_runs_for_its_permissions_only(
    server: Any, organization: str, held: list[str], call: str
) -> None:
    name, arguments, _ = TOOL_CALLS[call]
    key = server.key(organization, held)
    lacking = named(call, held)
    over_mcp = server.call(key, name, arguments).result
    over_rest = server.rest(key, "POST", f"/v1/{name}", arguments)
    text = f"This request needs the {lacking} permission."
    if lacking is None:
        # "Nothing to read" is the proposal's own refusal: the permission was there.
        assert over_rest.status_code in (200, 400)
        assert "permission" not in over_mcp["content"][0]["text"]
    else:
        assert over_mcp["isError"] is True
        assert over_mcp["content"][0]["text"] == text
        assert over_rest.status_code == 403
        assert over_rest.json()["error"] == {"type": "permission_denied", "field": None, "message": text}


@pytest.mark.parametrize("held", SETS, ids=" ".join)
@pytest.mark.parametrize("path", LISTS)
def test_a_list_needs_explain(server: Any, organization: str, held: list[str], path: str) -> None:
    response = server.rest(server.key(organization, held), "GET", path)
    assert response.status_code == (200 if LISTS[path] in held else 403), response.text


@pytest.mark.parametrize("held", SETS, ids=" ".join)
def test_testing_needs_infer(server: Any, organization: str, held: list[str]) -> None:
    response = server.rest(server.key(organization, held), "POST", "/v1/test", TEST)
    assert response.status_code == (200 if INFER in held else 403), response.text


def test_every_path_of_the_openapi_document_is_in_this_matrix(server: Any) -> None:
    document = server.http.get(server.url + "/openapi.json").json()
    called = {f"/v1/{name}" for name, _, _ in TOOL_CALLS.values()} | set(LISTS) | {"/v1/test"}
    assert set(document["paths"]) == called
