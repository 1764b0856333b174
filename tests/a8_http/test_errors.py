"""Every row of the table of errors: its text over MCP, its status and body over REST."""

import time
from collections.abc import Callable
from typing import Any

import pytest

QUESTION = {
    "input": [{"role": "system", "content": "Is it late?"}, {"role": "user", "content": "It came today."}]
}
LESSON = {**QUESTION, "answer": True, "format": {"type": "boolean"}}

PERMISSION = "This request needs the models:train permission."
ACCESS = "This organization does not have access to A8."
FILTERED = "This request was filtered for harmful content."


def refused(server: Any, key: str, name: str, arguments: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """The MCP text, the REST status and the REST body of one refused call."""
    text = server.call(key, name, arguments).error_text
    assert server.call(key, name, arguments, era="2025-06-18").error_text == text
    response = server.rest(key, "POST", f"/v1/{name}", arguments)
    return text, response.status_code, response.json()


def error_body(type_: str, field: str | None, message: str) -> dict[str, Any]:
    return {"error": {"type": type_, "field": field, "message": message}}


@pytest.mark.parametrize("name", ["teach", "retract"])
def test_a_key_without_the_permission_is_told_which_one(server: Any, name: str) -> None:
    key = server.key(permissions=["models:infer", "models:explain"])
    assert refused(server, key, name, QUESTION) == (
        PERMISSION,
        403,
        error_body("permission_denied", None, PERMISSION),
    )


@pytest.mark.parametrize("name", ["judge", "teach", "retract"])
def test_an_organization_without_access_gets_nothing(server: Any, name: str) -> None:
    key = server.key(server.organization(access=False))
    assert refused(server, key, name, QUESTION) == (ACCESS, 403, error_body("no_access", None, ACCESS))


@pytest.mark.parametrize("path", ["/v1/examples", "/v1/versions"])
def test_an_organization_without_access_lists_nothing(server: Any, path: str) -> None:
    response = server.rest(server.key(server.organization(access=False)), "GET", path)
    assert (response.status_code, response.json()) == (403, error_body("no_access", None, ACCESS))


def test_access_comes_before_permissions_and_permissions_before_arguments(server: Any) -> None:
    narrow = server.key(server.organization(access=False), permissions=["models:infer"])
    assert refused(server, narrow, "teach", {})[0] == ACCESS
    assert refused(server, server.key(permissions=["models:infer"]), "teach", {})[0] == PERMISSION


@pytest.mark.parametrize(
    "model", ["a8@20010101t000000z", "a8@29990101t000000z", "a8-2", "a8-1-9:80", "a8-7-0@20260715t140322z"]
)
def test_a_version_outside_the_horizons_is_not_found(server: Any, model: str) -> None:
    text, status, body = refused(server, server.key(), "judge", {**QUESTION, "model": model})
    assert (status, body) == (404, error_body("not_found", "model", text))
    assert "model" in text


@pytest.mark.parametrize("empty", ["", "   ", [], [{"role": "user", "content": ""}]])
@pytest.mark.parametrize("name", ["judge", "teach", "retract"])
def test_an_empty_input_is_refused(server: Any, name: str, empty: Any) -> None:
    text, status, body = refused(server, server.key(), name, {"input": empty})
    assert status == 400
    assert body["error"]["type"] == "invalid_request"
    assert body["error"]["message"] == text
    assert "input" in text


@pytest.mark.parametrize("tag", ["100", "120", "-1"])
def test_a_tag_outside_0_to_99_is_refused_with_one_that_passes(server: Any, tag: str) -> None:
    text = f"model's tag must be 0 to 99: a8:{tag} asks for {tag}, a8:95 asks for 95."
    assert refused(server, server.key(), "judge", {**QUESTION, "model": f"a8:{tag}"}) == (
        text,
        400,
        error_body("invalid_request", "model", text),
    )


@pytest.mark.parametrize("model", ["", "b8", "a8:", "a8:9.5", "a8@yesterday", "a8@20261399t000000z", "A8", 8])
def test_a_model_that_does_not_parse_is_refused(server: Any, model: Any) -> None:
    text, status, body = refused(server, server.key(), "judge", {**QUESTION, "model": model})
    assert (status, body) == (400, error_body("invalid_request", "model", text))


def test_a_pinned_version_still_being_fitted_asks_to_come_back(server_with: Callable[..., Any]) -> None:
    server = server_with(fit_wait=0)
    key = server.key()
    while time.time() % 1 > 0.5:  # so that the second of the teach is not over when it is asked for
        time.sleep(0.05)
    recorded_at = server.call(key, "teach", LESSON).structured["recorded_at"]
    horizon = recorded_at.replace("-", "").replace(":", "").lower()
    asked = {**QUESTION, "model": f"a8@{horizon}"}
    response = server.rest(key, "POST", "/v1/judge", asked)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "not_ready"
    text = server.call(key, "judge", asked).error_text
    assert text == response.json()["error"]["message"]
    deadline = time.monotonic() + 20
    while server.rest(key, "POST", "/v1/judge", asked).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.call(key, "judge", {**asked, "format": {"type": "boolean"}}).structured["verdict"] is True


@pytest.mark.parametrize("name", ["judge", "teach"])
def test_a_filtered_request_has_its_own_slot_and_changes_nothing(server: Any, name: str) -> None:
    key = server.key(server.organization(reasoning=True, filter_threshold=0.0001))
    arguments = LESSON if name == "teach" else QUESTION
    assert refused(server, key, name, arguments) == (FILTERED, 200, {"filtered": {"message": FILTERED}})
    assert server.rest(key, "GET", "/v1/examples").json()["examples"] == []
