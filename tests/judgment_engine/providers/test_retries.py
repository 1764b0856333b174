"""Which failures are tried again, and after how long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.providers.retries import Retries, retry_after_seconds

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@given(st.integers(1, 2000), st.floats(0, 60), st.floats(0, 60))
def test_a_delay_doubles_up_to_its_maximum_less_a_quarter_at_random(
    attempt: int, base: float, most: float
) -> None:
    delay = Retries(base_delay=base, max_delay=most).delay(attempt)
    ceiling = min(most, base * 2.0 ** min(attempt - 1, 64))
    assert 0.75 * ceiling <= delay <= ceiling


def test_the_services_wish_is_followed_up_to_the_maximum() -> None:
    retries = Retries(base_delay=0.5, max_delay=5.0)
    assert retries.delay(1, 2.5) == 2.5
    assert retries.delay(1, 600.0) == 5.0
    assert retries.delay(3, 0.0) == 0.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "2", "retry-after-ms": "soon"}, 2.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:07 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_the_wish_is_read_from_either_header(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "covered"),
    [
        (408, True),
        (429, True),
        (500, True),
        (529, True),
        (599, True),
        (400, False),
        (401, False),
        (404, False),
        (301, False),
        (600, False),
    ],
)
def test_408_429_and_5xx_are_worth_another_attempt(status: int, covered: bool) -> None:
    assert Retries().covers_status(status) is covered
