"""Rates of a key and of its organization."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from a8_http import limits as limits_module
from a8_http.limits import Counters, RateLimits
from limits import parse_many


def test_a_key_over_its_rate_waits_and_takes_nothing_from_its_organization() -> None:
    rates = RateLimits(parse_many("2/minute"), parse_many("3/minute"))
    assert [rates.admit("one", "org") for _ in range(2)] == [None, None]
    for _ in range(5):
        wait = rates.admit("one", "org")
        assert wait is not None
        assert 1 <= wait <= 60
    assert rates.admit("two", "org") is None
    assert rates.admit("two", "org") is not None
    assert rates.admit("three", "other org") is None


def test_a_counter_is_forgotten_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    counters = Counters()
    monkeypatch.setattr(limits_module, "_MOST_COUNTERS", 3)
    for key in ("one", "two", "three"):
        counters.incr(key, 60)
    assert counters.incr("one", 60) == 2
    now += 61
    assert counters.incr("one", 60) == 1
    assert set(counters.storage) == {"one"}


def test_a_rate_holds_again_in_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    rates = RateLimits(parse_many("2/minute"), parse_many("100/minute"))
    assert [rates.admit("one", "org") is None for _ in range(3)] == [True, True, False]
    now += 121
    assert [rates.admit("one", "org") is None for _ in range(3)] == [True, True, False]


def test_every_interface_answers_429_with_the_seconds_to_wait(server_with: Callable[..., Any]) -> None:
    server = server_with(rate_limit_key="3/minute")
    key = server.key()
    assert server.rest(key, "GET", "/v1/examples").status_code == 200
    assert server.rpc(key, "tools/list").status == 200
    assert server.rpc(key, "tools/list", era="2025-06-18").status == 200
    for response in (
        server.rest(key, "GET", "/v1/examples"),
        server.rest(key, "POST", "/v1/judge", {"input": "Is it late?"}),
        server.rest(key, "POST", "/mcp", {}),
    ):
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.json()["error"]["type"] == "rate_limited"
    assert server.rest(server.key(), "GET", "/v1/examples").status_code == 200


def test_keys_of_one_organization_share_its_rate(server_with: Callable[..., Any]) -> None:
    server = server_with(rate_limit_organization="2/minute")
    organization = server.organization()
    one, other = server.key(organization), server.key(organization)
    assert server.rest(one, "GET", "/v1/examples").status_code == 200
    assert server.rest(other, "GET", "/v1/examples").status_code == 200
    assert server.rest(one, "GET", "/v1/examples").status_code == 429
    assert server.rest(server.key(), "GET", "/v1/examples").status_code == 200


def test_a_wrong_key_is_told_so_and_not_to_wait(server_with: Callable[..., Any]) -> None:
    server = server_with(rate_limit_key="1/minute")
    for _ in range(3):
        assert server.rest("a8_wrong", "GET", "/v1/examples").status_code == 401
