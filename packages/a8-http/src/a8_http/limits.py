"""How often a key and an organization may call; counted in this process."""

import math
import time
from collections.abc import Sequence

from limits import RateLimitItem
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

# Counters kept before those whose time is over are looked for.
_MOST_COUNTERS = 10_000


class Counters(MemoryStorage):
    """Counters in memory, forgotten as they are counted.

    The storage's own way is a thread that it starts up to a hundred times a second: a tenth of a call's CPU.
    """

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """The counter after adding `amount`; it starts at 0 and is forgotten after `expiry` seconds."""
        if len(self.storage) >= _MOST_COUNTERS:
            for known in list(self.storage):
                self.get(known)  # forgets it when its time is over
        self.get(key)
        if key not in self.storage:
            self.expirations[key] = time.time() + expiry
        self.storage[key] += amount
        return self.storage[key]


class RateLimits:
    """Two limits for each call: the key's and its organization's. For one thread, the event loop's."""

    def __init__(
        self, key_rates: Sequence[RateLimitItem], organization_rates: Sequence[RateLimitItem]
    ) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(Counters())
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
