"""When a failed attempt is made again, and how long to wait before it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True)
class Retries:
    """Attempts per call, delays in seconds, and whether a transport failure is tried again.

    A judgment changes nothing on the service, so that a repeated attempt costs tokens only.
    """

    max_attempts: int = 3
    base_delay: float = 0.5
    max_delay: float = 5.0
    transport: bool = False

    def covers_status(self, status: int) -> bool:
        """Whether an answer with this status is worth another attempt: 408, 429 and 5xx."""
        return status in (408, 429) or 500 <= status <= 599

    def delay(self, attempt: int, retry_after: float | None = None) -> float:
        """Seconds to wait after the failed attempt with this number (from 1).

        The service's own wish is followed up to `max_delay`; without one the delay doubles from `base_delay`
        and is shortened by up to a quarter at random, so that callers do not return together.
        """
        if retry_after is not None:
            return min(retry_after, self.max_delay)
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 64))
        return ceiling * (1.0 - 0.25 * random.random())  # noqa: S311 - jitter, not a secret


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that a response asks for: `retry-after-ms`, else `retry-after` in seconds or as a date.

    None where there is none, or none that can be read.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000.0
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
