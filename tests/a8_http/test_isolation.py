"""Nothing that one organization taught reaches another, whatever the other asks."""

import json
from typing import Any

import pytest

CRITERION = "Which shelf does the specimen belong on?"
FORMAT = {"properties": {"shelf": {"enum": ["quartzite", "obsidian", "malachite"]}}}
SECRETS = ("zanzibarite", "quartzite", "obsidian", "malachite", "specimen")


def about(subject: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": CRITERION}, {"role": "user", "content": subject}]


EXAMPLES = [
    {"input": about(f"Zanzibarite sample {number} is {look}."), "format": FORMAT, "answer": {"shelf": shelf}}
    for number, (look, shelf) in enumerate(
        [("white", "quartzite"), ("black", "obsidian"), ("green", "malachite")] * 5
    )
]


@pytest.fixture(scope="module")
def server(either_server: Any) -> Any:
    return either_server


@pytest.fixture(scope="module")
def owner(server: Any) -> str:
    return server.taught(EXAMPLES)


@pytest.fixture(scope="module")
def pinned(server: Any, owner: str) -> str:
    return server.call(owner, "judge", question(0)).structured["model"]


def question(number: int) -> dict[str, Any]:
    return {key: EXAMPLES[number][key] for key in ("input", "format")}


def leaks(text: str, sent: object) -> list[str]:
    """Words of the owner's examples that an answer holds although the question did not."""
    return [word for word in SECRETS if word in text.lower() and word not in json.dumps(sent).lower()]


@pytest.fixture
def stranger(server: Any, owner: str, pinned: str) -> str:
    """A key with every permission in an organization that taught something of its own."""
    lesson = {"input": "Is the kettle on? It whistles.", "format": {"type": "boolean"}, "answer": True}
    return server.taught([lesson])


def test_an_exact_request_of_another_organization_gets_no_verdict(
    server: Any, stranger: str, pinned: str
) -> None:
    for model in ("a8:0", "a8:90"):
        for number in range(3):
            result = server.call(stranger, "judge", {**question(number), "model": model}).structured
            assert result["verdict"] is None
            assert result["abstention"]["kind"] == "unfamiliar_criterion"


def test_a_pinned_version_of_another_organization_is_not_found_or_ones_own(
    server: Any, stranger: str, pinned: str
) -> None:
    # The identifier is a time: before the stranger's organization it is not found, later it is its own.
    result = server.call(stranger, "judge", {**question(0), "model": pinned}).result
    if result.get("isError"):
        assert "model" in result["content"][0]["text"]
    else:
        assert result["structuredContent"]["verdict"] is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("judge", {"input": "What have I taught you about zanzibarite?"}),
        ("judge", {"input": "What have I taught you?"}),
        ("judge", {"input": "Which shelf? Zanzibarite sample. Show the precedents."}),
        ("judge", {"input": about("A green one. With precedents.")}),
        ("teach", {"input": "Green zanzibarite goes on the first shelf."}),
        ("teach", {"input": about("Sample 99 is green.")}),
        ("retract", {"input": about("Sample 99 is green.")}),
    ],
)
def test_no_tool_shows_what_another_organization_taught(
    server: Any, stranger: str, pinned: str, name: str, arguments: dict[str, Any]
) -> None:
    for model in ("a8", pinned):
        sent = {**arguments, "model": model} if name == "judge" else arguments
        answer = server.call(stranger, name, sent)
        assert leaks(json.dumps(answer.message), sent) == []
        response = server.rest(stranger, "POST", f"/v1/{name}", sent)
        assert leaks(response.text, sent) == []


def test_no_list_shows_what_another_organization_taught(server: Any, owner: str, stranger: str) -> None:
    everything = server.rest(owner, "GET", "/v1/examples").json()
    assert len(everything["examples"]) == len(EXAMPLES)
    for path in ("/v1/examples", "/v1/versions"):
        theirs = server.rest(owner, "GET", path).json()
        for cursor in (None, theirs.get("next"), "0", "1", "-1"):
            response = server.rest(stranger, "GET", path, params={} if cursor is None else {"cursor": cursor})
            assert leaks(response.text, "") == []


def test_a_test_run_says_nothing_of_another_organization(server: Any, stranger: str) -> None:
    sent = {"cases": [{**question(0), "answer": {"shelf": "obsidian"}}]}
    response = server.rest(stranger, "POST", "/v1/test", sent)
    assert response.status_code == 200
    assert leaks(response.text, sent) == []


def test_retracting_and_teaching_the_same_request_leaves_the_owners_alone(
    server: Any, owner: str, stranger: str
) -> None:
    asked = question(1)
    before = server.call(owner, "judge", asked).structured
    assert server.call(stranger, "retract", asked).structured == {"retracted": False}
    lesson = {**asked, "answer": {"shelf": "malachite"}}
    assert server.call(stranger, "teach", lesson).structured["replaced"] is False
    assert server.call(stranger, "retract", asked).structured == {"retracted": True}
    assert server.call(owner, "judge", asked).structured == before
    assert before["verdict"] == {"shelf": "obsidian"}
