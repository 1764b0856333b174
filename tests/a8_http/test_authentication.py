"""API keys at the border: challenges, revocation, expiry, and what a wrong key is told."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from a8_http.principals import create_key, list_keys, revoke_key

PATHS = [
    ("POST", "/mcp"),
    ("POST", "/mcp/"),
    ("POST", "/v1/judge"),
    ("POST", "/v1/teach"),
    ("POST", "/v1/retract"),
    ("POST", "/v1/test"),
    ("GET", "/v1/examples"),
    ("GET", "/v1/versions"),
]
INVALID = [
    "Bearer a8_AAAAAAAAAAAA_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "Bearer nonsense",
    "Bearer",
    "Basic dXNlcjpwYXNz",
    "Bearer \xff\xfe",
    "Bearer " + "a" * 5000,
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_key_is_challenged_without_an_error_code(server: Any, method: str, path: str) -> None:
    response = server.rest(None, method, path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Bearer realm="A8"'
    assert response.json()["error"]["type"] == "unauthenticated"


@pytest.mark.parametrize("header", INVALID)
@pytest.mark.parametrize(("method", "path"), [PATHS[0], PATHS[2], PATHS[6]])
def test_a_wrong_key_is_challenged_as_invalid(server: Any, method: str, path: str, header: str) -> None:
    response = server.http.request(
        method, server.url + path, headers={"authorization": header.encode("latin-1")}
    )
    assert response.status_code == 401
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    assert response.json()["error"]["message"].startswith("Authorization must carry a valid API key")


def test_two_authorization_headers_are_refused(server: Any) -> None:
    key = server.key()
    response = server.http.get(
        server.url + "/v1/examples",
        headers=[("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")],
    )
    assert response.status_code == 401


def test_the_scheme_is_read_in_any_case(server: Any) -> None:
    response = server.http.get(
        server.url + "/v1/examples", headers={"authorization": f"bearer {server.key()}"}
    )
    assert response.status_code == 200


def test_a_right_prefix_with_a_wrong_secret_is_refused(server: Any) -> None:
    key = server.key()
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    assert server.rest(wrong, "GET", "/v1/examples").status_code == 401


def test_a_revoked_key_stops_at_once(server: Any) -> None:
    key = create_key(server.store, server.organization(), "to revoke")
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 200
    assert revoke_key(server.store, key.id) is True
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 401
    assert server.rpc(key.secret, "tools/list").status == 401


def test_a_remembered_key_stops_within_the_time_that_is_set(server_with: Callable[..., Any]) -> None:
    server = server_with(key_cache_seconds=0.5)
    key = create_key(server.store, server.organization(), "to revoke")
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 200
    revoke_key(server.store, key.id)
    time.sleep(0.6)
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 401


def test_an_expired_key_is_refused(server: Any) -> None:
    key = create_key(server.store, server.organization(), "short", expires_in=1)
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 200
    time.sleep(1.2)
    assert server.rest(key.secret, "GET", "/v1/examples").status_code == 401


def test_a_key_records_when_it_was_used(server: Any) -> None:
    organization = server.organization()
    key = create_key(server.store, organization, "used")
    assert list_keys(server.store, organization)[0]["last_used_at"] is None
    server.rest(key.secret, "GET", "/v1/examples")
    assert abs(list_keys(server.store, organization)[0]["last_used_at"] - time.time()) < 5
