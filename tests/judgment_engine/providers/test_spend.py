"""The spend cap."""

from __future__ import annotations

import threading

import pytest
from judgment_engine.answers import Usage
from judgment_engine.providers.base import JevBudgetExceededError
from judgment_engine.providers.spend import SpendCap

CAPPED = "Spend cap reached: {}; restart the server to continue."


def test_attempts_are_refused_once_their_limit_is_spent_and_stay_refused() -> None:
    cap = SpendCap(max_attempts=2)
    cap.claim()
    cap.claim()
    for _ in range(2):
        with pytest.raises(JevBudgetExceededError) as caught:
            cap.claim()
        assert (
            str(caught.value) == "Spend cap reached: attempts spent 2 of 2; restart the server to continue."
        )
    assert cap.attempts == 2


def test_tokens_may_overshoot_and_refuse_the_next_attempt() -> None:
    cap = SpendCap(max_input_tokens=200)
    for _ in range(2):
        cap.claim()
        cap.count(Usage(120, 3))
    with pytest.raises(JevBudgetExceededError) as caught:
        cap.claim()
    assert (
        str(caught.value)
        == "Spend cap reached: input_tokens spent 240 of 200; restart the server to continue."
    )


def test_attempts_are_checked_before_tokens_and_unknown_usage_counts_nothing() -> None:
    cap = SpendCap(max_attempts=1, max_input_tokens=1)
    cap.claim()
    cap.count(Usage(None, None))
    assert cap.input_tokens == 0
    cap.count(Usage(5, None))
    with pytest.raises(JevBudgetExceededError, match="attempts spent 1 of 1"):
        cap.claim()


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts must be at least 1, got 0"):
        SpendCap(max_attempts=0)


def test_threads_never_claim_more_than_the_limit() -> None:
    cap = SpendCap(max_attempts=1000)
    refused: list[int] = []

    def claim_many() -> None:
        for _ in range(300):
            try:
                cap.claim()
            except JevBudgetExceededError:
                refused.append(1)

    threads = [threading.Thread(target=claim_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cap.attempts == 1000
    assert len(refused) == 8 * 300 - 1000
