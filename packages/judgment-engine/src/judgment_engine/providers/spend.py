"""The spend cap: attempts and input tokens, for the lifetime of the process."""

from __future__ import annotations

import threading

from judgment_engine.answers import Usage
from judgment_engine.providers.base import JevBudgetExceededError


class SpendCap:
    """Refuses attempts once a limit is reached; None is no limit. It never resets. Safe between threads.

    An attempt is claimed before it is made, so that attempts never exceed their limit. Tokens are known only
    after an answer, so that calls in flight may overshoot theirs. Raises ValueError for a limit below 1.
    """

    def __init__(self, max_attempts: int | None = None, max_input_tokens: int | None = None) -> None:
        for name, limit in (("max_attempts", max_attempts), ("max_input_tokens", max_input_tokens)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")
        self._max_attempts = max_attempts
        self._max_input_tokens = max_input_tokens
        self._attempts = 0
        self._input_tokens = 0
        self._lock = threading.Lock()

    @property
    def attempts(self) -> int:
        """Attempts claimed so far."""
        return self._attempts

    @property
    def input_tokens(self) -> int:
        """Input tokens counted so far."""
        return self._input_tokens

    def claim(self) -> None:
        """Claims one attempt, attempts being checked before tokens. Raises JevBudgetExceededError."""
        with self._lock:
            if self._max_attempts is not None and self._attempts >= self._max_attempts:
                raise _reached("attempts", self._attempts, self._max_attempts)
            if self._max_input_tokens is not None and self._input_tokens >= self._max_input_tokens:
                raise _reached("input_tokens", self._input_tokens, self._max_input_tokens)
            self._attempts += 1

    def count(self, usage: Usage) -> None:
        """Adds the tokens of an answered attempt; unknown counts add nothing."""
        with self._lock:
            self._input_tokens += usage.input_tokens or 0


def _reached(name: str, spent: int, limit: int) -> JevBudgetExceededError:
    return JevBudgetExceededError(
        f"Spend cap reached: {name} spent {spent} of {limit}; restart the server to continue."
    )
