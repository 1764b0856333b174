"""Host and Origin checks."""

from collections.abc import Callable
from typing import Any

import pytest
from a8_http.hosts import Allowed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST:8008", 200),
        ("[::1]:8008", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost:evil", 421),
        ("localhost:80@evil.example", 421),
        ("", 421),
    ],
)
@pytest.mark.parametrize("path", ["/v1/examples", "/openapi.json", "/metrics"])
def test_only_loopback_names_are_answered_by_default(server: Any, path: str, host: str, status: int) -> None:
    response = server.rest(server.key(), "GET", path, headers={"host": host})
    assert response.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:8008", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example:80", 403),
    ],
)
def test_only_loopback_origins_are_answered_by_default(server: Any, origin: str, status: int) -> None:
    key = server.key()
    assert server.rest(key, "GET", "/v1/examples", headers={"origin": origin}).status_code == status
    assert server.rpc(key, "tools/list", headers={"origin": origin}).status == status
    assert server.rpc(key, "tools/list", era="2025-06-18", headers={"origin": origin}).status == status


def test_an_operator_names_hosts_and_origins(server_with: Callable[..., Any]) -> None:
    server = server_with(allowed_hosts="api.example.com", allowed_origins="https://app.example.com")
    key = server.key()

    def status(**headers: str) -> int:
        return server.rest(key, "GET", "/v1/examples", headers=headers).status_code

    assert status(host="api.example.com") == 200
    assert status(host="api.example.com", origin="https://app.example.com") == 200
    assert status(host="api.example.com", origin="http://localhost:1") == 403
    assert status(host="api.example.com:8443") == 421
    assert status() == 421


def test_health_is_answered_under_any_host(server: Any) -> None:
    for path in ("/healthz", "/readyz"):
        assert server.http.get(server.url + path, headers={"host": "10.1.2.3:8008"}).status_code == 200


def test_a_star_allows_everything_and_nothing_less_does() -> None:
    assert "anything" in Allowed(["*"])
    assert "example.com:80" not in Allowed(["example.com"])
    assert "example.com" not in Allowed(["example.com:*"])
    assert "example.com:80" in Allowed(["example.com:*"])
