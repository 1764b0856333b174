"""The REST interface: bodies, lists, statuses of the framework, and its OpenAPI document."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import validate

QUESTION = {"input": "Is it late? It came today.", "format": {"type": "boolean"}}


@pytest.mark.parametrize(
    "body", ["", "x", "[]", "7", '"input"', "null", '{"input": NaN}', "[" * 100_000, "\xff"]
)
def test_a_body_that_is_no_json_object_is_refused(server: Any, body: str) -> None:
    response = server.rest(server.key(), "POST", "/v1/judge", content=body.encode("latin-1"))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "type": "invalid_request",
        "field": "body",
        "message": 'body must be a JSON object, such as {"input": "Is it late?"}.',
    }


def test_a_body_over_the_limit_is_refused_before_it_is_read(server: Any) -> None:
    key = server.key()
    long = json.dumps({"input": "a" * server.settings.max_request_bytes})
    assert server.rest(key, "POST", "/v1/judge", content=long).status_code == 413
    chunks = (long[place : place + 65536].encode() for place in range(0, len(long), 65536))
    response = server.rest(key, "POST", "/v1/judge", content=chunks)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/judge", 405),
        ("DELETE", "/v1/examples", 405),
    ],
)
def test_other_paths_and_methods_get_an_error_body(server: Any, method: str, path: str, status: int) -> None:
    response = server.rest(server.key(), method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"type", "field", "message"}


def test_examples_are_listed_a_hundred_a_page(server: Any) -> None:
    lessons = [
        {
            "input": f"Is it late? It came after {days} days.",
            "format": {"type": "boolean"},
            "answer": days > 3,
        }
        for days in range(105)
    ]
    key = server.taught(lessons)
    first = server.rest(key, "GET", "/v1/examples").json()
    assert len(first["examples"]) == 100
    second = server.rest(key, "GET", "/v1/examples", params={"cursor": first["next"]}).json()
    assert second["next"] is None
    listed = first["examples"] + second["examples"]
    assert [
        {name: value for name, value in one.items() if name != "recorded_at"} for one in listed
    ] == lessons


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 40, "1.5.2", "²"])
@pytest.mark.parametrize("path", ["/v1/examples", "/v1/versions"])
def test_a_cursor_that_no_page_gave_is_refused(server: Any, path: str, cursor: str) -> None:
    response = server.rest(server.key(), "GET", path, params={"cursor": cursor})
    assert response.status_code == 400
    assert response.json()["error"]["field"] == "cursor"


def test_versions_are_named_so_that_they_can_be_asked(server: Any) -> None:
    key = server.taught([{**QUESTION, "answer": False}])
    listed = server.rest(key, "GET", "/v1/versions").json()
    assert listed["versions"]
    for version in listed["versions"]:
        response = server.rest(key, "POST", "/v1/judge", {**QUESTION, "model": version["model"]})
        assert response.status_code == 200
        assert response.json()["model"].split("@")[1] == version["model"].split("@")[1]


def test_the_openapi_document_is_valid_and_describes_every_answer(server: Any) -> None:
    document = server.http.get(server.url + "/openapi.json").json()
    validate(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert {"200", "400", "401", "403", "413", "429", "500"} <= set(operation["responses"]), (
                path,
                method,
            )
            assert operation["summary"]
            assert operation["description"]


def test_the_page_shows_every_operation_and_schema_and_loads_nothing(server: Any) -> None:
    document = server.http.get(server.url + "/openapi.json").json()
    response = server.http.get(server.url + "/docs")
    assert response.status_code == 200
    assert "default-src 'none'" in response.headers["content-security-policy"]
    for name in [*document["paths"], *document["components"]["schemas"]]:
        assert name in response.text
    assert "<script" not in response.text
    assert "src=" not in response.text
    named = set(re.findall(r'href="#(\w+)"', response.text))
    assert named <= set(document["components"]["schemas"])


@pytest.mark.parametrize("name", ["judge", "teach", "retract", "test", "examples", "versions"])
def test_answers_fit_the_schemas_of_the_document(server: Any, ticket_key: str, name: str) -> None:
    document = server.http.get(server.url + "/openapi.json").json()
    listing = name in ("examples", "versions")
    schema = f"{name.capitalize()}{'Page' if listing else 'Result'}"
    validator = jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    )
    bodies = {
        "judge": [QUESTION, {"input": "What have I taught you about parcels?"}],
        "teach": [{"input": "Double-charge tickets go to billing."}],
        "retract": [QUESTION],
        "test": [{"cases": [{**QUESTION, "answer": True}], "model": "a8:80"}],
    }
    if listing:
        validator.validate(server.rest(ticket_key, "GET", f"/v1/{name}").json())
    for body in bodies.get(name, []):
        response = server.rest(ticket_key, "POST", f"/v1/{name}", body)
        assert response.status_code == 200, response.text
        validator.validate(response.json())
