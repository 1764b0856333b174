"""How often a key and an organization may call; counted in this process."""

import math
import time
from collections.abc import Sequence

from limits import RateLimitItem
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter


class RateLimits:
    """Two limits for each call: the key's and its organization's."""

    def __init__(
        self, key_rates: Sequence[RateLimitItem], organization_rates: Sequence[RateLimitItem]
    ) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._key_rates = tuple(key_rates)
        self._organization_rates = tuple(organization_rates)

    def admit(self, key: str, organization: str) -> int | None:
        """Count one call; None when it may go on, else the whole seconds to wait."""
        # A key over its limit takes nothing from its organization's.
        windows = [(rate, ("key", key)) for rate in self._key_rates]
        windows += [(rate, ("organization", organization)) for rate in self._organization_rates]
        for rate, name in windows:
            if not self._limiter.hit(rate, *name):
                reset_time = self._limiter.get_window_stats(rate, *name).reset_time
                return max(1, math.ceil(reset_time - time.time()))
        return None
